# SPDX-License-Identifier: Apache-2.0
"""What each job cost: in `hami-hpc efficiency`, and as a line of a bill."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hami_hpc.accounting.store import usage_table
from hami_hpc.cli import main

from .samples import HOUR, VGPU_HALF, Job, fill
from .test_efficiency import SITE, T0, _record, _spool

RATES = """
version = 1
[[rates]]
model = "h200"
per_gpu_hour = 2.50
until = 2026-09-23
[[rates]]
model = "h200"
per_gpu_hour = 5.00
from = 2026-09-23
[[factors]]
user = "bob"
factor = 0.4
[[terms]]
unbilled_states = ["NODE_FAIL"]
"""
MIDNIGHT = 1_790_121_600  # 2026-09-23T00:00:00Z


def _cli(root: Path, *words: str, rates: str = RATES) -> Result:
    (root / "hami-hpc.toml").write_text(SITE + '[gpu_models.a100]\ntotal_mib = 40337\n[partitions.old]\n'
                                        'gpu_models = ["a100"]\n', encoding="utf-8")  # fmt: skip
    (root / "hami-hpc.toml").chmod(0o644)
    if rates:
        (root / "rates.toml").write_text(rates, encoding="utf-8")
    return CliRunner().invoke(main, [*words, "--store", str(root / "s"), "--config", str(root / "hami-hpc.toml")])


def _priced(root: Path) -> Path:
    """Half an H200: for 1 h at 2.50; for 2 h over a change of price, at 2.50 and 5.00; of a user with another price; of
    a run that is not billed. An A100, which has no rate. A requeued job's two runs."""
    jobs = [
        Job(1, tres=VGPU_HALF),
        Job(2, MIDNIGHT - HOUR, MIDNIGHT - HOUR, MIDNIGHT + HOUR, VGPU_HALF),
        Job(3, tres=VGPU_HALF, user="bob"),
        Job(4, tres=VGPU_HALF, state="NODE_FAIL"),
        Job(5, tres="gres/gpu:a100=1,gres/gpu=1", partition="old"),
        Job(6, T0, T0, T0 + 60, VGPU_HALF, state="REQUEUED"),
        Job(6, T0 + 60, T0 + 100, T0 + 100 + HOUR, VGPU_HALF),
    ]
    fill(root / "s", jobs)
    usage_table.collect(root / "s", _spool(root / "u", _record()), "c1", False)
    return root


@pytest.mark.parametrize(
    ("job", "amounts"),
    [("1", ["1.25"]), ("2", ["3.75"]), ("3", ["0.50"]), ("4", ["0.00"]), ("5", [None]), ("6", ["0.02", "1.25"])],
)
def test_each_run_has_its_cost(tmp_path: Path, job: str, amounts: list[str | None]) -> None:
    root = _priced(tmp_path)
    runs = json.loads(_cli(root, "efficiency", job, "--format", "json").stdout)
    assert [(run["cost"], run["currency"]) for run in runs] == [(amount, "EUR") for amount in amounts]
    bill = _cli(root, "bill", "--month", "2026-09", "--by", "job", "--format", "csv").stdout.splitlines()
    lines = dict(line.split(",", 1) for line in bill)
    assert lines[job].endswith(str(sum(Decimal(amount or "0.00") for amount in amounts)))


def test_two_slices_cost_twice_one_slice_and_are_billed_once(tmp_path: Path) -> None:
    """By hand: two halves of an H200 for 1 h at 2.50 a GPU-hour are 2.50, and their shards are not billed besides."""
    two = "gres/shard:a=279,gres/shard:b=279,gres/shard=558,gres/vgpu:std=2,gres/vgpu=2"
    two += ",gres/vgpu_cores=100,gres/vgpu_mem=16384"
    fill(tmp_path / "s", [Job(1, tres=two), Job(2, tres=VGPU_HALF)])
    runs = json.loads(_cli(tmp_path, "efficiency", "1", "--format", "json").stdout)
    assert [run["cost"] for run in runs] == ["2.50"]
    bill = _cli(tmp_path, "bill", "--month", "2026-09", "--by", "job", "--format", "csv").stdout.splitlines()
    assert [line.rpartition(",")[2] for line in bill if line[:2] in ("1,", "2,")] == ["2.50", "1.25"]


def test_a_users_month_shows_every_job_with_its_cost_and_what_would_have_sufficed(tmp_path: Path) -> None:
    shown = _cli(_priced(tmp_path), "efficiency", "--user", "ann", "--month", "2026-09").output
    lines = [line.split() for line in shown.splitlines()]
    assert lines[0][:6] == ["Job", "State", "Would", "have", "sufficed", "EUR"]
    assert lines[2][:4] == ["1", "COMPLETED", "--gres=vgpu:mem=2304M,cores=22", "1.25"]
    rest = [(line[0], line[-5]) for line in lines[3:8]]
    assert sorted(rest) == [("2", "3.75"), ("4", "0.00"), ("5", "-"), ("6", "0.02"), ("6", "1.25")]
    assert "1 job measured: 40.0 % of 0.50 GPU-hours used; of 5 more it is not known" in shown
    assert "6 jobs cost EUR 6.27, before discounts and credits; 1 job without a rate" in shown
    assert "no GPU job of user ann ended in that time" in _cli(tmp_path, "efficiency", "--user", "ann", "--month",
                                                               "2026-08").output  # fmt: skip


def test_without_rates_no_cost_is_shown_and_one_job_says_it_in_a_line(tmp_path: Path) -> None:
    root = _priced(tmp_path)
    without = _cli(root, "efficiency", "--user", "ann", "--month", "2026-09", rates="").output
    assert "EUR" not in without
    assert json.loads(_cli(root, "efficiency", "1", "--format", "json", rates="").stdout)[0]["cost"] is None
    assert "  cost     EUR 3.75, before discounts and credits\n" in _cli(root, "efficiency", "2").output
    assert "  cost     not known: no rate\n" in _cli(root, "efficiency", "5").output


@pytest.mark.parametrize(
    "words", [["7"], ["--user", "a", "--end", "2026-10"], ["--account", "a", "--start", "2026-09"]]
)
def test_a_month_goes_with_a_user_or_an_account_alone(tmp_path: Path, words: list[str]) -> None:
    done = _cli(tmp_path, "efficiency", *words, "--month", "2026-09")
    assert (done.exit_code, "--month goes with --user or --account" in done.output) == (2, True)
