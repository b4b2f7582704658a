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
   StartTime={start} EndTime=Unknown Deadline=N/A
   Partition=gpu AllocNode:Sid=n1:1
   TRES=cpu=4,mem=1G,node=1,billing=4,gres/vgpu=1,gres/vgpu_mem=8K
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


def _usage() -> str:
    done = CliRunner().invoke(main, ["usage", "7"])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize(("account", "amount"), [("chem", "2.80"), ("physics", "8.40")])
def test_a_running_job_shows_what_it_has_cost(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, account: str, amount: str
) -> None:
    """2 h: half an H200 at 2.00 and 4 CPUs at 0.10 are 2.00 + 0.80; physics pays three times as much."""
    now = int(time.time())
    monkeypatch.setattr(time, "time_ns", lambda: now * 10**9)
    _slurm(tmp_path, f"cat <<'E'\n{RECORD.format(start=now - 2 * HOUR, account=account)}E")
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
    now = int(time.time())
    monkeypatch.setattr(time, "time_ns", lambda: now * 10**9)
    _slurm(tmp_path, f"cat <<'E'\n{RECORD.format(start=now - 2 * HOUR, account='chem')}E")
    grant = node.grants()[7]
    off = None if off_gpu_s is None else {grant.gpu_uuid: off_gpu_s * 10**9}
    monkeypatch.setattr(agent_file, "read_off_gpu", lambda *_: off)
    assert f"  cost     EUR {said}" in _usage()


def test_what_is_not_known_is_said_and_without_rates_there_is_no_line(node: Node, tmp_path: Path) -> None:
    _slurm(tmp_path, "echo 'slurmctld is away' >&2; exit 1")
    assert "  cost     not known: " in _usage()
    _slurm(tmp_path, "exit 0")
    assert "  cost     not known: Slurm has no such job\n" in _usage()
    _slurm(tmp_path, f"cat <<'E'\n{RECORD.format(start=int(time.time()) - 60, account='chem')}E")
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
