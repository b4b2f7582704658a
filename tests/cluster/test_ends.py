# SPDX-License-Identifier: Apache-2.0
"""However a job, a daemon or a disk ends, the node's state stays right and the next job runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from typing import Any

import pytest
from harness import cluster as private_cluster
from harness import daemons, jobs, node, services
from harness.layout import Layout

REQUEST = "--gres=vgpu:mem=8G,cores=50"


def usage(layout: Layout, job: int) -> dict[str, Any]:
    """What the epilog wrote down of a job."""
    path = layout.state_dir / "usage" / f"{job}.json"
    jobs.wait(layout, path.exists, f"{path}", 20, job)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def holding_job(layout: Layout) -> int:
    """A running job whose program has filled its slice and keeps it."""
    (layout.home / "games" / "release").unlink(missing_ok=True)
    job = jobs.submit(layout, "games", REQUEST, script="slice --until release; slice")
    jobs.wait(layout, lambda: "CUDA says" in jobs.output(layout, "games", job), "the slice to be filled", 30, job)
    return job


def release(layout: Layout) -> None:
    (layout.home / "games" / "release").touch()


def the_next_job_runs(layout: Layout) -> None:
    job = jobs.submit(layout, "news", REQUEST, script="slice")
    jobs.wait_for_state(layout, job, "COMPLETED")
    assert "8192 of 8192 MiB in use" in jobs.output(layout, "news", job)


def test_a_job_that_ran_into_its_limit_leaves_a_record_of_it(cluster: Layout) -> None:
    job = jobs.submit(cluster, "games", REQUEST, script="slice")
    jobs.wait_for_state(cluster, job, "COMPLETED")
    record = usage(cluster, job)
    assert record["peak_bytes"] == 8192 * node.MIB
    assert record["oom_count"] == 1


def test_a_cancelled_job_gives_everything_back(cluster: Layout) -> None:
    job = holding_job(cluster)
    assert [grant.job_id for grant in node.grants(cluster)] == [job]
    jobs.run_as(cluster, "games", ("scancel", str(job)))
    jobs.wait_for_state(cluster, job, "CANCELLED")
    node.wait_until_clean(cluster)
    assert usage(cluster, job)["peak_bytes"] == 8192 * node.MIB
    the_next_job_runs(cluster)


def test_the_memory_of_a_killed_program_is_there_for_the_next_one_of_the_job(cluster: Layout) -> None:
    job = holding_job(cluster)
    (process,) = [process for gpu in node.gpus(cluster) for process in gpu.processes]
    os.kill(process.pid, signal.SIGKILL)
    jobs.wait_for_state(cluster, job, "COMPLETED")
    assert jobs.output(cluster, "games", job).count("8192 of 8192 MiB in use") == 2 * 2  # filled, and refused more
    the_next_job_runs(cluster)


def test_a_requeued_job_is_granted_anew(cluster: Layout) -> None:
    job = holding_job(cluster)
    jobs.admin(cluster, "scontrol", "requeue", str(job))
    jobs.wait(cluster, lambda: not node.grants(cluster), "the grant to be returned", 30, job)
    time.sleep(3)  # sooner, slurmd 22.05 may run no prolog or refuse the job (docs/adr/018): see test_requeue.py
    jobs.admin(cluster, "scontrol", "update", f"jobid={job}", "starttime=now")
    jobs.wait(cluster, lambda: bool(node.grants(cluster)), "the grant of the second run", 150, job)
    release(cluster)
    jobs.wait_for_state(cluster, job, "COMPLETED")


def stage(layout: Layout, name: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs prolog or epilog by hand, as slurmd would."""
    return subprocess.run(
        (str(layout.etc / name),), env=environment, capture_output=True, text=True, timeout=30, check=False
    )


def test_a_prolog_that_runs_twice_changes_nothing(cluster: Layout) -> None:
    job = holding_job(cluster)
    folder = cluster.run_dir / "jobs" / str(job)

    def kept() -> dict[str, tuple[int, bytes]]:
        """Inode and content of each file; of the usage record and the history, which are written on, the head."""
        return {
            path.name: (path.stat().st_ino, path.read_bytes()[: 16 if path.name in ("usage", "history") else None])
            for path in folder.rglob("*")
            if path.is_file()
        }

    before = kept()
    grants = node.grants(cluster)
    environment = {"SLURM_JOB_ID": str(job), "SLURM_JOB_UID": "5", "SLURM_JOB_GPUS": "0", "HAMI_HPC_VGPU": "1"}
    environment |= {"HAMI_HPC_CLASS": "std", "HAMI_HPC_MEM_MIB": "8192", "HAMI_HPC_CORES": "50"}
    done = stage(cluster, "prolog", environment)
    assert done.returncode == 0, done.stderr
    assert kept() == before
    assert node.grants(cluster) == grants
    release(cluster)
    jobs.wait_for_state(cluster, job, "COMPLETED")


def test_an_epilog_without_a_prolog_is_content(cluster: Layout) -> None:
    done = stage(cluster, "epilog", {"SLURM_JOB_ID": "4000000", "SLURM_JOB_UID": "5", "HAMI_HPC_VGPU": "1"})
    assert done.returncode == 0, done.stderr
    the_next_job_runs(cluster)


@pytest.mark.parametrize("name", ["slurmd", "slurmctld"])
def test_jobs_live_through_a_restart_of(restored: Layout, name: str) -> None:
    job = holding_job(restored)
    private_cluster.restart(restored, name)
    assert jobs.state(restored, job) == "RUNNING"
    second = jobs.submit(restored, "news", "--gres=vgpu:mem=100%,cores=100", script="slice --use 16")
    jobs.wait_for_state(restored, second, "COMPLETED")  # on the other GPU: the first is still known to be taken
    release(restored)
    jobs.wait_for_state(restored, job, "COMPLETED")
    assert usage(restored, job)["oom_count"] == 2
    node.wait_until_clean(restored)


def test_a_killed_slurmd_is_back_with_its_jobs(restored: Layout) -> None:
    job = holding_job(restored)
    daemons.stop(restored, "slurmd", how=signal.SIGKILL)
    release(restored)
    daemons.start(restored, services.describe(restored, "slurmd"))
    jobs.wait_for_state(restored, job, "COMPLETED")
    node.wait_until_clean(restored)
    the_next_job_runs(restored)
