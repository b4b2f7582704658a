# SPDX-License-Identifier: Apache-2.0
"""What it costs that slices are packed by one number, the dominant share in shards, and what other ways cost: a
simulation of jobs on GPUs (packing_model.py, packing_jobs.py). Writes tables and charts of docs/benchmarks/packing.md,
and returns 1 when a claim of that page does not hold.

    .venv/bin/python benchmarks/bench_packing.py [--page docs/benchmarks/packing.md] [--trace FILE.csv] [--seeds 3]

Units are those of hami_hpc.core.units, the code that render's vectors compare with slurmctld's. A trace's file is read
where it is, and nothing of it is kept but these results.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "unit")]

from curves import curves  # noqa: E402  after the paths
from mig_models import profiles_of  # noqa: E402
from packing_jobs import COUPLINGS, MIXES, Mix, Row, backlog, read_trace, replay, stream, work  # noqa: E402
from packing_model import Instances, Job, Need, Outcome, Rule, Sums, emptiest, fullest, mig_need, most_at_once, run  # noqa: E402

from hami_hpc.contract import constants as contract  # noqa: E402
from hami_hpc.core.gpu_choice import Where, capacity  # noqa: E402
from hami_hpc.core.request import parse  # noqa: E402
from hami_hpc.core.site import Site  # noqa: E402
from hami_hpc.core.units import resolve  # noqa: E402

GPUS, BACKLOG, STREAM = 16, 1500, 1500
LOADS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
CORRELATIONS = (-0.9, -0.6, -0.3, 0.0, 0.3, 0.6, 0.9)
MODEL, TOTAL_MIB = "h200", 143156  # what CUDA can use
HOUR_S, MINUTE_S = 3600, 60
OURS, SPREAD, EXACT_FIRST, EXACT, WHOLE, MIG = (
    "shards", "shards, LL_SHARED_GRES", "exact, first fit", "exact, best fit", "whole GPUs", "MIG",
)  # fmt: skip


def site(default_cores: int | str = contract.DEFAULT_CORES, max_tenants: int = 0, shard_mib: int = 256) -> Site:
    """Returns a site with one model, and the defaults but for these."""
    return Site(
        shard_mib=shard_mib,
        memory_scaling=contract.DEFAULT_MEMORY_SCALING,
        default_mem=contract.DEFAULT_MEM,
        default_cores=default_cores,
        bare_shard=contract.DEFAULT_BARE_SHARD,
        modes=contract.DEFAULT_MODES,
        classes={},
        gpu_models={MODEL: TOTAL_MIB},
        partitions={"gpu": [MODEL]},
        max_tenants=max_tenants,
    )


def by_shards(here: Site, name: str = OURS, rank: Callable[..., float] | None = None, cores: bool = True) -> Rule:
    """Returns the rule of mode=share: the shards that the request gets. cores: whether requests name them."""

    @cache
    def shards(memory: int, percent: int) -> Need:
        text = f"vgpu:mem={memory}%" + (f",cores={percent}" if cores else "")
        parsed = parse(text)
        assert parsed is not None
        return (resolve(parsed.request, here, Where(("gpu",))).shards,)

    _, most = capacity(here, MODEL)
    rule = Rule(name, lambda job: shards(job.memory, job.cores), lambda: Sums((most,)))
    return rule if rank is None else Rule(rule.name, rule.need, rule.empty, rank)


def rules() -> list[Rule]:
    profiles = profiles_of(MODEL)

    def both(job: Job) -> Need:
        return job.memory, job.cores

    def two() -> Sums:
        return Sums((100, 100))

    return [
        by_shards(site()),
        by_shards(site(), SPREAD, emptiest),
        Rule(EXACT_FIRST, both, two),
        Rule(EXACT, both, two, fullest),
        Rule(WHOLE, lambda job: (1,), lambda: Sums((1,))),
        Rule(MIG, mig_need(profiles, TOTAL_MIB), lambda: Instances(profiles)),
    ]


class Figures(NamedTuple):
    """Of a run until `until_s`: jobs that ended per GPU and hour; percent of memory and of time that was asked for.
    `makespan`: the end of the last job, by the least that the scarcer of both allows."""

    rate: float
    memory: float
    cores: float
    makespan: float


def figures(jobs: Sequence[Job], outcome: Outcome, until_s: float, gpus: int = GPUS) -> Figures:
    ended, memory, cores = 0, 0.0, 0.0
    for job in jobs:
        begin_s = outcome.begin_s[job.number]
        held_s = max(0.0, min(until_s, begin_s + job.run_s) - begin_s)
        ended += begin_s + job.run_s <= until_s
        memory += job.memory * held_s
        cores += job.cores * held_s
    whole_s = gpus * until_s
    makespan = outcome.end_s / (work(jobs) / gpus)
    return Figures(ended / whole_s * HOUR_S, memory / whole_s, cores / whole_s, makespan)


def mean(many: Sequence[Figures]) -> Figures:
    return Figures(*(statistics.fmean(column) for column in zip(*many, strict=True)))


class Page:
    """Tables and charts by name, and the claims that do not hold."""

    def __init__(self, seeds: int) -> None:
        self.seeds = range(1, seeds + 1)
        self.tables: dict[str, str] = {}
        self.charts: dict[str, str] = {}
        self.failures: list[str] = []

    def claim(self, holds: bool, text: str) -> None:
        if not holds:
            self.failures.append(text)

    def table(self, name: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
        self.tables[name] = "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])

    def write(self, path: Path | None) -> None:
        """Writes tables between their marks into a page, and charts beside it; prints the tables without a page."""
        if path is None:
            for name, table in self.tables.items():
                print(f"{name}\n\n{table}\n")
            return
        text = path.read_text(encoding="utf-8")
        for name, table in self.tables.items():
            before, mark, rest = text.partition(f"<!-- {name} -->\n")
            _, end, after = rest.partition("<!-- end -->")
            self.claim(bool(mark and end), f"{path} has no place for the table {name}")
            if mark and end:
                text = f"{before}{mark}{table}\n{end}{after}"
        path.write_text(text, encoding="utf-8")
        for name, drawn in self.charts.items():
            (path.parent / name).write_text(drawn, encoding="utf-8")


def full(page: Page, mix: Mix, rule: Rule) -> Figures:
    """Returns the figures of a queue that is never empty."""
    found = []
    for seed in page.seeds:
        jobs = backlog(mix, BACKLOG, seed)
        outcome = run(jobs, rule, GPUS)
        found.append(figures(jobs, outcome, outcome.queue_empty_s))
    return mean(found)


def backlogs(page: Page) -> None:
    """All jobs are there at the start: how much a GPU does as long as jobs wait, and until when the last one runs."""
    rows, ends = [], []
    for mix in MIXES:
        by_rule = {rule.name: full(page, mix, rule) for rule in rules()}
        for name, each in by_rule.items():
            part = 100 * each.rate / by_rule[EXACT].rate
            rows.append((mix.name, name, f"{each.rate:.2f}", f"{part:.0f}", f"{each.memory:.0f}", f"{each.cores:.0f}"))
        page.claim(by_rule[OURS].rate > by_rule[MIG].rate > by_rule[WHOLE].rate, f"{mix.name}: shards, MIG, whole GPUs")
        page.claim(2 * by_rule[OURS].rate > by_rule[EXACT].rate, f"{mix.name}: shards are less than half of exact")
        ends.append((mix.name, *(f"{each.makespan:.2f}" for each in by_rule.values())))
    head = ("mix", "rule", "jobs per GPU-hour", "% of exact", "memory asked for, %", "time asked for, %")
    page.table("backlog", head, rows)
    page.table("makespan", ("mix", *(rule.name for rule in rules())), ends)


def correlations(page: Page) -> None:
    lines: dict[str, list[tuple[float, float]]] = {}
    shown = [rule for rule in rules() if rule.name in (OURS, EXACT, WHOLE, MIG)]
    for correlation in CORRELATIONS:
        mix = MIXES[0]._replace(correlation=correlation)
        for rule in shown:
            lines.setdefault(rule.name, []).append((1 + correlation, full(page, mix, rule).rate))
    drawn = curves(
        "Jobs per GPU and hour by how memory and time go together",
        "1 + correlation of memory and time (1: independent)",
        "jobs per GPU and hour",
        [(name, lines[name]) for name in (EXACT, OURS, MIG, WHOLE)],
    )
    page.charts["packing-correlation.svg"] = drawn
    parts = [f"{100 * ours / exact:.0f}" for (_, ours), (_, exact) in zip(lines[OURS], lines[EXACT], strict=True)]
    page.table("correlation", ("correlation", *(f"{c:g}" for c in CORRELATIONS)), [("shards, % of exact", *parts)])


def waits(page: Page) -> None:
    """Jobs arrive at random: how long they wait."""
    shown = [rule for rule in rules() if rule.name != SPREAD and rule.name != EXACT_FIRST]
    rows: list[list[str]] = []
    lines: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for mix in MIXES:
        for load in LOADS:
            row = [mix.name, f"{load:g}"]
            for rule in shown:
                waited: list[float] = []
                for seed in page.seeds:
                    jobs = stream(backlog(mix, STREAM, seed), GPUS, load, seed)
                    begin_s = run(jobs, rule, GPUS).begin_s
                    waited += ((begin_s[job.number] - job.submit_s) / MINUTE_S for job in jobs)
                p95 = statistics.quantiles(waited, n=20)[-1]
                row.append(f"{statistics.median(waited):.0f}, {p95:.0f}")
                lines.setdefault((mix.name, rule.name), []).append((load, p95 / MINUTE_S))
            rows.append(row)
    page.table("waits", ("mix", "load", *(f"{rule.name}: median, p95" for rule in shown)), rows)
    for mix in (MIXES[0], MIXES[2]):
        page.charts[f"packing-wait-{mix.name}.svg"] = curves(
            f"95th percentile of the wait, {mix.name}",
            "load",
            "hours",
            [(name, lines[mix.name, name]) for name in (EXACT, OURS, MIG)],
        )


def settings(page: Page) -> None:
    """What settings of a site change, with requests that name memory and cores, and with such that name no cores."""
    cases = [
        ("defaults", site()),
        ("max_tenants = 16", site(max_tenants=16)),
        ("max_tenants = 8", site(max_tenants=8)),
        ("max_tenants = 4", site(max_tenants=4)),
        ("shard_mib = 1024", site(shard_mib=1024)),
        ("shard_mib = 4096", site(shard_mib=4096)),
    ]
    rows = []
    for name, here in cases:
        rates = [full(page, mix, by_shards(here)).rate for mix in MIXES]
        rows.append((name, *(f"{rate:.2f}" for rate in rates)))
    page.table("settings", ("jobs per GPU-hour", *(mix.name for mix in MIXES)), rows)
    cases = [(f"default_cores = {value}", site(value)) for value in (10, 25, 50)]
    cases.append(('default_cores = "proportional"', site("proportional")))
    rows = []
    for name, here in cases:
        rule = by_shards(here, cores=False)
        rates = [full(page, mix, rule).rate for mix in (MIXES[0], MIXES[3])]
        rows.append((name, *(f"{rate:.2f}" for rate in rates)))
    page.table("no-cores", ("requests without cores: jobs per GPU-hour", "small memory", "large memory"), rows)


def optimum(page: Page, sets: int = 200, count: int = 10, gpus: int = 2) -> None:
    """How many of ten jobs fit two GPUs at once, at best: the rule alone, without a queue."""
    shards = by_shards(site())
    rows = []
    for mix in MIXES:
        found = [0, 0]
        for seed in range(sets):
            jobs = backlog(mix, count, seed)
            exact = most_at_once([(job.memory, job.cores) for job in jobs], (100, 100), gpus)
            ours = most_at_once([shards.need(job) for job in jobs], shards.empty().free, gpus)  # type: ignore[attr-defined]
            found = [found[0] + ours, found[1] + exact]
        ours_mean, exact_mean = (each / sets for each in found)
        page.claim(ours_mean <= exact_mean, f"{mix.name}: shards hold more than the exact rule")
        rows.append((mix.name, f"{ours_mean:.2f}", f"{exact_mean:.2f}", f"{100 * ours_mean / exact_mean:.0f}"))
    page.table("optimum", ("mix", "shards", "exact", "%"), rows)


def traced(page: Page, trace: Sequence[Row]) -> None:
    """The same of a trace's jobs, with each way to have their memory where it has none."""
    rows = []
    for coupling in COUPLINGS if trace[0].mem_percent is None else ("the trace's",):
        for rule in rules():
            jobs = replay(trace, coupling, GPUS, 0.7, 1)
            outcome = run(jobs, rule, GPUS)
            waited = [(outcome.begin_s[job.number] - job.submit_s) / MINUTE_S for job in jobs]
            at_once = [job._replace(submit_s=0.0) for job in jobs]
            full_outcome = run(at_once, rule, GPUS)
            each = figures(at_once, full_outcome, full_outcome.queue_empty_s)
            rows.append(
                (
                    *(coupling, rule.name, f"{each.rate:.2f}", f"{each.memory:.0f}", f"{each.cores:.0f}"),
                    f"{statistics.median(waited):.0f}, {statistics.quantiles(waited, n=20)[-1]:.0f}",
                )
            )
    head = ("memory and cores", "rule", "jobs per GPU-hour", "memory asked for, %", "time asked for, %")
    page.table("trace", (*head, "wait at load 0.7, minutes: median, p95"), rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, help="page whose tables and charts are written; none: tables are printed")
    parser.add_argument("--trace", type=Path, help="CSV file of a trace: columns as in packing_jobs.py")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--parts", nargs="*", help="which of optimum, backlogs, correlations, waits, settings; default: all"
    )
    given = parser.parse_args()
    page = Page(given.seeds)
    if given.trace:
        try:
            rows = read_trace(given.trace)
        except (OSError, ValueError) as error:
            print(f"bench-packing: {error}", file=sys.stderr)
            return 2
        print(f"{given.trace}: {len(rows)} jobs that share a GPU and whose run is known")
        traced(page, rows)
    parts = {part.__name__: part for part in (optimum, backlogs, correlations, waits, settings)}
    for name in parts if given.parts is None else given.parts:
        parts[name](page)
    page.write(given.page)
    print("\n".join(f"does not hold: {text}" for text in page.failures) or "every claim holds")
    return 1 if page.failures else 0


if __name__ == "__main__":
    sys.exit(main())
