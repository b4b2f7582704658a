# SPDX-License-Identifier: Apache-2.0
"""Quotas: how much of its monthly GPU-hours an account or user has held, and the warnings. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal

from hami_hpc.accounting.pricing.held_time import PPM_SECONDS_PER_HOUR
from hami_hpc.accounting.pricing.rates import Quota

WARN_AT_PERCENT = (75, 85, 95)


@dataclass(frozen=True, slots=True)
class QuotaState:
    """How much of a quota is held. month: such as 2026-11. held_hours: GPU-hours in it so far.

    percent: of the quota, rounded down. warning: the highest threshold of WARN_AT_PERCENT that is reached (100 if the
    quota is), or 0.
    """

    owner: str
    month: str
    quota_hours: Decimal
    held_hours: Decimal
    percent: int
    warning: int


def quota_states(
    quotas: Sequence[Quota], accounts: Mapping[str, int], users: Mapping[str, int], month: date
) -> tuple[QuotaState, ...]:
    """Returns the state of every quota that is valid on the first of ``month``.

    accounts, users: what each has held in that month, in millionths of a GPU times seconds.
    """
    states = []
    for quota in quotas:
        if not quota.valid.holds_on(month.replace(day=1)):
            continue
        held_ppm_s = (accounts if quota.account else users).get(quota.account or quota.user, 0)
        held_hours = Decimal(held_ppm_s) / PPM_SECONDS_PER_HOUR
        percent = int(held_hours * 100 / quota.gpu_hours)
        warning = max((level for level in (*WARN_AT_PERCENT, 100) if percent >= level), default=0)
        owner = f"account {quota.account}" if quota.account else f"user {quota.user}"
        states.append(
            QuotaState(owner, month.strftime("%Y-%m"), quota.gpu_hours, round(held_hours, 4), percent, warning)
        )
    return tuple(states)
