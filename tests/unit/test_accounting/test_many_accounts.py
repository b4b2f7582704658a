# SPDX-License-Identifier: Apache-2.0
"""What is done in bulk for many accounts gives what the plain form gives, which stands here."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_hpc.accounting.documents import invoice
from hami_hpc.accounting.documents.bill import billed_hours, to_money
from hami_hpc.accounting.documents.charged import quantity
from hami_hpc.accounting.documents.invoice import AccountTime, InvoiceLine
from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.pricing import price
from hami_hpc.accounting.pricing.price import Sum
from hami_hpc.accounting.pricing.rates import Credit, Discount, Rates
from hami_hpc.accounting.pricing.rates_file import parse_rates
from hami_hpc.accounting.pricing.segment import Segment
from hami_hpc.accounting.pricing.validity import Validity
from hami_hpc.accounting.store import database
from hami_hpc.accounting.times import Period

D = Decimal
WHOLE = st.integers(0, 10**30)


@pytest.mark.parametrize("rows", [0, 1, 4, 5, 6, 11])
@pytest.mark.parametrize("gives_the_rest", [True, False])
def test_columns_are_those_of_the_rows(monkeypatch: pytest.MonkeyPatch, rows: int, gives_the_rest: bool) -> None:
    monkeypatch.setattr(database, "_FEW", 5)
    assert database._gives_the_rest(duckdb.connect()) is True
    monkeypatch.setattr(database, "_gives_the_rest", lambda con: gives_the_rest)
    con = duckdb.connect()
    query = (
        "SELECT i::BIGINT, 'é' || i, i, if(i % 3 = 2, NULL, i::VARCHAR), if(i % 2 = 1, NULL, i::BIGINT) "
        f"FROM range({rows}) AS r(i) ORDER BY i"
    )
    plain = con.execute(query).fetchall()
    assert len(plain) == rows
    assert database.columns(con, query) == ([list(column) for column in zip(*plain, strict=True)] or [[]] * 5)


@settings(deadline=None)
@given(st.integers(-(2**125), 2**125 - 1))
def test_two_halves_are_the_whole(number: int) -> None:
    query = f"SELECT {database.halves('$1::HUGEINT')}"
    high, low = duckdb.execute(query, [number]).fetchone() or (0, 0)
    assert database.joined([high], [low]) == [number]


def test_a_number_that_two_halves_cannot_hold_is_refused() -> None:
    with pytest.raises(duckdb.ConversionException):
        duckdb.execute(f"SELECT {database.halves('$1::HUGEINT')}", [2**126])


@pytest.mark.parametrize("numbers", [(), ("billed",), price.USUAL, price.ALL])
@settings(deadline=None)
@given(
    rows=st.lists(st.tuples(st.sampled_from(["a", "b", "ä"]), *[st.integers(0, 10**34)] * len(price.ALL)), max_size=12)
)
def test_sums_are_those_of_the_database(numbers: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    con = duckdb.connect()
    con.execute(
        "CREATE TABLE priced (account VARCHAR, runs BIGINT, " + ", ".join(f"{n} HUGEINT" for n in price.ALL) + ")"
    )
    if rows:
        con.executemany(f"INSERT INTO priced VALUES (?, 1{', ?' * len(price.ALL)})", rows)
    expected: dict[str, list[int]] = {}
    for account, *values in rows:
        line = expected.setdefault(account, [0] * (1 + len(price.ALL)))
        for index, value in enumerate((1, *values)):
            line[index] += value
    asked = [1, *(int(name in numbers) for name in price.ALL)]
    assert price.sums(con, ["account"], numbers=numbers) == [
        Sum((account,), *(value * known for value, known in zip(expected[account], asked, strict=True)))
        for account in sorted(expected)
    ]


def _plain_lines(entries: Sequence[tuple[tuple[str, ...], Sum]], rates: Rates) -> tuple[InvoiceLine, ...]:
    sums: dict[tuple[str, ...], list[int]] = {}
    for labels, entry in entries:
        line = sums.setdefault(labels, [0, 0, 0, 0])
        for index, value in enumerate((entry.runs, entry.billed, entry.charge, entry.amount)):
            line[index] += value
    ordered = sorted(sums, key=lambda labels: (len(labels) > 1 and labels[1] in ("cpu", "mem", "license"), labels))
    hours = billed_hours([sums[labels][1] for labels in ordered])
    amounts = to_money([sums[labels][2] for labels in ordered], rates.digits)
    return tuple(
        InvoiceLine(
            labels,
            sums[labels][0],
            str(hour),
            str(amount),
            quantity(labels[1], sums[labels][3]) if len(labels) > 1 else "",
        )
        for labels, hour, amount in zip(ordered, hours, amounts, strict=True)
    )


_KINDS = st.tuples(st.sampled_from("hab"), st.sampled_from(["gpu", "cpu", "mem"]))


@settings(deadline=None)
@given(st.lists(st.tuples(st.one_of(_KINDS, st.tuples(st.text())), st.builds(Sum, st.just(()), *[WHOLE] * 7))))
def test_lines_are_those_of_the_plain_form(entries: list[tuple[tuple[str, ...], Sum]]) -> None:
    assert invoice._lines(entries, Rates()) == _plain_lines(entries, Rates())


@settings(deadline=None)
@given(st.dictionaries(st.integers(0, 30), WHOLE))
def test_days_are_those_of_the_plain_form(billed: dict[int, int]) -> None:
    segments = [Segment(f"day-{number:02d}", Period(number, number + 1)) for number in (*range(31), 30)]
    held = AccountTime(days=[Sum(("a", f"day-{number:02d}"), 1, 0, billed[number], 0) for number in sorted(billed)])
    plain = dict.fromkeys((segment.bucket for segment in segments), 0)
    plain.update({entry.labels[1]: entry.billed for entry in held.days})
    expected = tuple((day, str(hour)) for day, hour in zip(plain, billed_hours(list(plain.values())), strict=True))
    assert invoice._days(held, segments) == expected


def test_credits_and_discounts_are_found_by_account() -> None:
    credits = tuple(Credit(f"c{number}", "ab"[number % 2], D(number)) for number in range(5))
    discounts = tuple(Discount(account, D(0), D(1)) for account in ("", "a", "", "a", "b"))
    rates = Rates(credits=credits, discounts=discounts)
    for account in ("a", "b", "c", ""):
        assert list(rates.credits_of(account)) == [credit for credit in credits if credit.account == account]
        assert list(rates.discounts_of(account)) == [entry for entry in discounts if entry.account == account]
    assert rates == Rates(credits=credits, discounts=discounts)


def test_rates_of_many_accounts_are_compared_within_an_account_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """4,000 discounts and quotas are 8,000,000 pairs, of which none has to be looked at."""
    pairs: list[object] = []
    overlaps = Validity.overlaps

    def counted(self: Validity, other: Validity) -> bool:
        pairs.append(other)
        return overlaps(self, other)

    monkeypatch.setattr(Validity, "overlaps", counted)
    accounts = [f"a{number}" for number in range(4_000)]
    discounts = [{"account": name, "from_gpu_hours": 10, "percent": 5} for name in accounts]
    parse_rates(
        {"version": 1, "discounts": discounts, "quotas": [{"account": name, "gpu_hours": 1} for name in accounts]}, "r"
    )
    assert not pairs
    with pytest.raises(AccountingError, match=r"two \[\[discounts\]\] a7 10 are valid on"):
        parse_rates({"version": 1, "discounts": [*discounts, discounts[7]]}, "r")
    with pytest.raises(AccountingError, match="count together and have different kind"):
        parse_rates(
            {"version": 1, "discounts": [*discounts, {**discounts[7], "from_gpu_hours": 20, "kind": "all"}]}, "r"
        )
