# SPDX-License-Identifier: Apache-2.0
"""A mode whose backend fails is taken out of the node's features: the node stays in service, its jobs wait, others run,
and the mode comes back by a command. Slurm's own part is what is tried here (docs/adr/056)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

import pytest
from harness import cluster as private_cluster
from harness import config, jobs, node
from harness.layout import CHECKOUT, ClusterError, Layout

USER = "games"
MPS, SHARE = "--gres=vgpu:mem=4G,cores=10,mode=mps", "--gres=vgpu:mem=4G,cores=10,mode=share"
AGENT_S = 45  # hami_hpc/agent/mode_returns.py looks each 30 s


@pytest.fixture
def broken_mps(restored: Layout) -> Iterator[Layout]:
    """A cluster that offers mode=mps, and has no MPS control program."""
    text = config.site_toml(restored).replace("[vgpu]\n", '[vgpu]\nmodes = ["share", "mps"]\n')
    config.write(restored.site_config, f'{text}[mps]\ncontrol = "/nowhere/nvidia-cuda-mps-control"\n')
    config.render(restored)
    for name in ("slurmd", "slurmctld"):
        private_cluster.restart(restored, name)
    yield restored
    jobs.admin(restored, "scancel", f"--user={USER}")
    jobs.wait(restored, lambda: not jobs.admin(restored, "squeue", "-h"), "the jobs to end", 60)
    jobs.admin(restored, "hami-hpc", "mode", "resume", "mps", "--node", "node1", allowed=(0, 1))
    node.wait_until_clean(restored)


def active(layout: Layout) -> list[str]:
    found = re.search(r"ActiveFeatures=(\S*)", jobs.admin(layout, "scontrol", "show", "node", "node1"))
    assert found
    return found[1].split(",")


def was_requeued(layout: Layout, job: int) -> bool:
    return jobs.job_facts(layout, job)["Restarts"] == "1"


def test_a_mode_that_fails_three_times_is_out_while_the_node_serves_others(broken_mps: Layout) -> None:
    layout = broken_mps
    waiting = [jobs.submit(layout, USER, MPS, script="true") for _ in range(3)]
    jobs.wait(layout, lambda: "vgpu_mps" not in active(layout), "the mode to be out", 60)
    for job in waiting:
        jobs.wait(layout, partial(was_requeued, layout, job), "the job to be requeued", 60, job)
        assert jobs.state(layout, job) in ("PENDING", "COMPLETING")
    assert "DRAIN" not in jobs.admin(layout, "sinfo", "-h", "-o", "%T").upper(), jobs.admin(layout, "sinfo", "-R")
    assert "vgpu_share" in active(layout)
    other = jobs.submit(layout, USER, SHARE, script="slice --use 16")
    jobs.wait_for_state(layout, other, "COMPLETED")
    listed = jobs.admin(layout, "hami-hpc", "mode", "list", allowed=(3,))
    assert re.search(r"^mps +OUT ", listed, re.MULTILINE)
    with pytest.raises(ClusterError, match="Requested node configuration is not available"):
        jobs.submit(layout, USER, MPS, script="true")  # no other node of this cluster has the mode

    private_cluster.restart(layout, "slurmctld")
    # It begins with all of the node's features, which may be for less time than between two looks of this test.
    jobs.wait(layout, lambda: "vgpu_mps" not in active(layout), "the agent to take the mode out again", AGENT_S)

    for job in waiting[1:]:
        jobs.admin(layout, "scancel", str(job))
    jobs.admin(layout, "scontrol", "update", f"JobId={waiting[0]}", "StartTime=now")
    reason = "BadConstraints"
    jobs.wait(layout, lambda: jobs.job_facts(layout, waiting[0])["Reason"] == reason, "Slurm to look", 60)
    text = config.site_toml(layout).replace("[vgpu]\n", '[vgpu]\nmodes = ["share", "mps"]\n')
    config.write(layout.site_config, f'{text}[mps]\ncontrol = "{CHECKOUT}/build/native/sim/nvidia-cuda-mps-control"\n')
    assert "is in this node's features again" in jobs.admin(
        layout, "hami-hpc", "mode", "resume", "mps", "--node", "node1"
    )
    assert active(layout)[:2] == ["vgpu_share", "vgpu_mps"]
    jobs.wait_for_state(layout, waiting[0], "COMPLETED", timeout_s=90)
