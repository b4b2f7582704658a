# SPDX-License-Identifier: Apache-2.0
"""What a reader of a bill or an invoice must know beside its lines: omissions, missing prices, estimates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from hami_hpc.accounting.documents.bill import Unpriced, billed_hours, unpriced
from hami_hpc.accounting.pricing.held_time import LeftOut, RunFacts
from hami_hpc.accounting.pricing.price import CHARGED, UNPRICED, Sum
from hami_hpc.accounting.pricing.priced_period import PricedPeriod


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of a bill or an invoice that are worth a note. rejected: a text for each reason for rejected lines.

    The other fields are those of bill.Bill.
    """

    left_out: Sequence[LeftOut] = ()
    rejected: Sequence[str] = ()
    beyond_held: Decimal = Decimal(0)
    unpriced: Sequence[Unpriced] = ()
    still_running: int = 0
    spread: int = 0
    off_gpu: Decimal = Decimal(0)


def sentences(facts: Facts) -> list[str]:
    """Returns a sentence for each fact."""
    lines = []
    for omitted in facts.left_out:
        more = ", ..." if omitted.runs > len(omitted.examples) else ""
        lines.append(
            f"left out: {counted(omitted.runs, 'job')}: {omitted.reason} (job {', '.join(omitted.examples)}{more})"
        )
    lines += [f"left out: {reject}" for reject in facts.rejected]
    if facts.beyond_held:
        lines.append(
            f"charged in addition to the time held: {grouped(facts.beyond_held)} GPU-hours, "
            "for runs below the minimum time and for suspended time"
        )
    if facts.off_gpu:
        lines.append(
            f"not charged of the time held: {grouped(facts.off_gpu)} GPU-hours, in which jobs' memory was off the GPU"
        )
    for gap in facts.unpriced:
        lines.append(f"without a price: {counted(gap.runs, 'job')}, {grouped(gap.gpu_hours)} GPU-hours: {gap.problem}")
    if facts.still_running:
        lines.append(f"{counted(facts.still_running, 'job')} had not ended: counted up to when last read")
    if facts.spread:
        lines.append(
            f"{counted(facts.spread, 'suspended job')} across the start or end of the period: "
            "suspended time spread evenly over the run"
        )
    return lines


def by_account(
    priced_period: PricedPeriod, facts: Mapping[str, RunFacts], rejected: Mapping[str, Sequence[str]]
) -> dict[str, tuple[str, ...]]:
    """Returns the sentences of each account that has any, about its own jobs and no others'.

    facts: on each account's runs. rejected: notes on rejected lines, by the account that they name.
    """
    billed = priced_period.sums("account", condition=CHARGED, numbers=("held_ppm_s", "billed", "spared"))
    beyond = {entry.labels[0]: entry.beyond for entry in billed}
    spared = {entry.labels[0]: entry.spared for entry in billed}
    gaps: dict[str, list[Sum]] = {}
    for entry in priced_period.sums("account", "problem", "since", condition=UNPRICED):
        gaps.setdefault(entry.labels[0], []).append(entry._replace(labels=entry.labels[1:]))
    result = {}
    for account in sorted({*beyond, *gaps, *facts, *rejected}):
        own = facts.get(account, RunFacts())
        said = sentences(
            Facts(
                own.left_out,
                rejected.get(account, ()),
                billed_hours([beyond.get(account, 0)])[0],
                unpriced(gaps.get(account, ())),
                own.still_running,
                own.spread,
                billed_hours([spared.get(account, 0)])[0],
            )
        )
        if said:
            result[account] = tuple(said)
    return result


def grouped(number: Decimal | None) -> str:
    """Returns a number with thousands separators; empty for None."""
    return "" if number is None else f"{number:,}"


def counted(count: int, what: str) -> str:
    """Returns a count with its noun: 1 job, 2,000 jobs."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"
