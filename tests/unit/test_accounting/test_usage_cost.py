# SPDX-License-Identifier: Apache-2.0
"""What a running job has cost so far, in `hami-hpc usage`; and `efficiency --month` for one's own jobs."""

from __future__ import annotations

import os
import pwd
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from node_testbed import Node

from hami_hpc.cli import main
from hami_hpc.node import agent_file

from .samples import HOUR, VGPU_HALF, Job, fill
from .test_costs import RATES as PRICES
from .test_costs import _cli
from .test_efficiency import T0

RATES = """version = 1
[[rates]]
model = "h200"
per_gpu_hour = 2.00
[[factors]]
account = "physics"
factor = 3
[[resources]]
resource = "cpu"
per_hour = 0.10
"""
RECORD = """JobId=7 JobName=x Account=forged
   UserId=ann(1001) GroupId=ann(1001) MCS_label=N/A
   Priority=1 Nice=0 Account={account} QOS=normal
   SubmitTime={start} EligibleTime={start}
   RunTime={run_time} TimeLimit=1-00:00:00 TimeMin=N/A
   StartTime={start} EndTime=Unknown Deadline=N/A
   Partition=gpu AllocNode:Sid=n1:1
   TRES=cpu=4,mem=1G,node=1,billing=4,gres/vgpu={slices},gres/vgpu:std={slices},gres/vgpu_mem=8192,gres/vgpu_cores={cores}
"""


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A node with half of an H200's time for job 7."""
    node = Node.make(tmp_path / "node")
    assert node.prolog(7, cores=50) == 0
    (node.root / "rates.toml").write_text(RATES, encoding="utf-8")
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("HAMI_HPC_CONFIG", str(node.config))
    return node


def _slurm(tmp_path: Path, script: str) -> None:
    (tmp_path / "bin" / "scontrol").write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    (tmp_path / "bin" / "scontrol").chmod(0o755)


def _runs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    account: str,
    run_time: str = "02:00:00",
    more: str = "",
    **held: int,
) -> None:
    """Has Slurm show job 7, which began two hours ago. more: lines of its record. held: slices and cores, if not 1 and
    50 %."""
    now = int(time.time())
    monkeypatch.setattr(time, "time_ns", lambda: now * 10**9)
    values = {"slices": 1, "cores": 50, **held}
    record = RECORD.format(start=now - 2 * HOUR, account=account, run_time=run_time, **values) + more
    _slurm(tmp_path, f"case $* in *config*) echo 'ClusterName = Hill' ;; *) cat <<'E'\n{record}E\n;; esac")


def _usage() -> str:
    done = CliRunner().invoke(main, ["usage", "7"])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize(("account", "amount"), [("chem", "2.80"), ("physics", "8.40")])
def test_a_running_job_shows_what_it_has_cost(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, account: str, amount: str
) -> None:
    """2 h: half an H200 at 2.00 and 4 CPUs at 0.10 are 2.00 + 0.80; physics pays three times as much."""
    _runs(tmp_path, monkeypatch, account)
    assert f"  cost     EUR {amount} so far, before discounts and credits\n" in _usage()


@pytest.mark.parametrize(
    ("off_gpu_s", "said"),
    [
        (0, "2.80 so far, before discounts and credits\n"),
        (HOUR, "2.05 so far, before discounts and credits\n"),
        (9 * HOUR, "1.30 so far, before discounts and credits\n"),
        (None, "2.80 so far, before discounts and credits, with any time off the GPU at the whole price\n"),
    ],
)
def test_time_off_the_gpu_costs_its_part(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off_gpu_s: int | None, said: str
) -> None:
    """2 h of half an H200 at 2.00, and 0.80 for CPUs; an hour off the GPU at a quarter is 0.75 less."""
    (node.root / "rates.toml").write_text(RATES + "[[terms]]\noff_gpu_factor = 0.25\n", encoding="utf-8")
    _runs(tmp_path, monkeypatch, "chem")
    grant = node.grants()[7]
    off = None if off_gpu_s is None else {grant.gpu_uuid: off_gpu_s * 10**9}
    monkeypatch.setattr(agent_file, "read_off_gpu", lambda *_: off)
    assert f"  cost     EUR {said}" in _usage()


def test_a_job_with_two_slices_pays_once_for_its_cpus(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2 h: twice half an H200 at 2.00 and 4 CPUs at 0.10, whatever of it is on this node."""
    _runs(tmp_path, monkeypatch, "chem", slices=2, cores=100)
    assert _usage().count("EUR") == 1
    assert "  cost     EUR 4.80 so far" in _usage()


def test_a_job_that_was_resized_since_pays_for_what_slurm_holds_for_it(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _runs(tmp_path, monkeypatch, "chem", cores=100)
    assert "  cost     EUR 4.80 so far" in _usage()


@pytest.mark.parametrize(("run_time", "amount"), [("00:30:00", "0.70"), ("1-00:00:00", "2.80")])
def test_suspended_time_is_not_held(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_time: str, amount: str
) -> None:
    """Half an hour of two; a clock ahead of slurmctld's makes no suspended time."""
    _runs(tmp_path, monkeypatch, "chem", run_time)
    assert f"  cost     EUR {amount} so far" in _usage()


def test_the_price_is_that_of_the_cluster(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = RATES + '[[rates]]\nmodel = "h200"\nper_gpu_hour = 9.00\ncluster = "hill"\n'
    (node.root / "rates.toml").write_text(both, encoding="utf-8")
    _runs(tmp_path, monkeypatch, "chem")
    assert "  cost     EUR 9.80 so far" in _usage()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("", "   ResizeTime=1790000000\n"), "the job gave up nodes, and is billed as two runs"),
        (("RunTime=02", "RunTime=x"), "Slurm does not say since when the job runs"),
        (
            ("gres/vgpu", "gres/other"),
            "Slurm does not record gres/vgpu (AccountingStorageTRES), so that no bill has it",
        ),
        ((",gres/vgpu_cores=50", ""), "gres/vgpu without gres/vgpu_cores; add it to AccountingStorageTRES"),
    ],
)
def test_no_wrong_amount_is_shown(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str], said: str
) -> None:
    old, new = change
    _runs(tmp_path, monkeypatch, "chem", more="" if old else new)
    script = tmp_path / "bin" / "scontrol"
    script.write_text(script.read_text(encoding="utf-8").replace(old, new) if old else script.read_text(), "utf-8")
    assert f"  cost     not known: {said}\n" in _usage()


def test_what_is_not_known_is_said_and_without_rates_there_is_no_line(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _slurm(tmp_path, "echo 'slurmctld is away' >&2; exit 1")
    assert "  cost     not known: " in _usage()
    _slurm(tmp_path, "exit 0")
    assert "  cost     not known: Slurm has no such job\n" in _usage()
    _runs(tmp_path, monkeypatch, "chem")
    (node.root / "rates.toml").write_text("version = 1\n", encoding="utf-8")
    assert "  cost     not known: no rate for h200\n" in _usage()
    (node.root / "rates.toml").write_text("versoin = 1\n", encoding="utf-8")
    assert "  cost     not known: " in _usage()
    (node.root / "rates.toml").unlink()
    assert "cost" not in _usage()


def test_a_month_alone_shows_ones_own_jobs(tmp_path: Path) -> None:
    me = pwd.getpwuid(os.getuid()).pw_name
    fill(tmp_path / "s", [Job(1, tres=VGPU_HALF, user=me), Job(2, T0, T0, T0 + HOUR, VGPU_HALF, user="other")])
    shown = _cli(tmp_path, "efficiency", "--month", "2026-09", rates=PRICES).output
    assert [line.split()[0] for line in shown.splitlines()[2:3]] == ["1"]
    assert "1 job cost EUR 1.25, before discounts and credits" in shown
