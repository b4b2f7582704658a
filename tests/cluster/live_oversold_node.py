# SPDX-License-Identifier: Apache-2.0
"""A node whose GPUs' memory is oversold, on a real Slurm: what it offers, and what jobs hold of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness import cluster as private_cluster
from harness import config, jobs, node
from harness.layout import ClusterError, Layout

USER = "games"
SLICE_MIB = 128768  # 90 % of an H200 in whole shards; three times its memory holds three of them, and 168 shards more


@pytest.fixture
def oversold(restored: Layout) -> Iterator[Layout]:
    """The cluster with three times the memory of its two GPUs."""
    text = config.site_toml(restored).replace("[vgpu]\n", "[vgpu]\nmemory_scaling = 3\n")
    config.write(restored.site_config, text.replace("[classes.be]\n", "[classes.be]\nswap = true\n"))
    config.render(restored)
    for daemon in ("slurmd", "slurmctld"):  # a node that reports less than slurmctld expects is drained
        private_cluster.restart(restored, daemon)
    yield restored
    jobs.admin(restored, "scancel", f"--user={USER}")


def submit(layout: Layout, *options: str) -> int:
    return jobs.submit(layout, USER, "--qos=be", *options, script="sleep 300")


def test_each_gpu_takes_three_jobs_with_all_of_it_and_then_small_ones(oversold: Layout) -> None:
    facts = jobs.admin(oversold, "scontrol", "show", "node", config.NODE)
    counted = facts.partition("CfgTRES=")[2].split()[0].split(",")
    assert {"gres/shard=3354", "gres/vgpu:be=3354", "gres/vgpu_mem=858936", "gres/vgpu_cores=668"} <= set(counted)
    assert "State=IDLE" in facts, facts
    held = [submit(oversold, "--gres=vgpu:mem=100%,cores=100") for _ in range(6)]
    for job in held:
        jobs.wait_for_state(oversold, job, "RUNNING")
    jobs.wait(oversold, lambda: len(node.grants(oversold)) == 6, "six grants")
    sums: dict[str, int] = {}
    for grant in node.grants(oversold):
        sums[grant.gpu_uuid] = sums.get(grant.gpu_uuid, 0) + grant.mem_mib
    assert list(sums.values()) == [3 * SLICE_MIB] * 2
    more = submit(oversold, "--gres=vgpu:mem=8G,cores=1")
    jobs.wait_for_state(oversold, more, "RUNNING")
    last = submit(oversold, "--gres=vgpu:mem=100%")
    tried = ("Resources", "Priority")
    jobs.wait(oversold, lambda: jobs.job_facts(oversold, last)["Reason"] in tried, "Slurm to try the job", 30, last)
    pool = jobs.admin(oversold, "hami-hpc", "pool", config.NODE)
    assert "mem=34G,cores=27" in pool or "mem=42G,cores=33" in pool, pool
    with pytest.raises(ClusterError, match=f"the largest, h200, has {SLICE_MIB}M"):
        submit(oversold, f"--gres=vgpu:mem={SLICE_MIB + 1}M")


def test_a_job_with_the_whole_node_has_whole_gpus(oversold: Layout) -> None:
    job = submit(oversold, "--exclusive")
    jobs.wait_for_state(oversold, job, "RUNNING")
    mark = oversold.run_dir / "jobs" / str(job) / "whole"
    jobs.wait(oversold, mark.exists, "the mark of a job with whole GPUs", 30, job)
    assert f"job {job} holds the whole node" in mark.read_text()
    assert node.grants(oversold) == []
