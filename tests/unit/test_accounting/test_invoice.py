# SPDX-License-Identifier: Apache-2.0
"""Prices, discounts, credits, quotas and invoices, by amounts that were worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from hami_hpc.accounting.documents import bill, credits, invoice, invoice_files, issuing
from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.formats import tables
from hami_hpc.accounting.pricing import quota
from hami_hpc.accounting.pricing.priced_period import price_period
from hami_hpc.accounting.pricing.rates import Rates
from hami_hpc.accounting.pricing.rates_file import load_rates
from hami_hpc.accounting.store import job_records
from hami_hpc.accounting.times import Period, month_period, parse_instant, split_days, zone

from .samples import GPUS, HOUR, ONE_H200, VGPU_HALF, Job, fill, issue_one, make_bill, rates

D = Decimal
MONTH = date(2026, 9, 1)
SEPTEMBER = parse_instant("2026-09-01", zone("UTC"))
H200 = {"model": "h200", "per_gpu_hour": D("2.50")}


def _content(
    root: Path, prices: Rates, used: Mapping[credits.Ref, D] | None = None, account: str = "phys"
) -> invoice.Content:
    tz = zone(prices.timezone)
    period = month_period("2026-09", tz)
    records = job_records.from_store(root, period, 256)
    priced_period = price_period(records, GPUS, prices, split_days(period, tz), tz)
    own = invoice.account_times(priced_period).get(account, invoice.AccountTime())
    records.con.close()
    return invoice.build(account, MONTH, own, priced_period.segments, prices, used or {}, ())


def _hours(count: int, **changes: Any) -> Job:
    return Job(start=SEPTEMBER, end=SEPTEMBER + count * HOUR, submit=SEPTEMBER, **changes)


def test_tiers_discount_only_the_hours_that_lie_in_them(tmp_path: Path) -> None:
    """700 h at 2.50 = 1750.00. 0 % up to 100 h, 5 % of 400 h, 10 % of 200 h: 40 h free of 700, 100.00 off."""
    fill(tmp_path / "s", [_hours(700)])
    tiers = [{"from_gpu_hours": 500, "percent": 10}, {"from_gpu_hours": 100, "percent": 5}]
    content = _content(tmp_path / "s", rates(rates=[H200], discounts=tiers))
    assert (content.subtotal, content.discount, content.total) == ("1750.00", "-100.00", "1650.00")


def test_an_accounts_own_tiers_replace_the_general_ones(tmp_path: Path) -> None:
    fill(tmp_path / "s", [_hours(100)])
    tiers = [
        {"from_gpu_hours": 0, "percent": 50},
        {"from_gpu_hours": 0, "percent": D("1.5"), "account": "phys"},
    ]
    assert _content(tmp_path / "s", rates(rates=[H200], discounts=tiers)).discount == "-3.75"


def test_credits_pay_what_is_owed_the_one_that_ends_first_before_the_others(tmp_path: Path) -> None:
    """100 h: 250.00. 'grant' ends in October and pays its 60.00 that are left, 'gift' the rest; 'old' is over."""
    fill(tmp_path / "s", [_hours(100)])
    granted = [
        {"id": "gift", "account": "phys", "amount": 500, "note": "gift"},
        {"id": "grant", "account": "phys", "amount": 100, "note": "grant", "until": date(2026, 11, 1)},
        {"id": "old", "account": "phys", "amount": 900, "note": "old", "until": date(2026, 9, 1)},
        {"id": "theirs", "account": "chem", "amount": 900, "note": "theirs"},
    ]
    prices = rates(rates=[H200], credits=granted)
    content = _content(tmp_path / "s", prices, {("", "grant"): D("40.00")})
    assert [(use.note, use.amount) for use in content.credits] == [("grant", "60.00"), ("gift", "190.00")]
    assert content.total == "0.00"


def test_lines_discount_and_credits_add_up_to_the_total(tmp_path: Path) -> None:
    """Lines of 1/3 cent each: 2.50 x 36 s x share: the lines are rounded so that they close."""
    jobs = [
        Job(job_id=i, submit=SEPTEMBER, start=SEPTEMBER, end=SEPTEMBER + 7 * i, user=f"u{i}", tres=tres)
        for i, tres in enumerate([ONE_H200, VGPU_HALF, "gres/gpu:h200_1g.18gb=1,gres/gpu=1"] * 5, 1)
    ]
    fill(tmp_path / "s", jobs)
    content = _content(tmp_path / "s", rates(rates=[H200], discounts=[{"from_gpu_hours": 0, "percent": 7}]))
    assert sum(D(line.amount) for line in content.lines) == D(content.subtotal)
    assert sum(D(line.amount) for line in content.users) == D(content.subtotal)
    assert sum(D(line.gpu_hours) for line in content.lines) == D(content.gpu_hours)
    assert sum(D(hours) for _, hours in content.days) == D(content.gpu_hours)
    assert D(content.subtotal) + D(content.discount) == D(content.total)


def test_last_years_hours_are_billed_at_last_years_rate_within_one_job(tmp_path: Path) -> None:
    """A job from 12:00 on New Year's Eve to 12:00: 12 h at 2.00 and 12 h at 3.00, in Berlin's time."""
    berlin = zone("Europe/Berlin")
    start, end = parse_instant("2025-12-31T12:00", berlin), parse_instant("2026-01-01T12:00", berlin)
    fill(tmp_path / "s", [Job(submit=start, start=start, end=end)])
    prices = rates(
        timezone="Europe/Berlin",
        rates=[
            {"model": "h200", "per_gpu_hour": 2, "until": date(2026, 1, 1)},
            {"model": "h200", "per_gpu_hour": 3, "from": date(2026, 1, 1)},
        ],
    )
    made = make_bill(tmp_path / "s", Period(start, end), "account", prices, "Europe/Berlin")
    assert made.cost == D("60.00")
    by_month = make_bill(tmp_path / "s", Period(start, end), "month", prices, "Europe/Berlin")
    assert [(line.labels[0], line.cost) for line in by_month.lines] == [
        ("2025-12", D("24.00")),
        ("2026-01", D("36.00")),
    ]


def test_factors_multiply_where_all_their_names_match(tmp_path: Path) -> None:
    lc = VGPU_HALF.replace("vgpu:std", "vgpu:lc")
    fill(tmp_path / "s", [_hours(2), _hours(2, job_id=2, tres=lc), _hours(2, job_id=3, tres=lc, account="chem")])
    factors = [
        {"class": "lc", "factor": D("1.25")},
        {"account": "chem", "mode": "vgpu", "factor": D("0.5")},
        {"partition": "old", "factor": 0},
    ]
    made = make_bill(
        tmp_path / "s", month_period("2026-09", zone("UTC")), "account,mode", rates(rates=[H200], factors=factors)
    )
    costs = {line.labels: line.cost for line in made.lines}
    # 2 h x 2.50; 1 GPU-hour x 3.125; 1 x 1.5625. The total 9.6875 rounds to 9.69 and lines close on it.
    assert made.cost == D("9.69")
    assert costs == {("chem", "vgpu"): D("1.56"), ("phys", "gpu"): D("5.00"), ("phys", "vgpu"): D("3.13")}


def test_suspended_time_costs_its_own_part_and_short_runs_the_minimum(tmp_path: Path) -> None:
    """1 h with 30 min suspended at 20 %: 0.5 x 2.50 + 0.5 x 0.50 = 1.50. A run of 36 s as 360 s: 0.25."""
    terms = [{"suspended_factor": D("0.2"), "minimum_s": 360}]
    fill(tmp_path / "s", [_hours(1, suspended=1800), Job(2, SEPTEMBER, SEPTEMBER, SEPTEMBER + 36, user="bob")])
    prices = rates(rates=[H200], terms=terms)
    made = make_bill(tmp_path / "s", month_period("2026-09", zone("UTC")), "user", prices)
    assert {line.labels[0]: (line.gpu_hours, line.cost) for line in made.lines} == {
        "ann": (D("0.5000"), D("1.50")),
        "bob": (D("0.0100"), D("0.25")),
    }
    assert made.beyond_held == D("0.1900")  # 0.2 x 0.5 and 324 s, and the bill says so
    assert any("charged in addition to the time held: 0.1900 GPU-hours" in note for note in tables.notes(made, ()))
    assert _content(tmp_path / "s", prices).gpu_hours == "0.7000"  # 0.5 + 0.2 x 0.5 + 0.1, as billed


def test_the_minimum_of_a_run_is_billed_once_in_the_part_of_the_period_where_it_ends(tmp_path: Path) -> None:
    start = SEPTEMBER + 86400 - 20
    fill(tmp_path / "s", [Job(submit=start, start=start, end=start + 40)])
    prices = rates(rates=[{"model": "h200", "per_gpu_hour": 3600}], terms=[{"minimum_s": 60}])
    made = make_bill(tmp_path / "s", Period(SEPTEMBER, SEPTEMBER + 2 * 86400), "day", prices)
    assert [line.cost for line in made.lines] == [D("20.00"), D("40.00")]


def test_a_model_without_a_rate_is_on_the_lines_and_named_as_not_priced(tmp_path: Path) -> None:
    a100 = ONE_H200.replace("h200", "a100")
    fill(tmp_path / "s", [_hours(2), _hours(3, job_id=2, tres=a100, partition="old")])
    made = make_bill(tmp_path / "s", month_period("2026-09", zone("UTC")), "model", rates(rates=[H200]))
    assert (made.gpu_hours, made.cost) == (D("5.0000"), D("5.00"))
    assert [(gap.problem, gap.runs, gap.gpu_hours) for gap in made.unpriced] == [
        ("no rate for a100 on 2026-09-01", 1, D("3.0000"))
    ]


@pytest.mark.parametrize(
    ("hours", "percent", "warning"), [(74, 74, 0), (75, 75, 75), (94, 94, 85), (95, 95, 95), (101, 101, 100)]
)
def test_quotas_warn_at_three_levels_and_when_they_are_passed(
    tmp_path: Path, hours: int, percent: int, warning: int
) -> None:
    fill(tmp_path / "s", [_hours(hours)])
    prices = rates(quotas=[{"account": "phys", "gpu_hours": 100}, {"user": "bob", "gpu_hours": 1}])
    period = month_period("2026-09", zone("UTC"))
    records = job_records.from_store(tmp_path / "s", period, 256)
    priced_period = price_period(records, GPUS, None, split_days(period, zone("UTC")), zone("UTC"))
    accounts, users = (
        {entry.labels[0]: entry.held_ppm_s for entry in priced_period.sums(name)} for name in ("account", "user")
    )
    states = quota.quota_states(prices.quotas, accounts, users, MONTH)
    assert [(state.owner, state.percent, state.warning) for state in states] == [
        ("account phys", percent, warning),
        ("user bob", 0, 0),
    ]


def _issue(
    root: Path, prices: Rates, account: str = "phys", today: str = "2026-10-01"
) -> tuple[invoice_files.Document, ...]:
    def build(used: Mapping[credits.Ref, D]) -> invoice.Content:
        return _content(root, prices, used, account)

    return issue_one(root, account, build, today, ("ClusterGpus",))


def test_issuing_again_gives_the_same_invoice_and_after_a_change_a_credit_note_and_a_new_one(tmp_path: Path) -> None:
    root = tmp_path / "s"
    prices = rates(rates=[H200], credits=[{"id": "g", "account": "phys", "amount": 100}])
    fill(root, [_hours(100), _hours(10, job_id=9, account="chem")])
    (first,) = _issue(root, prices)
    (other,) = _issue(root, prices, "chem")
    assert (first.number, other.number) == ("HPC-2026-00001", "HPC-2026-00002")
    assert (first.content.subtotal, first.content.total) == ("250.00", "150.00")
    assert _issue(root, prices, today="2026-12-24") == (first,)
    fill(root, [_hours(20, job_id=2)])
    note, second = _issue(root, prices, today="2026-12-24")
    assert (note.kind, note.number, note.refers_to, note.content) == (
        invoice_files.CREDIT_NOTE,
        "HPC-2026-00003",
        first.number,
        first.content,
    )
    # The credit that the first invoice took is given back with it, and taken anew.
    assert (second.number, second.content.total, second.refers_to) == ("HPC-2026-00004", "200.00", first.number)
    assert _issue(root, prices) == (second,)
    assert len(invoice_files.read_all(root)) == 4


def test_last_years_invoice_is_computed_with_last_years_rates_discounts_and_credits(tmp_path: Path) -> None:
    """100 h in September 2026: 250.00, 10 % off, 50.00 of that year's credit: 175.00. What 2027 brings changes
    nothing: issued again then, it is the same invoice."""
    root = tmp_path / "s"
    fill(root, [_hours(100)])
    new_year = date(2027, 1, 1)
    then: dict[str, list[dict[str, Any]]] = {
        "rates": [{**H200, "until": new_year}],
        "discounts": [{"from_gpu_hours": 0, "percent": 10, "until": new_year}],
        "credits": [{"id": "then", "account": "phys", "amount": 50, "until": new_year}],
        "factors": [],
    }
    later: dict[str, list[dict[str, Any]]] = {
        "rates": [{**H200, "per_gpu_hour": 9, "from": new_year}],
        "discounts": [{"from_gpu_hours": 0, "percent": 50, "from": new_year}],
        "credits": [{"id": "later", "account": "phys", "amount": 999, "from": new_year}],
        "factors": [{"account": "phys", "factor": 3, "from": new_year}],
    }
    (first,) = _issue(root, rates(**then))
    assert (first.content.subtotal, first.content.discount, first.content.total) == ("250.00", "-25.00", "175.00")
    both = rates(**{name: [*then[name], *later[name]] for name in then})
    assert _issue(root, both, today="2027-02-01") == (first,)


def test_a_balance_is_what_was_granted_less_what_invoices_that_stand_have_taken(tmp_path: Path) -> None:
    """phys has 300.00 and owes 250.00; after a credit note and a new invoice over 20 h more, all of it is spent."""
    root = tmp_path / "s"
    prices = rates(
        rates=[H200],
        credits=[
            {"id": "grant", "account": "phys", "amount": 300, "note": "grant"},
            {"id": "c", "account": "chem", "amount": D("7.50"), "until": date(2027, 1, 1)},
        ],
    )

    def balances() -> list[tuple[str, str, D, D]]:
        found = credits.balances(prices, issuing.Issued(invoice_files.read_all(root)).credit_uses("EUR"))
        return [(b.account, b.note, b.used, b.left) for b in found]

    fill(root, [_hours(100)])
    assert balances() == [("chem", "", D(0), D("7.50")), ("phys", "grant", D(0), D(300))]
    _issue(root, prices)
    assert balances()[1] == ("phys", "grant", D("250.00"), D("50.00"))
    fill(root, [_hours(20, job_id=2)])
    _issue(root, prices)
    assert balances()[1] == ("phys", "grant", D("300.00"), D("0.00"))


def test_a_credit_is_spent_once_over_the_months(tmp_path: Path) -> None:
    root = tmp_path / "s"
    prices = rates(rates=[H200], credits=[{"id": "g", "account": "phys", "amount": 300}])
    fill(root, [_hours(100)])
    _issue(root, prices)
    assert issuing.Issued(invoice_files.read_all(root)).credit_uses("EUR") == {("", "g"): D("250.00")}


def test_an_invoice_that_was_edited_or_is_missing_is_noticed(tmp_path: Path) -> None:
    root = tmp_path / "s"
    prices = rates(rates=[H200])
    fill(root, [_hours(1), _hours(1, job_id=2, account="chem")])
    (first,) = _issue(root, prices)
    _issue(root, prices, "chem")
    path = root / "invoices" / f"{first.number}.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    document["content"]["total"] = "0.01"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(AccountingError, match="changed after it was issued"):
        invoice_files.read_all(root)
    path.unlink()
    with pytest.raises(AccountingError, match="invoice number 1 is missing"):
        invoice_files.read_all(root)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "needs version = 1"),
        ("version = 1\ncurency = 'EUR'", "unknown key 'curency'; did you mean currency"),
        ("version = 1\n[[rates]]\nmodel = 'x'\nper_gpu_hour = '2'", "per_gpu_hour = '2'; allowed is a number"),
        ("version = 1\n[[rates]]\nmodel = 'x'\nper_gpu_hour = -1", "per_gpu_hour"),
        ("version = 1\n[[rates]]\nmodel = 'x'\nper_gpu_hour = nan", "per_gpu_hour"),
        ("version = 1\n[[rates]]\nmodel = 'x'\nper_gpu_hour = 0.1234567", "6 digits"),
        ("version = 1\n[[rates]]\nmodel = 'x'\nper_gpu_hour = 1\nfrom = '2026'", "a date such as 2026-01-01"),
        (
            "version = 1\n[[rates]]\nmodel = 'x'\nper_gpu_hour = 1\nfrom = 2026-02-01\nuntil = 2026-01-01",
            "is not before",
        ),
        ("version = 1\n" + "[[rates]]\nmodel = 'x'\nper_gpu_hour = 1\n" * 2, "two \\[\\[rates\\]\\] x are valid on"),
        ("version = 1\n[[factors]]\nfactor = 2", "has no condition"),
        ("version = 1\n[[factors]]\nclass = 'LC'\nfactor = 2", "the name of a class of service"),
        ("version = 1\n[[quotas]]\ngpu_hours = 2", "either account or user"),
        ("version = 1\ntimezone = 'Europe/Atlantis'", "a zone such as"),
        ("version = 1\n[gpus.h200]\ntotal_mib = 1\nnodes = 'n[3-1]'", "does not ascend"),
        ("version = 1\n[gpus.h200]\ntotal_mb = 1", "unknown key 'total_mb'; did you mean total_mib"),
        ("version = [", "is not valid TOML"),
    ],
)
def test_a_rates_file_is_refused_by_file_table_and_key(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "rates.toml").write_text(text, encoding="utf-8")
    with pytest.raises(AccountingError, match=says):
        load_rates(tmp_path / "rates.toml")


def test_decimal_prices_stay_decimal(tmp_path: Path) -> None:
    (tmp_path / "r").write_text("version = 1\n[[rates]]\nmodel = 'x'\nper_gpu_hour = 0.1\n", encoding="utf-8")
    assert load_rates(tmp_path / "r").rates[0].per_gpu_hour == D("0.1")


def test_a_bill_by_something_unknown_is_refused(tmp_path: Path) -> None:
    fill(tmp_path / "s", [_hours(1)])
    with pytest.raises(AccountingError, match="allowed are cluster, account"):
        make_bill(tmp_path / "s", month_period("2026-09", zone("UTC")), "colour")
    assert set(bill.DIMENSIONS) >= {"account", "user", "partition", "model", "class", "day", "month"}


@pytest.mark.parametrize("text", ["a = " + "[" * 200_000, "version = " + "1" * 5000, "# " + "x" * (9 << 20)])
def test_rates_made_to_hurt_are_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rates.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(AccountingError) as raised:
        load_rates(path)
    assert str(raised.value).startswith(str(path))
    assert "\n" not in str(raised.value)
