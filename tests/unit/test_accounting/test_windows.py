# SPDX-License-Identifier: Apache-2.0
"""Prices of night and weekend, over changes of the clocks too. The amounts were worked out by hand."""

from __future__ import annotations

from datetime import date, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.pricing.windows import spans
from hami_hpc.accounting.times import Period, month_period, parse_instant, zone

from .samples import Job, fill, make_bill, rates

D = Decimal
BERLIN = zone("Europe/Berlin")
NIGHT = {"name": "night", "start": "20:00", "end": "06:00"}
WEEKDAYS = ["mon", "tue", "wed", "thu"]
PRICE = {"model": "h200", "per_gpu_hour": 2}


def _prices(*windows: dict[str, Any], **more: Any) -> Any:
    given = {"rates": [PRICE], "timezone": "Europe/Berlin", **more}
    return rates(windows=list(windows), **given)


def _cost(root: Path, prices: Any, start: str, end: str, by: str = "account", **changes: Any) -> dict[str, D | None]:
    from_s, to_s = parse_instant(start, BERLIN), parse_instant(end, BERLIN)
    fill(root, [Job(1, from_s, from_s, to_s, **changes)])
    month = month_period(start[:7], BERLIN)
    made = make_bill(root, Period(month.start_s, month.end_s + 86400), by, prices, "Europe/Berlin")
    return {line.labels[-1]: line.cost for line in made.lines}


HALF_AT_NIGHT = [{"window": "night", "factor": D("0.5")}]


def test_a_job_over_both_edges_of_a_night_pays_each_part_at_its_price(tmp_path: Path) -> None:
    """18:00 to 09:00: 2 h and 3 h by day at 2.00, 10 h by night at 1.00: 20.00. Half of its first minute of night and
    half of the last before it are exact to the second."""
    prices = _prices(NIGHT, factors=HALF_AT_NIGHT)
    assert _cost(tmp_path / "a", prices, "2026-09-02T18:00", "2026-09-03T09:00") == {"phys": D("20.00")}
    assert _cost(tmp_path / "b", prices, "2026-09-02T18:00", "2026-09-03T09:00", "window") == {
        "": D("10.00"),
        "night": D("10.00"),
    }
    # 36 s by day are 0.02, 36 s by night 0.01.
    assert _cost(tmp_path / "c", prices, "2026-09-02T19:59:24", "2026-09-02T20:00:36") == {"phys": D("0.03")}


@pytest.mark.parametrize(
    ("start", "end", "cost"),
    [
        # Clocks go forward on 2026-03-29 at 02:00: the night has 9 h. 1 h + 9 h x 0.5 + 1 h, at 2.00.
        ("2026-03-28T19:00", "2026-03-29T07:00", "13.00"),
        # They go back on 2026-10-25 at 03:00: the night has 11 h.
        ("2026-10-24T19:00", "2026-10-25T07:00", "15.00"),
    ],
)
def test_a_night_has_9_or_11_hours_when_the_clocks_change(tmp_path: Path, start: str, end: str, cost: str) -> None:
    assert _cost(tmp_path / "s", _prices(NIGHT, factors=HALF_AT_NIGHT), start, end) == {"phys": D(cost)}


@pytest.mark.parametrize(
    ("start", "end", "cost"),
    [
        # 02:30 is skipped on 2026-03-29: the window begins when clocks jump to 03:00. 1 h at 2.00, 1 h at 1.00.
        ("2026-03-29T01:00", "2026-03-29T04:00", "3.00"),
        # 02:30 comes twice on 2026-10-25: it begins the first time. 01:00 to 02:30 at 2.00, then 1 h more than the
        # clock says, 02:30 to 04:00: 2.5 h at 1.00.
        ("2026-10-25T01:00", "2026-10-25T04:00", "5.50"),
    ],
)
def test_an_edge_that_clocks_skip_or_repeat(tmp_path: Path, start: str, end: str, cost: str) -> None:
    early = {"name": "night", "start": "02:30", "end": "06:00"}
    assert _cost(tmp_path / "s", _prices(early, factors=HALF_AT_NIGHT), start, end) == {"phys": D(cost)}


def test_a_weekend_has_a_rate_of_its_own_in_the_sites_zone(tmp_path: Path) -> None:
    """From Friday 23:00 to Saturday 01:00 in Berlin, which is 21:00 to 23:00 UTC: 1 h at 2.00, 1 h at 0.40. A factor on
    the account holds for both."""
    weekend = {"name": "weekend", "days": ["sat", "sun"]}
    cheap = {"model": "h200", "per_gpu_hour": D("0.40"), "window": "weekend"}
    prices = _prices(weekend, rates=[PRICE, cheap])
    assert _cost(tmp_path / "a", prices, "2026-09-04T23:00", "2026-09-05T01:00") == {"phys": D("2.40")}
    twice = _prices(weekend, rates=[PRICE, cheap], factors=[{"account": "phys", "factor": 2}])
    assert _cost(tmp_path / "b", twice, "2026-09-04T23:00", "2026-09-05T01:00") == {"phys": D("4.80")}


def test_a_whole_month_of_nights_adds_up(tmp_path: Path) -> None:
    """September: 720 h, of which 300 by night (30 nights, the first from midnight on, the last until midnight): 420 h
    at 2.00 and 300 h at 1.00."""
    prices = _prices(NIGHT, factors=HALF_AT_NIGHT)
    assert _cost(tmp_path / "s", prices, "2026-09-01", "2026-10-01") == {"phys": D("1140.00")}


def test_the_minimum_is_charged_at_the_price_at_which_the_run_ended(tmp_path: Path) -> None:
    """A run from 19:59:50 to 20:00:10 is charged 360 s: 10 s at 2.00, and 10 s and the other 340 s at 1.00:
    (20 + 350) / 3600 = 0.10277..."""
    prices = _prices(NIGHT, factors=HALF_AT_NIGHT, terms=[{"minimum_s": 360}])
    assert _cost(tmp_path / "s", prices, "2026-09-02T19:59:50", "2026-09-02T20:00:10") == {"phys": D("0.10")}


def test_a_window_may_have_several_parts_and_days_on_which_it_holds() -> None:
    friday = {"name": "night", "days": ["fri"], "start": "20:00", "end": "24:00"}
    weekend = {"name": "weekend", "days": ["sat", "sun"]}
    monday = {"name": "night", "days": ["mon"], "start": "00:00", "end": "06:00"}
    week = {**NIGHT, "days": WEEKDAYS, "until": date(2026, 9, 9)}
    prices = _prices(friday, weekend, monday, week)
    start, end = parse_instant("2026-09-04", BERLIN), parse_instant("2026-09-11", BERLIN)
    found = [
        (span.name, (span.end_s - span.start_s) // 3600) for span in spans(prices.windows, Period(start, end), BERLIN)
    ]
    # Thursday's night reaches into the week; those of Monday and Tuesday are the last.
    assert found == [
        ("night", 10), ("night", 4), ("weekend", 24), ("weekend", 24), ("night", 6), ("night", 10), ("night", 10)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("windows", "more", "message"),
    [
        ([NIGHT, {"name": "weekend", "days": ["sat"]}], {}, "[[windows]] night and weekend overlap on sat 00:00"),
        ([NIGHT, NIGHT], {}, "[[windows]] night and night overlap on mon 20:00"),
        ([{**NIGHT, "days": ["sun"]}, {"name": "b", "days": ["mon"]}], {}, "night and b overlap on mon 00:00"),
        ([{"name": "n", "start": "6:00"}], {}, "start = '6:00'; allowed is a time of the day in quotes"),
        ([{"name": "n", "start": "24:00"}], {}, "start = '24:00'; allowed is a time before 24:00"),
        ([{"name": "n", "start": "06:00", "end": "06:00"}], {}, "start = '06:00'; allowed is a time before 24:00"),
        ([{"name": "n", "days": ["Mon"]}], {}, "days = \"['Mon']\"; allowed is a list of days"),
        ([{"name": "n", "start": time(22, 0, 1)}], {}, "start = '22:00:01'; allowed is a time of the day in quotes"),
        ([{"name": "n", "start": 22}], {}, "start = '22'; allowed is a time of the day in quotes"),
        ([{"name": "n", "days": []}], {}, "days = '[]'; allowed is a list of days"),
        ([{"start": "06:00"}], {}, "number 1: name is missing; allowed is a name for factors"),
        ([NIGHT], {"factors": [{"window": "nigth", "factor": 1}]}, "window = nigth in [[factors]] is not in"),
        ([], {"rates": [{**PRICE, "window": "night"}]}, "window = night in [[rates]] is not in"),
    ],
)  # fmt: skip
def test_windows_that_cannot_be_are_refused(windows: list[Any], more: dict[str, Any], message: str) -> None:
    with pytest.raises(AccountingError) as caught:
        _prices(*windows, **more)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_time_of_toml_is_a_time_too() -> None:
    assert _prices({"name": "n", "start": time(22, 30)}).windows[0].start_min == 22 * 60 + 30


def test_a_night_that_ends_for_good_may_be_followed_by_another() -> None:
    old = {**NIGHT, "until": date(2026, 9, 1)}
    assert len(_prices(old, {**NIGHT, "start": "22:00", "from": date(2026, 9, 1)}).windows) == 2
    with pytest.raises(AccountingError, match="overlap"):  # the last night reaches into the day
        _prices(old, {"name": "early", "start": "00:00", "end": "07:00", "from": date(2026, 9, 1)})
