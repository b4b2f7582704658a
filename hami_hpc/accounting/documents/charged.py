# SPDX-License-Identifier: Apache-2.0
"""What bills and invoices say beside GPU time: what credit rules take off, and CPUs, memory and licences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from hami_hpc.accounting.pricing.apportion import apportion
from hami_hpc.accounting.pricing.billing_sql import RESOURCE_UNITS
from hami_hpc.accounting.pricing.held_time import PPM_SECONDS_PER_HOUR
from hami_hpc.accounting.pricing.price import FACTOR_UNITS, Sum, unit
from hami_hpc.accounting.pricing.rates import Rates

_HOUR_DIGITS = 4


@dataclass(frozen=True, slots=True)
class RuleCredit:
    """What a credit rule takes off: its name, the jobs concerned, what they were charged, and the amount (negative), as
    decimal text."""

    rule: str
    jobs: int
    charged: str
    amount: str


@dataclass(frozen=True, slots=True)
class ResourceCharge:
    """What is charged for a resource. quantity: its hours, with their unit. amount: decimal text."""

    resource: str
    quantity: str
    amount: str


def rule_credits(sums: Sequence[Sum], rates: Rates) -> tuple[RuleCredit, ...]:
    """Returns what each rule takes off, rounded so that it adds up. sums: BY_RULE, with credits; the last label is the
    rule's index."""
    entries = [entry for entry in sums if entry.credited]
    if not entries:
        return ()
    charged = apportion([entry.charge for entry in entries], unit(rates.digits))
    amounts = apportion([entry.credited for entry in entries], unit(rates.digits))
    return tuple(
        RuleCredit(
            rates.credit_rules[int(entry.labels[-1])].name,
            entry.runs,
            str(Decimal(charge).scaleb(-rates.digits)),
            str(Decimal(-amount).scaleb(-rates.digits)),
        )
        for entry, charge, amount in zip(entries, charged, amounts, strict=True)
    )


def resource_charges(sums: Sequence[Sum], rates: Rates) -> tuple[ResourceCharge, ...]:
    """Returns what is charged for each resource, rounded so that it adds up. sums: by model and mode, OF_RESOURCES."""
    amounts = apportion([entry.charge for entry in sums], unit(rates.digits))
    return tuple(
        ResourceCharge(
            entry.labels[0],
            quantity(entry.labels[1], entry.amount),
            str(Decimal(amount).scaleb(-rates.digits)),
        )
        for entry, amount in zip(sums, amounts, strict=True)
    )


def hours_and_unit(line_quantity: str, gpu_hours: str) -> tuple[str, str]:
    """Returns an invoice line's hours, as decimal text, and their unit. line_quantity: of quantity()."""
    if not line_quantity:
        return gpu_hours, "GPU-hours"
    hours, unit = line_quantity.split(" ", 1)
    return hours.replace(",", ""), unit


def quantity(mode: str, amount: int) -> str:
    """Returns hours of a resource with their unit; empty for GPUs. amount: as price.Sum has it."""
    if mode not in RESOURCE_UNITS:
        return ""
    (hours,) = apportion([amount], PPM_SECONDS_PER_HOUR * FACTOR_UNITS // 10**_HOUR_DIGITS)
    return f"{Decimal(hours).scaleb(-_HOUR_DIGITS):,} {RESOURCE_UNITS[mode]}"
