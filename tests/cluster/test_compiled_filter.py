# SPDX-License-Identifier: Apache-2.0
"""A site with a compiled job_submit plugin, Slurm's all_partitions, which runs before hami_hpc's."""

from __future__ import annotations

from harness import config, daemons, jobs, services
from harness.layout import Layout
from test_requests import total_mib

USER = "games"


def test_slices_with_all_partitions(restored: Layout) -> None:
    file = restored.etc / "slurm-hami-hpc.conf"
    text = file.read_text()
    assert "\nJobSubmitPlugins=lua\n" in text
    config.write(file, text.replace("JobSubmitPlugins=lua", "JobSubmitPlugins=all_partitions,lua"))
    daemons.stop(restored, "slurmctld")
    daemons.start(restored, services.describe(restored, "slurmctld"))
    jobs.wait(restored, lambda: services.nodes_answer(restored), "the nodes to register", 60)
    for memory, mib in (("8G", 8192), ("50%", 71424)):
        job = jobs.submit(restored, USER, f"--gres=vgpu:mem={memory},cores=20", script="slice; srun slice")
        assert jobs.job_facts(restored, job)["Partition"] == "gpu"
        jobs.wait_for_state(restored, job, "COMPLETED")
        assert total_mib(jobs.output(restored, USER, job)) == [mib, mib]
    refused = jobs.run_as(restored, USER, ("sbatch", "--gres=vgpu:mem=200G"), stdin="#!/bin/sh\n")
    assert refused.status != 0
    assert "hami_hpc: " in refused.err
    step = jobs.run_as(restored, USER, ("srun", "--gres=vgpu:mem=8G,cores=20", "slice"))
    assert total_mib(step.out) == [8192]
    plain = jobs.submit(restored, USER, "--hold", script="true")  # one that has started has one partition
    assert set(jobs.job_facts(restored, plain)["Partition"].split(",")) == {"gpu", "whole", "cpu"}
    jobs.admin(restored, "scontrol", "release", str(plain))
    jobs.wait_for_state(restored, plain, "COMPLETED")
