# SPDX-License-Identifier: Apache-2.0
"""What accounts have left: of their budgets, and of their credits."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from zoneinfo import ZoneInfo

from hami_hpc.accounting.documents.bill import to_money
from hami_hpc.accounting.documents.credits import Balance, Ref, balances, take
from hami_hpc.accounting.documents.issuing import Issued
from hami_hpc.accounting.pricing.budget import PACE_DAYS, BudgetState, Used, holding, states, used_by
from hami_hpc.accounting.pricing.cluster_gpus import ClusterGpus
from hami_hpc.accounting.pricing.price import ALL
from hami_hpc.accounting.pricing.priced_period import price_period
from hami_hpc.accounting.pricing.rates import Budget, Credit, Rates
from hami_hpc.accounting.store.database import literal
from hami_hpc.accounting.store.job_records import JobRecords
from hami_hpc.accounting.times import Bucket, Period, day_start, local_date, next_month

_DAY_S = 86400


@dataclass(frozen=True, slots=True)
class AccountBalance:
    """What an account may still use.

    budgets: those that hold. credits: those that hold, with what invoices took. pending: what was charged since the
    last invoice, before discounts. claimed: what of that falls to these credits, and not to those that held before.
    had: whether rates.toml has a budget or credit for it, of any time. seen: whether there are jobs of it. over:
    whether a budget or credit of it has ended.
    """

    account: str
    day: date
    currency: str
    budgets: tuple[BudgetState, ...]
    credits: tuple[Balance, ...]
    pending: Decimal
    claimed: Decimal
    had: bool
    seen: bool
    over: bool

    @property
    def credit_left(self) -> Decimal:
        """What credits have left after all that was charged."""
        return sum((credit.left for credit in self.credits), Decimal(0)) - self.claimed

    @property
    def is_empty(self) -> bool:
        """Whether a budget or the credits are used up, or none holds any more."""
        if not self.budgets and not self.credits:
            return self.over
        return any(state.is_empty for state in self.budgets) or bool(self.credits and self.credit_left <= 0)


def budget_states(
    records: JobRecords, gpus: ClusterGpus, prices: Rates, tz: ZoneInfo, until_s: int, account: str | None = None
) -> list[BudgetState]:
    """Returns the state of the budgets that hold in the second before ``until_s``, with what was used until then.

    records: with ``overlapping``, so from a store. account: only this one's.
    """
    day = local_date(until_s - 1, tz)
    result: dict[Budget, list[BudgetState]] = {}
    found = sorted(holding(prices.budgets, day, account), key=lambda entry: (entry.valid.start, entry.account))
    for first in dict.fromkeys(entry.valid.start for entry in found):
        start_s = day_start(first, tz)
        recent_s = max(start_s, until_s - PACE_DAYS * _DAY_S)
        accounts = sorted({entry.account for entry in found if entry.valid.start == first})
        used = _used(records, gpus, prices, tz, (start_s, recent_s, until_s), accounts)
        for entry in found:
            if entry.valid.start == first:
                before, recent = (used_by(part, entry.account) for part in used)
                days = Fraction(until_s - recent_s, _DAY_S)
                result[entry] = states(entry, before, recent, days, day, prices.currency, prices.digits)
    return [state for entry in prices.budgets if entry in result for state in result[entry]]


def account_balance(
    records: JobRecords, gpus: ClusterGpus, prices: Rates, tz: ZoneInfo, account: str, issued: Issued, now_s: int
) -> AccountBalance:
    """Returns what an account has left. records: from a store."""
    day = local_date(now_s, tz)
    uses: Mapping[Ref, Decimal] = issued.credit_uses(prices.currency)
    every = [entry for entry in balances(prices, uses) if entry.account == account]
    held = tuple(entry for entry in every if entry.valid.holds_on(day))
    budgets = tuple(budget_states(records, gpus, prices, tz, now_s, account))
    pending = _pending(records, gpus, prices, tz, account, issued, now_s) if held else []
    claimed = _claimed(prices.credits_of(account), {entry.credit for entry in held}, uses, pending)
    charged = sum((amount for _, amount in pending), Decimal(0))
    row = records.con.execute(f"SELECT 1 FROM {_whole(records)} WHERE account = {literal(account)} LIMIT 1").fetchone()
    limits = [credit.valid for credit in every]
    limits += [entry.valid for entry in prices.budgets if entry.account == account]
    over = any(valid.end <= day for valid in limits)
    return AccountBalance(
        account, day, prices.currency, budgets, held, charged, claimed, bool(limits), row is not None, over
    )


def _whole(records: JobRecords) -> str:
    return records.overlapping(Period(0, 1 << 62)) if records.overlapping else records.source


def _used(
    records: JobRecords, gpus: ClusterGpus, prices: Rates, tz: ZoneInfo, edges: Sequence[int], accounts: Sequence[str]
) -> list[dict[str, Used]]:
    """Returns what each of the accounts used between each two of the edges, seconds since 1970."""
    parts = [Bucket(str(index), Period(*pair)) for index, pair in enumerate(pairwise(edges)) if pair[0] < pair[1]]
    used: list[dict[str, Used]] = [{} for _ in edges[1:]]
    if not parts:
        return used
    whole = Period(parts[0].period.start_s, parts[-1].period.end_s)
    source = records.overlapping(whole) if records.overlapping else records.source
    source = f"(SELECT * FROM {source} WHERE account IN ({', '.join(map(literal, accounts))}))"
    priced_period = price_period(replace(records, source=source), gpus, prices, parts, tz)
    for entry in priced_period.sums("account", "day", numbers=ALL):
        name, part = entry.labels
        used[int(part)][name] = Used(entry.billed, entry.charge - entry.credited)
    return used


def _pending(
    records: JobRecords, gpus: ClusterGpus, prices: Rates, tz: ZoneInfo, account: str, issued: Issued, now_s: int
) -> list[tuple[date, Decimal]]:
    """Returns what the account was charged in each month without an invoice since the first one with an invoice, or
    since its first credit or job; with the month's first day."""
    named = {d.content.month for d in issued.documents if d.content.account == account}
    invoiced = {date.fromisoformat(f"{month}-01") for month in named if issued.standing(account, month)}
    if invoiced:
        first = min(invoiced)
        while first in invoiced:
            first = next_month(first)
    else:
        first = min(credit.valid.start for credit in prices.credits if credit.account == account)
    if first == date.min:
        row = records.con.execute(
            f"SELECT min(start_s) FROM {_whole(records)} WHERE account = {literal(account)}"
        ).fetchone()
        if row is None or row[0] is None:
            return []
        first = local_date(row[0], tz).replace(day=1)
    starts = [first]
    while day_start(next_month(starts[-1]), tz) < now_s:
        starts.append(next_month(starts[-1]))
    edges = [*(min(day_start(day, tz), now_s) for day in starts), now_s]
    used = _used(records, gpus, prices, tz, edges, [account])
    charges = [to_money([used_by(part, account).charge], prices.digits)[0] for part in used]
    return [(day, amount) for day, amount in zip(starts, charges, strict=True) if day not in invoiced]


def _claimed(
    credits: Sequence[Credit],
    holding_ids: Collection[str],
    uses: Mapping[Ref, Decimal],
    pending: Sequence[tuple[date, Decimal]],
) -> Decimal:
    """Returns what of the months' charges falls to the credits that hold now: what invoices will take from them, and of
    months in which one of them holds also what no credit pays. credits: all of the account's."""
    taken = dict(uses)
    claimed = sum((owed for _, owed in pending), Decimal(0)) * 0  # with the currency's digits
    for month, owed in pending:
        for use in take(credits, month, taken, owed):
            amount = Decimal(use.amount)
            taken["", use.key] = taken.get(("", use.key), Decimal(0)) + amount
            owed -= amount
            claimed += amount if use.key in holding_ids else 0
        if any(credit.valid.holds_on(month) for credit in credits if credit.id in holding_ids):
            claimed += owed
    return claimed
