# SPDX-License-Identifier: Apache-2.0
"""A bill groups runs by what it needs, and comes to what grouping by everything comes to."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import duckdb
import pytest

from hami_hpc.accounting.documents import bill
from hami_hpc.accounting.pricing import price
from hami_hpc.accounting.pricing.held_time import LABELS
from hami_hpc.accounting.pricing.priced_period import PricedPeriod, price_period
from hami_hpc.accounting.pricing.rates import Rates
from hami_hpc.accounting.store import job_records
from hami_hpc.accounting.times import month_period, split_months, zone

from .samples import GPUS, HOUR, ONE_H200, VGPU_HALF, Job, fill, rates

UTC = zone("UTC")
START = 1_790_000_000  # in September 2026
H200 = {"model": "h200", "per_gpu_hour": Decimal("2.5")}
PLAIN = rates(rates=[H200])
BY_LABELS = rates(
    rates=[H200, {**H200, "partition": "old", "per_gpu_hour": Decimal(1)}],
    factors=[{"qos": "high", "factor": Decimal("1.5")}, {"user": "bob", "factor": Decimal("0.7")}],
    terms=[{"partition": "mixed", "minimum_s": 2 * HOUR}],
    resources=[{"resource": "cpu", "per_hour": Decimal("0.01")}],
)
BY_RULE = rates(rates=[H200], credit_rules=[{"name": "Node fault", "on": "node_fault", "percent": Decimal("33.3")}])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("kept") / "store"
    jobs = [
        Job(
            job_id=number,
            start=START,
            end=START + 977 * number,
            tres=(ONE_H200, VGPU_HALF, "cpu=4,mem=1G")[number % 3],
            account=("phys", "chem", "bio")[number % 3 - number % 2],
            user=("ann", "bob")[number % 2],
            partition=("gpu", "old", "mixed")[number // 3 % 3],
            qos=("normal", "high")[number // 2 % 2],
            cluster=("c1", "c2")[number // 5 % 2],
            state=("COMPLETED", "NODE_FAIL")[number // 7 % 2],
            suspended=number % 4,
        )
        for number in range(1, 60)
    ]
    fill(root, jobs)
    return root


def _priced(store: Path, prices: Rates | None, by: tuple[str, ...] | None) -> PricedPeriod:
    period = month_period("2026-09", UTC)
    records = job_records.from_store(store, period, 256)
    return price_period(records, GPUS, prices, split_months(period, UTC), UTC, by=by)


@pytest.mark.parametrize("prices", [None, PLAIN, BY_LABELS, BY_RULE], ids=["none", "plain", "by labels", "by rule"])
@pytest.mark.parametrize("by", [("account",), ("user", "model"), ("cluster", "qos"), ("mode", "billable"), ("month",)])
def test_a_bill_of_few_labels_is_that_of_all(store: Path, prices: Rates | None, by: tuple[str, ...]) -> None:
    few, everything = _priced(store, prices, by), _priced(store, prices, None)
    for condition in ("true", price.CHARGED, price.UNPRICED, price.OF_GPUS, price.BY_RULE):
        assert few.sums(*by, condition=condition, numbers=price.ALL) == everything.sums(
            *by, condition=condition, numbers=price.ALL
        )
    assert bill.make_bill(few, by, prices) == bill.make_bill(everything, by, prices)
    few.con.close()
    everything.con.close()


def test_what_prices_depend_on_is_kept_whatever_is_asked_for() -> None:
    assert price.needed(("account", "model"), PLAIN) == {"account"}
    assert price.needed(("account",), BY_LABELS) == {"account", "partition", "qos", "user"}
    assert price.needed((), BY_RULE) == LABELS


def test_sums_by_what_was_not_kept_are_refused(store: Path) -> None:
    priced_period = _priced(store, PLAIN, ("account",))
    with pytest.raises(duckdb.BinderException, match="username"):
        priced_period.sums("user")
    priced_period.con.close()
