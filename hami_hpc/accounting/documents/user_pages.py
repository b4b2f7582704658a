# SPDX-License-Identifier: Apache-2.0
"""Makes each user's own page of a month: what they held, what it costs, and what their jobs would have needed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

from hami_hpc.accounting.documents.bill import to_hours
from hami_hpc.accounting.documents.efficiency import RunUse
from hami_hpc.accounting.documents.hierarchy import Share, of_users
from hami_hpc.accounting.pricing.price import Sum

MOST_RUNS = 50
_LONGEST_NAME = 80


@dataclass(frozen=True, slots=True)
class UserPage:
    """One user's month. days: GPU-hours of each day. runs: measured ones, those that used least of most first."""

    user: str
    month: str
    shares: tuple[Share, ...]
    days: tuple[tuple[str, Decimal], ...]
    runs: tuple[RunUse, ...]
    most_runs: int = MOST_RUNS

    @property
    def file_name(self) -> str:
        """A name of a file that no other user has, whatever the user's name is."""
        safe = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in self.user)
        if safe == self.user and safe[:1].isalnum() and len(safe) <= _LONGEST_NAME:
            return f"{safe}.html"
        digest = hashlib.sha256(self.user.encode("utf-8", "surrogateescape")).hexdigest()[:16]
        return f"_{safe[:_LONGEST_NAME].lstrip('.')}-{digest}.html"


def build(
    month: str, found: Sequence[Share], by_day: Sequence[Sum], days: Sequence[str], runs: Sequence[RunUse]
) -> Iterator[UserPage]:
    """Yields the page of each user. by_day: sums by user and day."""
    held: dict[str, dict[str, int]] = {}
    for entry in by_day:
        user, day = entry.labels
        held.setdefault(user, dict.fromkeys(days, 0))[day] += entry.held_ppm_s
    own_runs: dict[str, list[RunUse]] = {}
    for run in runs:
        if run.time_measured and not run.damaged:
            own_runs.setdefault(run.user, []).append(run)
    for user, shares in sorted(of_users(found).items()):
        hours = to_hours(list(held[user].values()))
        ordered = sorted(own_runs.get(user, []), key=lambda run: (-run.wasted_gpu_s, run.start_s, run.job))
        yield UserPage(user, month, tuple(shares), tuple(zip(days, hours, strict=True)), tuple(ordered))
