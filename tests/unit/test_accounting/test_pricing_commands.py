# SPDX-License-Identifier: Apache-2.0
"""The commands of accounting with every pricing table at once, and with what nobody expects in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hami_hpc.accounting.store import usage_table
from hami_hpc.accounting.times import parse_instant, zone
from hami_hpc.cli import main

from .samples import HOUR, ONE_H200, VGPU_HALF, Job, export_text, fill
from .test_efficiency import SITE, _record, _spool

BERLIN = zone("Europe/Berlin")
T0 = parse_instant("2026-09-01T21:00", BERLIN)
ODD = "lib'$.*(x)@srv"
RATES = f"""version = 1
timezone = "Europe/Berlin"
[[windows]]
name = "night"
start = "22:00"
end = "06:00"
[[rates]]
model = "h200"
per_gpu_hour = 2.00
[[rates]]
model = "h200"
mode = "vgpu"
per_gpu_hour = 3.00
[[factors]]
window = "night"
factor = 0.5
[[terms]]
minimum_s = 60
[[terms]]
mode = "vgpu"
minimum_s = 120
[[resources]]
resource = "cpu"
per_hour = 0.10
[[resources]]
resource = "license/{ODD}"
per_hour = 1.00
[[credit_rules]]
name = "Missed <targets>"
on = "slo_miss"
from_percent = 1
percent = 50
[[discounts]]
from_gpu_hours = 1
percent = 10
kind = "all"
per = "run"
[[budgets]]
account = "phys"
amount = 2.00
from = 2026-09-01
until = 2026-10-01
"""
SLICE = VGPU_HALF.replace("cpu=1,", "cpu=10,")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """From 21:00 to 23:00 in Berlin: half an H200 and 10 CPUs of phys, whose requests missed; 5 CPUs with 2 licences of
    desk, which has no GPU; an H200 of chem."""
    (tmp_path / "hami-hpc.toml").write_text(SITE, encoding="utf-8")
    (tmp_path / "hami-hpc.toml").chmod(0o644)
    (tmp_path / "rates.toml").write_text(RATES, encoding="utf-8")
    end = T0 + 2 * HOUR
    jobs = [
        Job(1, T0, T0, end, SLICE),
        Job(2, T0, T0, end, f"cpu=5,mem=1G,license/{ODD}=2,license/lib=9", account="desk", partition="cpu"),
        Job(3, T0, T0, end, ONE_H200.replace("cpu=1,", ""), account="chem"),
    ]
    fill(tmp_path / "s", jobs)
    (tmp_path / "export").write_text(export_text(jobs), encoding="utf-8")
    record = _record(1, T0, end, request_count=100, slo_miss_count=1)
    usage_table.collect(tmp_path / "s", _spool(tmp_path / "u", record), "c1", False)
    return tmp_path


def _cli(root: Path, *words: str) -> Result:
    done = CliRunner().invoke(main, [*words, "--store", str(root / "s"), "--config", str(root / "hami-hpc.toml")])
    assert done.exit_code == 0, done.output
    return done


@pytest.mark.parametrize("source", [(), ("--input", "export")])
def test_a_bill_with_everything_of_a_store_and_of_an_export(root: Path, source: tuple[str, ...]) -> None:
    """phys: 1 h at 3.00 and 1 h at 1.50, of half a GPU: 2.25; 10 CPUs for 1 h at 0.10 and 1 h at 0.05: 1.50; half of
    that is credited. desk: 5 CPUs 0.75; 2 licences 3.00. chem: 2.00 and 1.00."""
    words = ("--input", str(root / "export")) if source else ()
    shown = json.loads(
        _cli(root, "bill", "--month", "2026-09", "--by", "account,model", "--format", "json", *words).stdout
    )
    assert {(line["account"], line["model"]): line["cost"] for line in shown["lines"]} == {
        ("phys", "h200"): "2.25",
        ("phys", "cpu"): "1.50",
        ("desk", "cpu"): "0.75",
        ("desk", f"license/{ODD}"): "3.00",
        ("chem", "h200"): "3.00",
    }
    assert shown["total"] == {"jobs": 3, "gpu_hours": "3.0000", "cost": "10.50"}
    # 1.125 and 0.75 are rounded together: 1.875 is 1.88, half to even.
    assert shown["credited"] == [{"rule": "Missed <targets>", "jobs": 1, "charged": "3.75", "amount": "-1.88"}]
    assert shown["total_after_credits"] == "8.62"
    # An export has only its own time, so budgets are not looked at.
    warnings = [gap for gap in shown["gaps"] if gap.startswith("budget")]
    assert warnings == (
        [] if source else ["budget: account phys has used 93 % of EUR 2.00 of 2026-09-01 to 2026-09-30"]
    )


def test_invoices_of_an_account_without_gpus_and_of_one_with_everything(root: Path) -> None:
    """phys: 3.75 - 1.88 = 1.87; 1 GPU-hour of the run: 10 % off half of 2.25: 0.1125, 0.11. chem: 2 GPU-hours, 0.30."""
    done = _cli(root, "invoice", "--month", "2026-09", "--output", str(root / "out"), "--annex", "--format", "json")
    made = {entry["content"]["account"]: entry["content"] for entry in json.loads(done.stdout)}
    assert {name: (c["subtotal"], c["discount"], c["total"]) for name, c in made.items()} == {
        "chem": ("3.00", "-0.30", "2.70"),
        "desk": ("3.75", "0.00", "3.75"),
        "phys": ("3.75", "-0.11", "1.76"),
    }
    assert (made["desk"]["jobs"], made["desk"]["gpu_hours"]) == (1, "0.0000")
    paper = (root / "out" / "GPU-2026-00003.html").read_text(encoding="utf-8")
    assert "Credited: Missed &lt;targets&gt;, 1 job charged 3.75" in paper
    assert "15.0000 CPU-hours" not in paper
    assert "10.0000 CPU-hours" in paper
    assert len(list((root / "out").glob("*-jobs.csv"))) == 3
    again = _cli(root, "invoice", "--month", "2026-09", "--format", "json")
    assert [entry["number"] for entry in json.loads(again.stdout)] == [f"GPU-2026-{n:05d}" for n in (1, 2, 3)]


def test_a_report_with_everything_is_made(root: Path) -> None:
    _cli(root, "report", "--month", "2026-09", "--output", str(root / "r.html"))
    page = (root / "r.html").read_text(encoding="utf-8")
    assert "EUR 10.50</b>before discounts and credits" in page
    assert "credited: Missed &lt;targets&gt;: EUR -1.88 (1 job charged 3.75)" in page
    assert "<h2>Budgets</h2>" in page
    shown = _cli(root, "efficiency", "1").output
    assert "  cost     EUR 3.75, before discounts and credits\n" in shown
