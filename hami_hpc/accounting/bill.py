# SPDX-License-Identifier: Apache-2.0
"""The bill as a value: groups of usage, rolled up by what was asked for, rounded so that it closes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from hami_hpc.accounting.apportion import apportion
from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.times import Period
from hami_hpc.accounting.usage import PPM_SECONDS_PER_HOUR, LeftOut, Segment, Usage, Usages

HOUR_DIGITS = 4
_HOUR_UNIT = PPM_SECONDS_PER_HOUR // 10**HOUR_DIGITS

DIMENSIONS: Mapping[str, Callable[[Usage, Sequence[Segment]], str]] = {
    "cluster": lambda usage, _: usage.cluster,
    "account": lambda usage, _: usage.account,
    "user": lambda usage, _: usage.user,
    "partition": lambda usage, _: usage.partition,
    "qos": lambda usage, _: usage.qos,
    "model": lambda usage, _: usage.model,
    "mode": lambda usage, _: usage.mode.value,
    "class": lambda usage, _: usage.service_class,
    "day": lambda usage, segments: segments[usage.segment].bucket,
    "month": lambda usage, segments: segments[usage.segment].bucket,
}


@dataclass(frozen=True, slots=True)
class Line:
    """One line. labels: one for each dimension. exact: millionths of a GPU times seconds, as held."""

    labels: tuple[str, ...]
    runs: int
    gpu_hours: Decimal
    exact: int


@dataclass(frozen=True, slots=True)
class Bill:
    """gpu_hours of the lines add up to gpu_hours, to the last digit (apportion.py)."""

    period: Period
    dimensions: tuple[str, ...]
    lines: tuple[Line, ...]
    runs: int
    gpu_hours: Decimal
    left_out: tuple[LeftOut, ...]
    still_running: int
    spread: int


def make_bill(usages: Usages, segments: Sequence[Segment], dimensions: Sequence[str]) -> Bill:
    """Roll the groups up by ``dimensions`` (names in DIMENSIONS), largest first within nothing, in label order."""
    unknown = [name for name in dimensions if name not in DIMENSIONS]
    if unknown:
        raise AccountingError(f"cannot bill by '{unknown[0]}'; there is {', '.join(DIMENSIONS)}")
    readers = [DIMENSIONS[name] for name in dimensions]
    sums: dict[tuple[str, ...], list[int]] = {}
    for usage in usages.usages:
        line = sums.setdefault(tuple(reader(usage, segments) for reader in readers), [0, 0])
        line[0] += usage.runs
        line[1] += usage.held
    labels = sorted(sums)
    hours = apportion([sums[label][1] for label in labels], _HOUR_UNIT)
    lines = tuple(
        Line(label, sums[label][0], Decimal(hour).scaleb(-HOUR_DIGITS), sums[label][1])
        for label, hour in zip(labels, hours, strict=True)
    )
    return Bill(
        Period(segments[0].period.start_s, segments[-1].period.end_s),
        tuple(dimensions),
        lines,
        sum(line.runs for line in lines),
        sum((line.gpu_hours for line in lines), Decimal(0).scaleb(-HOUR_DIGITS)),
        usages.left_out,
        usages.still_running,
        usages.spread,
    )
