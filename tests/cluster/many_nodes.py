# SPDX-License-Identifier: Apache-2.0
"""Many jobs with 1, 2 or 4 slices on each of 1 or 2 nodes, at once on a cluster of several nodes, and what is looked at
from outside meanwhile: all ledgers, and what Slurm runs and lets wait."""

from __future__ import annotations

import functools
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import churn
from harness import config, jobs, node
from harness.accounts import USERS
from harness.layout import ClusterError, Layout

LOOK_S, QUEUE_S = 0.2, 1.0
COUNTS, CORES, MEMORY = (1, 1, 1, 2, 2, 4), (10, 20, 25, 35, 50, 80), ("1G", "2G", "4G")
PROGRAMS = ("sleep {hold}", "sleep {hold}", "sleep {hold}", "srun slice --use 16 --hold {hold}")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A job: `count` slices of `cores` percent of a model's GPUs on each of `nodes` nodes."""

    user: str
    model: str
    count: int
    nodes: int
    cores: int
    memory: str
    program: str

    def request(self) -> tuple[str, tuple[str, ...], str]:
        count = f":{self.count}" if self.count > 1 else ""
        gres = f"--gres=vgpu:{self.model}{count}:mem={self.memory},cores={self.cores}"
        return self.user, (f"-N{self.nodes}", "--ntasks-per-node=1", "--time=1", gres), self.program


@dataclass
class Look:
    """What was seen at one time: percent by GPU, by node; and Slurm's jobs, those that hold something and those that
    wait, in its order. Slurm is asked each QUEUE_S only; None in between."""

    granted: dict[str, dict[str, int]]
    in_ledgers: frozenset[int]
    holding: tuple[int, ...] | None = None
    waiting: tuple[int, ...] | None = None


@dataclass
class Seen:
    looks: list[Look] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    places: dict[int, tuple[str, ...]] = field(default_factory=dict)  # the GPU types of jobs that have some


def wanted(layout: Layout, seed: int, count: int, holds_s: Sequence[int]) -> list[Wanted]:
    """Returns jobs that the cluster's nodes can hold, the same ones for a seed."""
    chance = random.Random(seed)
    nodes = Counter(machine.model for machine in layout.machines)
    gpus = {machine.model: machine.gpus for machine in layout.machines}
    found = []
    for _ in range(count):
        model = chance.choice(list(nodes))
        found.append(
            Wanted(
                user=chance.choice(USERS),
                model=model,
                count=chance.choice([number for number in COUNTS if number <= gpus[model]]),
                nodes=chance.choice([number for number in (1, 1, 2) if number <= nodes[model]]),
                cores=chance.choice(CORES),
                memory=chance.choice(MEMORY),
                program=chance.choice(PROGRAMS).format(hold=chance.choice(holds_s)),
            )
        )
    return found


@contextmanager
def watched(layout: Layout) -> Iterator[Seen]:
    """Looks at all ledgers each LOOK_S; their triggers write down what happens in between. At the end of the body all
    grants must have been returned."""
    seen, is_over = Seen(), threading.Event()
    nodes = [layout.at(name) for name in layout.gpu_nodes]
    totals_mib = {gpu.uuid: gpu.total_bytes // node.MIB for each in nodes for gpu in node.gpus(each)}

    def look() -> None:
        asked = 0.0
        while not is_over.wait(LOOK_S):
            try:
                is_due = time.monotonic() - asked >= QUEUE_S
                look = _look(nodes, totals_mib, seen.problems)
                if is_due:
                    _ask(layout, look, seen.places)
                    asked = time.monotonic()
                seen.looks.append(look)
            except (ClusterError, OSError) as error:
                seen.problems.append(str(error))

    thread = threading.Thread(target=look)
    with ExitStack() as stack:
        ledgers: list[tuple[Layout, Path]] = [(each, stack.enter_context(churn.recorded(each))) for each in nodes]
        thread.start()
        try:
            yield seen
        finally:
            is_over.set()
            thread.join()
        seen.problems += [f"{each.node}: {text}" for each, path in ledgers for text in churn.over_grants(each, path)]


def _look(nodes: list[Layout], totals_mib: dict[str, int], problems: list[str]) -> Look:
    granted: dict[str, dict[str, int]] = {}
    holders = set()
    for each in nodes:
        cores, mib = Counter[str](), Counter[str]()
        for grant in node.grants(each):
            holders.add(grant.job_id)
            cores[grant.gpu_uuid] += grant.cores_percent
            mib[grant.gpu_uuid] += grant.mem_mib
        granted[each.node] = dict(cores)
        problems += [
            f"{each.node}: {percent} % of {uuid} are granted" for uuid, percent in cores.items() if percent > 100
        ]
        problems += [
            f"{each.node}: {mib[uuid]} MiB of {uuid} are granted" for uuid in mib if mib[uuid] > totals_mib[uuid]
        ]
    return Look(granted, frozenset(holders))


def _ask(layout: Layout, look: Look, places: dict[int, tuple[str, ...]]) -> None:
    """Adds what Slurm runs and lets wait."""
    rows = [line.split() for line in jobs.admin(layout, "squeue", "-h", "-S", "-p,i", "-o", "%A %t %b").splitlines()]
    look.waiting = tuple(int(job) for job, state, _ in rows if state == "PD")
    look.holding = tuple(int(job) for job, state, _ in rows if state != "PD")
    places.update({int(job): tuple(re.findall(r"shard:([a-z]):", gres)) for job, _, gres in rows})


def make_ledgers(layout: Layout) -> None:
    """Makes the ledgers of new nodes, in which recorded puts its triggers."""
    for name in layout.gpu_nodes:
        machine = config.machine_of(layout.at(name))
        words = ("--wait", f"--nodelist={name}", "--output=/dev/null", f"--gres=vgpu:{machine.model}:mem=1G,cores=10")
        jobs.submit(layout, USERS[0], *words, script="true")
        node.wait_until_clean(layout.at(name))


def run(layout: Layout, wanted_jobs: Sequence[Wanted], end_s: float) -> tuple[Seen, dict[int, Wanted]]:
    """Submits the jobs at once, and waits until they have ended and all nodes are clean and in service."""
    with watched(layout) as seen:
        numbers = churn.submit_all(layout, [one.request() for one in wanted_jobs])
        listed = ("squeue", "-h", "-o", "%A %T %r %b %R")
        queue: Callable[[], str] = functools.partial(jobs.admin, layout, *listed)
        jobs.wait(layout, lambda: not queue(), "all jobs to end", end_s, detail=queue)
        for name in layout.gpu_nodes:
            node.wait_until_clean(layout.at(name), 60)
    for name in layout.gpu_nodes:
        reason = node.drain_reason(layout.at(name))
        seen.problems += [f"{name} is drained: {reason}"] if reason else []
        seen.problems += [f"{name}: {text}" for text in churn.left_over(layout.at(name))]
    return seen, dict(zip(numbers, wanted_jobs, strict=True))


def ends(layout: Layout, numbers: Sequence[int]) -> Counter[str]:
    """Returns how many of the jobs ended in which state."""
    jobs.wait_until_recorded(layout, *numbers)
    text = jobs.admin(layout, "sacct", "-n", "-P", "-X", "-j", ",".join(map(str, numbers)), "-o", "State")
    return Counter(text.split())
