# SPDX-License-Identifier: Apache-2.0
"""hami-hpc gpu: one GPU out of service, on a Slurm that places the jobs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from harness import cluster as private_cluster
from harness import config, jobs, node
from harness.layout import Layout

USER = "games"
REASON = "Xid 63: row remapping pending"
SMALL = "--gres=vgpu:mem=8G,cores=5"
HELD = "echo on; until [ -e go ]; do sleep 0.1; done"


def hami(layout: Layout, *words: str) -> str:
    return jobs.admin(layout, "hami-hpc", "gpu", *words, "--node", config.NODE)


def listed(layout: Layout) -> dict[int, dict[str, Any]]:
    """Returns the rows of `gpu list` by minor number. Its status is 3 while a drained GPU has free shards."""
    command = ("hami-hpc", "gpu", "list", "--format", "json", "--node", config.NODE)
    rows: list[dict[str, Any]] = json.loads(jobs.admin(layout, *command))
    return {row["minor"]: row for row in rows}


def device(layout: Layout, job: int) -> int:
    """Returns Slurm's number of the GPU that the job got."""
    match = re.search(r"shard(?::\w+)?:\d+\(IDX:(\d+)\)", jobs.job_facts(layout, job)["GRES"])
    assert match is not None
    return int(match[1])


@pytest.fixture
def cluster(restored: Layout) -> Iterator[Layout]:
    (restored.home / USER / "go").unlink(missing_ok=True)
    yield restored
    (restored.home / USER / "go").touch()
    for minor in ("0", "1"):
        hami(restored, "resume", minor)


def submit(layout: Layout, count: int, script: str = "true") -> list[int]:
    return [jobs.submit(layout, USER, SMALL, script=script) for _ in range(count)]


def ended(layout: Layout, numbers: list[int]) -> None:
    for job in numbers:
        jobs.wait_for_state(layout, job, "COMPLETED")


@pytest.mark.parametrize("drained", [0, 1])
def test_20_jobs_all_run_on_the_other_gpu(cluster: Layout, drained: int) -> None:
    said = hami(cluster, "drain", str(drained), "--reason", REASON)
    assert said.endswith(f"is out of service: {REASON}. 0 running job(s) go on\n")
    assert listed(cluster)[drained] | {"uuid": "", "since_unix_s": 0, "placeholder_jobs": []} == {
        "uuid": "",
        "minor": drained,
        "in_service": False,
        "reason": REASON,
        "since_unix_s": 0,
        "jobs": [],
        "placeholder_jobs": [],
        "free_shards": 0,
    }
    assert not node.drain_reason(cluster)
    if drained == 0:
        private_cluster.restart(cluster, "slurmctld")
    numbers = submit(cluster, 20)
    whole = jobs.submit(cluster, USER, "--gres=gpu:1", script="echo $CUDA_VISIBLE_DEVICES")
    ended(cluster, [*numbers, whole])
    grants = [json.loads((cluster.state_dir / "usage" / f"{job}.json").read_text()) for job in numbers]
    assert {grant["gpu_uuid"] for grant in grants} == {listed(cluster)[1 - drained]["uuid"]}
    assert jobs.output(cluster, USER, whole) == f"{1 - drained}\n"
    assert {jobs.job_facts(cluster, job)["Restarts"] for job in numbers} == {"0"}
    hami(cluster, "resume", str(drained))
    row = listed(cluster)[drained]
    assert (row["in_service"], row["placeholder_jobs"], row["free_shards"]) == (True, [], 559)
    both = [jobs.submit(cluster, USER, "--gres=vgpu:mem=100%", script=HELD) for _ in range(2)]
    for job in both:
        jobs.wait_for_state(cluster, job, "RUNNING")
    assert {device(cluster, job) for job in both} == {0, 1}


def test_running_jobs_go_on_and_what_they_free_is_not_given_again(cluster: Layout) -> None:
    running = submit(cluster, 3, HELD)  # all on GPU 0, the first with room
    full = jobs.submit(cluster, USER, "--gres=vgpu:mem=80%", script="echo on; until [ -e end ]; do sleep 0.1; done; rm end")
    for job in (*running, full):  # a job whose prolog comes after the drain is sent back
        jobs.wait(cluster, lambda job=job: "on" in jobs.output(cluster, USER, job), f"job {job} to run", 30, job)
    assert {device(cluster, job) for job in running} == {0}
    before = device(cluster, full)
    said = hami(cluster, "drain", "0", "--reason", REASON)
    on_it = [*running, full] if before == 0 else running
    assert said.endswith(f"{len(on_it)} running job(s) go on: {', '.join(map(str, on_it))}\n")
    waiting = [*submit(cluster, 17), jobs.submit(cluster, USER, "--gres=vgpu:mem=100%", script="true")]
    (cluster.home / USER / "end").touch()
    ended(cluster, [full, *waiting])
    (cluster.home / USER / "go").touch()
    after = submit(cluster, 3)
    ended(cluster, [*running, *after])
    uuid = listed(cluster)[0]["uuid"]
    records = {
        job: json.loads((cluster.state_dir / "usage" / f"{job}.json").read_text())["gpu_uuid"]
        for job in (*running, *waiting, *after)
    }
    assert [job for job in (*waiting, *after) if records[job] == uuid] == []
    assert {records[job] for job in running} == {uuid}
    jobs.wait(cluster, lambda: listed(cluster)[0]["free_shards"] == 0, "the GPU to be held", 10)
    assert not node.drain_reason(cluster)
