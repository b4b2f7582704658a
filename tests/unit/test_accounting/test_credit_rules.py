# SPDX-License-Identifier: Apache-2.0
"""Credits by rule: faults of nodes and GPUs, disturbed runs, missed targets. The amounts were worked out by hand."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from hami_hpc.accounting.documents import bill, invoice
from hami_hpc.accounting.documents.invoice_files import Document
from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.formats import html, tables
from hami_hpc.accounting.pricing.priced_period import PricedPeriod, price_period
from hami_hpc.accounting.pricing.rates import Rates
from hami_hpc.accounting.store import job_records, usage_table
from hami_hpc.accounting.times import month_period, parse_instant, split_days, zone

from .samples import GPUS, HOUR, VGPU_HALF, Job, fill, rates
from .test_efficiency import _record, _spool

D = Decimal
UTC = zone("UTC")
T0 = parse_instant("2026-09-02", UTC)
SEPTEMBER = month_period("2026-09", UTC)
H200 = {"model": "h200", "per_gpu_hour": D("2.00")}
NODE = {"name": "Node fault", "on": "node_fault", "percent": 100}
SLO = {"name": "Missed targets", "on": "slo_miss", "from_percent": 1, "percent": 25}
LC = VGPU_HALF.replace("vgpu:std", "vgpu:lc")


def _rates(*rules: dict[str, Any], **more: Any) -> Rates:
    return rates(rates=[H200], credit_rules=list(rules), **more)


def _period(root: Path, prices: Rates) -> PricedPeriod:
    records = job_records.from_store(root, SEPTEMBER, 256)
    return price_period(records, GPUS, prices, split_days(SEPTEMBER, UTC), UTC)


def _credited(root: Path, prices: Rates) -> dict[str, tuple[int, str, str]]:
    made = bill.make_bill(_period(root, prices), ("account",), prices)
    return {entry.rule: (entry.jobs, entry.charged, entry.amount) for entry in made.credited}


def _collect(root: Path, *records: dict[str, Any]) -> None:
    usage_table.collect(root, _spool(root.parent / "u", *records), "c1", False)


def test_a_node_fault_is_charged_and_credited_and_the_bill_says_both(tmp_path: Path) -> None:
    """10 h and 3 h of an H200: 26.00; the 3 h ended with their node: 6.00 of it are credited."""
    root = tmp_path / "s"
    fill(root, [Job(1, T0, T0, T0 + 10 * HOUR), Job(2, T0, T0, T0 + 3 * HOUR, state="NODE_FAIL")])
    prices = _rates(NODE)
    made = bill.make_bill(_period(root, prices), ("account",), prices)
    assert (made.cost, made.net) == (D("26.00"), D("20.00"))
    shown = tables.bill_table(made, UTC, ())
    assert "credited: Node fault: EUR -6.00 (1 job charged 6.00)" in shown
    assert "after credits by rule: EUR 20.00" in shown
    document = json.loads(tables.bill_json(made, UTC, ()))
    assert document["total_after_credits"] == "20.00"
    assert document["credited"] == [{"rule": "Node fault", "jobs": 1, "charged": "6.00", "amount": "-6.00"}]


def test_missed_targets_are_counted_of_all_requests_of_a_run(tmp_path: Path) -> None:
    """Runs of half a GPU for 4 h: 4.00 each. 10 of 1,000 requests are the 1 %, 9 are not. Two slices with 20 of 200 and
    0 of 1,800: 1 %; with 0 of 1,801: less. A quarter of 8.00."""
    root = tmp_path / "s"
    fill(root, [Job(n, T0, T0, T0 + 4 * HOUR, LC) for n in range(1, 6)])
    missed = [(1, 0, 1000, 10), (2, 0, 1000, 9), (3, 0, 200, 20), (3, 1, 1800, 0), (4, 0, 200, 20), (4, 1, 1801, 0)]
    _collect(
        root,
        *(
            _record(job, T0, T0 + 4 * HOUR, gpu_uuid=f"GPU-{gpu}", request_count=count, slo_miss_count=misses)
            for job, gpu, count, misses in missed
        ),
    )
    assert _credited(root, _rates(SLO)) == {"Missed targets": (2, "8.00", "-2.00")}
    assert _credited(root, _rates({**SLO, "from_percent": D("0.9")})) == {"Missed targets": (4, "16.00", "-4.00")}
    assert _credited(root, _rates({**SLO, "class": "be"})) == {}
    assert _credited(root, _rates({**SLO, "class": "lc", "account": "phys"})) != {}


def test_one_rule_credits_a_run_the_one_that_gives_most(tmp_path: Path) -> None:
    """4.00: a quarter for its misses, a half for its GPU's fault, or all of it for its node's."""
    root = tmp_path / "s"
    fill(root, [Job(1, T0, T0, T0 + 4 * HOUR, LC, state="NODE_FAIL")])
    _collect(root, _record(1, T0, T0 + 4 * HOUR, request_count=10, slo_miss_count=10, gpu_fault=79, disturbed_count=1))
    gpu = {"name": "GPU", "on": "gpu_fault", "percent": 50}
    disturbed = {"name": "Disturbed", "on": "disturbed", "percent": D("12.5")}
    assert _credited(root, _rates(SLO, NODE, gpu)) == {"Node fault": (1, "4.00", "-4.00")}
    assert _credited(root, _rates(SLO, gpu, disturbed)) == {"GPU": (1, "4.00", "-2.00")}
    assert _credited(root, _rates(disturbed)) == {"Disturbed": (1, "4.00", "-0.50")}
    # What costs nothing needs no credit.
    assert _credited(root, _rates(NODE, terms=[{"unbilled_states": ["NODE_FAIL"]}])) == {}


def test_a_rule_holds_on_its_days_and_a_run_over_its_first_is_credited_from_then_on(tmp_path: Path) -> None:
    """From 12:00 on the first to 12:00 on the second: 48.00, of which the second day's 24.00 are credited."""
    root = tmp_path / "s"
    fill(root, [Job(1, T0 - 12 * HOUR, T0 - 12 * HOUR, T0 + 12 * HOUR, state="NODE_FAIL")])
    assert _credited(root, _rates({**NODE, "from": date(2026, 9, 2)})) == {"Node fault": (0, "24.00", "-24.00")}


def test_an_invoice_takes_credits_by_rule_off_before_the_discount_and_grants(tmp_path: Path) -> None:
    """26.00 - 6.00 by rule = 20.00; 10 % off: 18.00; a grant pays 5.00."""
    root = tmp_path / "s"
    fill(root, [Job(1, T0, T0, T0 + 10 * HOUR), Job(2, T0, T0, T0 + 3 * HOUR, state="NODE_FAIL")])
    prices = _rates(
        NODE,
        discounts=[{"from_gpu_hours": 0, "percent": 10}],
        credits=[{"id": "g", "account": "phys", "amount": 5, "note": "Grant"}],
    )
    priced_period = _period(root, prices)
    held = invoice.account_times(priced_period, prices)["phys"]
    made = invoice.build("phys", date(2026, 9, 1), held, priced_period.segments, prices, {}, ())
    assert (made.subtotal, made.discount, made.total) == ("26.00", "-2.00", "13.00")
    assert [(entry.rule, entry.amount) for entry in made.credited] == [("Node fault", "-6.00")]
    paper = html.invoice(Document("GPU-1", 1, "invoice", "", "2026-10-01", ("We",), made))
    assert 'Credited: Node fault, 1 job charged 6.00</th><td class="n">-6.00</td>' in paper
    note = html.invoice(Document("GPU-2", 2, "credit note", "GPU-1", "2026-10-01", ("We",), made))
    assert 'Credited: Node fault, 1 job charged 6.00</th><td class="n">6.00</td>' in note


def test_all_of_it_credited_leaves_nothing_to_discount(tmp_path: Path) -> None:
    root = tmp_path / "s"
    fill(root, [Job(1, T0, T0, T0 + 3, state="NODE_FAIL")])
    prices = _rates(NODE, discounts=[{"from_gpu_hours": 0, "percent": 50}])
    priced_period = _period(root, prices)
    held = invoice.account_times(priced_period, prices)["phys"]
    made = invoice.build("phys", date(2026, 9, 1), held, priced_period.segments, prices, {}, ())
    assert (made.discount, made.total) == ("0.00", "0.00")


def test_without_usage_records_the_bill_says_that_a_rule_is_not_applied(tmp_path: Path) -> None:
    root = tmp_path / "s"
    fill(root, [Job(1, T0, T0, T0 + HOUR, LC)])
    (gap,) = _period(root, _rates(SLO, NODE)).gaps
    assert "[[credit_rules]] on slo_miss of rates.toml is not applied, and nothing is credited by it" in gap
    assert _period(root, _rates(NODE)).gaps == ()


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([{**NODE, "on": "bad luck"}], "on = 'bad luck'; allowed is node_fault or gpu_fault or disturbed or slo_miss"),
        ([{**NODE, "percent": 0}], "percent = '0'; allowed is a number from 0.0001 to 100"),
        ([{**NODE, "percent": 101}], "percent = '101'; allowed is a number from 0.0001 to 100"),
        ([{**NODE, "from_percent": 1}], "from_percent = '1'; allowed is given with on = slo_miss only"),
        ([{"name": "a", "on": "slo_miss", "percent": 1}], "from_percent is missing; allowed is a number from 0.0001"),
        ([{"on": "slo_miss", "percent": 1}], "name is missing; allowed is what bills and invoices call it"),
        ([NODE, NODE], "two [[credit_rules]] have the name Node fault; give each a name of its own"),
    ],
)
def test_rules_that_cannot_be_are_refused(rules: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(AccountingError) as caught:
        _rates(*rules)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
