# SPDX-License-Identifier: Apache-2.0
"""mode=mig with a driver that makes no instances: the mode goes out of the node's features (docs/adr/056)."""

from __future__ import annotations

from pathlib import Path

import pytest
from mig_testbed import MigNode
from node_testbed import slurms_commands


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MigNode:
    return MigNode.make(tmp_path, monkeypatch)


def test_a_driver_that_makes_no_instance_takes_the_mode_out_and_leaves_nothing(
    bed: MigNode, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The default of mode_failures, which this testbed switches off."""
    bed.edit("mode_failures = 0", "mode_failures = 2")
    features = "AvailableFeatures=vgpu_mig,vgpu_share ActiveFeatures=vgpu_mig,vgpu_share"
    text = f'#!/bin/sh\necho "$@" >>{tmp_path}/said\n[ "$1" != --oneliner ] || echo "x {features}"\n'
    scontrol = slurms_commands(tmp_path, text)
    monkeypatch.setattr("hami_hpc.node.drain.find_scontrol", lambda: scontrol)
    before = bed.instances()
    for job_id in (1, 2):
        faults = "nvmlGpuInstanceCreateComputeInstance=999"
        assert bed.prolog(job_id, faults=faults, SLURMD_NODENAME="node1") == 0, "the node stays in service"
        assert (bed.instances(), bed.node.grants()) == (before, {})
    said = (tmp_path / "said").read_text().splitlines()
    assert "update nodename=node1 activefeatures=vgpu_share" in said
    assert [line for line in said if line.startswith("requeue")] == ["requeue incomplete 1", "requeue incomplete 2"]
    assert bed.prolog(3, SLURM_JOB_CONSTRAINTS="vgpu_share") == 0
    assert bed.node.grants()[3].mode == "share"
