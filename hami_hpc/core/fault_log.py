# SPDX-License-Identifier: Apache-2.0
"""Counts the errors of each GPU, and says when to report them: the first at once, repeated ones together. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from hami_hpc.core.watch import SECOND

REPORT_NS = 60 * SECOND  # between two reports of one GPU and code
CODES_MAX = 128  # of one GPU; further ones count as OTHER
OTHER = "other"

Key = tuple[str, str]  # GPU and code


class Report(NamedTuple):
    """Errors of one GPU and code that are reported now."""

    gpu_uuid: str
    code: str
    times: int


@dataclass
class FaultLog:
    """The errors since the agent started."""

    totals: dict[Key, int] = field(default_factory=dict)
    _reported: dict[Key, tuple[int, int]] = field(default_factory=dict)  # when last, and the total then

    def update(self, now_ns: int, news: Mapping[Key, int]) -> list[Report]:
        """Adds what came since the last call. Returns what to report now."""
        for (uuid, code), count in news.items():
            key = self._key(uuid, code)
            self.totals[key] = self.totals.get(key, 0) + count
        due = []
        for key, total in self.totals.items():
            last_ns, told = self._reported.get(key, (-REPORT_NS, 0))
            if total > told and now_ns - last_ns >= REPORT_NS:
                due.append(Report(*key, total - told))
                self._reported[key] = (now_ns, total)
        return due

    def _key(self, uuid: str, code: str) -> Key:
        if (uuid, code) not in self.totals and sum(own == uuid for own, _ in self.totals) >= CODES_MAX:
            return (uuid, OTHER)
        return (uuid, code)

    def of_gpu(self, uuid: str) -> tuple[tuple[str, int], ...]:
        """Returns a GPU's totals by code."""
        return tuple((code, count) for (own, code), count in self.totals.items() if own == uuid)
