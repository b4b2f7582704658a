# SPDX-License-Identifier: Apache-2.0
"""Bad requests are refused at submit with one line that helps, and hurt neither Slurm nor other jobs."""

from __future__ import annotations

import pytest
from harness import jobs
from harness.daemons import running_pid
from harness.layout import Layout

PREFIX = "hami_hpc: "


def refusal(layout: Layout, *options: str, extra: dict[str, str] | None = None) -> str:
    """The line with which sbatch refuses; slurmctld must have lived through it."""
    before = running_pid(layout, "slurmctld")
    done = jobs.run_as(layout, "games", ("sbatch", *options), extra=extra, stdin="#!/bin/sh\ntrue\n")
    assert done.status != 0, f"sbatch {options} was accepted: {done.out}"
    assert done.status in (1, 255), f"sbatch {options} ended with status {done.status}: {done.text}"
    assert running_pid(layout, "slurmctld") == before, jobs.evidence(layout)
    lines = [line for line in done.err.splitlines() if PREFIX in line]
    assert len(lines) == 1, f"one line of hami_hpc's was expected:\n{done.text}"
    assert lines[0].isascii()
    assert len(lines[0]) < 400
    return lines[0]


BAD = [
    ("vgpu:mem=0", "mem=0"),
    ("vgpu:mem=-4G", "mem=-4G"),
    ("vgpu:mem=1.5G", "1536M instead of 1.5G"),
    ("vgpu:mem=8", "no unit"),
    ("vgpu:mem=99999T", "mem=99999T"),
    ("vgpu:mem=200G", "the largest, h200, has"),
    ("vgpu:mem=150%", "mem=150%"),
    ("vgpu:mem=8G,mem=50%", "given twice"),
    ("vgpu:cores=0", "cores=0"),
    ("vgpu:cores=101", "1 to 100"),
    ("vgpu:cores=12.5", "cores=12.5"),
    ("vgpu:memory=8G", "unknown key 'memory'"),
    ("vgpu:mem=8G,cores", "cores"),
    ("vgpu:mem=", "mem has no value"),
    ("vgpu:a100:mem=8G", "'a100'"),
    ("vgpu:mode=magic", "mode=magic"),
    ("vgpu:mode=mig", "mode=mig"),
    ("vgpu:mem=8G,cores=50:2", "2"),
    ("vgpu:2", "one vgpu per node"),
    ("vgpu:2:mem=8G,cores=50", "whole GPUs with --gres=gpu:N"),
    ("vgpu:99999999999999999999", "slices_max can be 16 at most"),
    ("vgpu:0", "'0' is not a count of vgpus"),
    ("vgpu:-1:mem=8G", "'-1' is not a count of vgpus"),
    ("vgpu:8G", "Memory is mem=8G"),
    ("vgpu:2 gpus", "is not a GPU type"),
    ("vgpu:mem=1G,vgpu:mem=2G", "is requested twice"),
    ("vgpu:mem=1G,gpu:1", "whole GPUs"),
    ("vgpu:lc:1", "cannot be asked for"),
    ("shard:1,vgpu:std:1,vgpu_mem:90000,vgpu_cores:1", "cannot be asked for"),
]


@pytest.mark.parametrize(("gres", "words"), BAD, ids=[gres for gres, _ in BAD])
def test_a_bad_request_is_refused_with_a_line_that_names_what_is_wrong(cluster: Layout, gres: str, words: str) -> None:
    line = refusal(cluster, f"--gres={gres}")
    assert words in line
    assert "=vgpu" in line or "mem=1536M" in line, f"an example of what works is missing: {line}"


def test_noise_is_refused_and_slurm_lives_on(cluster: Layout) -> None:
    noises = ["vgpu:" + "x" * 10_000, "vgpu:mem=8\u00e9G", "vgpu:" + ",".join(f"k{i}={i}" for i in range(700))]
    for noise in noises:
        refusal(cluster, f"--gres={noise}")
    job = jobs.submit(cluster, "games", "--gres=vgpu:mem=1G,cores=5", script="true")
    jobs.wait_for_state(cluster, job, "COMPLETED")


@pytest.mark.parametrize(
    "option", ["--gpus-per-node=vgpu:mem=8G", "--gpus=vgpu:1", "--gpus-per-task=vgpu:1", "--gpus-per-socket=vgpu:1"]
)
def test_other_spellings_are_refused_with_the_one_that_works(cluster: Layout, option: str) -> None:
    assert "--gres=vgpu" in refusal(cluster, option, "--ntasks=1", "--sockets-per-node=1")


def test_a_partition_without_gpus_is_named_with_those_that_have_some(cluster: Layout) -> None:
    line = refusal(cluster, "--partition=cpu", "--gres=vgpu:mem=8G")
    assert "partition cpu has no GPU" in line
    assert "partitions with such GPUs: gpu" in line


def test_a_client_without_our_filter_is_refused_by_the_controller(cluster: Layout) -> None:
    """The filter runs in the user's process and can be left out; job_submit cannot."""
    text = cluster.slurm_conf.read_text()
    fragment = (cluster.etc / "slurm-hami-hpc.conf").read_text().replace("CliFilterPlugins=hami_hpc", "")
    text = "\n".join(line for line in text.splitlines() if not line.startswith("include ")) + "\n" + fragment
    own = jobs.write_script(cluster, "games", "own-slurm.conf", text)
    (cluster.home / "games" / "gres.conf").write_text((cluster.etc / "gres.conf").read_text())
    extra = {"SLURM_CONF": str(own)}
    assert "1 to 100" in refusal(cluster, "--gres=vgpu:mem=8G;cores=150", extra=extra)
    raw = "--gres=shard:1,vgpu:std:1,vgpu_mem:90000,vgpu_cores:1"
    assert "cannot be asked for" in refusal(cluster, raw, extra=extra)


def test_a_pending_job_cannot_be_changed_into_a_bad_request(cluster: Layout) -> None:
    job = jobs.submit(cluster, "games", "--hold", "--gres=vgpu:mem=8G,cores=50", script="true")
    before = jobs.job_facts(cluster, job)["TresPerNode"]
    for bad in ("gres=vgpu:mem=200G", "gres=vgpu_mem:90000", "gres=vgpu:be:1"):
        done = jobs.run_as(cluster, "games", ("scontrol", "update", f"jobid={job}", bad))
        assert done.status != 0, f"{bad} was accepted: {jobs.job_facts(cluster, job)['TresPerNode']}"
    assert jobs.job_facts(cluster, job)["TresPerNode"] == before
