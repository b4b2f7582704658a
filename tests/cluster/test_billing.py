# SPDX-License-Identifier: Apache-2.0
"""The billed week through the real slurmdbd, from its database to the invoice."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from accounting_week import CLUSTER, make_cluster, remove_cluster, roll_up, seconds, sql, write_runs
from billed_week import EXPECTED, RATES, RUNS, TOTAL, USERS, WEEK, lines
from harness import daemons, jobs, services
from harness.config import PYTHON
from harness.layout import Layout


@pytest.fixture
def week(cluster: Layout) -> Iterator[Layout]:
    """The private cluster with the week in its slurmdbd."""
    make_cluster(cluster, USERS)
    write_runs(cluster, RUNS)
    # It reads the numbers of new TRES when it starts.
    daemons.stop(cluster, "slurmdbd")
    daemons.start(cluster, services.describe(cluster, "slurmdbd"))
    yield cluster
    remove_cluster(cluster, USERS)


def hami(layout: Layout, *words: str, status: int = 0) -> str:
    """hami-hpc as the cluster's administrator; what it printed."""
    environment = {**jobs.user_environment(layout, "root"), "HAMI_HPC_CONFIG": str(layout.site_config)}
    environment["PATH"] += os.pathsep + "/usr/bin"
    done = subprocess.run(
        (str(PYTHON), "-m", "hami_hpc.cli", *words),
        env=environment,
        cwd=PYTHON.parent.parent.parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def _bill(layout: Layout, *words: str) -> Any:
    return json.loads(hami(layout, "bill", "--format", "json", *words))


def test_a_week_in_slurmdbd_comes_to_the_hours_and_cents_worked_out_by_hand(week: Layout, tmp_path: Path) -> None:
    (tmp_path / "rates.toml").write_text(RATES, encoding="utf-8")
    site = ("--store", str(tmp_path / "store"), "--rates", str(tmp_path / "rates.toml"))
    hami(week, "ingest", "--since", "2026-10-12", "--clusters", CLUSTER, "--window-days", "5", *site)
    bill = _bill(week, "--start", WEEK[0], "--end", WEEK[1], *site)
    assert lines(bill) == EXPECTED
    assert bill["total"] == TOTAL
    assert [(omitted["examples"], omitted["jobs"]) for omitted in bill["left_out"]] == [(["62"], 1)]
    assert "b300" in bill["left_out"][0]["reason"]
    assert len(bill["rejected"]) == 2
    assert "(job 60)" in bill["rejected"][0] or "(job 60)" in bill["rejected"][1]
    assert any("AllocTRES is malformed (job 61)" in line for line in bill["rejected"])
    assert bill["still_running"] == 1

    again = hami(week, "ingest", "--clusters", CLUSTER, *site)
    assert " 0 new runs" in again
    assert _bill(week, "--start", WEEK[0], "--end", WEEK[1], *site) == bill

    days = _bill(week, "--start", WEEK[0], "--end", WEEK[1], "--by", "day", *site)
    assert days["total"] == bill["total"]
    # Sunday: job 50 with 7 h, job 51 with 2 h, and of job 54 all 25 hours that the day has.
    assert days["lines"][-1]["gpu_hours"] == "34.0000"


def test_the_week_agrees_with_sreport_but_for_differences_that_have_a_reason(week: Layout, tmp_path: Path) -> None:
    (tmp_path / "rates.toml").write_text(RATES, encoding="utf-8")
    site = ("--store", str(tmp_path / "store"), "--rates", str(tmp_path / "rates.toml"))
    hami(week, "ingest", "--since", "2026-10-12", "--clusters", CLUSTER, "--window-days", "60", *site)
    roll_up(week, "2026-10-18T00:00:00", "2026-10-27T00:00:00")
    words = ("--start", WEEK[0], "--end", WEEK[1], "--clusters", CLUSTER, "--format", "json")
    check = json.loads(hami(week, "check-bill", *words, *site, status=3))
    differing = {(d["user"], d["tres"]): (d["sreport_s"], d["records_s"]) for d in check["differences"]}
    # eve: job 60, which has no end, is 69 h long for sreport until the week's end (Friday 04:00 summer time), and job
    # 61 is 1 h; the bill leaves both out. 13 h of gres/gpu and 28 h of gres/vgpu agree: 1 x 2 + 2 x 5 + 1, and
    # 24 + 3 x 40 min + 2. The user without an association is not in sreport.
    assert differing == {
        ("eve", "gres/gpu"): ((13 + 69) * 3600, 13 * 3600),
        ("eve", "gres/vgpu"): (29 * 3600, 28 * 3600),
        ("uid:39999", "gres/gpu"): (0, 3600),
    }
    assert check["compared"] == 6
    assert all(d["reasons"] for d in check["differences"])
    # The 1.5 h that job 6 was suspended: sreport counts them, and so does the comparison, but not the bill.
    assert check["suspended_s"] == 5400


def test_an_invoice_of_the_month_is_numbered_once_and_replaced_when_a_record_changes(
    week: Layout, tmp_path: Path
) -> None:
    (tmp_path / "rates.toml").write_text(RATES, encoding="utf-8")
    site = ("--store", str(tmp_path / "store"), "--rates", str(tmp_path / "rates.toml"))
    hami(week, "ingest", "--since", "2026-10-12", "--clusters", CLUSTER, "--window-days", "60", *site)
    words = ("invoice", "--month", "2026-10", "--account", "chem", "--format", "json")
    (first,) = json.loads(hami(week, *words, *site))
    assert (first["kind"], first["content"]["total"]) == ("invoice", "20.10")
    assert json.loads(hami(week, *words, *site)) == [first]
    # An administrator mends the run that had no end: 3 h, 7.50.
    sql(week, f"UPDATE {CLUSTER}_job_table SET time_end = {seconds('2026-10-23T07:00+02:00')} WHERE id_job = 60;")
    hami(week, "ingest", "--input", _export(week, tmp_path), *site)
    note, second = json.loads(hami(week, *words, "--correct", *site))
    assert (note["kind"], note["refers_to"], note["content"]) == ("credit note", first["number"], first["content"])
    assert Decimal(second["content"]["total"]) == Decimal("27.60")
    assert second["refers_to"] == first["number"]


def _export(layout: Layout, directory: Path) -> str:
    """What a site hands over as a file: sacct's lines in local time."""
    fields = "JobIDRaw,JobID,Cluster,Account,User,UID,Partition,QOS,State,Submit,Start,End,Elapsed,Suspended,AllocTRES"
    path = directory / "export"
    environment = {**services.clean_environment(layout), "TZ": "Europe/Berlin"}
    call = ("sacct", "-M", CLUSTER, "-a", "-D", "-X", "-P", "--noconvert", "-S", "2026-10-01", "-o", fields)
    done = subprocess.run(call, env=environment, capture_output=True, text=True, timeout=60, check=True)
    path.write_text(done.stdout, encoding="utf-8")
    return str(path)
