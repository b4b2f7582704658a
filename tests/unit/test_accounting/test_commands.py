# SPDX-License-Identifier: Apache-2.0
"""The commands as people and scripts call them."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner, Result

from hami_hpc.accounting.pricing.rates_file import load_rates
from hami_hpc.accounting.sources.sacct import ASKED
from hami_hpc.accounting.store import export_reader
from hami_hpc.accounting.store.store_files import DataFile, commit, read_manifest
from hami_hpc.cli import ACCOUNTING_COMMANDS, NODE_COMMANDS, main

from .samples import HOUR, VGPU_HALF, Job, export_text, write_export
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


@pytest.mark.parametrize("name", ACCOUNTING_COMMANDS)
def test_every_accounting_command_has_help_with_its_exit_statuses_and_the_same_options(name: str) -> None:
    result = _run(name, "--help")
    assert (result.exit_code, result.output.startswith(f"Usage: main {name} ")) == (0, True)
    statuses = re.findall(r"^  (\d)  ", result.output.partition("Exit status:")[2], flags=re.M)
    assert statuses == ["0", "1", "2", *(["3"] if name in ("check-bill", "invoice") else [])]
    options = set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", result.output, flags=re.M))
    assert {"--config", "--rates", "--store", "--timezone"} <= options
    assert not options & {"--json", "--out", "--cluster", "--check", "--usage", "--remove-usage", "--balances"}


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_list_of_commands_has_two_parts_and_whole_sentences(columns: int) -> None:
    result = CliRunner().invoke(main, ["--help"], terminal_width=columns)
    assert "..." not in result.output.partition("Commands of a node:")[2]
    node, _, accounting = result.output.partition("Commands of a node:")[2].partition("Commands of accounting:")
    assert re.findall(r"^  ([a-z-]+)", node, flags=re.M) == list(NODE_COMMANDS)
    assert re.findall(r"^  ([a-z-]+)", accounting, flags=re.M) == list(ACCOUNTING_COMMANDS)
    assert "reason as far as it is known." in " ".join(accounting.split())
    assert all(len(line) <= columns for line in result.output.splitlines())


def test_a_bill_needs_no_store_and_no_slurm_and_names_what_it_leaves_out(site: Path) -> None:
    result = _run("bill", "--month", "2026-09", "--input", site / "export")
    assert result.exit_code == 0, result.output
    assert "ann" in result.output
    assert result.output.splitlines()[7].split() == ["Total", "2", "2.0000", "5.00"]
    assert "left out: 1 line: AllocTRES is malformed (job 3)" in result.output
    assert "quota: account phys has held 100 % of 2 GPU-hours in 2026-09" in result.output


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
    assert ": 1 new usage record, 0 known\n" in _run("collect-usage", "--input", site / "u", *store).stdout
    (first,) = json.loads(
        _run("invoice", "--month", "2026-09", "--format", "json", "--output", site / "out", *store).stdout
    )
    assert (first["number"][-5:], first["content"]["total"]) == ("00001", "5.00")
    assert (site / "out" / f"{first['number']}.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    result = _run("report", "--month", "2026-09", "--output", site / "report.html", *store)
    assert result.exit_code == 0, result.output
    assert "GPU report 2026-09" in (site / "report.html").read_text(encoding="utf-8")
    shown = _run("efficiency", "2", *store).stdout
    assert "held     1 x 8,192 MiB, 50 % of the GPU's time, class std\n" in shown
    assert "--gres=vgpu:mem=2304M,cores=11 would have sufficed" in shown
    whole = _run("efficiency", "1", *store).stdout
    assert "held     1 GPU\n" in whole
    assert "not known: no usage record of this job was collected; only nodes with hami-hpc agent write one" in whole
    shown = _run("efficiency", "--account", "phys", "--start", "2026-09", "--end", "2026-10", *store).stdout
    assert "\n1 job measured: 20.0 % of 1.00 GPU-hours used; of 1 more it is not known\n" in shown, shown
    assert "\n2 jobs cost EUR 5.00, before discounts and credits\n" in shown


def test_a_disturbed_run_is_not_billed_from_the_day_that_its_usage_record_is_collected(site: Path) -> None:
    """Each of the two runs held 1 GPU-hour, 2.50. Job 2 is disturbed; its record comes after the first invoice."""
    store = ("--store", site / "store")
    month = ("--month", "2026-09")
    by = ("--by", "billable", "--format", "csv")
    assert _run("ingest", "--input", site / "export", *store).exit_code == 0
    assert "no usage records" not in _run("bill", *month, *store).output
    (site / "rates.toml").write_text(RATES + "[[terms]]\nunbilled_disturbed = true\n", encoding="utf-8")
    before = _run("bill", *month, *by, *store)
    assert before.stdout.splitlines()[1:] == ["yes,2,2.0000,5.00"]
    assert before.stderr.count("there are no usage records here: unbilled_disturbed of rates.toml is not applied") == 1
    issued = _run("invoice", *month, "--format", "json", *store)
    assert issued.stderr.count("no usage records here") == 1
    (first,) = json.loads(issued.stdout)
    assert (first["content"]["total"], first["content"]["notes"]) == (
        "5.00",
        ["left out: 1 line: AllocTRES is malformed (job 3)"],
    )
    _spool(site / "u", _record(1, T0 + 1, T0 + HOUR), _record(2, T0 + 1, T0 + 2 * HOUR, disturbed_count=3))
    assert _run("collect-usage", "--input", site / "u", *store).exit_code == 0
    after = _run("bill", *month, *by, *store)
    assert after.stdout.splitlines()[1:] == ["no,1,1.0000,0.00", "yes,1,1.0000,2.50"]
    assert "no usage records" not in after.stderr
    assert "quota: account phys has held 100 % of 2 GPU-hours" in after.stderr
    note, second = json.loads(_run("invoice", *month, "--correct", "--format", "json", *store).stdout)
    assert (note["kind"], note["refers_to"], note["content"]["total"]) == ("credit note", first["number"], "5.00")
    content = second["content"]
    assert (content["total"], content["gpu_hours"], content["unbilled_gpu_hours"]) == ("2.50", "1.0000", "1.0000")
    assert json.loads(_run("invoice", *month, "--format", "json", *store).stdout) == [second]
    assert _run("report", *month, "--output", site / "report.html", *store).exit_code == 0
    assert "no usage records" not in (site / "report.html").read_text(encoding="utf-8")
    assert "GPU-hours\n" in _run("efficiency", "2", *store).stdout


def test_a_bill_of_records_that_are_not_the_stores_says_that_disturbed_runs_are_billed(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file or sacct has no usage records; a store that --store names has."""
    (site / "rates.toml").write_text(RATES + "[[terms]]\nunbilled_disturbed = true\n", encoding="utf-8")
    (site / "bin").mkdir()
    (site / "bin" / "sacct").write_text(f"#!/bin/sh\nexec cat {site}/export\n", encoding="utf-8")
    (site / "bin" / "sacct").chmod(0o755)
    monkeypatch.setenv("PATH", f"{site / 'bin'}:/usr/bin:/bin")
    _spool(site / "u", _record(2, T0 + 1, T0 + 2 * HOUR, disturbed_count=1))
    assert _run("collect-usage", "--input", site / "u", "--store", site / "store").exit_code == 0
    for source in (("--live",), ("--input", site / "export")):
        words = ("bill", "--month", "2026-09", "--format", "json", *source)
        alone = json.loads(_run(*words).stdout)
        assert (alone["total"]["cost"], len(alone["gaps"])) == ("5.00", 1)
        assert "disturbed runs are billed" in alone["gaps"][0]
        assert _run("bill", "--month", "2026-09", *source).stdout.count("disturbed runs are billed") == 1
        beside = json.loads(_run(*words, "--store", site / "store").stdout)
        assert (beside["total"]["cost"], beside["gaps"]) == ("2.50", [])


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("bill",), 2, "say which period"),
        (("bill", "--start", "2026-09-02", "--end", "2026-09-01"), 2, "ends before it starts"),
        (("bill", "--start", "yesterday"), 2, "'yesterday' is not a date"),
        (("bill", "--month", "2026-13"), 2, "is not a month"),
        (("bill", "--month", "2026-09", "--timezone", "Mars/Base"), 2, "is not a time zone"),
        (("bill", "--month", "2026-09", "--input", "/nowhere/x"), 1, "cannot read /nowhere/x"),
        (("bill", "--month", "2026-09", "--rates", "/nowhere/r"), 1, "/nowhere/r cannot be read"),
        (("invoice", "--month", "2126-09"), 1, "is not over"),
        (("efficiency",), 2, "give one of"),
        (("bill", "--month", "2026-09", "--by", "day,day"), 2, "names day twice"),
        (("ingest", "--input", "/nowhere/x"), 1, "/nowhere/x: No such file"),
        (("collect-usage", "--input", "/nowhere"), 1, "/nowhere is not a directory"),
        (("report", "--month", "2126-09", "--output", "/tmp/x"), 1, "2126-09 has not begun"),
        (("report", "--month", "2026-09", "--output", "/tmp/x", "--templates", "/nowhere"), 2, "does not exist"),
        (("bill", "--month", "2026-09", "--store", "/nowhere"), 1, "there is no accounting store in /nowhere"),
        (("check-bill",), 2, "say which period"),
        (("check-bill", "--month", "2026-09", "--store", "/nowhere"), 1, "there is no accounting store in /nowhere"),
        (("check-bill", "--month", "2026-09", "--config", "/nowhere"), 1, "/nowhere"),
        (("ingest", "--input", "/nowhere/x", "--clusters", "a,b"), 2, "these records are of one cluster"),
        (("collect-usage",), 2, "Missing option '--input'"),
        (("nothing",), 2, "No such command 'nothing'"),
        (("invoice",), 2, "say which month"),
        (("invoice", "--month", "2026-09", "--pdf"), 2, "--pdf needs --output"),
        (("invoice", "--month", "2026-09", "--output", "/proc/x"), 1, "/proc/x cannot be written to"),
        (("report", "--month", "2026-09", "--output", "/tmp/x", "--store", "/nowhere"), 1, "run hami-hpc ingest"),
    ],
)
def test_a_mistake_is_answered_in_one_line_that_says_what_to_do(
    site: Path, words: tuple[str, ...], status: int, says: str
) -> None:
    result = _run(*words)
    assert result.exit_code == status
    assert says in result.output
    assert "Traceback" not in result.output


@pytest.fixture
def filled(site: Path) -> tuple[str, Path]:
    """``site`` with its export in a store: the option that names it."""
    assert _run("ingest", "--input", site / "export", "--store", site / "store").exit_code == 0
    return "--store", site / "store"


# Words as they were once given, as they are given now, and the one line on standard error that says so.
OLD = [
    ("invoice --balances", "balances", "invoice --balances is now called balances"),
    ("invoice --balances --json", "balances --format json", "invoice --json is now called invoice --format json"),
    ("invoice --month 2026-09 --draft --json", "invoice --month 2026-09 --draft --format json", "--format json"),
    ("invoice --month 2026-09 --draft --out OUT", "invoice --month 2026-09 --draft --output OUT", "--output"),
    ("report --month 2026-09 --out=OUT/r", "report --month 2026-09 --output OUT/r", "report --output"),
    ("efficiency 2 --json", "efficiency 2 --format json", "efficiency --format json"),
    ("bill --check --month 2026-09", "check-bill --month 2026-09", "bill --check is now called check-bill"),
    ("bill --by day --check --month 2026-09 --format csv", "check-bill --month 2026-09", "now called check-bill"),
    ("ingest --usage U --quiet", "collect-usage --input U --quiet", "ingest --usage is now called collect-usage"),
    ("ingest --usage U --cluster c1", "collect-usage --input U --clusters c1", "is now called --clusters"),
    ("ingest --usage U --usage U --remove-usage", "collect-usage --input U --input U --remove", "collect-usage"),
    ("ingest --input LINES --cluster c1", "ingest --input LINES --clusters c1", "--cluster is now called --clusters"),
]


@pytest.mark.parametrize(("old", "new", "note"), OLD)
def test_an_old_spelling_goes_on_working_and_names_the_new_one(
    site: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, note: str
) -> None:
    (site / "bin").mkdir()
    sreport = site / "bin" / "sreport"
    sreport.write_text("#!/bin/sh\necho 'c1|phys|ann|gres/gpu|3600'\n", encoding="utf-8")
    sreport.chmod(0o755)
    monkeypatch.setenv("PATH", f"{site / 'bin'}:/usr/bin:/bin")
    columns = tuple(name for name in ASKED if name != "Cluster")
    (site / "LINES").write_text(export_text([Job(job_id=9)], columns), encoding="utf-8")
    (site / "OUT").mkdir()
    results: list[tuple[Result, tuple[DataFile, ...]]] = []
    for words in (old, new):
        store = site / f"store-{len(results)}"
        assert _run("ingest", "--input", site / "export", "--store", store).exit_code == 0
        _spool(site / "U", _record(2, T0 + 1, T0 + 2 * HOUR))
        given = [str(site / word) if word in ("OUT", "U", "LINES") else word for word in words.split()]
        given = [word.replace("OUT/", f"{site}/OUT/") for word in given]
        results.append((_run(*given, "--store", store), read_manifest(store).files))
    (before, stored_before), (now, stored_now) = results
    assert (before.exit_code, before.stdout, stored_before) == (now.exit_code, now.stdout, stored_now)
    notes = [line for line in before.stderr.splitlines() if line.startswith("note: ")]
    assert note in " ".join(notes)
    assert len(notes) == len(re.findall(r"--(?:check|balances|usage(?! U --usage)|json|out|cluster)\b", old))
    assert "note: " not in now.stderr


def test_a_mistyped_account_gets_no_invoice_and_no_number(site: Path, filled: tuple[str, Path]) -> None:
    result = _run("invoice", "--month", "2026-09", "--account", "phis", *filled)
    assert (result.exit_code, "did you mean phys?" in result.output) == (1, True)
    result = _run("invoice", "--month", "2026-09", "--account", "qq", *filled)
    assert "hami-hpc bill --by account names those that did" in result.output
    assert not list((site / "store").glob("invoices/*"))
    # Named twice, it is still one invoice.
    twice = _run("invoice", "--month", "2026-09", "--account", "phys", "--account", "phys", "--format", "json", *filled)
    assert len(json.loads(twice.stdout)) == 1


def test_no_invoice_is_numbered_that_cannot_be_written_down(site: Path, filled: tuple[str, Path]) -> None:
    (site / "file").write_text("", encoding="utf-8")
    result = _run("invoice", "--month", "2026-09", "--output", site / "file" / "below", *filled)
    assert (result.exit_code, "see --output" in result.output) == (1, True)
    assert not list((site / "store").glob("invoices/*"))


def test_drafts_of_several_accounts_are_files_of_their_own_and_need_no_right_to_write(site: Path) -> None:
    jobs = [Job(1, T0, T0, T0 + HOUR), Job(2, T0, T0, T0 + HOUR, account="a/b")]
    write_export(site / "export", jobs)
    store = ("--store", site / "store")
    _run("ingest", "--input", site / "export", *store)
    (site / "store" / ".lock").unlink()
    (site / "store" / ".lock").mkdir()  # what cannot be locked, by root neither
    result = _run("invoice", "--month", "2026-09", "--draft", "--output", site / "out", *store)
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in (site / "out").iterdir()) == ["DRAFT-a%2Fb.html", "DRAFT-phys.html"]
    assert result.stdout.splitlines()[-1].split() == ["Total", "5.00"]
    assert _run("invoice", "--month", "2026-09", *store).exit_code == 1


def test_the_pdf_lies_beside_the_html(site: Path, filled: tuple[str, Path]) -> None:
    result = _run("invoice", "--month", "2026-09", "--output", site / "out", "--pdf", *filled)
    assert result.exit_code == 0, result.output
    page, pdf = sorted((site / "out").iterdir())
    assert (page.stem, page.suffix, pdf.stem, pdf.suffix) == (pdf.stem, ".html", page.stem, ".pdf")
    assert pdf.read_bytes().startswith(b"%PDF-")


def test_what_is_left_of_credits_can_be_asked_for(site: Path, filled: tuple[str, Path]) -> None:
    assert _run("balances", *filled).stdout == "no credits in rates.toml\n"
    with (site / "rates.toml").open("a", encoding="utf-8") as file:
        file.write('[[credits]]\nid = "g1"\naccount = "phys"\namount = 1200\nnote = "Grant 4711"\nuntil = 2027-01-01\n')
    _run("invoice", "--month", "2026-09", *filled)
    shown = _run("balances", *filled).stdout.splitlines()
    assert shown[-1].split() == ["phys", "g1", "Grant", "4711", "-", "2027-01-01", "1,200.00", "5.00", "1,195.00"]
    (balance,) = json.loads(_run("balances", "--account", "phys", "--format", "json", *filled).stdout)
    assert (balance["left"], balance["currency"], balance["from"]) == ("1195.00", "EUR", "")
    assert "for chem" in _run("balances", "--account", "chem", *filled).stdout


def test_a_month_without_jobs_is_said_to_have_none(site: Path, filled: tuple[str, Path]) -> None:
    assert "no GPU job ran in this period" in _run("bill", "--month", "2024-01", *filled).stdout
    assert _run("invoice", "--month", "2024-01", *filled).stdout == "no GPU job in 2024-01\n"
    report = _run("report", "--month", "2024-01", "--output", site / "r.html", *filled)
    assert report.exit_code == 0
    assert "no GPU job began" in (site / "r.html").read_text(encoding="utf-8")


def test_a_bill_says_up_to_when_the_store_was_read(site: Path, filled: tuple[str, Path]) -> None:
    root = filled[1]
    manifest = replace(read_manifest(root), read_until_s={"sacct:": T0 + 86400})
    commit(root, manifest)
    said = "the store was read up to 2026-09-02T00:00:00+00:00"
    assert said in _run("bill", "--month", "2026-09", *filled).stdout
    assert said in _run("bill", "--month", "2026-09", "--format", "csv", *filled).stderr
    assert said in json.loads(_run("bill", "--month", "2026-09", "--format", "json", *filled).stdout)["gaps"][0]
    assert said not in _run("bill", "--start", "2026-09-01", "--end", "2026-09-02", *filled).stdout
    none = _run("efficiency", "77", *filled)
    assert "there is no GPU job 77: the store" in none.output
    assert "was read up to 2026-09-02" in none.output


def test_a_month_that_goes_on_is_compared_with_the_capacity_so_far(site: Path, filled: tuple[str, Path]) -> None:
    """One H200, of which two hours were held in the two days that are known: 2 of 48."""
    rates = (site / "rates.toml").read_text(encoding="utf-8")
    (site / "rates.toml").write_text(rates + "[gpus.h200]\ntotal_mib = 143156\ncount = 1\n", encoding="utf-8")
    commit(filled[1], replace(read_manifest(filled[1]), read_until_s={"sacct:": T0 + 2 * 86400}))
    _run("report", "--month", "2026-09", "--output", site / "r.html", *filled)
    page = (site / "r.html").read_text(encoding="utf-8")
    assert '<td class="n">48.0</td><td class="n">4.2 %</td>' in page
    assert "the store was read up to 2026-09-03" in page


def test_a_comparison_that_failed_is_not_taken_for_one_that_differs(
    site: Path, filled: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(site))  # no sreport here
    result = _run("check-bill", "--month", "2026-09", *filled)
    assert (result.exit_code, "sreport" in result.output) == (1, True)


def test_days_and_months_on_one_bill_are_days_and_months(site: Path, filled: tuple[str, Path]) -> None:
    text = _run("bill", "--month", "2026-09", "--by", "month,day,qos", "--format", "csv", *filled).stdout
    assert text.splitlines()[1].startswith("2026-09,2026-09-01,normal,2,")
    assert _run("bill", "--month", "2026-09", "--by", "qos", *filled).stdout.splitlines()[2].startswith("QoS")


def test_a_disk_that_fills_up_is_told_in_one_line_and_the_store_stays(
    site: Path, filled: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = read_manifest(filled[1])

    def full(*_: object) -> None:
        raise duckdb.IOException(
            'IO Error: Async write failed for range: {"exception_type":"IO","exception_message":"Could not write file '
            '\\"s/staged.parquet\\": No space left on device","errno":"28"}'
        )

    monkeypatch.setattr(export_reader, "load", full)
    result = _run("ingest", "--input", site / "export", *filled)
    assert result.exit_code == 1
    (line,) = result.output.splitlines()
    assert "s/staged.parquet': No space left on device; nothing of this step was kept: make room" in line
    assert read_manifest(filled[1]) == before


def test_a_reader_that_has_seen_enough_is_no_error(site: Path, filled: tuple[str, Path]) -> None:
    words = [sys.executable, "-m", "hami_hpc.cli", "bill", "--month", "2026-09", *map(str, filled)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        assert process.stderr.read() == ""


def test_the_example_of_rates_that_a_site_starts_from_is_valid() -> None:
    rates = load_rates(ROOT / "accounting" / "rates.toml")
    assert {rate.model for rate in rates.rates} == {"h200", "a100"}
    assert rates.nodes == {"old01": "a100", "old02": "a100"}
