# SPDX-License-Identifier: Apache-2.0
"""The annex of an invoice: every job with what it held and cost. Its lines add up to the invoice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal

from hami_hpc.accounting.documents.bill import billed_hours, to_money
from hami_hpc.accounting.documents.charged import quantity
from hami_hpc.accounting.documents.invoice import Content
from hami_hpc.accounting.pricing.held_time import JOB
from hami_hpc.accounting.pricing.price import ALL, PRICED, Sum
from hami_hpc.accounting.pricing.priced_period import PricedPeriod
from hami_hpc.accounting.pricing.rates import Rates
from hami_hpc.accounting.store.database import literal

RUNS_AT_ONCE = 50_000
_BY = ("account", "cluster", "job", "user", "partition", "model", "mode", "class", "billable")


@dataclass(frozen=True, slots=True)
class AnnexLine:
    """What a job held of one GPU model, or of CPUs, memory or licences, in the month, in all its runs.

    start_s: of its first run. end_s: of its last; None if that had not ended. runs: begun or running in the month; 0 on
    the further lines of a job. gpu_hours: charged. quantity: of other resources than GPUs. credited: by rule, negative.
    """

    cluster: str
    job: str
    user: str
    partition: str
    model: str
    mode: str
    service_class: str
    start_s: int
    end_s: int | None
    runs: int
    gpu_hours: Decimal
    quantity: str
    amount: Decimal
    credited: Decimal


def annexes(
    priced_period: PricedPeriod, rates: Rates, accounts: Iterable[str]
) -> Iterator[tuple[str, tuple[AnnexLine, ...]]]:
    """Yields the annex of each of these accounts. priced_period: of the month, by job (held_time.JOB).

    Only the jobs of some accounts are in memory at once: a million take 2.4 GiB.
    """
    runs = dict(priced_period.con.execute("SELECT account, count(*) FROM counted GROUP BY 1").fetchall())
    for batch in _batches(accounts, runs):
        listed = f"account IN ({', '.join(map(literal, batch))})"
        rows = priced_period.con.execute(
            f"SELECT r.cluster, {JOB}, r.account, r.username, min(start_s), "
            f"if(bool_or(end_s IS NULL), NULL, max(end_s)) FROM counted AS r WHERE r.{listed} GROUP BY ALL"
        ).fetchall()
        times = {tuple(row[:4]): (row[4], row[5]) for row in rows}
        by_account: dict[str, list[Sum]] = {}
        for entry in priced_period.sums(*_BY, condition=f"{PRICED} AND {listed}", numbers=ALL):
            by_account.setdefault(entry.labels[0], []).append(entry)
        for account in batch:
            yield account, _lines(by_account.pop(account, []), times, rates)


def _batches(accounts: Iterable[str], runs: Mapping[str, int]) -> Iterator[list[str]]:
    """Yields the accounts in their order, together as long as they have no more than RUNS_AT_ONCE runs."""
    batch: list[str] = []
    size = 0
    for account in accounts:
        size += runs.get(account, 0)
        if batch and size > RUNS_AT_ONCE:
            yield batch
            batch, size = [], runs.get(account, 0)
        batch.append(account)
    if batch:
        yield batch


def fits(lines: tuple[AnnexLine, ...], content: Content) -> bool:
    """Returns whether an annex adds up to the invoice. It does not if records or rates have changed since."""
    charged = sum((line.amount for line in lines), Decimal(0))
    credited = sum((line.credited for line in lines), Decimal(0))
    by_rule = sum((Decimal(entry.amount) for entry in content.credited), Decimal(0))
    hours = sum((line.gpu_hours for line in lines), Decimal(0))
    return (charged, credited, hours) == (Decimal(content.subtotal), by_rule, Decimal(content.gpu_hours))


def _lines(
    entries: list[Sum], times: dict[tuple[str, ...], tuple[int, int | None]], rates: Rates
) -> tuple[AnnexLine, ...]:
    hours = billed_hours([entry.billed for entry in entries])
    amounts = to_money([entry.charge for entry in entries], rates.digits)
    credited = to_money([entry.credited for entry in entries], rates.digits)
    lines = []
    for entry, hour, amount, credit in zip(entries, hours, amounts, credited, strict=True):
        account, cluster, job, user, partition, model, mode, service_class, _ = entry.labels
        start_s, end_s = times[cluster, job, account, user]
        lines.append(
            AnnexLine(
                cluster, job, user, partition, model, mode, service_class, start_s, end_s, entry.runs, hour,
                quantity(mode, entry.amount), amount, -credit,
            )
        )  # fmt: skip
    return tuple(sorted(lines, key=lambda line: (line.start_s, line.job, bool(line.quantity), line.model, line.mode)))
