# SPDX-License-Identifier: Apache-2.0
"""Budgets, their warnings and forecast, and `hami-hpc balance`. The amounts were worked out by hand."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hami_hpc.accounting.documents import balance
from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.pricing.budget import BudgetState, sentence
from hami_hpc.accounting.store import job_records
from hami_hpc.accounting.times import parse_instant, zone
from hami_hpc.cli import accounting_balance, accounting_bill, main

from .samples import GPUS, HOUR, VGPU_HALF, Job, fill, rates
from .test_efficiency import SITE

D = Decimal
UTC = zone("UTC")
DAY = 24 * HOUR
YEAR = {"from": date(2026, 1, 1), "until": date(2027, 1, 1)}
H200 = {"model": "h200", "per_gpu_hour": D("2.00")}
NOW = parse_instant("2026-10-01", UTC)


def _states(root: Path, *budgets: dict[str, Any], until: int = NOW, **more: Any) -> list[BudgetState]:
    records = job_records.from_store(root, None, 256)
    prices = rates(rates=[H200], budgets=[{**YEAR, **entry} for entry in budgets], **more)
    found = balance.budget_states(records, GPUS, prices, UTC, until)
    records.con.close()
    return found


def _run(number: int, days_before: int, hours: int, **changes: Any) -> Job:
    start = NOW - days_before * DAY
    return Job(number, start, start, start + hours * HOUR, **changes)


def test_a_budget_counts_from_its_first_day_and_says_when_it_is_used_up(tmp_path: Path) -> None:
    """Of 1,000 h: 500 h in spring, 300 h in the last 30 days: 80 %, 10 h a day; 200 h last 20 days, to 2026-10-20. Of
    2,000.00: 1,600.00, 20.00 a day, the same day. Hours of the year before do not count."""
    jobs = [_run(1, 150, 500), _run(2, 20, 300), _run(3, 400, 99), _run(4, 20, 77, account="chem")]
    fill(tmp_path / "s", jobs)
    hours, money = _states(tmp_path / "s", {"account": "phys", "gpu_hours": 1000, "amount": 2000})
    assert (hours.used, hours.left, hours.percent, hours.warning) == (D("800.0000"), D("200.0000"), 80, 75)
    assert (hours.pace_per_day, hours.empty_on) == (D("10.0000"), date(2026, 10, 20))
    assert (money.used, money.left, money.percent, money.pace_per_day) == (D("1600.00"), D("400.00"), 80, D("20.00"))
    assert money.empty_on == date(2026, 10, 20)
    assert sentence(hours) == (
        "budget: account phys has used 80 % of 1,000 GPU-hours of 2026-01-01 to 2026-12-31; at the pace of the last 30 "
        "days it is used up on 2026-10-20"
    )


@pytest.mark.parametrize(
    ("granted", "percent", "warning", "empty"),
    [
        ("133.3334", 74, 0, False),
        ("133.3333", 75, 75, False),
        ("117.6471", 84, 75, False),
        ("117.647", 85, 85, False),
        ("105.2632", 94, 85, False),
        ("105.2631", 95, 95, False),
        ("100.0001", 99, 95, False),
        ("100", 100, 100, True),
        ("50", 200, 100, True),
        ("0", 100, 100, True),
    ],
)
def test_warnings_begin_at_75_85_95_and_100_percent(
    tmp_path: Path, granted: str, percent: int, warning: int, empty: bool
) -> None:
    """100 h are used."""
    fill(tmp_path / "s", [_run(1, 60, 100)])
    (state,) = _states(tmp_path / "s", {"account": "phys", "gpu_hours": D(granted)})
    assert (state.percent, state.warning, state.is_empty, state.empty_on) == (percent, warning, empty, None)


def test_what_is_free_or_credited_uses_nothing_and_young_budgets_have_a_pace_of_their_own(tmp_path: Path) -> None:
    """A budget of 3 days: 24 h at 2.00, a NODE_FAIL of which half is credited (6 h, 6.00), a free TIMEOUT: 30 h and
    54.00; 10 h a day, 18.00 a day."""
    jobs = [
        _run(1, 3, 24),
        _run(2, 2, 6, state="NODE_FAIL"),
        _run(3, 2, 48, state="TIMEOUT"),
    ]
    fill(tmp_path / "s", jobs)
    young = {"account": "phys", "gpu_hours": 100, "amount": 200, "from": date(2026, 9, 28)}
    rules = [{"name": "Node", "on": "node_fault", "percent": 50}]
    hours, money = _states(tmp_path / "s", young, credit_rules=rules, terms=[{"unbilled_states": ["TIMEOUT"]}])
    assert (hours.used, hours.pace_per_day, hours.empty_on) == (D("30.0000"), D("10.0000"), date(2026, 10, 7))
    # 146.00 at 18.00 a day are 8.1 days after the last of September.
    assert (money.used, money.pace_per_day, money.empty_on) == (D("54.00"), D("18.00"), date(2026, 10, 8))


def test_budgets_that_do_not_hold_and_those_nobody_uses(tmp_path: Path) -> None:
    fill(tmp_path / "s", [_run(1, 3, 24)])
    over = {"account": "phys", "gpu_hours": 1, "until": date(2026, 9, 30)}
    future = {"account": "phys", "gpu_hours": 1, "from": date(2026, 10, 1)}
    unused = {"account": "nobody", "gpu_hours": 5, "from": date(2026, 9, 30)}
    (state,) = _states(tmp_path / "s", over, future, unused)
    assert (state.account, state.used, state.percent, state.empty_on) == ("nobody", D(0), 0, None)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"account": "a", **YEAR}, "[[budgets]] number 1: give gpu_hours, amount, or both"),
        ({"gpu_hours": 1, **YEAR}, "account is missing; allowed is the account that has the budget"),
        ({"account": "a", "gpu_hours": -1, **YEAR}, "gpu_hours = '-1'; allowed is a number from 0"),
        ({"account": "a", "amount": 1, "from": date(2026, 1, 1)}, "until is missing; allowed is a date: a budget"),
        ({"account": "a", "amount": 1, "until": date(2026, 1, 1)}, "from is missing; allowed is a date"),
    ],
)  # fmt: skip
def test_budgets_that_cannot_be_are_refused(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(AccountingError) as caught:
        rates(budgets=[entry])
    assert message in str(caught.value)


RATES = """version = 1
[[rates]]
model = "h200"
per_gpu_hour = 2.00
"""
BUDGET = '[[budgets]]\naccount = "{}"\n{}\nfrom = 2026-01-01\nuntil = 2027-01-01\n'
GRANT = '[[credits]]\nid = "g"\naccount = "phys"\namount = {}\n'


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site with 40 GPU-hours of phys in September, 80.00, and 10 of chem; it is the 1st of October."""
    (tmp_path / "hami-hpc.toml").write_text(SITE, encoding="utf-8")
    (tmp_path / "hami-hpc.toml").chmod(0o644)
    fill(tmp_path / "s", [_run(1, 20, 80, tres=VGPU_HALF), _run(2, 20, 10, account="chem")], observed=NOW)
    for module in (accounting_balance, accounting_bill):
        monkeypatch.setattr(module.time, "time", lambda: float(NOW))
    return tmp_path


def _cli(root: Path, *words: str, more: str = "") -> Result:
    (root / "rates.toml").write_text(RATES + more, encoding="utf-8")
    return CliRunner().invoke(main, [*words, "--store", str(root / "s"), "--config", str(root / "hami-hpc.toml")])


@pytest.mark.parametrize(
    ("more", "status", "said"),
    [
        ("", 0, "no budget or credit of it in rates.toml holds today\n"),
        (BUDGET.format("phys", "gpu_hours = 40.0001"), 0, "GPU-hours  2026-12-31"),
        (BUDGET.format("phys", "gpu_hours = 40"), 1, "nothing left: its budget in GPU-hours is used up"),
        (BUDGET.format("phys", "gpu_hours = 50\namount = 80"), 1, "nothing left: its budget in EUR is used up"),
        (BUDGET.format("phys", "amount = 0"), 1, "nothing left: its budget in EUR is used up"),
        (BUDGET.format("chem", "amount = 0"), 0, "in rates.toml holds today\n"),
        (GRANT.format("80.01"), 0, "left of credits after that: EUR 0.01"),
        (GRANT.format("80"), 1, "nothing left: its credits are used up"),
        (
            GRANT.format("99") + "until = 2026-09-01\n",
            1,
            "its budgets or credits in rates.toml have ended by 2026-10-01",
        ),
        (GRANT.format("99") + "from = 2026-11-01\n", 0, "in rates.toml holds today\n"),
        (BUDGET.format("phys", "amount = 90") + GRANT.format("1"), 1, "nothing left: its credits are used up"),
    ],
)
def test_balance_ends_with_1_when_nothing_is_left(root: Path, more: str, status: int, said: str) -> None:
    done = _cli(root, "balance", "phys", more=more)
    assert (done.exit_code, said in done.output) == (status, True), done.output
    assert max(map(len, done.output.splitlines())) <= 80 or status
    assert json.loads(_cli(root, "balance", "phys", "--format", "json", more=more).stdout)["empty"] is bool(status)


def test_what_was_invoiced_is_not_counted_twice(root: Path) -> None:
    more = GRANT.format("100")
    assert _cli(root, "invoice", "--month", "2026-09", more=more).exit_code == 0
    shown = json.loads(_cli(root, "balance", "phys", "--format", "json", more=more).stdout)
    assert (shown["not_invoiced"], shown["credits"][0]["used"], shown["credit_left"]) == ("0.00", "80.00", "20.00")


@pytest.mark.parametrize(
    ("old", "until", "left"),
    [
        (100, "until = 2026-10-01\n", "50.00"),
        (30, "until = 2026-10-01\n", "50.00"),
        (30, "", "0.00"),
        (100, "", "70.00"),
    ],
)
def test_a_month_before_a_credit_and_not_invoiced_yet_takes_nothing_from_it(
    root: Path, old: int, until: str, left: str
) -> None:
    """September's 80.00 will be taken from the credit that held then, also if that is too small."""
    new = '[[credits]]\nid = "n"\naccount = "phys"\namount = 50\nfrom = 2026-10-01\n'
    done = _cli(root, "balance", "phys", "--format", "json", more=GRANT.format(old) + until + new)
    shown = json.loads(done.stdout)
    assert (shown["not_invoiced"], shown["credit_left"], shown["empty"]) == ("80.00", left, left == "0.00")


def test_a_month_between_two_invoices_is_not_invoiced_yet(root: Path) -> None:
    """July costs 10.00, August, which is passed over, 2.00."""
    fill(root / "s", [_run(3, 45, 1), _run(4, 75, 5)], observed=NOW)
    more = GRANT.format("100")
    for month in ("2026-07", "2026-09"):
        assert _cli(root, "invoice", "--month", month, more=more).exit_code == 0
    shown = json.loads(_cli(root, "balance", "phys", "--format", "json", more=more).stdout)
    assert (shown["not_invoiced"], shown["credit_left"]) == ("2.00", "8.00")


def test_a_mistyped_account_is_an_error_and_one_of_the_past_is_not(root: Path) -> None:
    done = _cli(root, "balance", "chme")
    assert (done.exit_code, done.stdout) == (1, "")
    assert (
        "account chme has no jobs in the store, and no budget or credit in rates.toml; did you mean chem?"
        in done.stderr
    )
    assert _cli(root, "balance", "chem").exit_code == 0


def test_bills_warn_of_budgets_as_they_stood_at_their_end(root: Path) -> None:
    more = BUDGET.format("phys", "gpu_hours = 50") + BUDGET.format("chem", "amount = 27")
    shown = _cli(root, "bill", "--month", "2026-09", more=more).output
    assert "budget: account phys has used 80 % of 50 GPU-hours of 2026-01-01 to 2026-12-31" in shown
    assert "chem has" not in shown  # 20.00 of 27.00 are 74 %
    assert "budget" not in _cli(root, "bill", "--month", "2026-08", more=more).output
