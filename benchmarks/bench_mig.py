# SPDX-License-Identifier: Apache-2.0
"""Placement and units of MIG instances, on the profiles of the simulated GPU models. Prints the tables of
docs/benchmarks/mig.md, and returns 1 when a claim of that page does not hold.

    .venv/bin/python benchmarks/bench_mig.py [--arrivals 20000] [--streams 5] [--short 100]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "unit"))

from mig_models import MODELS, NAMES, profiles_of  # noqa: E402
from mig_states import Gpu, Rule, Traffic  # noqa: E402

from hami_hpc.core.mig_layout import Profile, choose_start, slices  # noqa: E402
from hami_hpc.core.mig_units import (  # noqa: E402
    count_admitted,
    holdable,
    offered_profiles,
    raised,
    ratios,
    shards_of,
    unholdable,
)

MIXES = {  # parts of the arrivals: 1g, 1g with twice the memory, 2g, 3g, 4g, 7g
    "alike": (1, 1, 1, 1, 1, 1),
    "mostly small": (8, 4, 4, 2, 1, 0.5),
    "mostly large": (1, 1, 1, 2, 2, 1),
    "no whole GPU": (4, 2, 3, 2, 2, 0),
    "no 1g of twice the memory": (4, 0, 3, 2, 2, 0.5),
}
LOADS = (0.3, 0.6, 1.0, 2.0)  # memory slices asked for at a time, by those of the GPU
CLAIMED_LOAD = 1.0  # above it more jobs are lost than run, which no queue lets happen
LEAST = 0.98
Event = tuple[float, int, int, int]  # time, 0 end or 1 arrival, job, profile


def stream(random: np.random.Generator, traffic: Traffic, arrivals: int) -> list[Event]:
    rates = np.array(traffic.rates)
    at = np.cumsum(random.exponential(1 / rates.sum(), arrivals))
    kinds = random.choice(len(rates), arrivals, p=rates / rates.sum())
    ends = at + random.exponential(1, arrivals)
    both = [(float(t), 1, job, int(kind)) for job, (t, kind) in enumerate(zip(at, kinds, strict=True))]
    return sorted([*both, *((float(t), 0, job, int(kinds[job])) for job, t in enumerate(ends))])


def play(gpu: Gpu, rule: Rule, events: Sequence[Event], worth: Sequence[float]) -> float:
    """Returns what the accepted jobs of a stream count."""
    state, accepted = 0, 0.0
    places: dict[int, tuple[int, int]] = {}
    for _, is_arrival, job, kind in events:
        if is_arrival:
            after = rule[state][kind]
            if after >= 0:
                start = next(start for start, each in gpu.placed[state][kind].items() if each == after)
                places[job] = (kind, start)
                state = after
                accepted += worth[kind]
        elif job in places:
            state = gpu.ended[state][gpu.states[state].index(places.pop(job))]
    return accepted


def foreseen(profiles: tuple[Profile, ...], events: Sequence[Event]) -> int:
    """Returns the most jobs that any placement accepts that knows the whole stream, by trying all of them."""
    front: dict[tuple[tuple[int, int], ...], int] = {(): 0}  # (job, its slices) of those on the GPU -> accepted
    for _, is_arrival, job, kind in events:
        after: dict[tuple[tuple[int, int], ...], int] = {}
        for live, accepted in front.items():
            if not is_arrival:
                options = [(tuple(each for each in live if each[0] != job), accepted)]
            else:
                occupied = sum(mask for _, mask in live)
                masks = [slices(start, profiles[kind].size) for start in profiles[kind].starts]
                options = [((*live, (job, mask)), accepted + 1) for mask in masks if not mask & occupied]
                options = options or [(live, accepted)]
            for key, count in options:
                after[key] = max(count, after.get(key, 0))
        front = after
    return max(front.values())


class Page:
    """Tables on standard output, and the claims that do not hold."""

    def __init__(self) -> None:
        self.failures: list[str] = []

    def claim(self, holds: bool, text: str) -> None:
        if not holds:
            self.failures.append(text)

    def table(self, title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        print(f"\n{title}\n\n| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
        for row in rows:
            print("| " + " | ".join(map(str, row)) + " |", flush=True)


def placement(page: Page, gpu: Gpu, arrivals: int, streams: int) -> None:
    """Acceptance in the long run, and on streams, beside first fit and the best rule."""
    first, chosen = gpu.first_fit(), gpu.chosen()
    for what, worth in (("jobs", [1.0] * len(gpu.profiles)), ("memory", [float(p.size) for p in gpu.profiles])):
        rows = []
        for name, mix in MIXES.items():
            for load in LOADS:
                traffic = Traffic(gpu, mix, load, worth)
                part, rule = traffic.best(chosen)
                exact = [traffic.evaluate(each)[0] / part for each in (chosen, first)]
                random = np.random.default_rng(1)
                played = [0.0, 0.0, 0.0]
                for _ in range(streams):
                    events = stream(random, traffic, arrivals)
                    played = [
                        sum(pair)
                        for pair in zip(
                            played, (play(gpu, each, events, worth) for each in (chosen, first, rule)), strict=True
                        )
                    ]
                seen = [played[0] / played[2], played[1] / played[2]]
                rows.append((name, load, percent(part), *map(percent, (*exact, *seen))))
                if load <= CLAIMED_LOAD:
                    for ours, theirs in (exact, seen):
                        page.claim(ours >= LEAST, f"{what}, {name}, load {load}: {ours:.4f} of the optimum")
                        page.claim(ours > theirs, f"{what}, {name}, load {load}: {ours:.4f}, first fit {theirs:.4f}")
        head = ("mix", "load", "optimum accepts", "ours", "first fit", "ours, streams", "first fit, streams")
        page.table(f"Accepted {what}; ours and first fit as a part of the optimum, %", head, rows)


def short_streams(page: Page, gpu: Gpu, count: int) -> None:
    first, chosen = gpu.first_fit(), gpu.chosen()
    worth = [1.0] * len(gpu.profiles)
    rows = []
    for name, mix in MIXES.items():
        for load in LOADS[:3]:
            traffic = Traffic(gpu, mix, load, worth)
            random = np.random.default_rng(2)
            all_events = [stream(random, traffic, 40) for _ in range(count)]
            most = sum(foreseen(gpu.profiles, events) for events in all_events)
            ours, theirs = (sum(play(gpu, rule, events, worth) for events in all_events) for rule in (chosen, first))
            page.claim(ours > theirs, f"short, {name}, load {load}: {ours} by ours, {theirs} by first fit")
            rows.append((name, load, percent(most / 40 / count), percent(ours / most), percent(theirs / most)))
    head = ("mix", "load", "knowing the future accepts", "ours", "first fit")
    page.table(
        f"{count} streams of 40 jobs, as a part of what the best placement that knows the future accepts, %", head, rows
    )


def units(page: Page) -> None:
    rows: list[Sequence[object]] = []
    for model in NAMES:
        lines = (MODELS / f"{model}.conf").read_text(encoding="utf-8").splitlines()
        values = dict(line.split("=", 1) for line in lines if "=" in line)
        mib = int(values["total_mib"]) - int(values["reserved_mib"])
        profiles = profiles_of(model)
        good, bad = holdable(profiles), unholdable(holdable(profiles))
        for shard_mib in (256, 1024, 4096):
            shards = mib // shard_mib
            weights = shards_of(profiles, shards)
            admitted = count_admitted(tuple(weights.values()), shards, good)
            wrong = count_admitted(tuple(weights.values()), shards, bad)
            page.claim(not wrong, f"{model}, {shard_mib}: {wrong} sets that the GPU cannot hold")
            page.claim(shard_mib > 256 or admitted == len(good), f"{model}: {admitted} of {len(good)} sets")
            numbers = ", ".join(map(str, weights.values()))
            rows.append((model, shard_mib, shards, numbers, f"{admitted} of {len(good)}", wrong))
    head = ("model", "MiB a shard", "shards", "shards of 1g, 1g twice, 2g, 3g, 4g, 7g", "sets admitted", "wrongly")
    page.table("Sets of instances that slurmctld admits, of those that the GPU can hold", head, rows)
    profiles = profiles_of("h200")
    good, bad = holdable(profiles), unholdable(holdable(profiles))
    order = offered_profiles(profiles, None)
    simple = []
    for name, weights_by_name, shards in (
        ("memory slices", {p.name: p.size for p in order}, 8),
        ("compute slices", {p.name: p.compute_slices for p in order}, 7),
        ("compute slices and 3 times memory slices", {p.name: p.compute_slices + 3 * p.size for p in order}, 31),
        (
            "the larger part, as for mode=share, of 559",
            {p.name: max(-(-p.mem_mib // 256), 559 * p.compute_slices // 7) for p in order},
            559,
        ),
    ):
        each = tuple(weights_by_name.values())
        simple.append(
            (name, shards, count_admitted(each, shards, good), f"{count_admitted(each, shards, bad)} of {len(bad)}")
        )
    page.table("One sum of", ("", "at most", "sets admitted, of 78", "smallest sets wrongly admitted"), simple)


def fragmentation(page: Page, gpu: Gpu) -> None:
    """What of the admitted jobs finds no place because others came and went."""
    good = holdable(gpu.profiles)
    assert offered_profiles(gpu.profiles, None) == gpu.profiles
    rules = {"ours": gpu.chosen(), "first fit": gpu.first_fit()}
    rows = []
    worth = [1.0] * len(gpu.profiles)
    for name, mix in MIXES.items():
        for load in LOADS:
            traffic = Traffic(gpu, mix, load, worth)
            parts = {key: traffic.refused(rule, good.__contains__) for key, rule in rules.items()}
            page.claim(parts["ours"] < parts["first fit"], f"{name}, load {load}: refused {parts}")
            rows.append((name, load, *(percent(parts[key]) for key in rules)))
    page.table("Jobs that slurmctld admits and that find no place, %", ("mix", "load", *rules), rows)
    certain = {key: len(good) - len(at_risk(gpu, rule, good)) for key, rule in rules.items()}
    page.table(
        "Sets of instances that always find their places, whatever came and went before",
        ("", "sets, of 78"),
        list(certain.items()),
    )
    strict(page, gpu, rules["ours"], 559)


def strict(page: Page, gpu: Gpu, rule: Rule, shards: int) -> None:
    """Raises weights until no history leaves an admitted job without a place: what it costs to put no job back."""
    good = holdable(gpu.profiles)
    full = gpu.profiles[-1]
    found: tuple[int, ...] = ()
    most = 0
    for compute, memory in ratios():
        total = compute * full.compute_slices + memory * full.size
        parts = [compute * p.compute_slices + memory * p.size for p in gpu.profiles]
        weights = tuple(max(1, shards * part // total) for part in parts)
        bad = unholdable(good)
        while lost := at_risk(
            gpu, rule, frozenset(each for each in good if count_admitted(weights, shards, frozenset({each})))
        ):
            bad |= lost
            weights = raised(list(weights), shards, good, bad)
        weights = raised(list(weights), shards, good, bad)
        if (admitted := count_admitted(weights, shards, good)) > most:
            found, most = weights, admitted
    page.table(
        "A rule under which no admitted job is put back, the best of those tried",
        ("shards of each profile, of 559", "sets admitted, of 78"),
        [(", ".join(map(str, found)), most)],
    )


def at_risk(gpu: Gpu, rule: Rule, good: frozenset[tuple[int, ...]]) -> set[tuple[int, ...]]:
    """Returns the sets in `good`, which alone are admitted, whose last instance some history leaves without a place."""
    reached, queue = {0}, [0]
    lost = set()
    for state in queue:  # grows meanwhile
        counts = gpu.counts(state)
        follow = list(gpu.ended[state])
        for index, after in enumerate(rule[state]):
            more = (*counts[:index], counts[index] + 1, *counts[index + 1 :])
            if more in good and after < 0:
                lost.add(more)
            elif more in good:
                follow.append(after)
        fresh = set(follow) - reached
        reached |= fresh
        queue.extend(fresh)
    return lost


def percent(part: float) -> str:
    return f"{100 * part:.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arrivals", type=int, default=20_000, help="jobs of a stream")
    parser.add_argument("--streams", type=int, default=5)
    parser.add_argument("--short", type=int, default=100, help="streams that are compared with a look into the future")
    given = parser.parse_args()
    page = Page()
    geometries = {
        tuple((p.compute_slices, p.size, p.starts, p.instances_max) for p in profiles_of(model)) for model in NAMES
    }
    page.claim(len(geometries) == 1, "the models have different placements: these tables are of one of them")
    profiles = profiles_of("h200")
    gpu = Gpu(profiles)
    began = time.perf_counter()
    for profile in profiles:
        choose_start(profile, profiles, ())
    each_ms = (time.perf_counter() - began) * 1000 / len(profiles)
    print(f"{', '.join(NAMES)}: the same placements, {len(gpu.states)} states of a GPU; choose_start {each_ms:.1f} ms")
    units(page)
    fragmentation(page, gpu)
    placement(page, gpu, given.arrivals, given.streams)
    short_streams(page, gpu, given.short)
    print("\n" + ("\n".join(f"does not hold: {text}" for text in page.failures) or "every claim holds"))
    return 1 if page.failures else 0


if __name__ == "__main__":
    sys.exit(main())
