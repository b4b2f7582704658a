# SPDX-License-Identifier: Apache-2.0
"""Suspends and resumes jobs of the Slurm that suspend_on_gpu.sh started; prints tables for docs/benchmarks/suspend.md.

Sections: stock, watch, plugin, checkpoint, training; all without an argument.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from test_swapped import LOSSES

WORK = Path("/tmp/suspend")
SETTINGS = Path("/etc/hami-hpc/hami-hpc.toml")
SLURM_CONF = Path("/etc/slurm/slurm.conf")
LEFT_MIB = 1024  # a program holds as much for itself
WAIT_S = 120.0
LOOK_S = 0.02

# Tensors of 1 GiB with random content. Ends, and says whether all are as before, when the file is there.
HOLD = """
import pathlib, sys, time, torch
held = [torch.randint(0, 255, (1 << 30,), dtype=torch.uint8, device="cuda") for _ in range(int(sys.argv[1]))]
sums = [int(t.sum()) for t in held]
x = torch.randn(4096, 4096, device="cuda")
print("ready", flush=True)
while not pathlib.Path(sys.argv[2]).exists():
    for _ in range(20):
        x = torch.nn.functional.normalize(x @ x)
    torch.cuda.synchronize()
    print("beat", flush=True)
    time.sleep(0.05)
print("same" if [int(t.sum()) for t in held] == sums else "CHANGED", flush=True)
"""


def run(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


class Gpu:
    """NVML's word of the memory in use, MiB."""

    def __init__(self) -> None:
        import pynvml

        pynvml.nvmlInit()
        self.nvml, self.handle = pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)

    def used(self) -> int:
        return int(self.nvml.nvmlDeviceGetMemoryInfo(self.handle).used) >> 20


def wait(condition: Callable[[], bool], patience_s: float = WAIT_S) -> float | None:
    """Returns after how many seconds the condition held; None if it never did."""
    begun = time.monotonic()
    while not condition():
        if time.monotonic() - begun > patience_s:
            return None
        time.sleep(LOOK_S)
    return time.monotonic() - begun


def _state(pid: str) -> str:
    """Returns the letter that ps shows, and the name of a process that is neither stopped nor frozen."""
    name, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")
    return rest[0] if rest[0] in "TD" else f"{rest[0]} {name}"


class Job:
    states: dict[str, str]

    def __init__(self, name: str, program: str, *arguments: str, mem: str = "120G", direct: bool = False) -> None:
        self.out, self.finish = WORK / f"{name}.out", WORK / f"{name}.finish"
        script, batch = WORK / f"{name}.py", WORK / f"{name}.sh"
        for path in (self.out, self.finish):
            path.unlink(missing_ok=True)
        script.write_text(program)
        words = " ".join([sys.executable, str(script), *arguments]).replace("FINISH", str(self.finish))
        batch.write_text(f"#!/bin/bash\n{'srun --overlap ' if direct else ''}{words}\n")
        gres = f"--gres=vgpu:mem={mem},cores=100"
        self.id = run("sbatch", "--parsable", gres, f"--output={self.out}", f"--chdir={WORK}", str(batch))
        if wait(lambda: "ready" in self.said()) is None:
            sys.exit(f"job {self.id} did not begin: {self.said()}")

    def said(self) -> str:
        return self.out.read_text() if self.out.exists() else ""

    def order(self, word: str) -> None:
        run("scontrol", word, self.id)

    def is_stopped(self) -> bool:
        pids = run("scontrol", "listpids", self.id).splitlines()[1:]
        self.states = {line.split()[0]: _state(line.split()[0]) for line in pids}
        return bool(self.states) and set(self.states.values()) <= {"T", "D"}

    def goes_on(self) -> bool:
        return not self.is_stopped()

    def beats(self) -> int:
        return self.said().count("beat")

    def is_gone(self) -> bool:
        return run("squeue", "-h", "-j", self.id, "--states=all", "-o", "%T") in (
            "COMPLETED",
            "FAILED",
            "CANCELLED",
            "",
        )

    def end(self) -> str:
        self.finish.touch()
        if wait(self.is_gone) is None:
            run("scancel", self.id)
            wait(self.is_gone)
        return self.said().strip().rpartition("\n")[2]


def suspended(gpu: Gpu, name: str, gib: int, rounds: int, *, direct: bool = False) -> None:
    base = gpu.used()
    job = Job(f"hold{gib}", HOLD, str(gib), "FINISH", direct=direct)
    held = gpu.used()
    for number in range(1, rounds + 1):
        job.order("suspend")
        out = wait(lambda: gpu.used() - base <= LEFT_MIB, 12)
        if wait(job.is_stopped, 30) is None:
            print(f"  not stopped: {job.states}", flush=True)
        left = gpu.used() - base
        beats = job.beats()
        time.sleep(1)
        assert job.beats() == beats, "it is suspended"
        job.order("resume")
        again = wait(functools.partial(_is_above, job.beats, beats))
        seconds = [f"{value:.2f}" if value is not None else "-" for value in (out, again)]
        print(f"| {name} | {gib} | {number} | {held - base} | {left} | {' | '.join(seconds)} |", flush=True)
    print(f"  its memory: {job.end()}", flush=True)
    wait(lambda: gpu.used() - base < 64, 10)


@contextlib.contextmanager
def changed(path: Path, before: str, after: str, *, restart: bool) -> Iterator[None]:
    text = path.read_text()
    assert before in text, before
    path.write_text(text.replace(before, after))
    try:
        if restart:
            restart_slurm()
        yield
    finally:
        path.write_text(text)
        if restart:
            restart_slurm()


def restart_slurm() -> None:
    for name in ("slurmctld", "slurmd"):
        run("pkill", "-x", name)
        wait(functools.partial(_is_dead, name), 20)
        run(name)
    if wait(_is_idle, 30) is None:
        sys.exit("slurmd does not answer")


def _is_above(count: Callable[[], int], before: int) -> bool:
    return count() > before


def _is_dead(name: str) -> bool:
    return subprocess.run(["pgrep", "-x", name], capture_output=True, check=False).returncode != 0


def _is_idle() -> bool:
    return "idle" in subprocess.run(["sinfo", "-h", "-o", "%T"], capture_output=True, text=True, check=False).stdout


def checkpoint(gpu: Gpu, gib: int, rounds: int) -> None:
    """The same program without Slurm and hami_hpc, by cuCheckpointProcess*."""
    cuda = ctypes.CDLL("libcuda.so.1")
    assert cuda.cuInit(0) == 0
    base = gpu.used()
    finish, out, script = WORK / "native.finish", WORK / "native.out", WORK / "native.py"
    finish.unlink(missing_ok=True)
    script.write_text(HOLD)
    with out.open("w") as sink:
        program = subprocess.Popen([sys.executable, script, str(gib), finish], stdout=sink)
    wait(lambda: "ready" in out.read_text())
    held = gpu.used()
    for number in range(1, rounds + 1):
        times, results = [], []
        for call in ("Lock", "Checkpoint", "Restore", "Unlock"):
            begun = time.monotonic()
            results.append(getattr(cuda, f"cuCheckpointProcess{call}")(program.pid, None))
            times.append(time.monotonic() - begun)
            if call == "Checkpoint":
                left = gpu.used() - base
        out_s, back_s = times[0] + times[1], times[2] + times[3]
        row = (f"cuCheckpointProcess* {results}", gib, number, held - base, left, f"{out_s:.2f}", f"{back_s:.2f}")
        print(f"| {' | '.join(map(str, row))} |", flush=True)
    finish.touch()
    program.wait(WAIT_S)
    print(f"  its memory: {out.read_text().strip().rpartition(chr(10))[2]}", flush=True)


def training(gpu: Gpu, moves: int) -> None:
    base, found = gpu.used(), []
    for count in (0, moves):
        job = Job(
            f"train{count}",
            LOSSES.replace('print("ready")', 'print("ready", flush=True)'),
            "1000",
            mem="40G",
            direct=True,
        )
        chance, begun, least = random.Random(7), time.monotonic(), 1 << 30
        for _ in range(count):
            time.sleep(chance.random() / 2)
            if job.is_gone():
                break
            job.order("suspend")
            if wait(job.is_stopped, 10) is None:
                print(f"  not stopped: {job.states}", flush=True)
            least = min(least, gpu.used() - base)
            job.order("resume")
            wait(job.goes_on, 30)
        wait(job.is_gone, 300)
        last = job.said().strip().rpartition("\n")[2]
        print(f"  {count} suspensions: {last}; {time.monotonic() - begun:.1f} s; least left {least} MiB", flush=True)
        found.append(last)
    print(f"  losses and ballast {'bit-identical' if found[0] == found[1] else 'DIFFER'}", flush=True)


def main(sections: list[str]) -> None:
    WORK.mkdir(exist_ok=True)
    WORK.chmod(0o777)
    gpu = Gpu()
    wanted = sections or ["watch", "plugin", "stock", "training", "checkpoint"]
    heads = ("", "held, GiB", "round", "used, MiB", "left, MiB", "gone after, s", "goes on after, s")
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}", flush=True)
    if "watch" in wanted:
        suspended(gpu, "watch, batch", 8, 3)
        suspended(gpu, "watch, step", 8, 3, direct=True)
    if "plugin" in wanted:
        with changed(SLURM_CONF, "TaskPlugin=task/none", "TaskPlugin=task/hami_hpc", restart=True):
            suspended(gpu, "task/hami_hpc", 24, 3)
            suspended(gpu, "task/hami_hpc", 100, 2)
    if "stock" in wanted:
        with changed(SETTINGS, "swap = true", "swap = false", restart=False):
            suspended(gpu, "stock", 24, 1)
    if "training" in wanted:
        training(gpu, 20)
    if "checkpoint" in wanted:
        checkpoint(gpu, 24, 2)


if __name__ == "__main__":
    main(sys.argv[1:])
