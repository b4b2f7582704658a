# SPDX-License-Identifier: Apache-2.0
"""Honest programs under the agent's strictest settings, on a private Slurm with simulated GPUs: nothing may be found.

    .venv/bin/python benchmarks/bench_honest.py [--minutes 60] [--at-once 3] [--seed 1] [--dir DIRECTORY]

As root. Each finding's action is to kill. Jobs come and go: tests/native/evaders/honest.c takes and gives memory in
every way, forks, executes and is killed; others hold memory, run steps with a part of their job, end at once, are
cancelled, or get another size while they run. Prints what ran; status 1 where anything was found, or a job ended as it
should not.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/cluster")]

from harness import cluster, config, jobs  # noqa: E402  after the paths to the checkout
from harness.agent import events_since, log_size  # noqa: E402
from harness.layout import Layout  # noqa: E402

from hami_hpc.core.watch import Kind  # noqa: E402

GPUS = 2
USERS = ("games", "news")
MIB = 4096  # what one honest.c wants at most
LONG_S = 600
# What jobs do: how many of a hundred, and the script. Each says "well" at its end, unless it is cancelled.
PROGRAMS = {
    "honest": (30, "{honest} {mib} {seconds} {percent}"),
    "two of them": (10, "{honest} {half} {seconds} {percent} & {honest} {half} {seconds} {percent} && wait $!"),
    "holds memory": (15, "slice --use 3000 --hold {seconds}"),
    "steps": (15, "for n in 1 2 3; do srun --exact --gres=vgpu:mem=2G,cores=1 slice --use 1000 --hold 1; done"),
    "ends at once": (10, "for n in $(seq 12); do slice --use 1000; done"),
    "killed": (5, "{honest} {mib} {long} {percent} & sleep {seconds}; kill -9 $!; wait $!; [ $? = 137 ]"),
    "resized": (5, "slice --use 1000 --hold {seconds} & srun --overlap --gres=none --vgpu-resize=mem=3G true; wait $!"),
    "cancelled": (10, "{honest} {mib} {long} {percent}"),
}


class Churn:
    def __init__(self, layout: Layout, seed: int) -> None:
        self.layout, self.random = layout, random.Random(seed)
        self.ran: Counter[str] = Counter()
        self.running: dict[int, tuple[str, str, float]] = {}  # user, what it does, when it is cancelled
        self.problems: list[str] = []

    def start(self) -> None:
        """Submits one more job."""
        chance = self.random
        (name,) = chance.choices(list(PROGRAMS), [share for share, _ in PROGRAMS.values()])
        mib = 2 * MIB if name == "two of them" else MIB
        seconds, user = chance.randint(5, 40), chance.choice(USERS)
        script = PROGRAMS[name][1].format(
            honest=self.layout.home / user / "honest",
            mib=mib,
            half=mib // 2,
            seconds=seconds,
            long=LONG_S,
            percent=chance.randint(5, 100),
        )
        gres = f"--gres=vgpu:mem={mib}M,cores={chance.choice((5, 10, 20, 40))}"
        job = jobs.submit(self.layout, user, gres, script=f"{{ {script}; }} && echo well || echo status $?")
        ends = time.monotonic() + seconds if name == "cancelled" else float("inf")
        self.running[job] = (user, name, ends)
        self.ran[name] += 1

    def look(self) -> None:
        """Cancels whose time has come, and judges those that have ended."""
        alive = set(jobs.admin(self.layout, "squeue", "-h", "--format=%A").split())
        for job, (user, name, ends) in tuple(self.running.items()):
            if time.monotonic() >= ends and str(job) in alive:
                jobs.admin(self.layout, "scancel", str(job))
            if str(job) in alive:
                continue
            del self.running[job]
            output = jobs.whole_output(self.layout, user, job)
            if name != "cancelled" and not output.rstrip().endswith("well"):
                self.problems.append(f"job {job} ({name}) ended so: {output[-500:]}")


def strictest(layout: Layout) -> None:
    actions = "".join(f'{kind} = "kill"\n' for kind in Kind)
    config.write(layout.site_config, layout.site_config.read_text() + f"[agent.actions]\n{actions}")
    cluster.restart(layout, "agent")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--at-once", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dir", type=Path, default=ROOT / "build/honest-cluster")
    options = parser.parse_args()
    config.GPU_COUNT = GPUS
    cluster.remove(options.dir)
    layout = cluster.up(options.dir)
    loads, begun = [os.getloadavg()[0]], time.monotonic()
    try:
        for user in USERS:
            shutil.copy(ROOT / "build/native/evaders/honest", layout.home / user / "honest")
        strictest(layout)
        start, churn = log_size(layout), Churn(layout, options.seed)
        while time.monotonic() < begun + 60 * options.minutes or churn.running:
            if len(churn.running) < options.at_once and time.monotonic() < begun + 60 * options.minutes:
                churn.start()
            time.sleep(0.5)
            churn.look()
            loads.append(os.getloadavg()[0])
        found = [f"found: {event}" for event in events_since(layout, start)]
    finally:
        cluster.remove(options.dir)
    print(
        f"{sum(churn.ran.values())} jobs in {(time.monotonic() - begun) / 60:.0f} minutes, seed {options.seed}, "
        f"{os.cpu_count()} CPUs, load {min(loads):.1f} to {max(loads):.1f}: "
        + ", ".join(f"{count} {name}" for name, count in sorted(churn.ran.items()))
    )
    print("\n".join([*found, *churn.problems][:40]) or "no finding, and all jobs ended as they should")
    return 1 if found or churn.problems else 0


if __name__ == "__main__":
    sys.exit(main())
