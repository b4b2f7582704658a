# SPDX-License-Identifier: Apache-2.0
"""An issued invoice stands until somebody asks to correct it, and what would be another one today is shown."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from hami_hpc.accounting.documents import invoice_files
from hami_hpc.accounting.store import store_files, undo

from .samples import HOUR, Job, write_export
from .test_commands import RATES, T0, _run, site

__all__ = ["site"]  # the fixture
MONTH = ("invoice", "--month", "2026-09")
PHYS = Job(1, T0, T0, T0 + 10 * HOUR)
CHEM = PHYS.with_(job_id=2, account="chem")


def _ingest(site: Path, *jobs: Job) -> tuple[str, Path]:
    write_export(site / "export", jobs)
    assert _run("ingest", "--input", site / "export", "--store", site / "store").exit_code == 0
    return "--store", site / "store"


@pytest.fixture
def issued(site: Path) -> tuple[str, Path]:
    """A store whose month is invoiced, 25.00 each for phys and chem: the option that names it."""
    store = _ingest(site, PHYS, CHEM)
    assert _run(*MONTH, *store).exit_code == 0
    return store


def _files(store: tuple[str, Path]) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in [*(store[1] / "invoices").iterdir(), store[1] / "register.json"]}


def test_a_changed_month_leaves_the_invoice_until_correct_is_asked_for(site: Path, issued: tuple[str, Path]) -> None:
    before = _files(issued)
    _ingest(site, PHYS.with_(job_id=3, end=T0 + 2 * HOUR))
    result = _run(*MONTH, *issued)
    assert result.exit_code == 3
    (said,) = [line for line in result.stderr.splitlines() if "stands" in line]
    assert said == (
        "GPU-2026-00002 of phys stands with EUR 25.00; by today's records and rates it would be EUR 30.00 "
        "(difference 5.00): --draft shows it, --correct issues a credit note and a new invoice"
    ).replace("2026", said[4:8])
    assert result.stdout.splitlines()[-1].split() == ["Total", "50.00"]
    assert _files(issued) == before
    corrected = _run(*MONTH, "--correct", "--format", "json", *issued)
    assert corrected.exit_code == 0
    kept, note, new = json.loads(corrected.stdout)
    assert (kept["content"]["account"], note["kind"], new["content"]["total"]) == ("chem", "credit note", "30.00")
    assert (note["refers_to"], new["refers_to"]) == (kept["number"][:-1] + "2",) * 2
    again = _run(*MONTH, "--correct", "--format", "json", *issued)
    assert json.loads(again.stdout) == [kept, new]


def test_an_ingest_that_is_taken_back_meanwhile_is_on_no_invoice(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the command looked whether the month was read, and before it has the store to itself."""
    store = _ingest(site, PHYS)
    manifest = store_files.read_manifest(store[1])
    before = replace(manifest.ingests[-1], read_until_s={"sacct:": T0 + 86400})
    read = replace(manifest, read_until_s={"sacct:": T0 + 60 * 86400}, ingests=(before,))
    store_files.commit(store[1], read)
    locked = store_files.locked

    def locked_after_an_undo(root: Path) -> AbstractContextManager[None]:
        monkeypatch.setattr(store_files, "locked", locked)
        undo.undo(root)
        return locked(root)

    monkeypatch.setattr(store_files, "locked", locked_after_an_undo)
    refused = _run(*MONTH, *store)
    assert (refused.exit_code, "only up to within 2026-09; run hami-hpc ingest" in refused.stderr) == (1, True)
    assert not (store[1] / "register.json").exists()


def test_a_draft_shows_what_stands_and_the_difference(site: Path, issued: tuple[str, Path]) -> None:
    before = _files(issued)
    _ingest(site, PHYS.with_(job_id=3, end=T0 + 2 * HOUR), PHYS.with_(job_id=4, account="bio"))
    result = _run(*MONTH, "--draft", "--output", site / "out", *issued)
    assert result.exit_code == 0
    rows = [line.split() for line in result.stdout.splitlines()[2:]]
    year = rows[1][1][4:8]
    assert [row for row in rows if row[0][0] != "-"] == [
        ["bio", "-", "new", "0.00", "25.00", "25.00"],
        ["chem", f"GPU-{year}-00001", "unchanged", "25.00", "25.00", "0.00"],
        ["phys", f"GPU-{year}-00002", "differs", "25.00", "30.00", "5.00"],
        ["Total", "50.00", "80.00", "30.00"],
    ]
    assert f"GPU-{year}-00002" in (site / "out" / "DRAFT-phys.html").read_text(encoding="utf-8")
    bio, chem, phys = json.loads(_run(*MONTH, "--draft", "--format", "json", *issued).stdout)
    assert (bio["stands"], bio["difference"], chem["difference"]) == (None, "25.00", "0.00")
    stands = {"number": f"GPU-{year}-00002", "total": "25.00", "currency": "EUR"}
    assert (phys["stands"], phys["difference"]) == (stands, "5.00")
    assert (phys["refers_to"], chem["refers_to"]) == (f"GPU-{year}-00002", "")
    assert _files(issued) == before


def test_new_accounts_get_their_invoice_while_a_changed_one_stands(site: Path, issued: tuple[str, Path]) -> None:
    _ingest(site, PHYS.with_(job_id=3), PHYS.with_(job_id=4, account="bio"))
    result = _run(*MONTH, "--format", "json", *issued)
    assert result.exit_code == 3
    assert [(d["content"]["account"], d["sequence"]) for d in json.loads(result.stdout)] == [
        ("bio", 3),
        ("chem", 1),
        ("phys", 2),
    ]


def test_a_changed_rate_credits_nobody_unasked(site: Path, issued: tuple[str, Path]) -> None:
    before = _files(issued)
    (site / "rates.toml").write_text(RATES.replace("2.50", "9.00"), encoding="utf-8")
    result = _run(*MONTH, *issued)
    assert (result.exit_code, result.stderr.count("stands with EUR 25.00")) == (3, 2)
    assert _files(issued) == before


def test_notes_and_what_a_credit_is_called_make_no_difference(site: Path) -> None:
    granted = '[[credits]]\nid = "g"\naccount = "phys"\namount = 10\nnote = "{}"\n'
    (site / "rates.toml").write_text(RATES + granted.format("Grant"), encoding="utf-8")
    store = _ingest(site, PHYS)
    assert _run(*MONTH, *store).exit_code == 0
    before = _files(store)
    (site / "rates.toml").write_text(RATES + granted.format("Grant 4711"), encoding="utf-8")
    _ingest(site, PHYS.with_(job_id=9, tres="gres/gpu"))  # a line that is left out, and named in the notes
    for correct in ((), ("--correct",)):
        result = _run(*MONTH, *correct, *store)
        assert result.exit_code == 0, result.output
        assert "phys: left out: 1 line" in result.stderr
    assert _files(store) == before


def test_an_invoice_of_before_the_register_and_the_ids_stands_after_the_upgrade(site: Path) -> None:
    """As hami_hpc wrote it: version 1, a credit known by its text, notes on everybody's jobs."""
    (site / "rates.toml").write_text(
        RATES + '[[credits]]\nid = "g"\naccount = "phys"\namount = 40\nnote = "Grant"\n', encoding="utf-8"
    )
    store = _ingest(site, PHYS)
    assert _run(*MONTH, *store).exit_code == 0
    (document,) = invoice_files.read_all(store[1])
    content = asdict(document.content)
    content["credits"][0]["key"] = "0001-01-01/9999-12-31/40/Grant"
    content["notes"] = ["left out of all invoices: 7 jobs: partition x is not in the site's settings"]
    raw = {**asdict(document), "content": content, "version": 1, "digest": invoice_files._content_digest(content)}
    (store[1] / "invoices" / f"{document.number}.json").write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")
    (store[1] / "register.json").unlink()
    result = _run(*MONTH, "--correct", "--format", "json", *store)
    assert result.exit_code == 0, result.output
    (standing,) = json.loads(result.stdout)
    assert (standing["number"], standing["content"]["total"]) == (document.number, "0.00")
    # What it took of the grant is spent: 25.00 of 40.00.
    (balance,) = json.loads(_run("balances", "--format", "json", *store).stdout)
    assert (balance["credit"], balance["used"], balance["left"]) == ("g", "25.00", "15.00")


def test_draft_and_correct_exclude_each_other(site: Path) -> None:
    assert _run(*MONTH, "--draft", "--correct").exit_code == 2


def test_several_that_issue_at_once_give_each_number_once(site: Path) -> None:
    """Six processes: one that has the lock issues, the others are refused or find the month issued."""
    store = _ingest(site, *(PHYS.with_(job_id=number, account=f"a{number}") for number in range(1, 30)))
    words = [sys.executable, "-m", "hami_hpc.cli", *MONTH, "--format", "json", *map(str, store)]
    processes = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(6)]
    answers = [(*process.communicate(timeout=120), process.returncode) for process in processes]
    documents = invoice_files.read_all(store[1])
    assert [document.sequence for document in documents] == list(range(1, 30))
    assert {code for _, _, code in answers} <= {0, 1}
    for out, err, code in answers:
        if code:
            assert "is writing to" in err
        else:
            assert [entry["number"] for entry in json.loads(out)] == [
                document.number for document in sorted(documents, key=lambda document: document.content.account)
            ]
    assert any(code == 0 for _, _, code in answers)


@pytest.mark.parametrize("after_s", [0.6, 0.8, 1.0, 1.2, 1.4])
def test_a_process_that_is_killed_while_it_issues_leaves_all_or_none(site: Path, after_s: float) -> None:
    store = _ingest(site, *(PHYS.with_(job_id=number, account=f"a{number}") for number in range(1, 200)))
    words = [sys.executable, "-m", "hami_hpc.cli", *MONTH, *map(str, store)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        time.sleep(after_s)
        process.kill()
    assert len(invoice_files.read_all(store[1])) in (0, 199)
    result = _run(*MONTH, *store)
    assert result.exit_code == 0, result.output
    assert len(list((store[1] / "invoices").iterdir())) == len(invoice_files.read_all(store[1])) == 199


def test_invoices_are_of_months_in_the_zone_of_the_rates(site: Path) -> None:
    store = _ingest(site, PHYS)
    result = _run(*MONTH, "--timezone", "America/New_York", *store)
    assert (result.exit_code, "invoices are of months in UTC, as rates.toml says" in result.output) == (2, True)
    assert _run(*MONTH, "--timezone", "UTC", *store).exit_code == 0


def test_an_invoice_keeps_its_currency_in_every_table_and_no_sum_is_of_two(
    site: Path, issued: tuple[str, Path]
) -> None:
    (site / "rates.toml").write_text(RATES.replace("version = 1", 'version = 1\ncurrency = "CHF"'), encoding="utf-8")
    stands = _run(*MONTH, *issued)
    assert (stands.exit_code, stands.stdout.split()[5], stands.stdout.split()[-1]) == (3, "EUR", "50.00")
    rows = [line.split() for line in _run(*MONTH, "--draft", *issued).stdout.splitlines()]
    assert rows[0] == ["Account", "Stands", "Draft", "EUR,", "stands", "CHF,", "draft", "Difference"]
    assert [row[-3:] for row in rows[2:4]] == [["25.00", "25.00", "-"]] * 2
    assert rows[-1] == ["Total", "50.00", "50.00", "-"]
    assert _run(*MONTH, "--correct", "--account", "phys", *issued).stdout.splitlines()[-1].split() == [
        *("Total", "EUR", "-25.00,", "CHF", "25.00"),
    ]
    assert _run(*MONTH, *issued).stdout.splitlines()[-1].split() == ["Total", "EUR", "25.00,", "CHF", "25.00"]
    chem, phys = json.loads(_run(*MONTH, "--draft", "--format", "json", *issued).stdout)
    assert (chem["stands"]["currency"], chem["difference"]) == ("EUR", None)
    assert (phys["stands"]["currency"], phys["difference"]) == ("CHF", "0.00")


def test_hours_times_the_rate_on_an_invoice_are_its_amount_and_short_rates_of_before_stand(site: Path) -> None:
    """8 GPUs for 720 h at 2.50 x 0.333333: with four digits of the rate, as once, the hours would come to 4799.81."""
    factor = '[[factors]]\naccount = "phys"\nfactor = 0.333333\n'
    (site / "rates.toml").write_text(RATES + factor, encoding="utf-8")
    store = _ingest(site, PHYS.with_(end=T0 + 720 * HOUR, tres="gres/gpu:h200=8,gres/gpu=8"))
    assert _run(*MONTH, *store).exit_code == 0
    (document,) = invoice_files.read_all(store[1])
    (line,) = document.content.lines
    assert (line.gpu_hours, line.labels[-1], line.amount) == ("5760.0000", "0.833332", "4799.99")
    short = replace(line, labels=(*line.labels[:-1], "0.8333"))
    old = invoice_files.sealed(replace(document, content=replace(document.content, lines=(short,))), None)
    shutil.rmtree(store[1] / "invoices")
    (store[1] / "register.json").unlink()
    invoice_files.commit(store[1], [old])
    assert _run(*MONTH, "--correct", *store).exit_code == 0
    assert invoice_files.read_all(store[1]) == (old,)
