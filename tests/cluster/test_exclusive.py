# SPDX-License-Identifier: Apache-2.0
"""Jobs that hold whole nodes: Slurm gives them every vgpu unit there is, and they are jobs with whole GPUs."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Any

import pytest
from harness import config, jobs, node
from harness.config import GPU_COUNT
from harness.layout import Layout
from test_requests import H200_MIB, total_mib, units

USER = "games"
OURS = "env | sort | grep -E '^(HAMI_HPC|LD_PRELOAD|CUDA_VISIBLE_DEVICES)'"
SHOW = f"{OURS}; slice --use 16"
BOTH = ",".join(str(index) for index in range(GPU_COUNT))
WHOLE = [
    ("--exclusive",),
    ("--exclusive", "--gres=gpu:2"),
    ("--exclusive", "--gres=gpu:1"),
    ("--exclusive", "--gres=none"),
    ("--partition=whole",),
    ("--partition=whole", "--gres=gpu:1"),
]


def run(layout: Layout, script: str, *options: str) -> tuple[int, str]:
    """A job that completes; its id and what it printed, as it would on a real node."""
    job = jobs.submit(layout, USER, *options, script=f"exec 2>&1\n{script}")
    jobs.wait_for_state(layout, job, "COMPLETED")
    text = jobs.without_simulation(layout, jobs.output(layout, USER, job))
    return job, text


@pytest.mark.parametrize("options", WHOLE, ids=" ".join)
def test_a_job_with_the_whole_node_has_whole_gpus_without_a_fence(cluster: Layout, options: tuple[str, ...]) -> None:
    steps = [
        SHOW,
        f'srun -n1 sh -c "{SHOW}"',
        f'srun -n1 --gres=gpu:1 sh -c "{SHOW}"',
        f'srun -n1 --exclusive sh -c "{SHOW}"',
    ]
    job, text = run(cluster, "\necho --\n".join(steps), *options)
    batch, _bare, one, _exclusive = said = text.split("--\n")
    assert batch.startswith(f"CUDA_VISIBLE_DEVICES={BOTH}\n")
    assert one.startswith("CUDA_VISIBLE_DEVICES=0\n")
    assert [total_mib(part) for part in said] == [[H200_MIB]] * 4
    assert "HAMI_HPC" not in text
    assert "LD_PRELOAD" not in text
    assert units(cluster, job)["gpu"] == GPU_COUNT
    node.wait_until_clean(cluster)
    record = cluster.state_dir / "usage" / f"{job}.json"  # if the agent saw the job, which was short
    assert not record.exists() or json.loads(record.read_text())["mode"] == "gpu"


def test_while_it_runs_the_node_shows_what_it_is_and_reconcile_leaves_it_alone(cluster: Layout) -> None:
    (cluster.home / USER / "go").unlink(missing_ok=True)
    job = jobs.submit(
        cluster, USER, "--exclusive", script="echo on; until [ -e go ]; do sleep 0.1; done; srun slice --use 16"
    )
    jobs.wait(cluster, lambda: "on" in jobs.output(cluster, USER, job), "the job to run", 30, job)
    folder = cluster.run_dir / "jobs" / str(job)
    assert sorted(path.name for path in folder.iterdir()) == ["gpus", "history", "whole"]
    assert (folder / "whole").stat().st_mode & 0o777 == 0o644
    assert f"job {job} holds the whole node" in (folder / "whole").read_text()
    assert node.grants(cluster) == []
    jobs.admin(cluster, "hami-hpc", "reconcile", "--node", config.NODE)
    assert (folder / "whole").exists()
    (cluster.home / USER / "go").touch()
    jobs.wait_for_state(cluster, job, "COMPLETED")
    assert total_mib(jobs.output(cluster, USER, job)) == [H200_MIB]
    node.wait_until_clean(cluster)


def test_a_whole_node_job_submitted_from_a_slice_does_not_inherit_its_fence(cluster: Layout) -> None:
    script = f'sbatch --parsable --exclusive --wrap "{OURS}; slice --use 16"'
    _, text = run(cluster, script, "--gres=vgpu:mem=8G,cores=50")
    inner = int(text)
    jobs.wait_for_state(cluster, inner, "COMPLETED")
    text = jobs.without_simulation(cluster, jobs.output(cluster, USER, inner))
    assert text.splitlines()[0] == f"CUDA_VISIBLE_DEVICES={BOTH}"
    assert "HAMI_HPC" not in text
    assert total_mib(text) == [H200_MIB]


@pytest.mark.parametrize(
    ("gres", "words"),
    [
        ("vgpu:mem=4G", "a step with a vgpu needs a job that has one"),
        ("vgpu_mem:4096,vgpu_cores:10", "a job that holds whole GPUs"),
    ],
)
def test_a_slice_of_a_whole_node_job_is_refused_with_what_to_ask_for(cluster: Layout, gres: str, words: str) -> None:
    _, text = run(cluster, f"srun -n1 --gres={gres} echo it ran; echo status $?", "--exclusive")
    assert words in text
    assert "it ran" not in text
    assert "status 0" not in text


def test_a_marker_that_is_not_roots_takes_no_fence_away(cluster: Layout) -> None:
    script = "rm -f go; echo on; until [ -e go ]; do sleep 0.1; done; "
    script += "srun -n1 --gres=gpu:1,vgpu_mem:1,vgpu_cores:1 echo it ran; echo status $?"
    job = jobs.submit(cluster, USER, "--exclusive", script=f"exec 2>&1\n{script}")
    jobs.wait(cluster, lambda: "on" in jobs.output(cluster, USER, job), "the job to run", 30, job)
    (cluster.run_dir / "jobs" / str(job) / "whole").chmod(0o666)
    (cluster.home / USER / "go").touch()
    jobs.wait_for_state(cluster, job, "COMPLETED")
    text = jobs.output(cluster, USER, job)
    assert "it ran" not in text
    assert "job.limits does not exist" in text


def test_exclusive_towards_other_users_is_no_whole_node(cluster: Layout) -> None:
    job, text = run(cluster, f"{SHOW}; srun -n1 slice --use 16", "--exclusive=user", "--gres=vgpu:mem=8G,cores=50")
    assert total_mib(text) == [8192, 8192]
    assert units(cluster, job)["vgpu_mem"] == 8192
    _, text = run(cluster, OURS + "; echo end", "--exclusive=user")
    assert text == "end\n"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--exclusive",), "vgpu and --exclusive"),
        (("--partition=whole",), "partition whole gives each job whole nodes"),
    ],
)
def test_a_vgpu_is_refused_where_jobs_get_whole_nodes(cluster: Layout, options: tuple[str, ...], words: str) -> None:
    done = jobs.run_as(cluster, USER, ("sbatch", "--gres=vgpu:mem=8G", *options), stdin="#!/bin/sh\ntrue\n")
    assert done.status != 0
    assert words in done.err


def test_of_several_partitions_a_vgpu_job_leaves_out_those_of_whole_nodes(cluster: Layout) -> None:
    job = jobs.submit(cluster, USER, "--partition=gpu,whole", "--gres=vgpu:mem=8G", script="slice")
    assert jobs.job_facts(cluster, job)["Partition"] == "gpu"
    jobs.wait_for_state(cluster, job, "COMPLETED")
    assert total_mib(jobs.output(cluster, USER, job)) == [8192]


def test_a_pending_vgpu_job_is_not_moved_to_where_jobs_get_whole_nodes(cluster: Layout) -> None:
    job = jobs.submit(cluster, USER, "--hold", "--gres=vgpu:mem=8G", script="true")
    done = jobs.run_as(cluster, USER, ("scontrol", "update", f"jobid={job}", "partition=whole"))
    assert done.status != 0
    assert jobs.job_facts(cluster, job)["Partition"] == "gpu"


@pytest.mark.slurm_before("23.02")  # others were not tried
def test_an_exclusive_job_made_a_vgpu_is_told_that_it_never_starts_until_it_is_exclusive_no_more(
    cluster: Layout,
) -> None:
    job = jobs.submit(cluster, USER, "--hold", "--exclusive", script="slice")
    update = jobs.run_as(cluster, USER, ("scontrol", "update", f"jobid={job}", "gres=vgpu:mem=8G;cores=50"))
    assert update.status == 0, update.err
    jobs.admin(cluster, "scontrol", "release", str(job))
    time.sleep(3)
    (told,) = json.loads(jobs.admin(cluster, "hami-hpc", "explain", "--format", "json", str(job)))
    assert (told["state"], "never starts" in told["why"]) == ("PENDING", True)
    jobs.admin(cluster, *told["advice"].rpartition(": ")[2].split())
    jobs.wait_for_state(cluster, job, "COMPLETED")
    assert total_mib(jobs.output(cluster, USER, job)) == [8192]


def _held(layout: Layout, numbers: list[int]) -> dict[tuple[str, str], int]:
    """What the bill says that jobs have held, by (mode, model), in millionths of a GPU times seconds."""
    words = ("--start", "2026-01-01", "--live", "--by", "job,mode,model", "--format", "json")
    bill: Any = json.loads(jobs.admin(layout, "hami-hpc", "bill", *words))
    assert [line for line in bill["rejected"] if "AllocTRES" in line] == []
    held: Counter[tuple[str, str]] = Counter()
    for line in bill["lines"]:
        if line["job"] in map(str, numbers):
            held[line["mode"], line["model"]] += int(line["gpu_microseconds_held"])
    return held


def test_a_whole_node_job_is_billed_as_its_gpus(cluster: Layout) -> None:
    numbers = [
        jobs.submit(cluster, "news", *options, script="sleep 2")
        for options in (("--exclusive",), ("--exclusive", "--gres=gpu:1"), ("--partition=whole",))
    ]
    for job in numbers:
        jobs.wait_for_state(cluster, job, "COMPLETED", timeout_s=90)

    def rows() -> list[list[str]]:
        words = ("-n", "-P", "-X", "-j", ",".join(map(str, numbers)), "-o", "ElapsedRaw,State,AllocTRES")
        return [line.split("|") for line in jobs.admin(cluster, "sacct", *words).splitlines()]

    jobs.wait_until_recorded(cluster, *numbers)
    assert [row[1] for row in rows()] == ["COMPLETED"] * 3
    assert all("gres/vgpu:be=" in row[2] and "gres/vgpu:lc=" in row[2] for row in rows())
    held = sum(int(row[0]) for row in rows()) * GPU_COUNT * 1_000_000
    assert _held(cluster, numbers) == {("gpu", "h200"): held}
