# SPDX-License-Identifier: Apache-2.0
"""Processes, or contexts, of one job beside other jobs on a real GPU, all with policy burst unless said: prints the
table of docs/benchmarks/time.md.

Usage: HAMI_BENCH_WORK=work python3 tests/gpu/processes_of_a_job.py [WORD ...], for the cases whose names and
cores, as in "8 busy, 10", have one of the words. HAMI_TEST_BUILD: the build whose interposer is measured.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/native"), str(ROOT / "tests/gpu")]

from tenants import REPEATS, SECONDS, Tenant, alone, answer, prepare, row, told  # noqa: E402

Work = tuple[str, ...]
BUSY: Work = ("kernels",)
LIGHT: Work = ("requests", "us=13", "every=1000")
IDLE: Work = ("requests", "us=13", "every=1000000000")
CONTEXTS: Work = ("contexts", "count=16")
# Name; the job's cores and policy; its programs; the cores of the others.
CASES: Sequence[tuple[str, int, str, list[Work], list[int]]] = (
    ("one busy", 25, "burst", [BUSY], [25, 25, 25]),
    ("one busy, 7 idle", 25, "burst", [BUSY, *[IDLE] * 7], [25, 25, 25]),
    ("one busy, 7 idle", 50, "burst", [BUSY, *[IDLE] * 7], [25, 25]),
    ("one busy, 3 idle, cap", 50, "cap", [BUSY, *[IDLE] * 3], [25, 25]),
    ("one busy, 3 light", 50, "burst", [BUSY, *[LIGHT] * 3], [50]),
    ("one busy, 3 light", 50, "burst", [BUSY, *[LIGHT] * 3], [25, 25]),
    ("2 busy", 50, "burst", [BUSY] * 2, [50]),
    ("8 busy", 25, "burst", [BUSY] * 8, [75]),
    ("8 busy", 10, "burst", [BUSY] * 8, [90]),
    ("16 busy", 10, "burst", [BUSY] * 16, [90]),
    ("16 busy, cap", 10, "cap", [BUSY] * 16, [90]),
    ("16 busy", 1, "burst", [BUSY] * 16, [99]),
    ("16 busy", 50, "burst", [BUSY] * 16, [50]),
    ("16 contexts", 10, "burst", [CONTEXTS], [90]),
    ("16 contexts", 50, "burst", [CONTEXTS], [50]),
    ("4 busy, nobody else", 10, "burst", [BUSY] * 4, []),
)
LEAST_CORES = 5  # with fewer, many processes end hardly any kernels in so short a time


def shares(cores: int, policy: str, programs: Sequence[Work], others: Sequence[int]) -> tuple[list[float], list[float]]:
    """Requests, or rates of kernels, a second: of the job's busy programs, and of the others."""
    job, *beside = told([Tenant(BUSY, cores, policy), *(Tenant(BUSY, n, "burst") for n in others)])
    environment = job.slice().environment()
    begin = f"begin={time.time() + 2.5 + 0.5 * (len(programs) + len(others)):.3f}"
    running = [
        Tenant(work, cores, policy).start(*() if work == IDLE else (begin,), environment=environment)
        for work in programs
    ]
    beside_running = [other.start(begin) for other in beside]
    try:
        rates = [answer(p)["rate"] for p in beside_running]
        if cores < LEAST_CORES:
            return [], rates
        return [answer(p)["rate"] for work, p in zip(programs, running, strict=True) if work in (BUSY, CONTEXTS)], rates
    finally:
        for process in running:
            process.kill()
            process.wait()


def main() -> None:
    prepare()
    native = alone(Tenant(BUSY))["rate"]
    row("processes of the job", "cores beside", "the job, percent of native", "the others")
    row(*["---"] * 4)
    words = sys.argv[1:]
    for name, cores, policy, programs, others in CASES:
        if words and not any(word in f"{name}, {cores}" for word in words):
            continue
        seen = [shares(cores, policy, programs, others) for _ in range(REPEATS)]
        job = statistics.median(sum(rates) for rates, _ in seen)
        theirs = [statistics.median(rates[i] for _, rates in seen) for i in range(len(others))]
        beside = f"{cores} beside {' + '.join(map(str, others))}" if others else f"{cores}, alone"
        mine = f"{100 * job / native:.1f}" if cores >= LEAST_CORES else "not measured"
        row(name, beside, mine, " + ".join(f"{100 * rate / native:.1f}" for rate in theirs))


if __name__ == "__main__":
    print(f"{SECONDS:.0f} s, medians of {REPEATS}")
    main()
