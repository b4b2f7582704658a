# SPDX-License-Identifier: Apache-2.0
"""Energy of jobs: from the agent, else from Slurm, else missing and said to be; its cost and CO2 add up."""

from __future__ import annotations

import csv
import io
import json
from decimal import Decimal
from pathlib import Path

import pytest

from hami_hpc.accounting.store import ingest, store_files
from hami_hpc.accounting.store.database import connect
from hami_hpc.accounting.times import zone

from .samples import HOUR, ONE_H200, VGPU_HALF, Job, export_text, fill, ingest_file, run, write_settings
from .test_efficiency import _record, _spool

T0 = 1_788_220_800  # 2026-09-01T00:00:00Z
DAY = 86400
KWH = 3_600_000  # joules
FINANCE = """version = 1
[[energy]]
per_kwh = 0.30
co2_g_per_kwh = 400
overhead = 1.5
until = 2026-10-01
[[energy]]
per_kwh = 0.60
co2_g_per_kwh = 100
from = 2026-10-01
"""
JOBS = [
    Job(1, start=T0, submit=T0, end=T0 + HOUR, tres=f"{ONE_H200},energy={KWH}"),
    Job(2, start=T0, submit=T0, end=T0 + HOUR, tres=VGPU_HALF),  # the agent measured 0.5 kWh
    Job(3, start=T0, submit=T0, end=T0 + HOUR, tres=f"{ONE_H200},energy=18446744073709551614", user="bob"),
    Job(4, start=T0, submit=T0, end=T0 + HOUR, tres=f"energy=0,{ONE_H200}", user="bob"),
    # Half of it in September; of 7 kWh 3.5 each.
    Job(5, start=T0 + 29 * DAY, submit=T0, end=T0 + 31 * DAY, tres=f"{ONE_H200},energy={7 * KWH}", account="chem"),
]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    write_settings(tmp_path)
    (tmp_path / "finance.toml").write_text(FINANCE, encoding="utf-8")
    fill(tmp_path / "store", JOBS)
    _spool(tmp_path / "spool", _record(2, T0, T0 + HOUR, observed_ns=1, observed_energy_mj=KWH * 1000 // 2))
    assert run(tmp_path, "collect-usage", "--input", str(tmp_path / "spool"), "--clusters", "c1").exit_code == 0
    return tmp_path


def lines(site: Path, by: str, *period: str) -> list[dict[str, str]]:
    result = run(site, "bill", *period, "--energy", "--by", by, "--format", "csv")
    assert result.exit_code == 0, result.output
    return list(csv.DictReader(io.StringIO(result.stdout)))


def test_energy_is_the_agents_else_slurms_and_missing_is_empty_and_not_0(site: Path) -> None:
    made = {line["job"]: line for line in lines(site, "job", "--month", "2026-09")}
    assert {job: line["energy_j"] for job, line in made.items()} == {
        "1": "3600000", "2": "1800000", "3": "", "4": "", "5": "12600000",
    }  # fmt: skip
    assert (made["1"]["energy_cost"], made["1"]["co2_g"]) == ("0.45", "600")  # 1 kWh * 1.5 * 0.30; 1.5 * 400 g
    assert (made["3"]["energy_cost"], made["3"]["co2_g"], made["3"]["energy_jobs"]) == ("", "", "0")


def test_a_job_over_the_edge_of_a_month_is_divided_and_each_month_has_its_factors(site: Path) -> None:
    whole = ("--start", "2026-09-01", "--end", "2026-11-01")
    months = {line["month"]: line for line in lines(site, "account,month", *whole) if line["account"] == "chem"}
    assert {month: (line["energy_j"], line["energy_cost"], line["co2_g"]) for month, line in months.items()} == {
        "2026-09": ("12600000", "1.58", "2100"),  # 3.5 * 1.5 * 0.30 = 1.575; 3.5 * 1.5 * 400
        "2026-10": ("12600000", "2.10", "350"),
    }
    # Any division of the time adds up to the whole.
    parts = [lines(site, "account", "--start", a, "--end", b) for a, b in (
        ("2026-09-01", "2026-10-01T03:21"), ("2026-10-01T03:21", "2026-11-01"))]  # fmt: skip
    total = sum(int(line["energy_j"] or 0) for part in parts for line in part)
    assert total == 8.5 * KWH


def test_the_lines_add_up_to_the_total_and_the_note_says_what_is_missing(site: Path) -> None:
    result = run(site, "bill", "--month", "2026-09", "--energy", "--by", "user", "--format", "json")
    document = json.loads(result.stdout)
    assert sum(line["energy_j"] or 0 for line in document["lines"]) == document["total"]["energy_j"] == 5 * KWH
    costs = [Decimal(line["energy_cost"]) for line in document["lines"] if line["energy_cost"] is not None]
    assert sum(costs) == Decimal(document["total"]["energy_cost"]) == Decimal("2.25")
    assert "energy: known of 3 of 5 jobs, and missing of 2" in document["gaps"]
    table = run(site, "bill", "--month", "2026-09", "--energy", "--by", "user").stdout
    assert "0 of 2" in table
    assert "kg CO2" in table


def test_a_little_energy_is_not_shown_as_none(site: Path) -> None:
    start = T0 + 50 * DAY
    fill(site / "store", [Job(9, start=start, submit=start, end=start + 2, tres=f"{ONE_H200},energy=900")])
    period = ("--start", "2026-10-20", "--end", "2026-10-22")
    assert lines(site, "job", *period)[0]["energy_j"] == "900"
    assert "<0.001" in run(site, "bill", *period, "--energy").stdout


def test_without_factors_there_are_kilowatt_hours_and_neither_cost_nor_co2(site: Path) -> None:
    (site / "finance.toml").unlink()
    made = lines(site, "account", "--month", "2026-09")
    assert [(line["energy_j"], line["energy_cost"], line["co2_g"]) for line in made] == [
        ("12600000", "", ""), ("5400000", "", ""),
    ]  # fmt: skip


def test_a_month_without_a_factor_leaves_the_cost_unknown(site: Path) -> None:
    (site / "finance.toml").write_text(FINANCE.split("[[energy]]\nper_kwh = 0.60")[0], encoding="utf-8")
    made = lines(site, "account", "--start", "2026-09-01", "--end", "2026-11-01")
    assert {line["energy_cost"] for line in made} == {""}


def test_the_report_shows_energy_and_says_where_none_is_known(site: Path) -> None:
    for month, said in (("2026-09", "known of 3 of 5 jobs"), ("2026-11", "not known of any of 0 jobs")):
        assert run(site, "report", "--month", month, "--output", str(site / "r.html")).exit_code == 0
        assert said in (site / "r.html").read_text(encoding="utf-8")


def test_a_bill_without_energy_is_as_before_and_what_a_job_has_not_is_refused(site: Path) -> None:
    assert "energy" not in run(site, "bill", "--month", "2026-09", "--format", "csv").stdout
    result = run(site, "bill", "--month", "2026-09", "--energy", "--by", "account,model")
    assert result.exit_code == 2
    assert "a job's energy has no model" in result.stderr


def test_a_column_of_its_own_is_read_where_alloctres_has_none(site: Path) -> None:
    columns = [*export_text([]).strip().split("|"), "ConsumedEnergyRaw"]
    job = Job(9, start=T0 + 40 * DAY, submit=T0 + 40 * DAY, end=T0 + 40 * DAY + HOUR)
    values = [*export_text([job]).splitlines()[1].split("|"), str(2 * KWH)]
    export = site / "export.txt"
    export.write_text("|".join(columns) + "\n" + "|".join(values) + "\n", encoding="utf-8")
    ingest_file(site / "store", export, ingest.Source(zone("UTC"), memory_mib=256), 1_900_000_000)
    (line,) = lines(site, "job", "--start", "2026-10-10", "--end", "2026-10-12")
    assert line["energy_j"] == str(2 * KWH)


def test_a_store_without_the_column_is_read_and_bills_the_same(site: Path) -> None:
    before = run(site, "bill", "--month", "2026-09", "--format", "csv").stdout
    path = site / "store/manifest.json"
    manifest = json.loads(path.read_text())
    for file in manifest["files"]:
        if file["kind"] in (store_files.JOBS, store_files.OPEN):
            name = site / "store" / file["name"]
            connect().execute(
                f"COPY (SELECT * EXCLUDE (energy_j) FROM read_parquet('{name}', hive_partitioning = false)) "
                f"TO '{name}.new' (FORMAT parquet)"
            )
            Path(f"{name}.new").rename(name)
            file["columns"] = 2
    path.write_text(json.dumps(manifest))
    assert run(site, "bill", "--month", "2026-09", "--format", "csv").stdout == before
    energies = {line["job"]: line["energy_j"] for line in lines(site, "job", "--month", "2026-09")}
    assert energies == {"1": "", "2": "1800000", "3": "", "4": "", "5": ""}
