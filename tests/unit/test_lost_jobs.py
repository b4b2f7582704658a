# SPDX-License-Identifier: Apache-2.0
"""Jobs that ended with an earlier boot and run for slurmctld all the same: which ones doctor names."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from node_testbed import Node

from hami_hpc.doctor import lost_jobs
from hami_hpc.doctor.facts import Facts
from hami_hpc.node import boot
from hami_hpc.slurm import commands, step_pids

BOOTED_S = 1000
NOW_S = 1_700_000_000
LONG_AGO_S = NOW_S - 3600


@pytest.mark.parametrize(
    ("rows", "pids", "named"),
    [
        ("5 RUNNING 999\n6 SUSPENDED 1\n", {}, "5, 6"),
        ("5 RUNNING 1000\n", {}, ""),
        ("5 COMPLETING 999\n6 RUNNING N/A\n", {}, ""),
        ("5 RUNNING 999\n6 RUNNING 999\n", {4000: 5}, "6"),  # one for which Slurm restarted the node (--reboot)
        ("5 RUNNING 999\n", None, ""),  # slurmstepd does not say all of them
        ("", {}, ""),
    ],
)
def test_a_job_that_began_before_the_boot_and_has_no_process_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: str, pids: dict[int, int] | None, named: str
) -> None:
    monkeypatch.setattr(boot, "booted_unix_ns", lambda: BOOTED_S * 10**9)
    monkeypatch.setattr(commands, "holding_rows", lambda node, form: rows if (node, form) == ("n1", "%A %T %S") else "")
    monkeypatch.setattr(step_pids, "listed_pids", lambda _node, _run, _timeout_s: pids)
    found = list(lost_jobs.check_lost_jobs(Facts(Node.make(tmp_path / "node").settings, "n1")))
    assert [one.detail for one in found] == (
        [f"for Slurm job {named} still run here, which ended when this node was last shut down"] if named else []
    )


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        (f"5 RUNNING {LONG_AGO_S} gres:shard:279,gres:vgpu:std:1,gres:vgpu_mem:71424", "5"),
        (f"5 RUNNING {LONG_AGO_S} gres/shard:279,gres/vgpu:lc:1\n8 SUSPENDED {LONG_AGO_S} gres:vgpu:be:2", "5, 8"),
        (f"7 RUNNING {LONG_AGO_S} gres:vgpu:std:1", ""),  # has its directory
        (f"5 RUNNING {LONG_AGO_S} gres:gpu:1\n6 RUNNING {LONG_AGO_S} N/A\n8 RUNNING {LONG_AGO_S}", ""),
        (f"5 RUNNING {NOW_S - 5} gres:vgpu:std:1", ""),  # its prolog may be at work
        (f"5 RUNNING {BOOTED_S - 1} gres:vgpu:std:1", ""),  # of an earlier boot
        (f"5 COMPLETING {LONG_AGO_S} gres:vgpu:std:1\n6 RUNNING N/A gres:vgpu:std:1", ""),
    ],
)
def test_a_job_that_runs_with_a_vgpu_for_slurm_and_not_here_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: str, named: str
) -> None:
    node = Node.make(tmp_path / "node")
    assert node.prolog(7) == 0
    monkeypatch.setattr(time, "time", lambda: float(NOW_S))
    monkeypatch.setattr(boot, "booted_unix_ns", lambda: BOOTED_S * 10**9)
    monkeypatch.setattr(commands, "holding_rows", lambda _node, form: rows if form == "%A %T %S %b" else "")
    found = list(lost_jobs.check_jobs_without_slices(Facts(node.settings, "n1")))
    assert [one.detail.split(" run here")[0] for one in found] == ([f"for Slurm job {named}"] if named else [])
    assert all(one.advice.endswith(f"scontrol requeue {named.split(',')[0]}") for one in found)
