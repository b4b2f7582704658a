# SPDX-License-Identifier: Apache-2.0
"""The study's part on timeslices that fit tenants with little to do (native/interposer/arbitration/slice.h)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from gpu_time import DRIVERS_TIMESLICE_US, MS, US, Load, Tenant, tenants_of
from gpu_time import S as SECOND
from study import BUSY, Study, shown

Spec = tuple[int, str, Load]  # cores, policy, what it does
SETTLED_NS = 8 * SECOND  # of a run in which claims on fitted timeslices are judged: they settle in 4 s
KINDS = ("stock", "long", "fitted")


def gappy(work_us: int, wait_us: int) -> Load:
    return Load(think=(work_us * US, wait_us * US))


def outcome(study: Study, specs: Sequence[Spec], kind: str) -> tuple[list[float], list[Tenant]]:
    """Shares, and tenants: with the driver's timeslices, with long ones, or with ones that fit."""
    tenants = tenants_of(specs, fits=kind == "fitted")
    for tenant in tenants if kind == "stock" else ():
        tenant.slice_us, tenant.terms = DRIVERS_TIMESLICE_US, replace(tenant.terms, policy="burst")
    return study.run(*tenants), tenants


def light_beside(study: Study) -> None:
    """Waits of a tenant that has little to do now and then, and what the others miss of their shares."""
    light, rows = study.every(MS, 13 * US), []
    cases: list[tuple[str, list[Spec], float]] = [
        ("one of 50 cores, burst", [(50, "burst", BUSY)], 2),
        ("one of 50 cores, cap", [(50, "cap", BUSY)], 12),
        ("one of 90 cores, burst", [(90, "burst", BUSY)], 10),
        ("two of 45 cores, burst", [(45, "burst", BUSY)] * 2, 20),
        ("nine of 10 cores, burst", [(10, "burst", BUSY)] * 9, 50),
        ("five of 18 cores, cap", [(18, "cap", BUSY)] * 5, 46),
    ]
    for name, others, most_ms in cases:
        row = []
        for kind in KINDS:
            shares, tenants = outcome(study, [*others, (10, "burst", light)], kind)
            waits = np.array(tenants[-1].waits_ns[len(tenants[-1].waits_ns) // 4 :]) / MS
            p50, p99 = (float(np.percentile(waits, q)) for q in (50, 99))
            row += [f"{p50:.1f} / {p99:.1f}", shown(shares[:-1])]
            if kind == "fitted" and study.end >= SETTLED_NS:
                study.claim(p99 < most_ms, f"light beside {name}: p99 {p99:.1f} ms")
                for share, (cores, _, _) in zip(shares, others, strict=False):
                    study.claim(share >= cores * 0.94, f"beside light, {name}: {share:.1f} %")
        rows.append((name, *row))
    head = (f"{what}{kind}{unit}" for kind in KINDS for what, unit in (("", ": p50 / p99, ms"), ("others, ", ", %")))
    study.table("light", ("beside", *head), rows)


def gappy_beside(study: Study) -> None:
    """What programs that launch, wait and launch again get of what they get alone."""
    study, whole, rows = study.shorter(), study, []
    launches, both = gappy(10, 8), (50, "burst", gappy(10, 8))
    cases: list[tuple[str, list[Spec], float]] = [
        (
            f"{policy} 50, 50 with {work / 1000:g} ms of work, {wait / 1000:g} of waiting",
            [(50, policy, BUSY), one],
            least,
        )
        for work, wait, least in ((10_000, 2000, 48), (3000, 2000, 65), (1000, 1500, 75), (200, 100, 40), (10, 8, 38))
        for policy in ("burst", "cap")
        for one in [(50, "burst", gappy(work, wait))]
    ]
    cases += [
        ("burst 90, launch-bound 10", [(90, "burst", BUSY), (10, "burst", launches)], 5),
        ("burst 45, 45, launch-bound 10", [(45, "burst", BUSY), (45, "burst", BUSY), (10, "burst", launches)], 5),
        ("two launch-bound 50", [both, both], 30),
        ("three launch-bound 33", [(33, "burst", launches)] * 3, 15),
    ]
    for name, specs, least in cases:
        row = []
        alone = study.run(*tenants_of([specs[-1]]))[0]
        least = min(least, 50) if "cap" in name else least
        for kind in KINDS:
            shares, _ = outcome(study, specs, kind)
            row += [shown(shares), f"{100 * shares[-1] / alone:.0f}"]
            if kind == "fitted" and study.end >= SETTLED_NS:
                study.claim(
                    100 * shares[-1] / alone >= least * 0.95, f"{name}: {100 * shares[-1] / alone:.0f} % of alone"
                )
                for share, (cores, _, load) in zip(shares, specs, strict=True):
                    study.claim(not load.saturating or share >= cores - 3, f"{name}: {share:.1f} %")
        rows.append((name, *row))
    head = (f"{kind}, {what}" for kind in KINDS for what in ("%", "the last, % of alone"))
    whole.failures += study.failures
    whole.table("gappy", ("tenants", *head), rows)


def chosen_times(study: Study) -> None:
    """A tenant without a keeper that is light at chosen times, and works at all others, beside one of 50 cores."""
    study, whole, rows = study.shorter(), study, []
    moments: list[tuple[str, Callable[[int], bool]]] = [
        ("always", lambda now: True),
        ("around each try", lambda now: not 300 * MS <= now % (2 * SECOND) < 1600 * MS),
        ("except at tries", lambda now: now % (2 * SECOND) >= 150 * MS),
        ("around each look", lambda now: 0.8 * SECOND < now % (16 * SECOND) < 1.1 * SECOND),
        ("2.2 of 4 s", lambda now: now % (4 * SECOND) < 2.2 * SECOND),
        ("0.3 of 0.4 s", lambda now: now % (400 * MS) < 300 * MS),
        ("2.2 of 9 s", lambda now: now % (9 * SECOND) < 2.2 * SECOND),
    ]
    for name, when in moments:
        row = []
        for policy in ("burst", "cap"):
            for light in ((10 * US, 8 * US), (13 * US, 987 * US)):
                load = Load(plan=lambda now, when=when, light=light: light if when(now) else (5 * MS, 0))  # type: ignore[misc]
                tenants = tenants_of([(50, policy, BUSY), (50, "burst", load)])
                tenants[1].keeper_stops_ns = 0
                shares = study.run(*tenants)
                row.append(shown(shares))
                study.claim(shares[0] >= 47 or study.end < SETTLED_NS, f"light {name}: {policy} has {shares[0]:.1f} %")
        rows.append((name, *row))
    head = (f"{policy} 50 beside {what}" for policy in ("burst", "cap") for what in ("10 us each 18", "13 us each ms"))
    whole.failures += study.failures
    whole.table("chosen-times", ("light", *(f"{one}, %" for one in head)), rows)
