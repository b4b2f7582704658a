# SPDX-License-Identifier: Apache-2.0
"""Quotas: how much of its monthly GPU-hours an account or user has held, and when to say so. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal

from hami_hpc.accounting.pricing.held_time import PPM_SECONDS_PER_HOUR, HeldTime
from hami_hpc.accounting.pricing.rates import Quota

WARN_AT_PERCENT = (75, 85, 95)


@dataclass(frozen=True, slots=True)
class QuotaState:
    """month: such as 2026-11. held_hours: GPU-hours in it so far. percent: of the quota, rounded down. warning: the
    highest threshold of WARN_AT_PERCENT that is reached (100 when the quota is), or 0."""

    owner: str
    month: str
    quota_hours: Decimal
    held_hours: Decimal
    percent: int
    warning: int


def quota_states(quotas: Sequence[Quota], groups: Sequence[HeldTime], month: date) -> tuple[QuotaState, ...]:
    """The state of every quota that holds on the first of ``month``. groups: of that month."""
    states = []
    for quota in quotas:
        if not quota.valid.holds_on(month.replace(day=1)):
            continue
        mine = (u.held_ppm_s for u in groups if (u.account == quota.account if quota.account else u.user == quota.user))
        held = Decimal(sum(mine)) / PPM_SECONDS_PER_HOUR
        percent = int(held * 100 / quota.gpu_hours)
        warning = max((level for level in (*WARN_AT_PERCENT, 100) if percent >= level), default=0)
        owner = f"account {quota.account}" if quota.account else f"user {quota.user}"
        states.append(QuotaState(owner, month.strftime("%Y-%m"), quota.gpu_hours, round(held, 4), percent, warning))
    return tuple(states)
