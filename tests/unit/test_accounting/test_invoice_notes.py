# SPDX-License-Identifier: Apache-2.0
"""An invoice says of its own account's jobs what a bill of the month says, and its sums are those of its lines."""

from __future__ import annotations

import json
import re
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from hami_hpc.accounting.store import job_records
from hami_hpc.accounting.times import month_period, zone

from .samples import HOUR, ONE_H200, VGPU_HALF, Job, fill, write_export
from .test_commands import RATES, T0, _run, site

__all__ = ["site"]  # the fixture
D = Decimal
DAY = 24 * HOUR
MONTHS = ("2026-07", "2026-08", "2026-09", "2026-10")
A100 = ONE_H200.replace("h200", "a100")
MORE_RATES = "[[terms]]\nminimum_s = 60\nsuspended_factor = 0.5\nunbilled_states = ['NODE_FAIL']\n[gpus.a100]\n" \
    "total_mib = 40337\n[partitions.old]\ngpu_models = ['a100']\n"  # fmt: skip


def _jobs(account: str, first: int) -> list[Job]:
    """Jobs of one account with everything that a bill has a note about."""
    whole = Job(first, T0, T0, T0 + 10 * HOUR, account=account)
    return [
        whole,
        whole.with_(job_id=first + 1, tres="gres/gpu"),  # rejected
        whole.with_(job_id=first + 2, tres=VGPU_HALF, partition="nowhere"),  # left out
        whole.with_(job_id=first + 3, end=None, state="RUNNING", elapsed=5 * HOUR),
        whole.with_(job_id=first + 4, tres=A100, partition="old", end=T0 + 3 * DAY),  # no rate
        whole.with_(job_id=first + 5, end=T0 + 6),  # below the minimum
        whole.with_(job_id=first + 6, submit=T0 - HOUR, start=T0 - HOUR, end=T0 + HOUR, suspended=HOUR),
        whole.with_(job_id=first + 7, end=T0 + 2 * DAY, suspended=HOUR),  # over a midnight: nothing is spread by it
        whole.with_(job_id=first + 8, state="NODE_FAIL", end=T0 + 2 * HOUR),
    ]


def _store(site: Path, jobs: list[Job], name: str = "store") -> tuple[str, Path]:
    (site / "rates.toml").write_text(RATES + MORE_RATES, encoding="utf-8")
    write_export(site / "export", jobs)
    assert _run("ingest", "--input", site / "export", "--store", site / name).exit_code == 0
    return "--store", site / name


def _bill_notes(store: tuple[str, Path]) -> list[str]:
    """What the bill of the month says below its table, but for quotas."""
    text = _run("bill", "--month", "2026-09", *store).stdout
    return [line for line in text.split("\n\n")[-1].splitlines() if not line.startswith("quota:")]


def _documents(*words: str | Path) -> list[dict[str, Any]]:
    result = _run("invoice", "--month", "2026-09", "--format", "json", *words)
    assert result.exit_code == 0, result.output
    documents: list[dict[str, Any]] = json.loads(result.stdout)
    return documents


def test_the_invoice_of_the_only_account_says_what_the_bill_says(site: Path) -> None:
    store = _store(site, _jobs("phys", 1))
    said = _bill_notes(store)
    for part in ("left out: 1 job: partition nowhere", "left out: 1 line: AllocTRES", "2 jobs had not", "1 suspended",
                 "charged in addition", "without a price: 1 job, 72.0000 GPU-hours: no rate for a100"):  # fmt: skip
        assert any(part.replace("2 jobs had", "1 job had") in note for note in said), part
    (document,) = _documents(*store)
    # The bill names the first day of the month of which there is no rate, the invoice the first and how many more.
    expected = [note.replace("on 2026-09-01", "on 2026-09-01 and 2 other days") for note in said]
    assert document["content"]["notes"] == expected


def test_each_account_reads_of_its_own_jobs_and_of_nobody_elses(site: Path) -> None:
    alone = _documents(*_store(site, _jobs("phys", 1), "alone"))
    jobs = [*_jobs("phys", 1), *_jobs("chem", 101)[:2], *_jobs("bio", 201)[:1]]
    notes = {d["content"]["account"]: d["content"]["notes"] for d in _documents(*_store(site, jobs))}
    assert notes["phys"] == alone[0]["content"]["notes"]
    assert notes["bio"] == []
    assert len(notes["chem"]) == 1
    assert "job 102)" in notes["chem"][0]
    assert all(int(number) < 100 for number in re.findall(r"\(job (\d+)\)", " ".join(notes["phys"])))


@pytest.mark.parametrize("draft", [("--draft",), ()])
def test_the_terminal_says_what_is_on_paper_and_what_is_on_no_invoice(site: Path, draft: tuple[str, ...]) -> None:
    jobs = [*_jobs("phys", 1), *_jobs("chem", 101)[1:2]]
    store = _store(site, jobs)
    export = site / "export"
    export.write_text(export.read_text(encoding="utf-8") + "9|torn\n", encoding="utf-8")
    assert _run("ingest", "--input", export, *store).exit_code == 0
    result = _run("invoice", "--month", "2026-09", "--output", site / "out", *draft, *store)
    assert result.exit_code == 0, result.output
    (page,) = (site / "out").iterdir()
    said = [line for line in result.stderr.splitlines() if line != str(page)]
    on_paper = re.findall(r'<p class="warn">(.*?)</p>', page.read_text(encoding="utf-8"))
    unescaped = [note.replace("&#39;", "'") for note in on_paper]
    assert [line for line in said if line.startswith("phys: ")] == [f"phys: {note}" for note in unescaped]
    assert [line[:20] for line in said if not line.startswith("phys: ")] == [
        "on no invoice, of li",  # whose it is nobody knows
        "no invoice: chem: le",  # all that it has was rejected
    ]
    # Of one account, only its own and what may be its own.
    one = _run("invoice", "--month", "2026-09", "--account", "phys", *draft, *store)
    assert "chem" not in one.stderr
    assert "on no invoice, of lines that name no account" in one.stderr


def test_sums_are_those_of_the_lines_and_the_chart_counts_what_the_table_counts(site: Path) -> None:
    """Also with jobs of a model without a rate, which are on no line."""
    (document,) = _documents(*_store(site, _jobs("phys", 1)))
    content = document["content"]
    for lines in (content["lines"], content["users"]):
        assert sum(line["jobs"] for line in lines) == content["jobs"]
        assert sum(D(line["gpu_hours"]) for line in lines) == D(content["gpu_hours"])
        assert sum(D(line["amount"]) for line in lines) == D(content["subtotal"])
    assert sum(D(hours) for _, hours in content["days"]) == D(content["gpu_hours"])
    assert content["unbilled_gpu_hours"] == "2.0000"


@pytest.mark.parametrize("day", ["2026-08-20", "2026-09-05"])
def test_a_run_without_a_known_end_is_named_in_each_month_that_it_may_reach(tmp_path: Path, day: str) -> None:
    start = int(datetime.fromisoformat(f"{day}T00:00:00+00:00").timestamp())
    fill(tmp_path / "store", [Job(job_id=7, submit=start, start=start, end=None, elapsed=5), Job(job_id=8)])
    records = job_records.from_store(tmp_path / "store", None, 256)
    notes = {month: job_records.rejected_lines(records, month_period(month, zone("UTC"))) for month in MONTHS}
    records.con.close()
    assert {month: len(found) for month, found in notes.items()} == {month: int(month >= day[:7]) for month in MONTHS}
    assert all("End is unknown" in note and "(job 7)" in note for found in notes.values() for note in found)
