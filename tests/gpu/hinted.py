# SPDX-License-Identifier: Apache-2.0
"""Sections of bench_time.py: requests of which the program says before that they come, and PyTorch inference."""

from __future__ import annotations

import statistics
import time

from tenants import LC, LC_A, LC_B, REPEATS, Tenant, alone, answer, beside, rate, row, told

KERNEL = ("requests", "us=100", "every=4000")  # (a) without its copy
HINTS_US = (None, 0, 50, 100, 150, 200, 300, 900, 1500)


def hints() -> None:
    print("\n## Requests of which is said so long before that they come soon, beside kernels of 1 ms\n")
    row("requests", "beside", "said, us before", "alone p50, p99", "p50, p99", "p50, p99 over alone", "best effort %")
    row(*["---"] * 7)
    kernels = ("kernels", "us=1000")
    native = rate(Tenant(kernels))
    few = (None, 300)
    for name, work, count, leads in (
        ("(a)", LC_A, 1, HINTS_US),
        ("(a)", LC_A, 3, few),
        ("(a) without its copy", KERNEL, 1, few),
        ("3 x 100 us, 50/s", ("requests", "us=100", "count=3", "every=20000"), 1, few),
        ("(b)", LC_B, 1, few),
    ):
        others = [Tenant(kernels, 60 // count, "burst")] * count
        base = [alone(Tenant(work)) for _ in range(REPEATS)]
        base50, base99 = (statistics.median(r[k] for r in base) for k in ("p50", "p99"))
        for us in leads:
            hinted = work if us is None else (*work, f"hint={us}")
            runs = [beside(Tenant(hinted, 40, "burst", LC), others) for _ in range(REPEATS)]
            p50, p99 = (statistics.median(r[0][k] for r in runs) for k in ("p50", "p99"))
            best_effort = statistics.median(sum(100 * n["rate"] / native for n in r[1]) for r in runs)
            over = f"{p50 / base50:.2f}, {p99 / base99:.2f}"
            when = "none" if us is None else us
            before, now = f"{base50:.0f}, {base99:.0f}", f"{p50:.0f}, {p99:.0f}"
            row(name, count, when, before, now, over, f"{best_effort:.1f}")


OWN = ((0, 0, 0), *((us, 0, 0) for us in (50, 140, 180, 240, 1000)), (240, 1, 0), (240, 0, 1), (240, 0, 64))


def placeholders() -> None:
    print("\n## Requests with a placeholder of the program's own, beside one best-effort tenant with kernels of 1 ms\n")
    row("requests", "launched, us before", "empty kernels, writes behind it", "alone p50, p99", "p50, p99")
    row(*["---"] * 5)
    others = [Tenant(("kernels", "us=1000"), 60, "burst")]
    for name, work in (("(a)", LC_A), ("(a) without its copy", KERNEL)):
        base = [alone(Tenant(work)) for _ in range(REPEATS)]
        base50, base99 = (statistics.median(r[k] for r in base) for k in ("p50", "p99"))
        for us, kernels, writes in OWN:
            held = (*work, f"hold={us}", f"behind={kernels}", f"writes={writes}")
            runs = [beside(Tenant(held, 40, "burst", LC), others)[0] for _ in range(REPEATS)]
            p50, p99 = (statistics.median(r[k] for r in runs) for k in ("p50", "p99"))
            row(name, us, f"{kernels}, {writes}", f"{base50:.0f}, {base99:.0f}", f"{p50:.0f}, {p99:.0f}")


def inference() -> None:
    print("\n## PyTorch inference (50/s) beside PyTorch training\n")
    row("", "p50 us", "p99 us", "p50 over alone", "p99 over alone", "training steps/s")
    row(*["---"] * 6)
    for mode in ("", "graph"):
        infer_as(mode)


def infer_as(mode: str) -> None:
    infer = ("infer.py", "4", *mode.split())
    base = [answer(Tenant(infer).start()) for _ in range(REPEATS)]
    base50, base99 = (statistics.median(r[k] for r in base) for k in ("p50", "p99"))
    what = "one CUDA graph, " if mode else ""
    row(f"{what}alone", f"{base50:.0f}", f"{base99:.0f}", 1.0, 1.0, "")
    for name, cores, hint in (
        ("stock", 0, ()),
        ("latency-critical beside best effort", 1, ()),
        ("the same, said 0.3 ms before", 1, ("hint",)),
    ):
        runs = []
        for _ in range(REPEATS):
            tenants = (
                Tenant(("train.py", "14"), 60 * cores, "burst"),
                Tenant((*infer, *hint), 40 * cores, "burst", LC),
            )
            long, short = told(tenants)
            training = long.start()
            time.sleep(6)
            mine = answer(short.start())
            runs.append((mine, float(training.communicate(timeout=60)[0])))
        p50, p99 = (statistics.median(r[0][k] for r in runs) for k in ("p50", "p99"))
        steps = statistics.median(r[1] for r in runs)
        row(what + name, f"{p50:.0f}", f"{p99:.0f}", p50 / base50, p99 / base99, f"{steps:.1f}")
