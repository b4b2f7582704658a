# SPDX-License-Identifier: Apache-2.0
"""What the parts of the study of the GPU's time share (time_study.py, fit_study.py)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from gpu_time import LOAD_NS, SAVE_NS, US, Gpu, Load, Tenant
from gpu_time import S as SECOND

BUSY = Load(saturating=True)
# From an LC request's arrival on an engine that another holds, beside the slice: the rest of the own save, the other's
# load and save, the own load.
SWITCH_US_MOST = (SAVE_NS[False] + LOAD_NS[True] + SAVE_NS[True] + LOAD_NS[False]) / US


class Study:
    """Results so far: tables by name, charts by file, claims that do not hold."""

    def __init__(self, seconds: float, seed: int) -> None:
        self.end = int(seconds * SECOND)
        self.random = np.random.default_rng(seed)
        self.tables: dict[str, str] = {}
        self.charts: dict[str, str] = {}
        self.failures: list[str] = []

    def shorter(self) -> Study:
        """Returns one of half the time, for cases of very many changes of tenant."""
        return Study(self.end / SECOND / 2, 1)

    def claim(self, holds: bool, text: str) -> None:
        if not holds:
            self.failures.append(text)

    def table(self, name: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
        self.tables[name] = "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])

    def poisson(self, per_second: float, mean_us: float, exponential: bool = True) -> Load:
        """Requests of a mean length, exponentially distributed or all alike, of a context that is small on the chip."""
        count = int(per_second * self.end / SECOND)
        at = np.cumsum(self.random.exponential(SECOND / per_second, count)).astype(np.int64)
        length = self.random.exponential(mean_us * US, count) if exponential else np.full(count, mean_us * US)
        lengths = np.maximum(length, US).astype(np.int64)
        return Load(requests=list(zip(at.tolist(), lengths.tolist(), strict=True)), full=False)

    def every(self, period_ns: int, length_ns: int, full: bool = False) -> Load:
        return Load(requests=[(at, length_ns) for at in range(period_ns, self.end, period_ns)], full=full)

    def run(self, *tenants: Tenant) -> list[float]:
        """Returns each one's share of the time, percent."""
        Gpu(tenants).run(self.end)
        return [100 * tenant.worked_ns / self.end for tenant in tenants]


def shown(values: Sequence[float], digits: int = 1) -> str:
    if len(values) > 3 and max(values) - min(values) < 0.3:
        return f"{len(values)} x {sum(values) / len(values):.{digits}f}"
    return " + ".join(f"{value:.{digits}f}" for value in values)
