# SPDX-License-Identifier: Apache-2.0
"""Which of slurmd and slurmctld is restarted first when a count of gres changes (docs/node.md): slurmctld drains a node
that reports less than slurm.conf says, keeps it drained, and ignores what is reported beyond that."""

from __future__ import annotations

import re

from harness import cluster as private_cluster
from harness import jobs
from harness.config import NODE
from harness.layout import Layout

USER = "games"
SLO = re.compile(r"vgpu_slo:(\d+)")
COUNT = re.compile(r"(?<=Name=vgpu_slo Count=)\d+")


def node(layout: Layout) -> str:
    return jobs.admin(layout, "scontrol", "--oneliner", "show", "node", NODE)


def set_count(layout: Layout, count: int) -> None:
    """Writes the node's count of gres/vgpu_slo into slurm.conf and gres.conf; no daemon reads them before its start."""
    for path in (layout.etc / "slurm.conf", layout.etc / "slurm-hami-hpc.conf"):
        path.write_text(SLO.sub(f"vgpu_slo:{count}", path.read_text()))
    path = layout.etc / "hami-hpc-gres.conf"
    path.write_text(COUNT.sub(str(count), path.read_text()))


def test_slurmd_first_where_a_count_grows_and_slurmctld_first_where_it_shrinks(restored: Layout) -> None:
    layout = restored
    found = SLO.search(node(layout))
    assert found is not None
    few = int(found[1])
    more = few + 1  # Slurm prints multiples of 1024 with a K
    job = jobs.submit(layout, USER, "--gres=vgpu:mem=1G,cores=5", script="sleep 120")
    jobs.wait_for_state(layout, job, "RUNNING")

    set_count(layout, more)
    for daemon in ("slurmd", "slurmctld"):  # it grows
        private_cluster.restart(layout, daemon)
        assert "DRAIN" not in node(layout), daemon
    assert f"vgpu_slo:{more}" in node(layout)

    set_count(layout, few)
    for daemon in ("slurmctld", "slurmd"):  # it shrinks
        private_cluster.restart(layout, daemon)
        assert "DRAIN" not in node(layout), daemon
    assert jobs.job_facts(layout, job)["JobState"] == "RUNNING"

    set_count(layout, more)
    private_cluster.restart(layout, "slurmctld")  # the wrong order
    jobs.wait(layout, lambda: "count reported lower than configured" in node(layout), "the node to drain", 60)
    private_cluster.restart(layout, "slurmd")
    jobs.wait(layout, lambda: "INVALID_REG" not in node(layout), "the node to register", 60)
    assert "DRAIN" in node(layout)
    jobs.admin(layout, "scontrol", "update", f"nodename={NODE}", "state=resume")
    jobs.wait(layout, lambda: "DRAIN" not in node(layout), "the node to be resumed", 20)
    assert jobs.job_facts(layout, job)["JobState"] == "RUNNING"
