# SPDX-License-Identifier: Apache-2.0
"""Bills of parts of a month and of some accounts, and the quotas on them, which are of whole months and all records."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hami_hpc.accounting.times import parse_instant, zone

from .samples import HOUR, Job, export_text, run, write_export, write_settings

RATES = """version = 1
timezone = "Europe/Berlin"
[[rates]]
model = "h200"
per_gpu_hour = 1
[[quotas]]
account = "phys"
gpu_hours = 24
[[quotas]]
user = "ann"
gpu_hours = 1000
[[budgets]]
account = "phys"
gpu_hours = 10
from = 2026-10-01
until = 2026-11-01
[[budgets]]
account = "chem"
gpu_hours = 1
from = 2026-10-01
until = 2026-11-01
"""
WEEK = ("--start", "2026-10-19", "--end", "2026-10-26")


def _job(job_id: int, start: str, hours: int, account: str = "phys") -> Job:
    start_s = parse_instant(start, zone("Europe/Berlin"))
    return Job(job_id, start_s, start_s, start_s + hours * HOUR, account=account)


# 4 + 10 + 10 + 4 hours of phys in October.
JOBS = (
    _job(1, "2026-09-30T20:00", 8),
    _job(2, "2026-10-04T20:00", 10),  # Sunday to Monday
    _job(3, "2026-10-20", 10),
    _job(4, "2026-10-31T20:00", 9),  # the clocks have changed on the 25th
    _job(5, "2026-10-20", 3, "chem"),
)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Settings, rates, and a store with JOBS."""
    write_settings(tmp_path)
    (tmp_path / "rates.toml").write_text(RATES, encoding="utf-8")
    write_export(tmp_path / "export", JOBS)
    assert run(tmp_path, "ingest", "--new-cluster", "--input", str(tmp_path / "export")).exit_code == 0
    return tmp_path


def _quota(site: Path, *words: str) -> list[tuple[str, str]]:
    result = run(site, "bill", "--format", "json", *words)
    assert result.exit_code == 0, result.output
    return [(state["owner"], state["held_gpu_hours"]) for state in json.loads(result.stdout)["quotas"]]


def test_the_bill_of_a_week_has_the_quotas_of_the_whole_month(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = [("account phys", "28.0000"), ("user ann", "31.0000")]
    assert _quota(site, "--month", "2026-10") == whole
    assert _quota(site, *WEEK) == whole
    assert _quota(site, *WEEK, "--account", "phys") == whole[:1]
    assert _quota(site, *WEEK, "--account", "") == []
    # sacct gives what overlaps the time that it is asked for.
    (site / "bin").mkdir()
    (site / "bin" / "sacct").write_text(
        f'#!/bin/sh\nfor word; do case $word in uts*) echo "${{word#uts}}" >> {site}/asked;; esac; done\n'
        f"cat {site}/delimited\n",
        encoding="utf-8",
    )
    (site / "bin" / "sacct").chmod(0o755)
    (site / "delimited").write_text(export_text(JOBS).replace("|", "\x1f"), encoding="utf-8")
    monkeypatch.setenv("PATH", f"{site / 'bin'}:{os.environ['PATH']}")
    assert _quota(site, *WEEK, "--live") == whole
    asked = [int(line) for line in (site / "asked").read_text(encoding="utf-8").split()]
    assert asked == [parse_instant(day, zone("Europe/Berlin")) for day in ("2026-10-01", "2026-11-01")]


def test_a_week_begins_on_monday_and_may_lie_in_two_months(site: Path) -> None:
    result = run(
        site, "bill", "--start", "2026-10-01", "--end", "2026-11-02", "--by", "account,week", "--format", "csv"
    )
    assert [line.split(",")[1:4:2] for line in result.stdout.splitlines()[1:]] == [
        ["2026-W43", "3.0000"],
        ["2026-W40", "8.0000"],
        ["2026-W41", "6.0000"],
        ["2026-W43", "10.0000"],
        ["2026-W44", "9.0000"],
    ]
    both = run(site, "bill", "--start", "2026-10-26", "--end", "2026-11-02", "--by", "week,month", "--format", "csv")
    assert [line.split(",")[:2] for line in both.stdout.splitlines()[1:]] == [
        ["2026-W44", "2026-10"],
        ["2026-W44", "2026-11"],
    ]
    assert run(site, "bill", "--month", "2026-10", "--by", "week", "--energy").exit_code == 2


def test_a_bill_of_one_account_has_nothing_of_others_and_says_whose_it_is(site: Path) -> None:
    torn = _job(6, "2026-10-20", 1, "chem").with_(tres="gres/gpu")
    write_export(site / "export", [torn])
    assert run(site, "ingest", "--input", str(site / "export")).exit_code == 0
    words = ("bill", "--month", "2026-10", "--account", "phys", "--by", "account,user")
    result = run(site, *words)
    assert result.output.splitlines()[0].startswith("GPU time held by phys, 2026-10-01")
    assert result.output.splitlines()[-4:-3] == ["Total             4    28.0000  28.00"], result.output
    assert "budget: account phys has used 280 %" in result.output
    assert "chem" not in result.output
    assert "malformed" not in result.output
    both = run(site, *words, "--account", "chem", "--format", "json")
    document = json.loads(both.stdout)
    assert (document["accounts"], document["total"]["gpu_hours"]) == (["phys", "chem"], "31.0000")
    assert "malformed" in both.stdout
    nobody = run(site, *words[:3], "--account", "fysics")
    assert nobody.exit_code == 0
    assert "no GPU job ran" in nobody.output


@pytest.mark.parametrize("month", ["0001-01", "1969-12", "3000-01", "9999-12"])
def test_a_month_that_no_calendar_of_jobs_has_is_refused_in_one_line(site: Path, month: str) -> None:
    for words in (
        ["bill", "--month", month],
        ["bill", "--start", "2026-10", "--end", f"{month}-02"],
        ["efficiency", "--user", "ann", "--start", month],
        ["report", "--month", month, "--output", str(site / "report.html")],
        ["invoice", "--month", month],
        ["ledger", "--month", month],
    ):
        result = run(site, *words)
        assert (result.exit_code, len(result.output.splitlines())) == (2, 1), result.output
        assert "the years 1970 to 2999" in result.output
