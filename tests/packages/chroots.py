# SPDX-License-Identifier: Apache-2.0
"""Machines of the tests of packages: each an overlay over the base (make-base), without network and compiler.

The tests run in mount, process and network namespaces of their own (make test-packages), so that whatever they leave
mounted or running ends with them.
"""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
# What dpkg, apt and the tests write for themselves, and what the kernel has.
NOT_COMPARED = (
    "proc",
    "dev",
    "sys",
    "tmp",
    "run",
    "shared",
    "var/lib/dpkg",
    "var/lib/apt",
    "var/log",
    "var/cache",
    "etc/mtab",
)
UID = 65534
SETTINGS = """\
version = 1
[gpu_models.h200]
total_mib = 143156
[partitions.gpu]
gpu_models = ["h200"]
"""
ENTER_GPUS = """
from hami_hpc.core.inventory import Device, make_inventory
from hami_hpc.node.config import load_settings
from hami_hpc.stages import common
settings = load_settings("/etc/hami-hpc/hami-hpc.toml")
ledger = common.open_ledger(settings)
devices = [Device(0, "GPU-11111111-1111-1111-1111-111111111111", "NVIDIA H200", 143156)]
ledger.set_inventory(make_inventory(devices, settings.gpu_models))
ledger.close()
"""


@dataclass(frozen=True, slots=True)
class Machine:
    """A chroot; `shared` is a directory of the host's that it sees as /shared."""

    root: Path
    shared: Path

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def start(self, *command: str, log: Path | None = None, **environment: str) -> subprocess.Popen[str]:
        """Starts a command; both outputs go to pipes, or to the file `log`."""
        variables = {"PATH": PATH, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive", "HOME": "/root"}
        words = (f"{name}={value}" for name, value in {**variables, **environment}.items())
        whole = ("chroot", str(self.root), "env", "-i", *words, *command)
        if log is None:
            pipe = subprocess.PIPE
            return subprocess.Popen(whole, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)
        with log.open("a") as file:
            return subprocess.Popen(whole, stdin=subprocess.DEVNULL, stdout=file, stderr=file, text=True)

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*command, log=None, **environment)
        out, errors = process.communicate(timeout=300)
        return subprocess.CompletedProcess(command, process.returncode, out, errors)

    def check(self, *command: str, **environment: str) -> str:
        done = self.run(*command, **environment)
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def state(self) -> dict[str, str]:
        """Path -> kind, mode, owner and content of everything but what is written in passing."""
        found = {}
        for folder, folders, names in os.walk(self.root):
            relative = os.path.relpath(folder, self.root)
            folders[:] = [name for name in folders if os.path.normpath(f"{relative}/{name}") not in NOT_COMPARED]
            for name in (*names, *folders):
                path = Path(folder, name)
                key = os.path.normpath(f"{relative}/{name}")
                if key not in NOT_COMPARED:
                    found[key] = _described(path)
        return found

    def prepare_node(self) -> None:
        """Settings, and a ledger that knows a GPU, so that no driver is needed."""
        self.path("/etc/hami-hpc").mkdir(exist_ok=True)
        self.path("/etc/hami-hpc/hami-hpc.toml").write_text(SETTINGS)
        self.check("/usr/lib/hami-hpc/venv/bin/python3", "-I", "-c", ENTER_GPUS)

    def stage(self, name: str, job_id: int) -> subprocess.CompletedProcess[str]:
        """Runs prolog or epilog of a vgpu job as slurmd does."""
        environment = {
            "SLURM_JOB_ID": str(job_id),
            "SLURM_JOB_UID": str(UID),
            "SLURM_JOB_GPUS": "0",
            "HAMI_HPC_VGPU": "1",
            "HAMI_HPC_CLASS": "std",
            "HAMI_HPC_MEM_MIB": "8192",
            "HAMI_HPC_CORES": "50",
        }
        return self.run(f"/usr/libexec/hami-hpc/{name}", **environment)


def _described(path: Path) -> str:
    status = path.lstat()
    text = f"{stat.filemode(status.st_mode)} {status.st_uid}:{status.st_gid}"
    if stat.S_ISLNK(status.st_mode):
        return f"{text} -> {path.readlink()}"
    return f"{text} {hashlib.sha256(path.read_bytes()).hexdigest()}" if stat.S_ISREG(status.st_mode) else text


@contextmanager
def machine(base: Path, folder: Path, shared: Path) -> Iterator[Machine]:
    """A new machine below `folder`."""
    root, upper, work = folder / "root", folder / "upper", folder / "work"
    for path in (root, upper, work):
        path.mkdir(parents=True)
    mount("overlay", root, "-t", "overlay", "-o", f"lowerdir={base},upperdir={upper},workdir={work}")
    (root / "shared").mkdir()
    for source, name, words in (
        ("proc", "proc", ("-t", "proc")),
        ("/dev", "dev", ("--rbind",)),
        ("tmpfs", "run", ("-t", "tmpfs", "-o", "mode=755")),
        (str(shared), "shared", ("--bind",)),
    ):
        mount(source, root / name, *words)
    try:
        yield Machine(root, shared)
    finally:
        subprocess.run(("umount", "--recursive", "--lazy", root), check=False)


def wait(condition: Callable[[], object], what: str, logs: Callable[[], str], timeout_s: float = 60) -> None:
    """Waits until a condition holds; fails with `what` and the logs."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"{what}\n{logs()}"
        time.sleep(0.3)


def mount(source: str, target: Path, *words: str) -> None:
    subprocess.run(("mount", *words, source, target), check=True)
