# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc trace` on a live Slurm: every step of a job's start in order, requeued jobs, arrays, jobs without vgpu."""

from __future__ import annotations

import itertools
import json
import shutil
from typing import Any

from harness import jobs, node
from harness.config import NODE
from harness.layout import CHECKOUT, Layout
from test_views import hami, hami_json

from hami_hpc.core.start_trace import KINDS, OF_SLURM

USER, OTHER = "games", "news"
REQUEST = "--gres=vgpu:mem=1G,cores=50"


def traced(layout: Layout, job: object, *options: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(jobs.admin(layout, "hami-hpc", "trace", str(job), "--format=json", *options))
    return answer


def has_ended(layout: Layout, job: int) -> None:
    jobs.wait_for_state(layout, job, "COMPLETED")
    node.wait_until_clean(layout)


def times(answer: dict[str, Any]) -> dict[str, int]:
    return {step["step"]: step["unix_ns"] for step in answer["steps"] if step["unix_ns"] is not None}


def test_an_ended_job_has_every_step_in_order(cluster: Layout) -> None:
    program = cluster.home / USER / "spin_for"
    shutil.copy(CHECKOUT / "build/native/compute/spin_for", program)
    job = jobs.submit(cluster, USER, REQUEST, script=f"sleep 1\nsrun {program} 300 1000\necho used\nsleep 6")
    # Until then its last use goes on.
    jobs.wait(cluster, lambda: "used" in jobs.output(cluster, USER, job), "the end of the program", 30, job)
    running = traced(cluster, job)
    assert "first_launch" in times(running)
    assert times(hami_json(cluster, USER, "trace", str(job))) == times(running)
    assert running["state"] == "RUNNING"
    ends = {step["step"]: step["unknown"] for step in running["steps"][-2:]}
    assert ends == {"epilog_began": "the job has not ended", "epilog_done": "the job has not ended"}
    has_ended(cluster, job)
    found = traced(cluster, job)
    at = times(found)
    assert list(at) == [kind.key for kind in KINDS], found
    order = [at[kind.key] for kind in KINDS]
    slack = 10_000_000  # the kernel's count of when a process began
    assert all(later >= earlier - slack for earlier, later in itertools.pairwise(order)), found
    assert at["first_context"] - at["first_step"] > 900_000_000, "the script sleeps first"
    assert 250_000_000 < at["last_use"] - at["first_launch"] < 5_000_000_000
    own = hami(cluster, USER, "trace", str(job))
    assert "only root and the job's user can read its record" in own.out, (
        "the cluster's state directory is root's alone"
    )
    other = hami(cluster, OTHER, "trace", str(job))
    assert "the job belongs to games" in other.out
    assert "prolog" not in own.out + other.out


def test_a_job_without_vgpu_has_slurms_part_and_an_unknown_job_says_so(cluster: Layout) -> None:
    job = jobs.submit(cluster, USER, "--partition=cpu", script="true")
    jobs.wait_for_state(cluster, job, "COMPLETED")
    jobs.wait(cluster, lambda: tuple(times(traced(cluster, job))) == OF_SLURM, "slurmdbd to know all times", 30, job)
    found = traced(cluster, job)
    assert found["node_part_unknown"] == "the job has no vgpu, so hami_hpc notes nothing of it"
    missing = hami(cluster, USER, "trace", "999999")
    assert missing.status == 1
    assert "nothing is known of job 999999: this host has no record of it, and Slurm shows no such job" in missing.err


def test_an_array_names_its_tasks_and_a_requeued_job_has_runs(cluster: Layout) -> None:
    array = jobs.submit(cluster, USER, REQUEST, "--array=1-2", script="true")
    jobs.wait(cluster, lambda: not jobs.admin(cluster, "squeue", "-h"), "the array to end", 60)
    node.wait_until_clean(cluster)
    refused = hami(cluster, USER, "trace", str(array))
    assert refused.status == 1
    assert f"name one of {array}_1, {array}_2" in refused.err
    assert "epilog_done" in times(traced(cluster, f"{array}_2"))
    job = jobs.submit(cluster, "root", REQUEST, script="sleep 60")
    jobs.wait(cluster, lambda: "first_step" in times(traced(cluster, job)), "the first run", 30, job)
    first_step = times(traced(cluster, job))["first_step"]
    assert times(traced(cluster, job, f"--node={NODE}"))["first_step"] == first_step, "by a step of the job"
    jobs.admin(cluster, "scontrol", "requeue", str(job))
    node.wait_until_clean(cluster)
    jobs.wait(cluster, lambda: traced(cluster, job)["runs"] == 2, "the second run to be known", 30, job)
    second = traced(cluster, job)
    assert (second["run"], second["node_part_unknown"]) == (2, "the job has not been started")
    again = traced(cluster, job, "--run=1")
    assert times(again)["first_step"] == first_step
    assert "epilog_began" in times(again)
