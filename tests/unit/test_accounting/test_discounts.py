# SPDX-License-Identifier: Apache-2.0
"""Volume discounts: kinds, models, per run. The amounts were worked out by hand."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from hami_hpc.accounting.documents import invoice
from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.pricing import discount
from hami_hpc.accounting.pricing.held_time import RUN
from hami_hpc.accounting.pricing.priced_period import price_period
from hami_hpc.accounting.pricing.rates import Rates
from hami_hpc.accounting.store import job_records
from hami_hpc.accounting.times import month_period, parse_instant, split_days, split_months, zone

from .samples import GPUS, HOUR, Job, fill, rates

D = Decimal
UTC = zone("UTC")
MONTH = date(2026, 9, 1)
T0 = parse_instant("2026-09-01", UTC)
EIGHT = "gres/gpu:h200=8,gres/gpu=8"
A100 = "gres/gpu:a100=1,gres/gpu=1"
PRICED = [{"model": "h200", "per_gpu_hour": D("2.00")}, {"model": "a100", "per_gpu_hour": D("1.00")}]
POOLING = ((100, 10), (500, 20), (1000, 30))


def _tiers(*steps: tuple[int, int], **more: Any) -> list[dict[str, Any]]:
    return [{"from_gpu_hours": hours, "percent": percent, **more} for hours, percent in steps]


def _content(root: Path, prices: Rates, account: str = "phys") -> invoice.Content:
    """What `hami-hpc invoice` makes of September."""
    period = month_period("2026-09", UTC)
    records = job_records.from_store(root, period, 256)
    priced_period = price_period(records, GPUS, prices, split_days(period, UTC), UTC)
    times = invoice.account_times(priced_period, prices)
    if discount.needs_runs(prices, MONTH):
        invoice.add_runs(times, price_period(records, GPUS, prices, split_months(period, UTC), UTC, RUN))
    records.con.close()
    own = times.get(account, invoice.AccountTime())
    return invoice.build(account, MONTH, own, priced_period.segments, prices, {}, ())


def _amounts(root: Path, discounts: list[dict[str, Any]]) -> tuple[str, str, str]:
    made = _content(root, rates(rates=PRICED, discounts=discounts))
    return made.subtotal, made.discount, made.total


def _hours(number: int, hours: int, **changes: Any) -> Job:
    return Job(number, T0, T0, T0 + hours * HOUR, **changes)


@pytest.mark.parametrize(
    ("more", "total"),
    [
        # One run of 8 GPUs for 125 h: 1,000 GPU-hours at 2.00 are 2,000.00.
        ({"kind": "all", "per": "run"}, "1400.00"),  # 2,000.00 x 0.7
        ({"kind": "all"}, "1400.00"),  # it is all that the account has
        ({}, "1720.00"),  # 100 x 2.00 + 400 x 1.80 + 500 x 1.60
        ({"kind": "tier", "per": "run"}, "1720.00"),
    ],
)
def test_the_pooling_model_comes_to_the_cent(tmp_path: Path, more: dict[str, Any], total: str) -> None:
    fill(tmp_path / "s", [_hours(1, 125, tres=EIGHT)])
    assert _amounts(tmp_path / "s", _tiers(*POOLING, **more)) == ("2000.00", str(D(total) - 2000), total)


def test_per_run_each_run_reaches_its_own_step_and_per_month_they_count_together(tmp_path: Path) -> None:
    """Runs of 125, 99 and 600 GPU-hours: 250, 198 and 1,200; 0.9, 1 and 0.8 of them: 225 + 198 + 960 = 1,383.
    Together 824: all at 0.8: 1,318.40. By tiers per run: 250 - 5 (25 h x 0.20), 198, 1,200 - 80 - 40 (400 h x 0.20,
    100 h x 0.40): 1,523."""
    fill(tmp_path / "s", [_hours(1, 125), _hours(2, 99), _hours(3, 75, tres=EIGHT)])
    assert _amounts(tmp_path / "s", _tiers(*POOLING, kind="all", per="run"))[2] == "1383.00"
    assert _amounts(tmp_path / "s", _tiers(*POOLING, kind="all"))[2] == "1318.40"
    assert _amounts(tmp_path / "s", _tiers(*POOLING, per="run"))[2] == "1523.00"


def test_the_runs_of_a_requeued_job_are_runs_of_their_own(tmp_path: Path) -> None:
    """Twice 60 GPU-hours of one number: neither reaches 100."""
    again = T0 + 100 * HOUR
    fill(tmp_path / "s", [_hours(1, 60, state="REQUEUED"), Job(1, again, again, again + 60 * HOUR)])
    assert _amounts(tmp_path / "s", _tiers(*POOLING, kind="all", per="run"))[1] == "0.00"


def test_a_run_over_the_end_of_the_month_counts_with_its_hours_in_the_month(tmp_path: Path) -> None:
    """90 h in August, 110 h in September: 220.00 x 0.9 = 198.00."""
    start = T0 - 90 * HOUR
    fill(tmp_path / "s", [Job(1, start, start, T0 + 110 * HOUR)])
    assert _amounts(tmp_path / "s", _tiers(*POOLING, kind="all", per="run")) == ("220.00", "-22.00", "198.00")


def test_a_step_is_reached_with_its_last_second(tmp_path: Path) -> None:
    """100 h less a second are 359,999 s x 2.00 / 3600 = 199.99944...; with it 200.00 x 0.9."""
    fill(tmp_path / "short", [Job(1, T0, T0, T0 + 100 * HOUR - 1)])
    fill(tmp_path / "full", [_hours(1, 100)])
    assert _amounts(tmp_path / "short", _tiers(*POOLING, kind="all")) == ("200.00", "0.00", "200.00")
    assert _amounts(tmp_path / "full", _tiers(*POOLING, kind="all")) == ("200.00", "-20.00", "180.00")


@pytest.mark.parametrize(
    ("discounts", "amount"),
    [
        # 200 h of an H200, 400.00; 300 h of an A100, 300.00.
        (_tiers((100, 10)), "-56.00"),  # 400 of 500 h at the mean price of 1.40: 560.00 x 0.1
        (_tiers((100, 10), model="h200"), "-20.00"),  # 100 h x 2.00 x 0.1
        (_tiers((100, 10), model="h200") + _tiers((100, 50)), "-120.00"),  # and 200 h x 1.00 x 0.5
        (_tiers((0, 10), model="h200") + _tiers((0, 20), model="a100"), "-100.00"),  # 40 + 60
        (_tiers((100, 10), model="h200", kind="all") + _tiers((100, 50)), "-140.00"),  # 40 + 100
        (_tiers((100, 10), model="h200", kind="all", per="run") + _tiers((100, 50)), "-140.00"),
        (_tiers((250, 10)) + _tiers((0, 1), model="h200", account="phys"), "-4.00"),  # an account's own alone
        (_tiers((0, 100)), "-700.00"),
        (_tiers((0, 0)), "0.00"),
    ],
)
def test_a_discount_is_on_a_model_or_on_all_that_have_none(
    tmp_path: Path, discounts: list[dict[str, Any]], amount: str
) -> None:
    fill(tmp_path / "s", [_hours(1, 200), _hours(2, 300, tres=A100, partition="old")])
    assert _amounts(tmp_path / "s", discounts) == ("700.00", amount, str(D("700.00") + D(amount)))


def test_a_run_that_held_two_models_counts_once_for_what_counts_together(tmp_path: Path) -> None:
    """60 h of an H200 and of an A100: 120 GPU-hours of one run, 180.00 x 0.9."""
    both = "gres/gpu:h200=1,gres/gpu:a100=1,gres/gpu=2"
    fill(tmp_path / "s", [_hours(1, 60, tres=both, partition="mixed")])
    assert _amounts(tmp_path / "s", _tiers(*POOLING, kind="all", per="run")) == ("180.00", "-18.00", "162.00")


@pytest.mark.parametrize(
    ("discounts", "message"),
    [
        (_tiers((-1, 10)), "from_gpu_hours = '-1'; allowed is a number from 0"),
        (_tiers((1, -10)), "percent = '-10'; allowed is a number from 0 to 100"),
        (_tiers((1, 10), (1, 10)), "two [[discounts]]  1 are valid on"),
        (_tiers((1, 10), (1, 20), model="h200"), "two [[discounts]]  h200 1 are valid on"),
        (
            _tiers((1, 10)) + _tiers((2, 20), kind="all"),
            "count together and have different kind: give both kind =",
        ),
        (_tiers((1, 10)) + _tiers((2, 20), per="run"), "count together and have different per: give both per = month"),
        (_tiers((1, 10), kind="step"), "kind = 'step'; allowed is tier or all"),
        (_tiers((1, 10), per="week"), "per = 'week'; allowed is month or run"),
        (_tiers((1, 10), model="h20"), "[[discounts]] of model h20, which has no [[rates]]; did you mean h200?"),
    ],
)
def test_discounts_that_cannot_be_are_refused(discounts: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(AccountingError) as caught:
        rates(rates=PRICED, discounts=discounts)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_kinds_may_differ_where_they_do_not_count_together() -> None:
    later = [{**entry, "from": date(2027, 1, 1)} for entry in _tiers((1, 10), kind="all")]
    now = [{**entry, "until": date(2027, 1, 1)} for entry in _tiers((1, 10))]
    assert len(rates(rates=PRICED, discounts=now + later).discounts) == 2
    assert len(rates(rates=PRICED, discounts=_tiers((1, 10)) + _tiers((1, 10), model="h200", per="run")).discounts) == 2
