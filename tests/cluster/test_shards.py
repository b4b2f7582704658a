# SPDX-License-Identifier: Apache-2.0
"""Bare shards fence nothing: they are refused at submit and by the node, or become the vgpu of their size."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from harness import daemons, jobs, services
from harness.layout import Layout
from test_requests import H200_MIB, slice_units, total_mib, units

USER = "games"
NOT_ALLOWED = "'shard:1' is not allowed on this cluster"


def say(layout: Layout, bare_shard: str) -> None:
    """What `hami-hpc render` writes for another bare_shard in hami-hpc.toml."""
    files = (("hami_hpc_site.lua", '["bare_shard"] = "{}"'), ("plugstack.conf.d/hami-hpc.conf", "bare_shard={}"))
    for name, pattern in files:
        path = layout.etc / name
        text = path.read_text()
        assert pattern.format("refuse") in text
        path.write_text(text.replace(pattern.format("refuse"), pattern.format(bare_shard)))


@pytest.mark.parametrize(
    "command",
    [
        ("sbatch", "--gres=shard:1"),
        ("sbatch", "--array=1-2", "--gres=shard:1"),
        ("sbatch", "--gres=shard"),
        ("sbatch", "--gres=shard:h200:1"),
        ("srun", "--gres=shard:1", "true"),
        ("salloc", "--gres=shard:1", "true"),
    ],
    ids=" ".join,
)
def test_bare_shards_are_refused_at_submit(cluster: Layout, command: tuple[str, ...]) -> None:
    done = jobs.run_as(cluster, USER, command, stdin="#!/bin/sh\ntrue\n")
    assert done.status != 0
    assert "is not allowed on this cluster, because shards alone limit neither memory nor time" in done.err
    assert "--gres=vgpu:mem=8G,cores=50" in done.err


def test_a_heterogeneous_job_with_bare_shards_in_one_part_is_refused(cluster: Layout) -> None:
    script = "#!/bin/sh\n#SBATCH --gres=vgpu:mem=1G\n#SBATCH hetjob\n#SBATCH --gres=shard:1\ntrue\n"
    done = jobs.run_as(cluster, USER, ("sbatch",), stdin=script)
    assert done.status != 0
    assert NOT_ALLOWED in done.err


@pytest.mark.parametrize("gres", [(), ("--gres=gpu:1",), ("--gres=vgpu:mem=1G",)], ids=str)
def test_a_pending_job_is_not_changed_into_one_with_bare_shards(cluster: Layout, gres: tuple[str, ...]) -> None:
    job = jobs.submit(cluster, USER, "--hold", *gres, script="true")
    before = jobs.job_facts(cluster, job).get("TresPerNode")
    done = jobs.run_as(cluster, USER, ("scontrol", "update", f"jobid={job}", "gres=shard:1"))
    assert done.status != 0
    assert jobs.job_facts(cluster, job).get("TresPerNode") == before


def test_a_step_cannot_take_bare_shards_of_its_jobs_slice(cluster: Layout) -> None:
    job = jobs.submit(
        cluster,
        USER,
        "--gres=vgpu:mem=8G,cores=50",
        script="exec 2>&1; srun -n1 --gres=shard:1 echo it ran; echo status $?",
    )
    jobs.wait_for_state(cluster, job, "COMPLETED")
    text = jobs.output(cluster, USER, job)
    assert "without memory and cores" in text
    assert "it ran" not in text


@pytest.fixture
def without_job_submit(restored: Layout) -> Iterator[Layout]:
    """A cluster whose administrator has left the job_submit line out: Slurm lets shards through."""
    other: Path = restored.public / "etc-controller"
    shutil.copytree(restored.etc, other)
    for conf in other.glob("*.conf"):
        text = conf.read_text().replace("JobSubmitPlugins=lua\n", "").replace(str(restored.etc), str(other))
        conf.write_text(text)
    daemon = services.describe(restored, "slurmctld")
    daemons.stop(restored, "slurmctld")
    daemons.start(restored, replace(daemon, command=(*daemon.command, "-f", str(other / "slurm.conf"))))
    jobs.wait(restored, lambda: services.nodes_answer(restored), "slurmctld to know its nodes", 60)
    yield restored
    jobs.admin(restored, "scancel", f"--user={USER}")
    daemons.stop(restored, "slurmctld")
    shutil.rmtree(other)


def test_the_node_refuses_bare_shards_that_job_submit_has_let_through(without_job_submit: Layout) -> None:
    cluster = without_job_submit
    batch = jobs.submit(cluster, USER, "--gres=shard:1", script="echo it ran")
    jobs.wait_for_state(cluster, batch, "FAILED")
    text = jobs.output(cluster, USER, batch)
    assert f"hami_hpc: job {batch} step" in text
    assert "it holds gres/shard and no vGPU" in text
    assert "--gres=vgpu:mem=8G,cores=50" in text
    assert "it ran" not in text
    for command in (
        ("srun", "--gres=shard:1", "echo", "it ran"),
        ("salloc", "--gres=shard:1", "srun", "echo", "it ran"),
    ):
        done = jobs.run_as(cluster, USER, command)
        assert done.status != 0
        assert "it holds gres/shard and no vGPU" in done.err
        assert "it ran" not in done.out


def test_a_whole_gpu_job_is_not_taken_for_shards_because_of_what_it_inherits(cluster: Layout) -> None:
    extra = {"SLURM_SHARDS_ON_NODE": "5"}
    command = ("sbatch", "--parsable", "--gres=gpu:1")
    done = jobs.run_as(cluster, USER, command, extra, stdin="#!/bin/sh\nslice --use 16; srun -n1 slice --use 16\n")
    job = int(done.out)
    jobs.wait_for_state(cluster, job, "COMPLETED")
    assert total_mib(jobs.output(cluster, USER, job)) == [H200_MIB] * 2


def test_a_site_may_allow_bare_shards(restored: Layout) -> None:
    say(restored, "allow")
    job = jobs.submit(restored, USER, "--gres=shard:1", script="slice --use 16; srun -n1 slice --use 16")
    jobs.wait_for_state(restored, job, "COMPLETED")
    assert units(restored, job) == {"shard": 1}
    assert total_mib(jobs.output(restored, USER, job)) == [H200_MIB] * 2


def test_a_site_may_turn_bare_shards_into_the_vgpu_of_that_size(restored: Layout) -> None:
    say(restored, "translate")
    wanted = slice_units(32, 8192, 5)
    job = jobs.submit(restored, USER, "--gres=shard:32", script="slice --use 16; srun -n1 slice --use 16")
    held = jobs.submit(restored, USER, "--hold", script="slice --use 16")
    done = jobs.run_as(restored, USER, ("scontrol", "update", f"jobid={held}", "gres=shard:32"))
    assert done.status == 0, done.text
    jobs.admin(restored, "scontrol", "release", str(held))
    for number, steps in ((job, 2), (held, 1)):
        jobs.wait_for_state(restored, number, "COMPLETED")
        assert dict(sorted(units(restored, number).items())) == wanted
        assert total_mib(jobs.output(restored, USER, number)) == [8192] * steps
    for command in (
        ("srun", "--gres=shard:32", "slice", "--use", "16"),
        ("salloc", "--gres=shard:32", "srun", "slice", "--use", "16"),
    ):
        done = jobs.run_as(restored, USER, command)
        assert done.status == 0, done.text
        assert total_mib(done.out) == [8192]
    done = jobs.run_as(restored, USER, ("sbatch", "--gres=shard:560"), stdin="#!/bin/sh\ntrue\n")
    assert "the largest, h200, has" in done.err
