# SPDX-License-Identifier: Apache-2.0
"""Jobs that ended with an earlier boot and run for slurmctld all the same: which ones doctor names."""

from __future__ import annotations

from pathlib import Path

import pytest
from node_testbed import Node

from hami_hpc.doctor import lost_jobs
from hami_hpc.doctor.facts import Facts
from hami_hpc.node import boot
from hami_hpc.slurm import commands, step_pids

BOOTED_S = 1000


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
