# SPDX-License-Identifier: Apache-2.0
"""Prices and terms of certain jobs, prices of CPUs, memory and licences. The amounts were worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from hami_hpc.accounting.documents import invoice
from hami_hpc.accounting.documents.bill import Bill
from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.formats import tables
from hami_hpc.accounting.pricing.priced_period import price_period
from hami_hpc.accounting.store import job_records, store_files
from hami_hpc.accounting.times import month_period, parse_instant, split_days, zone

from .samples import GPUS, HOUR, ONE_H200, VGPU_HALF, Job, fill, make_bill, rates

D = Decimal
UTC = zone("UTC")
T0 = parse_instant("2026-09-01", UTC)
SEPTEMBER = month_period("2026-09", UTC)
MIG = "gres/gpu:h200_1g.18gb=1,gres/gpu=1"  # 0.142857 of a GPU
H200 = {"model": "h200", "per_gpu_hour": D("2.00")}


def _bill(root: Path, by: str = "account", **given: Any) -> Bill:
    return make_bill(root, SEPTEMBER, by, rates(**given))


def _hours(number: int, hours: int, **changes: Any) -> Job:
    return Job(number, T0, T0, T0 + hours * HOUR, **changes)


def test_the_most_specific_rate_holds(tmp_path: Path) -> None:
    """10 h each: a whole H200 at 2.00; half of one as a slice at 1.50; half of one in the partition mixed at 1.00, as
    a rate has both conditions; an H200 there at 3.00."""
    jobs = [
        _hours(1, 10, user="whole"),
        _hours(2, 10, tres=VGPU_HALF, user="slice"),
        _hours(3, 10, tres=VGPU_HALF, partition="mixed", user="both", constraints="vgpu_type_h200"),
        _hours(4, 10, partition="mixed", user="mixed"),
    ]
    fill(tmp_path / "s", jobs)
    special = [
        {**H200, "mode": "vgpu", "per_gpu_hour": D("1.50")},
        {**H200, "partition": "mixed", "per_gpu_hour": D("3.00")},
        {**H200, "mode": "vgpu", "partition": "mixed", "per_gpu_hour": D("1.00")},
    ]
    for order in ([H200, *special], [*reversed(special), H200]):
        made = _bill(tmp_path / "s", "user", rates=order)
        costs = {line.labels[0]: line.cost for line in made.lines}
        assert costs == {"whole": D("20.00"), "slice": D("7.50"), "both": D("5.00"), "mixed": D("30.00")}


def test_a_rate_with_a_condition_alone_leaves_others_without_a_price(tmp_path: Path) -> None:
    fill(tmp_path / "s", [_hours(1, 10), _hours(2, 10, tres=VGPU_HALF)])
    made = _bill(tmp_path / "s", rates=[{**H200, "mode": "vgpu"}])
    assert (made.cost, [gap.gpu_hours for gap in made.unpriced]) == (D("10.00"), [D("10.0000")])


def test_terms_hold_for_their_jobs_and_take_other_keys_from_those_without_conditions(tmp_path: Path) -> None:
    """Each 36 s; the minimum is 360 s (0.20 for an H200), of MIG 3,600 s: 2.00 x 0.142857 = 0.285714. A NODE_FAIL is
    free in both; a TIMEOUT of an A100 too, whose minimum is the common one."""
    prices = {
        "rates": [H200, {"model": "a100", "per_gpu_hour": 1}],
        "terms": [
            {"minimum_s": 360, "unbilled_states": ["NODE_FAIL"]},
            {"mode": "mig", "minimum_s": 3600},
            {"model": "a100", "unbilled_states": ["TIMEOUT"]},
            {"model": "a100", "mode": "mig", "minimum_s": 0},
        ],
    }
    a100: dict[str, Any] = {"tres": "gres/gpu:a100=1,gres/gpu=1", "partition": "old"}
    jobs = [
        Job(1, T0, T0, T0 + 36, user="whole"),
        Job(2, T0, T0, T0 + 36, tres=MIG, user="mig"),
        Job(3, T0, T0, T0 + 36, tres=MIG, state="NODE_FAIL", user="failed"),
        Job(4, T0, T0, T0 + 36, state="TIMEOUT", user="timeout", **a100),
        Job(5, T0, T0, T0 + 36, state="NODE_FAIL", user="a100", **a100),
    ]
    fill(tmp_path / "s", jobs)
    costs = {line.labels[0]: line.cost for line in _bill(tmp_path / "s", "user", **prices).lines}
    assert costs == {"whole": D("0.20"), "mig": D("0.29"), "failed": 0, "timeout": 0, "a100": D("0.10")}


def test_terms_of_certain_jobs_begin_on_their_day(tmp_path: Path) -> None:
    """A suspended hour costs nothing, from the second on a half of slices: 0.5 GPU x 0.5 x 2.00 = 0.50."""
    terms = [{"mode": "vgpu", "suspended_factor": D("0.5"), "from": date(2026, 9, 2)}]
    day = T0 + 24 * HOUR
    jobs = [
        Job(1, T0, T0, T0 + HOUR, VGPU_HALF, user="first", suspended=HOUR),
        Job(2, day, day, day + HOUR, VGPU_HALF, user="second", suspended=HOUR),
        Job(3, day, day, day + HOUR, user="whole", suspended=HOUR),
    ]
    fill(tmp_path / "s", jobs)
    costs = {line.labels[0]: line.cost for line in _bill(tmp_path / "s", "user", rates=[H200], terms=terms).lines}
    assert costs == {"first": 0, "second": D("0.50"), "whole": 0}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"rates": [{**H200, "mode": "mig"}, {**H200, "partition": "old"}]},
            "two [[rates]] h200 may hold for one job on 0001-01-01: (mode = mig) and (partition = old); give a third",
        ),
        ({"rates": [{**H200, "mode": "mig"}] * 2}, "two [[rates]] h200 (mode = mig) are valid on 0001-01-01"),
        (
            {"terms": [{"mode": "mig"}, {"model": "h200", "from": date(2026, 9, 1)}]},
            "two [[terms]]  may hold for one job on 2026-09-01: (mode = mig) and (model = h200)",
        ),
        ({"terms": [{"account": "a"}]}, "[[terms]] number 1: unknown key 'account'"),
        ({"terms": [{"mode": "slice"}]}, "mode = 'slice'; allowed is gpu or mig or vgpu or shard"),
        ({"rates": [{**H200, "partition": ""}]}, "partition = ''; allowed is a name"),
        ({"resources": [{"resource": "gpu", "per_hour": 1}]}, "resource = 'gpu'; allowed is cpu, mem, or license/NAME"),
        ({"resources": [{"resource": "cpu"}]}, "per_hour is missing; allowed is a number from 0"),
        ({"resources": [{"resource": "cpu", "per_hour": -1}]}, "per_hour = '-1'; allowed is a number from 0"),
        ({"resources": [{"resource": "cpu", "per_hour": 1}] * 2}, "two [[resources]] cpu are valid on"),
    ],
)
def test_what_is_ambiguous_or_unknown_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(AccountingError) as caught:
        rates(**given)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_third_entry_decides_between_two_for_all_days_on_which_both_hold() -> None:
    two = [{**H200, "mode": "mig"}, {**H200, "partition": "old"}]
    both = {**H200, "mode": "mig", "partition": "old"}
    assert len(rates(rates=[*two, both]).rates) == 3
    assert len(rates(rates=[{**two[0], "until": date(2026, 9, 1)}, {**two[1], "from": date(2026, 9, 1)}]).rates) == 2
    with pytest.raises(AccountingError, match="may hold for one job"):
        rates(rates=[*two, {**both, "from": date(2026, 9, 1)}])


RESOURCES = [
    {"resource": "cpu", "per_hour": D("0.02")},
    {"resource": "mem", "per_hour": D("0.005")},
    {"resource": "license/matlab", "per_hour": D("0.50")},
]
WITH_ALL = f"{ONE_H200.replace('cpu=1,', 'cpu=16,').replace('mem=1G', 'mem=65536M')},license/matlab=2,license/mat=7"


def test_cpus_memory_and_licences_are_charged_where_they_have_a_price(tmp_path: Path) -> None:
    """10 h with one H200, 16 CPUs, 64 GiB and 2 licences: 20.00 + 3.20 + 3.20 + 10.00. A job without GPUs for 10 h with
    4 CPUs and 8 GiB: 0.80 + 0.40. GPU-hours stay 10, jobs 2."""
    jobs = [_hours(1, 10, tres=WITH_ALL), _hours(2, 10, tres="cpu=4,mem=8G,node=1", partition="cpu", user="bob")]
    fill(tmp_path / "s", jobs)
    made = _bill(tmp_path / "s", "user,model", rates=[H200], resources=RESOURCES)
    assert {line.labels: (line.runs, line.cost) for line in made.lines} == {
        ("ann", "h200"): (1, D("20.00")),
        ("ann", "cpu"): (0, D("3.20")),
        ("ann", "mem"): (0, D("3.20")),
        ("ann", "license/matlab"): (0, D("10.00")),
        ("bob", "cpu"): (1, D("0.80")),
        ("bob", "mem"): (0, D("0.40")),
    }
    assert (made.cost, made.gpu_hours, made.runs) == (D("37.60"), D("10.0000"), 2)
    shown = tables.bill_table(made, UTC, ())
    assert "of the total for cpu: EUR 4.00 (200.0000 CPU-hours)" in shown
    assert "of the total for mem: EUR 3.60 (720.0000 GiB-hours)" in shown
    assert "of the total for license/matlab: EUR 10.00 (20.0000 licence-hours)" in shown
    plain = _bill(tmp_path / "s", "user,model", rates=[H200])
    assert [(line.labels, line.cost) for line in plain.lines] == [(("ann", "h200"), D("20.00"))]


def test_resources_follow_terms_factors_windows_and_partitions(tmp_path: Path) -> None:
    """10 CPUs: 36 s in the partition cpu are charged 3,600 s at 0.02 x 2 (the account's factor): 0.40. Elsewhere CPUs
    cost 0.01: 10 x 0.01 x 2 = 0.20. A NODE_FAIL is free."""
    jobs = [
        Job(1, T0, T0, T0 + 36, "cpu=10,mem=1G", partition="cpu", user="a"),
        Job(2, T0, T0, T0 + 36, "cpu=10,mem=1G", partition="other", user="b"),
        Job(3, T0, T0, T0 + 36, "cpu=10,mem=1G", partition="cpu", user="c", state="NODE_FAIL"),
    ]
    fill(tmp_path / "s", jobs)
    prices = {
        "resources": [{"resource": "cpu", "per_hour": D("0.01")}, {**RESOURCES[0], "partition": "cpu"}],
        "factors": [{"account": "phys", "factor": 2}],
        "terms": [{"minimum_s": 3600, "unbilled_states": ["NODE_FAIL"]}],
    }
    made = _bill(tmp_path / "s", "user", **prices)
    assert {line.labels[0]: line.cost for line in made.lines} == {"a": D("0.40"), "b": D("0.20"), "c": 0}


def test_memory_is_counted_to_a_millionth_of_a_gib(tmp_path: Path) -> None:
    """1 MiB is 976.5625 millionths, 3 MiB 2,929.6875: 977 and 2,930. For 1,000 h at 1,000 each: 977.00, 2,930.00. 8 MiB
    are 7,812.5: 7,812, half to even."""
    jobs = [_hours(n, 1000, tres=f"cpu=1,mem={mib}M", user=f"u{mib}") for n, mib in enumerate((1, 3, 8), 1)]
    fill(tmp_path / "s", [job.with_(end=T0 + 100 * HOUR) for job in jobs])
    made = _bill(tmp_path / "s", "user", resources=[{"resource": "mem", "per_hour": 10_000}])
    assert {line.labels[0]: line.cost for line in made.lines} == {
        "u1": D("977.00"), "u3": D("2930.00"), "u8": D("7812.00")
    }  # fmt: skip


def test_an_invoice_has_lines_of_resources_that_add_up_with_the_others(tmp_path: Path) -> None:
    fill(tmp_path / "s", [_hours(1, 10, tres=WITH_ALL), _hours(2, 10, tres="cpu=4,mem=8G", partition="cpu")])
    discounts = [{"from_gpu_hours": 0, "percent": 10}]
    prices = rates(rates=[H200], resources=RESOURCES, discounts=discounts)
    records = job_records.from_store(tmp_path / "s", SEPTEMBER, 256)
    priced_period = price_period(records, GPUS, prices, split_days(SEPTEMBER, UTC), UTC)
    held = invoice.account_times(priced_period, prices)["phys"]
    made = invoice.build("phys", date(2026, 9, 1), held, priced_period.segments, prices, {}, ())
    assert {(line.labels[0], line.labels[3]): (line.quantity, line.amount) for line in made.lines} == {
        ("h200", "gpu"): ("", "20.00"),
        ("cpu", "gpu"): ("160.0000 CPU-hours", "3.20"),
        ("mem", "gpu"): ("640.0000 GiB-hours", "3.20"),
        ("license/matlab", "gpu"): ("20.0000 licence-hours", "10.00"),
        ("cpu", "cpu"): ("40.0000 CPU-hours", "0.80"),
        ("mem", "cpu"): ("80.0000 GiB-hours", "0.40"),
    }
    # The discount is on GPU-hours alone.
    assert (made.subtotal, made.discount, made.total) == ("37.60", "-2.00", "35.60")
    assert (made.gpu_hours, made.jobs) == ("10.0000", 2)
    assert sum(D(line.amount) for line in made.users) == D("37.60")


def test_records_of_before_have_no_cpus_and_the_bill_says_so(tmp_path: Path) -> None:
    """Until they are read again, which changes each once."""
    root = tmp_path / "s"
    fill(root, [_hours(1, 10, tres=WITH_ALL)])
    manifest = store_files.read_manifest(root)
    before = [replace(file, columns=2) for file in manifest.files]
    store_files.commit(root, replace(manifest, files=tuple(before)))
    prices = rates(rates=[H200], resources=RESOURCES)

    def asked() -> tuple[D | None, tuple[str, ...]]:
        records = job_records.from_store(root, SEPTEMBER, 256)
        priced_period = price_period(records, GPUS, prices, split_days(SEPTEMBER, UTC), UTC)
        gaps = priced_period.gaps
        records.con.close()
        return make_bill(root, SEPTEMBER, "account", prices).cost, gaps

    cost, (gap,) = asked()
    assert cost == D("20.00")
    assert gap.startswith("of 1 job CPUs, memory and licences are not known, and not charged: an older hami_hpc")
    (step,) = fill(root, [_hours(1, 10, tres=WITH_ALL)], observed=1_900_000_001)
    assert step.merged.changed == 1
    assert asked() == (D("36.40"), ())
    (step,) = fill(root, [_hours(1, 10, tres=WITH_ALL)], observed=1_900_000_002)
    assert (step.merged.changed, step.merged.unchanged) == (0, 1)
