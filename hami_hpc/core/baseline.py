# SPDX-License-Identifier: Apache-2.0
"""A node's own figures, and when a new measurement is worse than the recorded one (`hami-hpc baseline`). Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

VERSION = 1
LEAST_PERCENT, MOST_PERCENT, MOST_POINTS = 80, 125, 2


class Better(Enum):
    """Which way a figure gets worse."""

    HIGHER = f"less than {LEAST_PERCENT} % of it"
    LOWER = f"more than {MOST_PERCENT} % of it"
    NEAR_ZERO = f"more than {MOST_POINTS} points above it"


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a GPU. `is_quick`: check --quick measures it too."""

    key: str
    title: str
    unit: str
    better: Better
    is_quick: bool


FIGURES = (
    Figure("context_ms", "time to a first context", "ms", Better.LOWER, False),
    Figure("launch_us", "a kernel, launched and waited for", "us", Better.LOWER, True),
    Figure("alone_per_s", "one tenant's rate", "kernels/s", Better.HIGHER, True),
    Figure("both_per_s", "two tenants' rate, caps 50 + 50", "kernels/s", Better.HIGHER, False),
    Figure("lesser_percent", "the slower one's part of it", "%", Better.HIGHER, False),
    Figure("cap25_error", "error of a cap of 25", "points", Better.NEAR_ZERO, False),
    Figure("free_mib", "free memory", "MiB", Better.HIGHER, True),
)
Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Record:
    """What `baseline record` keeps of one GPU."""

    driver: str
    recorded_unix_s: int
    figures: dict[str, float]


class DamagedRecordsError(ValueError):
    """The text is not one that format_records() wrote."""


def is_worse(figure: Figure, recorded: float, now: float) -> bool:
    """Returns whether a figure is so much worse than the recorded one that a check fails."""
    if figure.better is Better.HIGHER:
        return now < recorded * LEAST_PERCENT / 100
    if figure.better is Better.LOWER:
        return now > recorded * MOST_PERCENT / 100
    return now > recorded + MOST_POINTS


def worse_figures(recorded: Figures, now: Figures) -> list[Figure]:
    """Returns the figures that are worse, of those that both have."""
    return [
        figure
        for figure in FIGURES
        if figure.key in recorded and figure.key in now and is_worse(figure, recorded[figure.key], now[figure.key])
    ]


def best_of(measured: Sequence[Figures]) -> dict[str, float]:
    """Returns the best value of each figure: something else on the machine makes figures worse and never better."""
    best: dict[str, float] = {}
    for figure in FIGURES:
        values = [figures[figure.key] for figures in measured if figure.key in figures]
        if values:
            best[figure.key] = max(values) if figure.better is Better.HIGHER else min(values)
    return best


def median_of(measured: Sequence[Figures]) -> dict[str, float]:
    """Returns the median of each figure of several measurements (of an even number, the upper one of the two)."""
    return {key: sorted(figures[key] for figures in measured)[len(measured) // 2] for key in measured[0]}


def text_of(figure: Figure, value: float) -> str:
    """Returns a figure for people, with three digits that mean something."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f} {figure.unit}"


def complaint(figure: Figure, recorded: float, now: float) -> str:
    """Returns what is wrong with a figure that is worse."""
    return f"{figure.title}: {text_of(figure, now)}, recorded {text_of(figure, recorded)} ({figure.better.value})"


def format_records(records: Mapping[str, Record]) -> str:
    """Returns the records of a node, by GPU UUID, as JSON."""
    gpus = {
        uuid: {"driver": record.driver, "recorded_unix_s": record.recorded_unix_s, "figures": record.figures}
        for uuid, record in sorted(records.items())
    }
    return json.dumps({"version": VERSION, "gpus": gpus}, indent=2) + "\n"


def parse_records(text: str) -> dict[str, Record]:
    """Returns the records in a text. Raises DamagedRecordsError for any other text."""
    try:
        data = json.loads(text)
        if data["version"] != VERSION:
            raise DamagedRecordsError(f"it is of version {data['version']}, not {VERSION}")
        return {str(uuid): _parse_one(entry) for uuid, entry in data["gpus"].items()}
    except DamagedRecordsError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise DamagedRecordsError(f"it holds no records ({type(error).__name__}: {error})") from error


def _parse_one(entry: Mapping[str, object]) -> Record:
    figures = entry["figures"]
    known = {figure.key for figure in FIGURES}
    if not isinstance(figures, dict):
        raise TypeError("figures")
    values = {str(key): float(value) for key, value in figures.items() if key in known}
    if not all(math.isfinite(value) and value >= 0 for value in values.values()):
        raise ValueError("a figure is no number from 0 up")
    return Record(str(entry["driver"]), int(str(entry["recorded_unix_s"])), values)
