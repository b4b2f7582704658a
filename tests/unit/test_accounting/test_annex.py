# SPDX-License-Identifier: Apache-2.0
"""The annex of an invoice: its lines are the jobs, and add up to the invoice."""

from __future__ import annotations

import csv
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hami_hpc.accounting.documents import annex
from hami_hpc.accounting.pricing.price import Sum
from hami_hpc.accounting.pricing.priced_period import PricedPeriod
from hami_hpc.accounting.times import parse_instant, zone
from hami_hpc.cli import main

from .samples import HOUR, VGPU_HALF, Job, fill
from .test_efficiency import SITE

D = Decimal
T0 = parse_instant("2026-09-01", zone("UTC"))
RATES = """version = 1
[[rates]]
model = "h200"
per_gpu_hour = 2.50
[[resources]]
resource = "cpu"
per_hour = 0.01
[[credit_rules]]
name = "Node fault"
on = "node_fault"
percent = 100
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three jobs of 7 s of half a GPU, each a third of a cent and more; one that requeued; one of another account."""
    (tmp_path / "hami-hpc.toml").write_text(SITE, encoding="utf-8")
    (tmp_path / "hami-hpc.toml").chmod(0o644)
    (tmp_path / "rates.toml").write_text(RATES, encoding="utf-8")
    jobs = [Job(n, T0, T0 + n, T0 + n + 7, VGPU_HALF, user=f"u{n}") for n in (1, 2, 3)]
    jobs += [
        Job(4, T0, T0, T0 + 2 * HOUR, VGPU_HALF, state="NODE_FAIL"),
        Job(4, T0 + 2 * HOUR, T0 + 2 * HOUR, T0 + 5 * HOUR, VGPU_HALF),
        Job(5, T0, T0, T0 + HOUR, account="chem", user="=cmd"),
    ]
    fill(tmp_path / "s", jobs)
    return tmp_path


def _cli(root: Path, *words: str) -> Result:
    site = ["--store", str(root / "s"), "--config", str(root / "hami-hpc.toml")]
    return CliRunner().invoke(main, ["invoice", "--month", "2026-09", *words, *site])


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_an_annex_has_each_job_once_and_adds_up_to_the_invoice(root: Path) -> None:
    """Job 4: 2 h + 3 h of half an H200, 6.25, of which 2.50 are credited; 5 CPU-hours, 0.05, of which 0.02. The others
    7 s x 0.5 x 2.50 / 3600 = 0.00243 each, and 0.00002 for the CPU: in all 6.30735, 6.31."""
    done = _cli(root, "--output", str(root / "out"), "--annex")
    assert done.exit_code == 0, done.output
    rows = _rows(root / "out" / "GPU-2026-00002-jobs.csv")
    (four,) = [row for row in rows if (row["job"], row["mode"]) == ("4", "vgpu")]
    assert (four["runs"], four["gpu_hours"], four["cost_eur"], four["credited_by_rule_eur"]) == (
        "2", "2.5000", "6.25", "-2.50"
    )  # fmt: skip
    assert (four["started"], four["ended"]) == ("2026-09-01T00:00:00+00:00", "2026-09-01T05:00:00+00:00")
    (cpu,) = [row for row in rows if (row["job"], row["mode"]) == ("4", "cpu")]
    assert (cpu["runs"], cpu["gpu_hours"], f"{cpu['other_hours']} {cpu['of']}", cpu["cost_eur"]) == (
        "0", "0.0000", "5.0000 CPU-hours", "0.05"
    )  # fmt: skip
    assert sum(D(row["cost_eur"]) for row in rows) == D("6.31")
    assert sum(D(row["credited_by_rule_eur"]) for row in rows) == D("-2.52")
    assert {row["job"] for row in rows} == {"1", "2", "3", "4"}
    (other,) = {row["user"] for row in _rows(root / "out" / "GPU-2026-00001-jobs.csv")}
    assert other == "'=cmd"


def test_an_annex_that_would_not_add_up_is_not_written(root: Path) -> None:
    assert _cli(root).exit_code == 0
    (root / "rates.toml").write_text(RATES.replace("2.50", "2.60"), encoding="utf-8")
    done = _cli(root, "--output", str(root / "out"), "--annex")
    assert "no annex of GPU-2026-00002: today's records and rates come to another amount" in done.stderr
    assert not list((root / "out").glob("*.csv"))
    done = _cli(root, "--output", str(root / "new"), "--annex", "--correct")
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in (root / "new").glob("*.csv")) == [
        "GPU-2026-00004-jobs.csv", "GPU-2026-00006-jobs.csv"
    ]  # fmt: skip
    assert _cli(root, "--draft", "--output", str(root / "draft"), "--annex").exit_code == 0
    assert len(_rows(root / "draft" / "DRAFT-phys-jobs.csv")) == 8


def test_an_annex_needs_a_directory(root: Path) -> None:
    done = _cli(root, "--annex")
    assert (done.exit_code, "--annex needs --output: the directory for the files" in done.output) == (2, True)


def test_annexes_of_many_jobs_are_made_some_at_a_time(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [Job(100 + n, T0, T0, T0 + HOUR, account=f"a{n % 7}") for n in range(70)]
    fill(root / "s", jobs)
    assert _cli(root, "--output", str(root / "at-once"), "--annex").exit_code == 0
    asked: list[int] = []
    sums = PricedPeriod.sums
    monkeypatch.setattr(annex, "RUNS_AT_ONCE", 25)

    def counted(*words: Any, **named: Any) -> list[Sum]:
        found = sums(*words, **named)
        asked.append(sum(entry.runs for entry in found) if "job" in words else 0)
        return found

    monkeypatch.setattr(PricedPeriod, "sums", counted)
    assert _cli(root, "--output", str(root / "in-parts"), "--annex").exit_code == 0
    assert max(asked) == 20
    assert sum(asked) == 76  # the requeued job has two runs
    files = {path.name: path.read_bytes() for path in (root / "in-parts").glob("*.csv")}
    assert files == {path.name: path.read_bytes() for path in (root / "at-once").glob("*.csv")}
    assert len(files) == 9
