# SPDX-License-Identifier: Apache-2.0
"""What sacct really printed of one week, version by version (records/README.md): the same records, the same bill."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from billed_week import EXPECTED, RATES, RUNS, TOTAL, WEEK, in_json, lines, read, records_in_json
from click.testing import CliRunner

from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.sources.sacct_json import open_input
from hami_hpc.cli import main

RECORDS = Path(__file__).parent / "records"
VERSIONS = ("22.05", "24.11", "26.05")
SITE = """version = 1
[gpu_models.h200]
total_mib = 143156
[partitions.gpu]
gpu_models = ["h200"]
"""


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("form", ["txt", "json"])
def test_every_versions_records_come_to_the_bill_worked_out_by_hand(
    version: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rates.toml").write_text(RATES, encoding="utf-8")
    (tmp_path / "hami-hpc.toml").write_text(SITE, encoding="utf-8")
    (tmp_path / "hami-hpc.toml").chmod(0o644)
    monkeypatch.setenv("HAMI_HPC_CONFIG", str(tmp_path / "hami-hpc.toml"))
    words = ["--start", WEEK[0], "--end", WEEK[1], "--format", "json", "--rates", str(tmp_path / "rates.toml")]
    result = CliRunner().invoke(main, ["bill", "--input", str(RECORDS / version / f"week.{form}"), *words])
    assert result.exit_code == 0, result.output
    bill = json.loads(result.stdout)
    assert lines(bill) == (EXPECTED if form == "txt" else in_json(EXPECTED))
    assert bill["total"] == TOTAL
    assert [(omitted["examples"], omitted["jobs"]) for omitted in bill["left_out"]] == [(["62"], 1)]
    assert sorted(line.partition("(job ")[2][:2] for line in bill["rejected"]) == ["60", "61"]


@pytest.mark.parametrize("version", VERSIONS)
def test_json_says_what_text_says(version: str, tmp_path: Path) -> None:
    folder = RECORDS / version
    text = read(folder / "week.txt", tmp_path)
    assert len(text[0]) + len(text[1]) == len(RUNS)
    assert read(folder / "week.json", tmp_path) == records_in_json(*text)


@pytest.mark.parametrize("version", VERSIONS)
def test_jobs_that_really_ran_are_the_same_records_in_json_and_text(version: str, tmp_path: Path) -> None:
    records, rejects = read(RECORDS / version / "jobs.txt", tmp_path)
    assert read(RECORDS / version / "jobs.json", tmp_path) == (records, [])
    assert not rejects
    ended = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "REQUEUED"}
    assert {record["state"] for record in records} == {*ended, "RUNNING"}
    assert sum(record["suspended_s"] > 0 for record in records) == 1
    # Two tasks of an array, two components of a heterogeneous job.
    assert len({record["display_id"] for record in records if record["display_id"]}) == 4


def test_every_version_says_the_same(tmp_path: Path) -> None:
    first, *others = (read(RECORDS / version / "week.txt", tmp_path) for version in VERSIONS)
    assert all(other == first for other in others)


def test_json_without_jobs_is_refused_with_what_slurm_says(tmp_path: Path) -> None:
    """Slurm 22.05 with SLURM_TIME_FORMAT=%s and --json answers this, and ends with status 0."""
    error = {"description": "Unable to parse time format", "error_number": 9000, "source": "start_time"}
    (tmp_path / "j").write_text(json.dumps({"meta": {}, "errors": [error]}), encoding="utf-8")
    with pytest.raises(AccountingError, match="sacct says: Unable to parse time format"):
        open_input(tmp_path / "j", tmp_path)
