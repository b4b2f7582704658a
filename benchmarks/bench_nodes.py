# SPDX-License-Identifier: Apache-2.0
"""Many mixed jobs at once on several simulated nodes: 1, 2 or 4 slices on each of 1 or 2 nodes, GPUs of three models.

    .venv/bin/python benchmarks/bench_nodes.py [--jobs 200] [--seed 1] [--dir DIRECTORY]

As root. A private Slurm with two nodes of four GPUs for each model. Each 0.2 s all ledgers are looked at, and triggers
in them write down what happens in between. At the end nothing may be left. Prints how long jobs took to be placed, and
what an exact packer says of the jobs that waited. Status 1 where a GPU was granted beyond its size, a job did not
complete, or something is left.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/cluster"), str(ROOT / "benchmarks")]

import many_nodes  # noqa: E402  after the paths to the checkout
import packing  # noqa: E402
from harness import cluster, jobs, node  # noqa: E402
from harness.layout import Layout, Machine  # noqa: E402
from many_nodes import Look, Wanted  # noqa: E402

from hami_hpc.core.places import of_gpus  # noqa: E402

MODELS = ("h200", "h100", "a100-80")
NODES, GPUS = 2, 4  # of each model
END_S = 1500
FITS = "room on GPUs of its types"
ELSEWHERE = "room on GPUs of other types"
REPACKED = "room if the others were packed anew"
FULL = "no room, however packed"
UNKNOWN = "not decided"


def quantiles(values: Sequence[float]) -> str:
    ordered = sorted(values)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return f"{statistics.median(ordered):.2f} | {p99:.2f} | {ordered[-1]:.2f}"


def stage_times(layout: Layout, numbers: Mapping[int, Wanted]) -> dict[int, list[float]]:
    """Returns how long prologs took, s, by the number of slices on a node."""
    times: dict[int, list[float]] = {}
    for name in layout.gpu_nodes:
        for path in (layout.at(name).state_dir / "usage").glob("*.json"):
            record = json.loads(path.read_text())
            if record["job_id"] in numbers:
                took_ns = record["prolog_done_unix_ns"] - record["prolog_began_unix_ns"]
                times.setdefault(record["gpu_count"], []).append(took_ns / 1e9)
    return times


def waits(layout: Layout, numbers: Mapping[int, Wanted]) -> dict[tuple[int, int], list[float]]:
    """Returns how long jobs waited, s, by their slices on a node and their nodes."""
    words = ("-j", ",".join(map(str, numbers)), "-o", "JobIDRaw,Submit,Start")
    text = jobs.admin(layout, "env", "SLURM_TIME_FORMAT=%s", "sacct", "-n", "-P", "-X", *words)
    found: dict[tuple[int, int], list[float]] = {}
    for line in text.splitlines():
        job, submit, start = (int(word) for word in line.split("|"))
        one = numbers[job]
        found.setdefault((one.count, one.nodes), []).append(start - submit)
    return found


def shape(one: Wanted) -> packing.Job:
    return packing.Job(one.cores, one.count, one.nodes)


def judge(
    look: Look,
    model: str,
    nodes: Sequence[tuple[str, list[str]]],
    numbers: Mapping[int, Wanted],
    places: Mapping[int, tuple[str, ...]],
) -> str | None:
    """Returns whether there was room for the model's first waiting job; None where none waited, or a prolog or epilog
    ran, so that the ledgers do not say where a job lies. nodes: the UUIDs of the GPUs of the model's nodes."""
    waiting = [job for job in look.waiting or () if job in numbers and numbers[job].model == model]
    holding = [job for job in look.holding or () if job in numbers and numbers[job].model == model]
    mine = {job for job in look.in_ledgers if numbers[job].model == model} if look.in_ledgers <= set(numbers) else set()
    if not waiting or mine != set(holding):
        return None
    first = numbers[waiting[0]]
    has_room = [[100 - look.granted[name].get(uuid, 0) >= first.cores for uuid in uuids] for name, uuids in nodes]
    if sum(sum(each) >= first.count for each in has_room) >= first.nodes:
        # As many types as GPUs, so one GPU of each; a job with one slice has no type.
        indices = [of_gpus(GPUS, GPUS).index(place) for place in places.get(waiting[0], ())]
        on_types = sum(all(each[index] for index in indices) and sum(each) >= first.count for each in has_room)
        return FITS if on_types >= first.nodes else ELSEWHERE
    answer = packing.fits([shape(numbers[job]) for job in (*holding, waiting[0])], [len(uuids) for _, uuids in nodes])
    return {True: REPACKED, False: FULL, None: UNKNOWN}[answer]


def used_percent(look: Look, nodes: Sequence[tuple[str, list[str]]]) -> float:
    return statistics.mean(look.granted[name].get(uuid, 0) for name, uuids in nodes for uuid in uuids)


def report_packing(layout: Layout, seen: many_nodes.Seen, numbers: Mapping[int, Wanted]) -> None:
    looks = [look for look in seen.looks if look.waiting is not None]
    kinds = (FITS, ELSEWHERE, REPACKED, FULL, UNKNOWN)
    print(f"\n| model | GPU time granted while jobs waited | the most | {' | '.join(kinds)} |")
    print("|---|---|---|---|---|---|---|---|")
    left_out = 0
    for model in MODELS:
        names = [
            name for name, machine in zip(layout.gpu_nodes, layout.machines, strict=True) if machine.model == model
        ]
        nodes = [(name, [gpu.uuid for gpu in node.gpus(layout.at(name))]) for name in names]
        found: Counter[str] = Counter()
        percents = []
        for look in looks:
            if any(numbers[job].model == model for job in look.waiting or () if job in numbers):
                percents.append(used_percent(look, nodes))
                answer = judge(look, model, nodes, numbers, seen.places)
                found[answer or "left out"] += 1
        cells = " | ".join(str(found[kind]) for kind in kinds)
        mean = statistics.mean(percents) if percents else 0.0
        print(f"| {model} | {mean:.0f} % | {max(percents, default=0.0):.0f} % | {cells} |")
        left_out += found["left out"]
    print(f"\nleft out, as a prolog or epilog ran: {left_out} looks")


def report(layout: Layout, seen: many_nodes.Seen, numbers: Mapping[int, Wanted], took_s: float) -> None:
    most = max(percent for look in seen.looks for gpus in look.granted.values() for percent in gpus.values())
    at_once = max(len(look.in_ledgers) for look in seen.looks)
    print(
        f"{len(numbers)} jobs in {took_s:.0f} s; {len(seen.looks)} looks at {len(layout.gpu_nodes)} ledgers; at most "
        f"{most} % of a GPU granted, {at_once} jobs at once"
    )
    print("\n| slices on a node | nodes | jobs | wait p50 s | p99 s | most s |\n|---|---|---|---|---|---|")
    for (count, nodes), values in sorted(waits(layout, numbers).items()):
        print(f"| {count} | {nodes} | {len(values)} | {quantiles(values)} |")
    print("\n| slices on a node | prologs | p50 s | p99 s | most s |\n|---|---|---|---|---|")
    for count, values in sorted(stage_times(layout, numbers).items()):
        print(f"| {count} | {len(values)} | {quantiles(values)} |")
    report_packing(layout, seen, numbers)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dir", type=Path, default=ROOT / "build/nodes-cluster")
    options = parser.parse_args()
    cluster.remove(options.dir)
    problems = ["it did not run to its end"]
    try:
        layout = cluster.up(options.dir, [Machine(model, GPUS) for model in MODELS for _ in range(NODES)])
        many_nodes.make_ledgers(layout)
        print(f"seed {options.seed}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f} before", flush=True)
        began = time.monotonic()
        wanted = many_nodes.wanted(layout, options.seed, options.jobs, (2, 4, 8, 16))
        seen, numbers = many_nodes.run(layout, wanted, END_S)
        took_s = time.monotonic() - began
        ended = many_nodes.ends(layout, list(numbers))
        report(layout, seen, numbers, took_s)
        problems = seen.problems + [f"{count} jobs {state}" for state, count in ended.items() if state != "COMPLETED"]
    finally:
        if not problems:
            cluster.remove(options.dir)
    print("\n" + ("\n".join(problems[:40]) or "no GPU was granted beyond its size, and nothing is left on any node"))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
