# SPDX-License-Identifier: Apache-2.0
"""The study's part on several latency-critical tenants, of which some come before others."""

from __future__ import annotations

from dataclasses import replace

import arbitration as a
import numpy as np
from curves import curves
from gpu_time import US, Load, Tenant
from gpu_time import S as SECOND
from study import BUSY, SWITCH_US_MOST, Study

LC_TERMS = a.Terms(40, latency=True, floor_percent=5, latency_others=1, turn_length=950)
LC_BELOW = replace(LC_TERMS, latency_above=1)
ORDER_HEAD = ("slice of the lower, us", "urgent", "lower", "urgent beside BE", "lower beside BE", "the BE, %")


def lc_order(study: Study) -> None:
    """Two latency-critical tenants, by the timeslice of the one that gives way: time beyond the requests' own."""
    rows, urgent_lines, lower_lines = [], [], []
    urgent_load, short = study.poisson(250, 100, exponential=False), study.poisson(50, 5000, exponential=False)
    lower_load = replace(short, full=True)
    for us in (50, 100, 200, 500, 1000, 2048, 5000, 20_000):
        row = [f"{us}"]
        for count in (0, 1):
            urgent, lower = Tenant(LC_TERMS, urgent_load), Tenant(LC_BELOW, lower_load, slice_us=us)
            others = [Tenant(a.Terms(20, latency_others=2), BUSY)] * count
            shares = study.run(urgent, lower, *others)
            p50, p99 = quantiles_us(urgent)
            row += [f"{p50:.0f} / {p99:.0f}", shown_waits(lower)]
            most = (us + (1 + count) * SWITCH_US_MOST) * 1.1
            study.claim(p99 <= most, f"urgent beside slices of {us} us, {count} BE: {p99:.0f} us > {most:.0f}")
            if us == LC_BELOW.timeslice_us():
                theirs = quantiles_us(lower)[0]
                study.claim(theirs < 5000, f"lower with slices of {us} us, {count} BE: {theirs:.0f} us")
        rows.append((*row, f"{shares[-1]:.1f}"))
        urgent_lines.append((us, p99))
        if caught_up(lower):
            lower_lines.append((us, quantiles_us(lower)[1]))
    study.table("lc-order", ORDER_HEAD, rows)
    series = [("urgent, 100 us", urgent_lines), ("lower, 5 ms", lower_lines)]
    title = "p99 wait of two LC tenants beside one BE, by the slice of the lower"
    study.charts["time-lc-order.svg"] = curves(title, "slice of the lower, us", "p99, us", series, "xy")


def lc_equal(study: Study) -> None:
    """A latency-critical tenant within its share beside an equal one that is not: time beyond its requests' own."""
    rows = []
    begin = SECOND // 2  # by then the other one is known to be beyond its share
    light = Load(requests=[(at, 100 * US) for at in range(begin, study.end, 3_997 * US)], full=False)
    often = study.poisson(50, 5000, exponential=False)
    for name, load in (
        ("wants everything", BUSY),
        ("900 us of work, 8 without", Load(think=(900 * US, 8 * US), full=False)),
        ("50 requests of 5 ms a second", often),
    ):
        row = [name]
        for slice_us in (20_000, None):
            for count in (0, 1):
                others = [Tenant(a.Terms(40, latency_others=2), BUSY)] * count
                terms = replace(LC_TERMS, cores_percent=20, turn_length=0 if slice_us else LC_TERMS.turn_length)
                within, beyond = Tenant(terms, light), Tenant(terms, load, slice_us=slice_us)
                shares = study.run(within, beyond, *others)
                p50, p99 = quantiles_us(within)
                row.append(f"{p50:.0f} / {p99:.0f}" + f", {shares[1]:.0f} %" * (slice_us is None))
                most = (50 * terms.cores_percent + (1 + count) * SWITCH_US_MOST) * 1.1
                study.claim(load is often or slice_us or p99 <= most, f"beside an equal one, {name}: {p99:.0f} us")
        for count in (0, 1):
            within, *others = as_any_other(light, load, count)
            shares = study.run(within, *others)
            p50, p99 = quantiles_us(within)
            row.append(f"{p50:.0f} / {p99:.0f}" + "".join(f", {share:.0f} %" for share in shares[1:]))
            study.claim(p99 <= 1.1 * SWITCH_US_MOST, f"beside one treated as any other, {name}: {p99:.0f} us")
        rows.append(tuple(row))
    cells = (
        *("20 ms each", "20 ms each, one BE", "by its share, and what it has", "by its share, one BE"),
        *("as any other, and what it has", "as any other, one BE, and what both have"),
    )
    study.table("lc-equal", ("the other one", *cells), rows)


def as_any_other(light: Load, load: Load, count: int) -> list[Tenant]:
    """Returns a latency-critical tenant, one that wants more than its 20 cores and is treated as any other, and `count`
    best-effort ones of 40 cores, of which there may be one."""
    length = 333 if count else 0
    return [
        Tenant(a.Terms(20, latency=True, floor_percent=5), light),
        Tenant(a.Terms(20, latency_others=1, turn_length=length), load),
        *[Tenant(a.Terms(40, latency_others=1, turn_begin=333, turn_length=667), BUSY)] * count,
    ]


def caught_up(tenant: Tenant) -> bool:
    return len(tenant.waits_ns) > 0.95 * len(tenant.load.requests)


def quantiles_us(tenant: Tenant) -> tuple[float, float]:
    waits = np.array(tenant.waits_ns) / US
    return float(np.percentile(waits, 50)), float(np.percentile(waits, 99))


def shown_waits(tenant: Tenant) -> str:
    p50, p99 = quantiles_us(tenant)
    return f"{p50:.0f} / {p99:.0f}" if caught_up(tenant) else "never catches up"


def lc_below(study: Study) -> None:
    """What is left for a latency-critical tenant that wants everything below an urgent one."""
    rows = []
    for percent in (5, 25, 50, 80, 100):
        load = BUSY if percent == 100 else study.poisson(percent * 100, 100, exponential=False)
        row = ["wants everything" if percent == 100 else f"{percent} %"]
        for count in (0, 1):
            others = [Tenant(a.Terms(20, latency_others=2), BUSY)] * count
            first, lower = study.run(Tenant(LC_TERMS, load), Tenant(LC_BELOW, BUSY), *others)[:2]
            row += [f"{first:.1f}", f"{lower:.1f}", f"{100 * lower / (100 - first):.0f}"]
            study.claim(lower >= 0.5 * (100 - first), f"below {percent} %, {count} BE: {lower:.1f} %")
        rows.append(row)
    cells = ("urgent, %", "lower, %", "lower, % of what is left")
    study.table("lc-below", ("the urgent one", *cells, *(f"beside BE: {cell}" for cell in cells)), rows)
