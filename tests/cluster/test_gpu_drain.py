# SPDX-License-Identifier: Apache-2.0
"""hami-hpc gpu: one GPU out of service, on a Slurm that places the jobs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from harness import cluster as private_cluster
from harness import config, jobs, node
from harness.layout import Layout
from harness.story import gpu_indices

USER = "games"
REASON = "Xid 63: row remapping pending"
SMALL = "--gres=vgpu:mem=8G,cores=5"
HELD = "echo on; until [ -e go ]; do sleep 0.1; done"


def hami(layout: Layout, *words: str) -> str:
    return jobs.admin(layout, "hami-hpc", "gpu", *words, "--node", config.NODE)


def listed(layout: Layout) -> dict[int, dict[str, Any]]:
    """Returns the rows of `gpu list` by minor number. Its status is 3 while a drained GPU has free shards."""
    command = ("hami-hpc", "gpu", "list", "--format", "json", "--node", config.NODE)
    rows: list[dict[str, Any]] = json.loads(jobs.admin(layout, *command, allowed=(0, 3)))
    return {row["minor"]: row for row in rows}


def device(layout: Layout, job: int | str) -> int:
    """Returns Slurm's number of the GPU that the job got."""
    (index,) = gpu_indices(layout, job)
    return index


@pytest.fixture
def cluster(restored: Layout) -> Iterator[Layout]:
    for name in ("go", "end"):
        (restored.home / USER / name).unlink(missing_ok=True)
    yield restored
    jobs.admin(restored, "scancel", f"--user={USER}")
    for name in ("go", "end"):
        (restored.home / USER / name).unlink(missing_ok=True)
    for minor in ("0", "1"):
        hami(restored, "resume", minor)


def submit(layout: Layout, count: int, script: str = "true") -> list[int]:
    """Their names are no UTF-8, which users may do."""
    return [jobs.submit(layout, USER, SMALL, "--job-name=caf\udce9", script=script) for _ in range(count)]


def ended(layout: Layout, numbers: list[int]) -> None:
    for job in numbers:
        jobs.wait_for_state(layout, job, "COMPLETED")


def gpu_of(layout: Layout, job: int) -> str:
    """Returns the UUID of the GPU that an ended job held."""
    record: dict[str, Any] = json.loads((layout.state_dir / "usage" / f"{job}.json").read_text())
    return str(record["gpu_uuid"])


def test_20_jobs_all_run_on_the_other_gpu_until_it_is_resumed(cluster: Layout) -> None:
    said = hami(cluster, "drain", "0", "--reason", REASON)
    assert said.endswith(f"is out of service: {REASON}. 0 running job(s) go on\n")
    row = listed(cluster)[0]
    assert (row["in_service"], row["reason"], row["jobs"], row["free_shards"]) == (False, REASON, [], 0)
    assert len(row["placeholder_jobs"]) == 1
    assert hami(cluster, "drain", "0", "--reason", REASON) == said
    assert listed(cluster)[0] == row
    private_cluster.restart(cluster, "slurmctld")
    numbers = submit(cluster, 20)
    whole = jobs.submit(cluster, USER, "--gres=gpu:1", script="echo $CUDA_VISIBLE_DEVICES")
    ended(cluster, [*numbers, whole])
    assert {gpu_of(cluster, job) for job in numbers} == {listed(cluster)[1]["uuid"]}
    assert jobs.output(cluster, USER, whole) == "1\n"
    assert {jobs.job_facts(cluster, job)["Restarts"] for job in numbers} == {"0"}
    assert listed(cluster)[0] == row
    assert not node.drain_reason(cluster)
    finding = {one["what"]: one for one in json.loads(doctor(cluster))}["GPU 0 out of service"]
    assert (finding["level"], REASON in finding["detail"]) == ("WARN", True)
    hami(cluster, "resume", "0")
    row = listed(cluster)[0]
    assert (row["in_service"], row["placeholder_jobs"], row["free_shards"]) == (True, [], 559)
    first = jobs.submit(cluster, USER, "--gres=vgpu:mem=100%", script="true")
    ended(cluster, [first])
    assert gpu_of(cluster, first) == row["uuid"]


def doctor(layout: Layout) -> str:
    command = ("hami-hpc", "doctor", "--format", "json", "--node", config.NODE)
    return jobs.admin(layout, "sh", "-c", '"$@" || [ $? = 3 ]', "sh", *command)


def test_a_gpu_of_a_node_in_a_reservation_is_held_in_the_reservation(cluster: Layout) -> None:
    new = ("starttime=now", "duration=20", f"nodes={config.NODE}", f"users={USER},root")
    jobs.admin(cluster, "scontrol", "create", "reservation", "reservationname=course", *new)
    try:
        assert "0 running job(s) go on" in hami(cluster, "drain", "0", "--reason", REASON)
        job = jobs.submit(cluster, USER, SMALL, "--reservation=course", script="true")
        jobs.wait_for_state(cluster, job, "COMPLETED", timeout_s=20)
        hami(cluster, "resume", "0")
    finally:
        jobs.wait(cluster, lambda: not jobs.admin(cluster, "squeue", "-h"), "all jobs to be gone", 20)
        jobs.admin(cluster, "scontrol", "delete", "reservation=course")


def test_running_jobs_go_on_and_what_they_free_is_not_given_again(cluster: Layout) -> None:
    full = jobs.submit(cluster, USER, "--gres=vgpu:mem=100%", script="echo on; until [ -e end ]; do sleep 0.1; done")
    running = submit(cluster, 3, HELD)
    started = (*running, full)  # a job whose prolog comes after the drain is sent back
    jobs.wait(cluster, lambda: all("on" in jobs.output(cluster, USER, job) for job in started), "all to run", 30)
    assert {device(cluster, job) for job in running} == {1}
    said = hami(cluster, "drain", listed(cluster)[1]["uuid"], "--reason", REASON)
    assert said.endswith(f"3 running job(s) go on: {', '.join(map(str, running))}\n")
    assert {jobs.state(cluster, job) for job in running} == {"RUNNING"}
    waiting = [*submit(cluster, 5), jobs.submit(cluster, USER, "--gres=vgpu:mem=100%", script="sleep 3")]
    (cluster.home / USER / "end").touch()
    jobs.wait_for_state(cluster, waiting[-1], "RUNNING")
    after = submit(cluster, 3)  # nothing is free but what the running jobs now free
    (cluster.home / USER / "go").touch()
    ended(cluster, [*running, *waiting, *after, full])
    rows = listed(cluster)
    assert {gpu_of(cluster, job) for job in running} == {rows[1]["uuid"]}
    assert {gpu_of(cluster, job) for job in (*waiting, *after)} == {rows[0]["uuid"]}
    assert {jobs.job_facts(cluster, job)["Restarts"] for job in (*waiting, *after)} == {"0"}
    jobs.wait(cluster, lambda: listed(cluster)[1]["free_shards"] == 0, "the GPU to be held", 10)
    assert not node.drain_reason(cluster)


def test_what_tasks_of_an_array_hold_on_the_other_gpu_is_not_held_by_them_here(cluster: Layout) -> None:
    """The last task that starts has the id of the array, by which slurmctld shows all of its tasks."""
    array = jobs.submit(cluster, USER, "--gres=vgpu:mem=8G,cores=40", "--array=1-3", script="sleep 300")
    tasks = [f"{array}_{task}" for task in (1, 2, 3)]
    for task in tasks:
        jobs.wait_for_state(cluster, task, "RUNNING")
    first, second, last = (device(cluster, task) for task in tasks)
    assert first == second != last
    assert jobs.job_facts(cluster, tasks[2])["JobId"] == str(array)
    hami(cluster, "drain", str(first), "--reason", REASON)
    held = jobs.admin(cluster, "squeue", "--noheader", "--name=hami-hpc-drain", "--format=%b").split()
    assert str(559 - 2 * 223) in [word.rpartition(":")[2] for word in held]


def drain_and_reboot(layout: Layout, minor: str) -> None:
    """Of the reboot, what counts here is that the placeholders are gone, and the file is not."""
    hami(layout, "drain", minor, "--reason", REASON)
    file = layout.state_dir / "drained-gpus.json"
    text = file.read_text()
    file.unlink()
    jobs.admin(layout, "scancel", "--name=hami-hpc-drain")
    jobs.wait(layout, lambda: not jobs.admin(layout, "squeue", "-h"), "the placeholders to be gone", 20)
    file.write_text(text)


def test_a_task_of_an_array_is_sent_back_alone(cluster: Layout) -> None:
    """The last task of an array that starts has the id of the array, by which Slurm's commands mean all of them."""
    drain_and_reboot(cluster, "1")
    large = ("--gres=vgpu:mem=100G,cores=90", "--array=1-2")
    array = jobs.submit(cluster, USER, *large, script="sleep 300")

    def facts(task: int) -> dict[str, str]:
        return jobs.job_facts(cluster, f"{array}_{task}")

    jobs.wait(cluster, lambda: facts(2)["Restarts"] == "1", "the task to be requeued", 30, array)
    assert facts(2)["JobId"] == str(array)
    assert (facts(1)["JobState"], facts(1)["Restarts"]) == ("RUNNING", "0")


def test_after_a_reboot_the_prolog_sends_jobs_back_and_the_gpu_is_filled_again(cluster: Layout) -> None:
    drain_and_reboot(cluster, "0")
    batch = jobs.submit(cluster, USER, SMALL, script="true")
    jobs.wait(cluster, lambda: jobs.job_facts(cluster, batch)["Restarts"] == "1", "the job to be requeued", 20, batch)
    jobs.wait(cluster, lambda: len(hami_rows(cluster)[0]["placeholder_jobs"]) == 1, "a placeholder", 20)
    jobs.wait(cluster, lambda: hami_rows(cluster)[1]["placeholder_jobs"] == [], "the other GPU to be free", 20)
    done = jobs.run_as(cluster, USER, ("srun", SMALL, "slice", "--use", "16"))
    assert done.status == 0, done.text
    assert not node.drain_reason(cluster)
    jobs.admin(cluster, "scancel", "--name=hami-hpc-drain")  # by mistake: its own epilog brings it back
    jobs.wait(cluster, lambda: len(hami_rows(cluster)[0]["placeholder_jobs"]) == 1, "another placeholder", 20)


def hami_rows(layout: Layout) -> dict[int, dict[str, Any]]:
    """As listed, also while a GPU that is out of service has free shards: status 3."""
    command = ("hami-hpc", "gpu", "list", "--format", "json", "--node", config.NODE)
    rows = json.loads(jobs.admin(layout, "sh", "-c", '"$@" || [ $? = 3 ]', "sh", *command))
    return {row["minor"]: row for row in rows}
