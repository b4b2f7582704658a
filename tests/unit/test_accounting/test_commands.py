# SPDX-License-Identifier: Apache-2.0
"""The commands as people and scripts call them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hami_hpc.accounting.ratesfile import load_rates
from hami_hpc.cli import main
from hami_hpc.cli.accounting_commands import commands

from .samples import HOUR, VGPU_HALF, Job, write_export
from .test_efficiency import _record, _spool

ROOT = Path(__file__).resolve().parents[3]
T0 = 1_788_220_800  # 2026-09-01T00:00:00Z
SITE = """version = 1
[gpu_models.h200]
total_mib = 143156
[partitions.gpu]
gpu_models = ["h200"]
"""
RATES = 'version = 1\n[[rates]]\nmodel = "h200"\nper_gpu_hour = 2.50\n[[quotas]]\naccount = "phys"\ngpu_hours = 2\n'


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with hami-hpc.toml and rates.toml, in force, and an export of three runs."""
    (tmp_path / "hami-hpc.toml").write_text(SITE, encoding="utf-8")
    (tmp_path / "hami-hpc.toml").chmod(0o644)
    (tmp_path / "rates.toml").write_text(RATES, encoding="utf-8")
    monkeypatch.setenv("HAMI_HPC_CONFIG", str(tmp_path / "hami-hpc.toml"))
    jobs = [
        Job(submit=T0, start=T0, end=T0 + HOUR),
        Job(job_id=2, submit=T0, start=T0, end=T0 + 2 * HOUR, tres=VGPU_HALF, user="=bob"),
        Job(job_id=3, submit=T0, tres="gres/gpu"),
    ]
    write_export(tmp_path / "export", jobs)
    return tmp_path


def _run(*words: str | Path) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def test_every_accounting_command_is_found_by_the_group_and_has_help() -> None:
    assert list(commands) == ["bill", "ingest", "invoice", "efficiency", "usage", "report"]
    for name in commands:
        result = _run(name, "--help")
        assert (result.exit_code, name in result.output) == (0, True)


def test_a_bill_needs_no_store_and_no_slurm_and_names_what_it_leaves_out(site: Path) -> None:
    result = _run("bill", "--month", "2026-09", "--input", site / "export")
    assert result.exit_code == 0, result.output
    assert "ann" in result.output
    assert result.output.splitlines()[7].split() == ["Total", "2", "2.0000", "5.00"]
    assert "left out: 1 line: AllocTRES is malformed (job 3)" in result.output
    assert "quota: account phys has held 100 % of 2 GPU-hours this month" in result.output


def test_csv_is_for_spreadsheets_and_keeps_notes_out_of_it(site: Path) -> None:
    result = _run("bill", "--month", "2026-09", "--input", site / "export", "--format", "csv")
    rows = list(csv.reader(io.StringIO(result.stdout)))
    assert rows[0] == ["account", "user", "jobs", "gpu_hours", "cost_eur"]
    # A name that a spreadsheet would take for a formula is quoted.
    assert rows[1:] == [["phys", "'=bob", "1", "1.0000", "2.50"], ["phys", "ann", "1", "1.0000", "2.50"]]
    assert "malformed" in result.stderr


def test_from_ingest_to_invoice_report_and_efficiency(site: Path) -> None:
    store = ("--store", site / "store")
    assert "2 new runs" in _run("ingest", "--input", site / "export", *store).stdout
    _spool(site / "u", _record(2, T0 + 1, T0 + 2 * HOUR))
    assert "1 new usage records" in _run("ingest", "--usage", site / "u", *store).stdout
    (first,) = json.loads(_run("invoice", "--month", "2026-09", "--json", "--out", site / "out", *store).stdout)
    assert (first["number"][-5:], first["content"]["total"]) == ("00001", "5.00")
    assert (site / "out" / f"{first['number']}.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    result = _run("report", "--month", "2026-09", "--out", site / "report.html", *store)
    assert result.exit_code == 0, result.output
    assert "GPU report 2026-09" in (site / "report.html").read_text(encoding="utf-8")
    shown = _run("efficiency", "2", *store).stdout
    assert "--gres=vgpu:mem=2304M,cores=11 would have sufficed" in shown
    assert (
        "2 jobs" not in _run("efficiency", "--account", "phys", "--start", "2026-09", "--end", "2026-10", *store).stdout
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("bill",), "say which period"),
        (("bill", "--start", "2026-09-02", "--end", "2026-09-01"), "ends before it starts"),
        (("bill", "--start", "yesterday"), "'yesterday' is no date"),
        (("bill", "--month", "2026-13"), "is no month"),
        (("bill", "--month", "2026-09", "--timezone", "Mars/Base"), "no time zone"),
        (("bill", "--month", "2026-09", "--input", "/nowhere/x"), "cannot read /nowhere/x"),
        (("bill", "--month", "2026-09", "--rates", "/nowhere/r"), "/nowhere/r cannot be read"),
        (("invoice", "--month", "2126-09"), "is not over"),
        (("efficiency",), "give one of"),
        (("usage", "5"), "holds no vGPU on this node"),
        (("report", "--month", "2026-09", "--out", "/tmp/x", "--store", "/nowhere"), "run hami-hpc ingest"),
    ],
)
def test_a_mistake_is_answered_in_one_line_that_says_what_to_do(site: Path, words: tuple[str, ...], says: str) -> None:
    result = _run(*words)
    assert result.exit_code in (1, 2)
    assert says in result.output
    assert "Traceback" not in result.output


def test_the_example_of_rates_that_a_site_starts_from_is_valid() -> None:
    rates = load_rates(ROOT / "accounting" / "rates.toml")
    assert {rate.model for rate in rates.rates} == {"h200", "a100"}
    assert rates.nodes == {"old01": "a100", "old02": "a100"}
