# SPDX-License-Identifier: Apache-2.0
"""Several latency-critical jobs on a real GPU, of which some want more than their cores (docs/adr/116).

Prints a table for docs/benchmarks/time.md: each case as it is without an agent, and with what the agent decides.

Usage: python3 tests/gpu/latency_beyond.py [WORD ...], for the cases whose names have one of the words; variables as
tests/gpu/tenants.py says.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/native"), str(ROOT / "tests/gpu")]

from beyond import Job, Root  # noqa: E402
from tenants import (  # noqa: E402
    KERNELS,
    LC,
    LC_A,
    LC_B,
    REPEATS,
    SECONDS,
    Numbers,
    Tenant,
    alone,
    answer,
    prepare,
    row,
)

SETTLED_S = 4.0  # until the agent has decided
OFTEN = ("requests", "us=480", "every=1000")


def service(work: tuple[str, ...], cores: int) -> Tenant:
    return Tenant(work, cores, "burst", LC)


def greedy(cores: int) -> Tenant:
    return Tenant(KERNELS, cores, "burst", LC)


def batch(cores: int) -> Tenant:
    return Tenant(KERNELS, cores, "burst")


CASES: Sequence[tuple[str, list[Tenant]]] = (
    ("(a) 20; BE 40", [service(LC_A, 20), batch(40)]),
    ("(a) 20; greedy 40", [service(LC_A, 20), greedy(40)]),
    ("(a) 20; greedy 40; BE 40", [service(LC_A, 20), greedy(40), batch(40)]),
    ("(a) 20; greedy 30, 30", [service(LC_A, 20), greedy(30), greedy(30)]),
    ("(a) 20; greedy 30, 30; BE 20", [service(LC_A, 20), greedy(30), greedy(30), batch(20)]),
    ("(b) 20; greedy 40", [service(LC_B, 20), greedy(40)]),
    ("(b) 20; greedy 40; BE 40", [service(LC_B, 20), greedy(40), batch(40)]),
    ("480 us each ms, 45; greedy 45", [service(OFTEN, 45), greedy(45)]),
    ("480 us each ms, 45; greedy 45; BE 10", [service(OFTEN, 45), greedy(45), batch(10)]),
    ("(a) 20, (b) 20; BE 40", [service(LC_A, 20), service(LC_B, 20), batch(40)]),
    ("(a) 20, 480 us each ms 45; BE 20", [service(LC_A, 20), service(OFTEN, 45), batch(20)]),
    ("greedy 60, 20; BE 20", [greedy(60), greedy(20), batch(20)]),
    ("greedy 60, 20", [greedy(60), greedy(20)]),
    ("480 us each ms, 20; (a) 20; BE 40", [service(OFTEN, 20), service(LC_A, 20), batch(40)]),
    ("480 us each ms, 45, beside BE 45, 10", [service(OFTEN, 45), batch(45), batch(10)]),
)


def measure(tenants: Sequence[Tenant], has_agent: bool) -> tuple[list[Numbers], list[int]]:
    """Returns what each says of SECONDS, after all have worked for SETTLED_S, and who was treated as any other then."""
    jobs = [
        Job(number, tenant.cores, tenant.fields.get("latency", 0), tenant.slice(), tenant.policy)
        for number, tenant in enumerate(tenants, start=1)
    ]
    root = Root(jobs)
    with root.agent() if has_agent else nullcontext():
        begin = time.time() + 1.5 + 0.5 * len(tenants) + SETTLED_S
        running = [
            tenant.start(f"begin={begin:.3f}", environment=job.made.environment())
            for tenant, job in zip(tenants, jobs, strict=True)
        ]
        time.sleep(max(0.0, begin + SECONDS / 2 - time.time()))
        beyond = [job.number for job in jobs if job.is_beyond]
        return [answer(process) for process in running], beyond


def said(tenants: Sequence[Tenant], has_agent: bool, native: float) -> str:
    """Returns the medians of REPEATS: of services requests/s, p50, p99, of others percent of native; then who was
    treated as any other, by place, in the last one."""
    runs = [measure(tenants, has_agent) for _ in range(REPEATS)]

    def median(place: int, name: str) -> float:
        return statistics.median(numbers[place][name] for numbers, _beyond in runs)

    cells = [
        f"{median(i, 'rate'):.0f}, {median(i, 'p50'):.0f}, {median(i, 'p99'):.0f}"
        if tenant.work != KERNELS
        else f"{100 * median(i, 'rate') / native:.1f}"
        for i, tenant in enumerate(tenants)
    ]
    return "; ".join(cells) + "".join(f"; {place}." for place in runs[-1][1])


def main() -> None:
    prepare()
    words = sys.argv[1:]
    native = alone(Tenant(KERNELS))["rate"]
    row("latency-critical, and best effort (BE)", "without an agent", "with it; treated as any other")
    row(*["---"] * 3)
    for name, tenants in CASES:
        if not words or any(word in name for word in words):
            row(name, said(tenants, False, native), said(tenants, True, native))


if __name__ == "__main__":
    main()
