# SPDX-License-Identifier: Apache-2.0
"""Jobs that take turns on the oversold GPU of the Slurm that turns_on_gpu.sh started; prints docs/benchmarks/turns.md.

Sections: solo, turns, urgent, idle; all without an argument. $TRAIN_S: for how long one training job runs alone, about;
$GIB: what it holds; $MEM: its slice; $JOBS: how many; $PATIENCE_S: for how long something may take. $STEPS: instead of
solo, so many steps run alone on the second GPU, natively, $ALONE_AFTER_S after the jobs that take turns on the first.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from bench_suspend import SETTINGS, WORK, Gpu, changed, run, wait

TRAIN_S = int(os.environ.get("TRAIN_S", "110"))
EVENTS = Path("/var/lib/hami-hpc/events.jsonl")
JOBS = int(os.environ.get("JOBS", "4"))
GIB = int(os.environ.get("GIB", "20"))  # of each: the host has to hold three of them
MEM = os.environ.get("MEM", f"{GIB + 12}G")  # the model, its optimizer and what it computes are 6 GiB
PATIENCE_S = float(os.environ.get("PATIENCE_S", "570"))
STEPS = os.environ.get("STEPS", "")
ALONE_AFTER_S = int(os.environ.get("ALONE_AFTER_S", "0"))

# Trains a fixed number of steps with so many GiB of ballast. Says when it is about to use the GPU, has, and is done.
TRAIN = """
import sys, time, hashlib
import torch
torch.manual_seed(0)
def say(word): print(f"{word} {time.time():.3f}", flush=True)
say("asks")
layers = [layer for _ in range(6) for layer in (torch.nn.Linear(4096, 4096), torch.nn.GELU(), torch.nn.Dropout(0.1))]
model = torch.nn.Sequential(*layers).cuda()
optimizer = torch.optim.AdamW(model.parameters())
data = torch.randn(8192, 4096, device="cuda")
ballast = [torch.randint(0, 255, (1 << 30,), dtype=torch.uint8, device="cuda") for _ in range(int(sys.argv[1]))]
torch.cuda.synchronize()
say("begins")
digest, begun, steps = hashlib.sha256(), time.monotonic(), 0
most = int(sys.argv[2])
while steps < most if most > 0 else time.monotonic() - begun < -most:
    for _ in range(10):
        optimizer.zero_grad(set_to_none=True)
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
    steps += 10
    digest.update(loss.detach().cpu().numpy().tobytes())
torch.cuda.synchronize()
sums = sum(int(t.view(torch.int64).sum()) for t in ballast)
say(f"done {steps} {digest.hexdigest()[:16]} {sums}")
"""

# A notebook: holds memory, and uses the GPU when the file `cell` is there.
NOTEBOOK = """
import pathlib, sys, time, torch
def say(word): print(f"{word} {time.time():.3f}", flush=True)
held = [torch.randint(0, 255, (1 << 30,), dtype=torch.uint8, device="cuda") for _ in range(int(sys.argv[1]))]
sums = [int(t.sum()) for t in held]
say("begins")
for number in (1, 2):
    while not pathlib.Path(f"cell{number}").exists():
        time.sleep(0.02)
    say("asks")
    same = [int(t.sum()) for t in held] == sums
    say("same" if same else "CHANGED")
"""


class Job:
    def __init__(self, name: str, program: str, *arguments: object, mem: str) -> None:
        self.out = WORK / f"{name}.out"
        self.out.unlink(missing_ok=True)
        script, batch = WORK / f"{name}.py", WORK / f"{name}.sh"
        script.write_text(program)
        batch.write_text(f"#!/bin/bash\n{sys.executable} {script} {' '.join(map(str, arguments))}\n")
        gres = f"--gres=vgpu:mem={mem},cores=80"  # one at a time, and four in Slurm
        self.submitted = time.time()
        self.id = run("sbatch", "--parsable", gres, f"--output={self.out}", f"--chdir={WORK}", str(batch))

    def lines(self, word: str) -> list[list[str]]:
        text = self.out.read_text() if self.out.exists() else ""
        return [line.split() for line in text.splitlines() if line.startswith(word)]

    def when(self, word: str, patience_s: float = PATIENCE_S) -> float:
        """Returns the time at which the job said the word last; waits for it. A job that ends without is an error."""
        wait(lambda: bool(self.lines(word)) or self.is_gone(), patience_s)
        if not self.lines(word):
            sys.exit(f"job {self.id} did not say {word}: {self.out.read_text()[-2000:]}")
        return float(self.lines(word)[-1][-1])

    def is_gone(self) -> bool:
        return run("squeue", "-h", "-j", self.id, "--states=all", "-o", "%T") not in (
            "RUNNING",
            "PENDING",
            "COMPLETING",
        )

    def end(self) -> None:
        run("scancel", self.id)
        wait(self.is_gone, 60)


def solo() -> None:
    """One training alone: how many steps are about TRAIN_S, and how long so many take."""
    first = Job("calibrate", TRAIN, GIB, -8, mem=MEM)
    took = first.when("done") - first.when("begins")
    steps = int(first.lines("done")[0][1])
    wait(first.is_gone, 60)
    most = int(steps / took * TRAIN_S) // 10 * 10
    job = Job("solo", TRAIN, GIB, most, mem=MEM)
    seconds = job.when("done") - job.when("begins")
    whole = job.when("done") - job.when("asks")
    wait(job.is_gone, 60)
    (WORK / "solo").write_text(f"{most} {seconds} {job.lines('done')[0][2]} {job.lines('done')[0][3]} {whole}")
    print(f"alone: {most} steps in {seconds:.2f} s, {whole:.2f} s with the beginning", flush=True)


def alone_beside() -> subprocess.Popen[str]:
    """Starts the training on the second GPU, which Slurm has not."""
    script = WORK / "beside.py"
    script.write_text(TRAIN)
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "1"}
    words = ["sh", "-c", f"sleep {ALONE_AFTER_S}; exec {sys.executable} {script} {GIB} {STEPS}"]
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)


def note_alone(out: str) -> None:
    """Writes what solo() writes."""
    said = {line.split()[0]: line.split() for line in out.splitlines()}
    asks, begins, done = (float(said[word][-1]) for word in ("asks", "begins", "done"))
    (WORK / "solo").write_text(f"{said['done'][1]} {done - begins} {said['done'][2]} {said['done'][3]} {done - asks}")
    print(f"alone: {STEPS} steps in {done - begins:.2f} s, {done - asks:.2f} s with the beginning", flush=True)


def turns() -> None:
    """Four at once, each of which wants the whole GPU's time, so that one is on it at a time."""
    beside = alone_beside() if STEPS else None
    most = STEPS or (WORK / "solo").read_text().split()[0]
    jobs = [Job(f"turn{n}", TRAIN, GIB, most, mem=MEM) for n in range(JOBS)]
    if beside:
        note_alone(beside.communicate()[0])
    _, _, digest, sums, whole = (WORK / "solo").read_text().split()
    ends = [job.when("done") for job in jobs]
    begins = [job.when("begins") for job in jobs]
    first = min(job.when("asks") for job in jobs)
    for n, job in enumerate(jobs):
        done = job.lines("done")[0]
        same = "the same" if (done[2], done[3]) == (digest, sums) else "CHANGED"
        left = EVENTS.read_text().count(f"job {job.id} leaves GPU")
        print(f"| {n} | {begins[n] - first:.1f} | {ends[n] - first:.1f} | {left} | {same} |", flush=True)
    changes = [json.loads(line) for line in EVENTS.read_text().splitlines() if '"swap"' in line]
    changes = [(event["time_unix_ns"] / 1e9, event["text"]) for event in changes if event["time_unix_ns"] / 1e9 > first]
    gaps = [
        after - before
        for (before, leaves), (after, comes) in itertools.pairwise(changes)
        if " leaves " in leaves and " may use " in comes
    ]
    print(
        f"from a job's order to leave until the next may come, s: {', '.join(f'{gap:.2f}' for gap in gaps)}", flush=True
    )
    took, total = max(ends) - first, JOBS * float(whole)
    print(f"{JOBS} at once {took:.2f} s, one after the other {total:.2f} s, ratio {took / total:.4f}", flush=True)
    for job in jobs:
        wait(job.is_gone, 60)


def never_moved(name: str, mem: str) -> Job:
    """Starts a job that is never moved, and returns it once it has used the GPU."""
    with changed(SETTINGS, "swap = true\nqos = []", "swap = false\nqos = []", restart=False):
        job = Job(name, TRAIN, 1, -2, mem=mem)
        job.when("begins")
    return job


def urgent(gpu: Gpu) -> None:
    """A job that is never moved needs the room of one that can be: how long until it computes."""
    for n in range(1):
        job = never_moved(f"alone{n}", "60G")
        print(
            f"alone: {job.when('begins') - job.when('asks'):.2f} s from its first call to its first result", flush=True
        )
        wait(job.is_gone, 60)
    base = Job("base", TRAIN, 24, -25, mem="100G")
    base.when("begins")
    for n in range(2):
        time.sleep(6)
        job = never_moved(f"urgent{n}", "60G")
        took, used = job.when("begins") - job.when("asks"), gpu.used()
        print(f"with 24 GiB of another in its place: {took:.2f} s; then {used} MiB in use", flush=True)
        wait(job.is_gone, 60)
    base.when("done")
    wait(base.is_gone, 60)


def idle() -> None:
    """A notebook that sleeps gives its memory to one that needs it, and has it back at its next call."""
    for number in (1, 2):
        (WORK / f"cell{number}").unlink(missing_ok=True)
    notebook = Job("notebook", NOTEBOOK, 24, mem="60G")
    notebook.when("begins")
    time.sleep(12)
    other = Job("other", TRAIN, 4, -10, mem="100G")
    print(f"another begins {other.when('begins') - other.when('asks'):.2f} s after its first call", flush=True)
    other.when("done")
    wait(other.is_gone, 60)
    for number in (1, 2):
        (WORK / f"cell{number}").touch()
        wait(lambda count=number: len(notebook.lines("same")) == count, 60)  # type: ignore[misc]
        asked, done = (float(notebook.lines(word)[-1][-1]) for word in ("asks", "same"))
        print(f"the notebook's call {number}: {done - asked:.2f} s", flush=True)
    wait(notebook.is_gone, 60)


def main() -> None:
    WORK.mkdir(exist_ok=True)
    WORK.chmod(0o777)
    gpu = Gpu()
    sections = sys.argv[1:] or ["solo", "turns", "urgent", "idle"]
    for name in sections:
        print(f"\n## {name}", flush=True)
        {"solo": solo, "turns": turns, "urgent": lambda: urgent(gpu), "idle": idle}[name]()


if __name__ == "__main__":
    main()
