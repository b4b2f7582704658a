# SPDX-License-Identifier: Apache-2.0
"""Jobs with mode=mps on a real GPU, for mps.py: their daemons by hami_hpc's own code, and their programs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/native"), str(ROOT / "tests/gpu")]

from tenants import KERNELS  # noqa: E402

from hami_hpc.node import acl, mounts, mps, mps_daemon, mps_processes  # noqa: E402
from hami_hpc.node.mps_daemon import Place  # noqa: E402

SECONDS = float(os.environ.get("SECONDS", "2.5"))
USER = 65534
CLIENT = Path(__file__).with_name("mps_client.py")
ANSWER_S = 40.0


class Bench:
    """What is the same for all jobs: the folder, the programs, the GPU, and what it does without MPS."""

    folder = Path("/nonexistent")
    programs = Path("/nonexistent")
    work = Path("/nonexistent")
    program = ""
    python = sys.executable
    uuid = ""
    loops = 0.0
    native_rate = 1.0
    all_sms = 1
    serial = 0
    running: ClassVar[list[subprocess.Popen[str]]] = []


bench = Bench()


def row(*cells: object) -> None:
    print("| " + " | ".join(f"{x:.2f}" if isinstance(x, float) else str(x) for x in cells) + " |", flush=True)


def head(title: str, *cells: str) -> None:
    print(f"\n## {title}\n", flush=True)
    row(*cells)
    row(*["---"] * len(cells))


class Job:
    """One job with mode=mps: in use, its daemon is there, and its programs have the environment of its steps."""

    def __init__(
        self, cores: int, mem_mib: int = 8192, *, uid: int = 0, priority: int = 0, multi_user: bool = False
    ) -> None:
        bench.serial += 1
        self.uid, self.cores, self.mem_mib, self.priority = uid, cores, mem_mib, priority
        self.place = mps.place_of(str(bench.folder), 0, uid, multi_user)
        self.member = mps_daemon.Member(bench.serial, time.time_ns(), cores, mem_mib)

    def __enter__(self) -> Job:
        self.lines = mps.hold(bench.program, self.place, bench.uuid, self.member)
        return self

    def __exit__(self, *_: object) -> None:
        self.crashes = mps.leave(bench.program, self.place, self.member)

    def environment(self, **more: str) -> dict[str, str]:
        return plain() | {
            "CUDA_MPS_PIPE_DIRECTORY": self.place.pipe,
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(self.cores),
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={self.mem_mib}M",
            "CUDA_MPS_CLIENT_PRIORITY": str(self.priority),
            **more,
        }

    def start(self, *command: str, **more: str) -> subprocess.Popen[str]:
        return start(command, self.environment(**more), self.uid)


def plain() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "HAMI_HPC_", "LD_PRE"))}
    return kept | {"CUDA_VISIBLE_DEVICES": bench.uuid, "HOME": str(bench.folder), "CUDA_CACHE_DISABLE": "1"}


def start(command: tuple[str, ...], environment: dict[str, str], uid: int = 0) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
        user=uid,
        group=uid,
        extra_groups=[],
    )
    bench.running.append(process)
    return process


def work(kind: tuple[str, ...], *more: str, seconds: float = 0) -> tuple[str, ...]:
    return (str(bench.work), kind[0], str(seconds or SECONDS), str(bench.loops), *kind[1:], *more)


def script(name: str, *arguments: str) -> tuple[str, ...]:
    """A program with PyTorch, which root's Python has."""
    return (sys.executable, str(CLIENT.with_name(name)), *arguments)


def client(*arguments: str) -> tuple[str, ...]:
    return (bench.python, str(bench.programs / CLIENT.name), *arguments)


def answer(process: subprocess.Popen[str]) -> dict[str, float]:
    """The numbers that a program prints; its status as "status" and how it ended as "error" when it fails."""
    try:
        out, errors = process.communicate(timeout=ANSWER_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return {"status": 124, "error": f"no end within {ANSWER_S:g} s"}  # type: ignore[dict-item]
    try:
        numbers: dict[str, float] = json.loads(out.splitlines()[-1])
    except (ValueError, IndexError):
        numbers = {"status": process.returncode, "error": (errors or out).strip()[-160:]}  # type: ignore[dict-item]
    return numbers


def say(numbers: dict[str, float], *names: str) -> str:
    return ", ".join(f"{name} {numbers[name]}" for name in (*names, "status", "error") if name in numbers)


def share(numbers: dict[str, float], sms: float) -> object:
    """Percent of the chip: the kernels' blocks fill the multiprocessors that the client has."""
    if "rate" not in numbers:
        return say(numbers)
    return 100 * numbers["rate"] * sms / (bench.native_rate * bench.all_sms)


def sms_of(job: Job, **more: str) -> float:
    numbers = answer(job.start(*client("sms"), **more))
    return float(numbers.get("sms", 0)) or float("nan")


def daemon_pid(place: Place) -> int:
    return mps_processes.daemons_at(place.pipe, bench.program)[0].pid


def wait_for_client(job: Job, count: int = 1) -> tuple[int, ...]:
    """The clients' pids by the daemon, once there are so many."""
    end = time.monotonic() + 10
    pids: tuple[int, ...] = ()
    while len(pids) < count and time.monotonic() < end:
        time.sleep(0.05)
        with suppress(mps_daemon.MpsError):
            pids = tuple(
                pid
                for server in mps_daemon.servers(bench.program, job.place)
                for pid in mps_daemon.clients(bench.program, job.place, server)
            )
    return pids


def _runs(path: str) -> bool:
    """Returns whether the other user can run this Python."""
    try:
        return start((path, "-c", "import ctypes, json"), plain(), USER).wait(20) == 0
    except OSError:
        return False


def _open_to_all(path: str, uid: int) -> None:
    """Stands for acl.let_enter."""
    Path(path).chmod(0o711)


def _make_folder() -> str:
    """Makes the run directory, and the one of programs, since /run may be mounted noexec. Returns what was found."""
    bench.programs = Path(tempfile.mkdtemp(prefix="mps-programs-"))
    bench.programs.chmod(0o755)
    for where in ("/run", "/dev/shm", tempfile.gettempdir()):
        with suppress(OSError):
            bench.folder = Path(tempfile.mkdtemp(prefix="mps-", dir=where))
            bench.folder.chmod(0o755)
            acl.let_enter(str(bench.folder), USER)
            os.removexattr(bench.folder, "system.posix_acl_access")
            bench.folder.chmod(0o755)
            return "access control lists"
    acl.let_enter = _open_to_all
    return "NO ACCESS CONTROL LISTS, so its directories are open to all users"


def prepare() -> None:
    """Finds the daemon's program and a directory, and measures the chip without MPS."""
    found = shutil.which(mps_processes.CONTROL_NAME)
    if not found:
        raise SystemExit(f"{mps_processes.CONTROL_NAME} is not in PATH")
    lists = _make_folder()
    bench.program = found
    try:
        mps_daemon.check_program(bench.program)
    except mps_daemon.MpsError as error:
        print(f"({error}: its files are copied)")
        for name in (mps_processes.CONTROL_NAME, mps_processes.SERVER_NAME):
            shutil.copy(shutil.which(name) or f"/usr/bin/{name}", bench.programs / name)
            (bench.programs / name).chmod(0o755)
        bench.program = str(bench.programs / mps_processes.CONTROL_NAME)
    for source, name in ((os.environ["HAMI_BENCH_WORK"], "work"), (str(CLIENT), CLIENT.name)):
        shutil.copy(source, bench.programs / name)
        (bench.programs / name).chmod(0o755)
    bench.work = bench.programs / "work"
    pythons = (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3")
    bench.python = next((path for path in pythons if _runs(path)), sys.executable)
    query = ["nvidia-smi", "--query-gpu=uuid,name,driver_version,compute_mode", "--format=csv,noheader"]
    line = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    bench.uuid = line.split(",")[0]
    print(f"{line}; {bench.folder}: {lists}; mounts: {mounts.obstacle() or 'yes'}; Python of the user: {bench.python}")
    bench.loops = answer(start((str(bench.work), "calibrate"), plain()))["loops_per_us"]
    bench.all_sms = int(answer(start(client("sms"), plain()))["sms"])
    bench.native_rate = answer(start(work(KERNELS), plain()))["rate"]
    print(f"native: {bench.all_sms} SMs, {bench.native_rate:.1f} kernels of 1 ms per second", flush=True)


def end() -> None:
    for process in bench.running:
        if process.poll() is None:
            process.kill()
    if not bench.folder.is_dir():
        return
    for place in mps.places(str(bench.folder)):
        try:
            mps.keep_only(bench.program, place, frozenset)
        except Exception as error:
            print(f"{place.pipe}: {error}")
    mounts.detach(f"{bench.folder}/mps")
    shutil.rmtree(bench.folder, ignore_errors=True)
    shutil.rmtree(bench.programs, ignore_errors=True)
