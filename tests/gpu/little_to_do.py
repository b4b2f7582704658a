# SPDX-License-Identifier: Apache-2.0
"""Programs that do not always have work beside others that do, on a real GPU: sections of bench_time.py."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/native"), str(ROOT / "tests/gpu")]

from tenants import KERNELS, LIGHT, REPEATS, Tenant, median, rate, row, together  # noqa: E402

PROGRAMS = {
    "10 ms of work, 2 ms without": ("steps", "us=10000", "gap=2000"),
    "3 ms, 2 ms": ("steps", "us=3000", "gap=2000"),
    "1 ms, 1.5 ms": ("steps", "us=1000", "gap=1500"),
    "0.2 ms, 0.1 ms": ("steps", "us=200", "gap=100"),
    "10 us, launched and waited for": ("steps", "us=10", "gap=0"),
    "13 us each ms": LIGHT,
    "100 us each 20 ms": ("requests", "us=100", "every=20000"),
}
BUSY_BESIDE = ((0, ""), (50, "burst"), (50, "cap"))


def programs() -> None:
    print("\n## A program that does not always have work (50 cores, cap) beside one that does\n")
    row("program", "beside", "its rate, % of alone", "p50, p99 us", "the busy one, % of native")
    row(*["---"] * 5)
    native = median(partial(rate, Tenant(KERNELS)))
    for name, work in PROGRAMS.items():
        base = median(partial(rate, Tenant(work)))
        for cores, policy in BUSY_BESIDE:
            runs = [
                together([Tenant(work, cores, "cap"), Tenant(KERNELS, cores, policy or "cap")], "warm=2.5")
                for _ in range(REPEATS)
            ]
            mine, busy = (statistics.median(r[i]["rate"] for r in runs) for i in (0, 1))
            waits = [statistics.median(r[0].get(k, 0) for r in runs) for k in ("p50", "p99")]
            shown = ", ".join(f"{wait:.0f}" for wait in waits) if any(waits) else ""
            row(name, f"{policy} {cores}" if cores else "stock", 100 * mine / base, shown, 100 * busy / native)


STEPS, THREE = "steps", [(25, "burst", KERNELS)] * 3
SEVERAL: Sequence[Sequence[tuple[int, str, tuple[str, ...]]]] = (
    [*[(40, "burst", KERNELS)] * 2, (20, "burst", (STEPS, "us=2000", "gap=1000"))],
    [*[(40, "burst", KERNELS)] * 2, (20, "burst", LIGHT)],
    [(30, "cap", KERNELS), (30, "burst", KERNELS), (40, "burst", (STEPS, "us=1000", "gap=1500"))],
    [*THREE, (25, "burst", LIGHT)],
    [*THREE, (25, "burst", (STEPS, "us=5000", "gap=10000"))],
    [*THREE, (25, "burst", ("starting",))],
    [*THREE, (25, "burst", ("making",))],
    [(60, "burst", KERNELS), (30, "burst", KERNELS), (10, "burst", (STEPS, "us=500", "gap=500"))],
    [(50, "burst", KERNELS), (50, "burst", (STEPS, "us=2000", "gap=1000"))],
)


def several() -> None:
    print("\n## A program that does not always have work, beside several that do, percent of what each has alone\n")
    row("tenants", "the last one's work", "each", "p50, p99 us of the last one's")
    row(*["---"] * 4)
    base = {work: median(partial(rate, Tenant(work))) for work in {work for of in SEVERAL for *_, work in of}}
    for tenants in SEVERAL:
        runs = [together([Tenant(work, n, policy) for n, policy, work in tenants], "warm=2.5") for _ in range(REPEATS)]
        each = [statistics.median(100 * r[i]["rate"] / base[of[2]] for r in runs) for i, of in enumerate(tenants)]
        waits = [statistics.median(r[-1].get(k, 0) for r in runs) for k in ("p50", "p99")]
        names = ", ".join(f"{policy} {cores}" for cores, policy, _ in tenants)
        shown = ", ".join(f"{wait:.0f}" for wait in waits) if any(waits) else ""
        row(names, " ".join(tenants[-1][2]), " + ".join(f"{x:.1f}" for x in each), shown)
