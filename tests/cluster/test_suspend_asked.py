# SPDX-License-Identifier: Apache-2.0
"""Jobs that Slurm suspends where slurmd asks task/hami_hpc first: no time limit, and slurmd's log says what moves."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from harness import cluster as private_cluster
from harness import config, jobs, services
from harness.layout import Layout
from test_resize_live import USER, end, running
from test_suspend_live import (
    MIB,
    STACK_MIB,
    STAYS,
    USING,
    events,
    go,
    is_again,
    is_at_most,
    order,
    restart,
    state_of,
    watches,
)
from test_swap_live import BE, allocated, moving, used_mib
from test_views import hami

__all__ = ["moving"]
pytestmark = pytest.mark.slurm_before("24.11")  # which asks no task plugin (docs/adr/078)


@pytest.fixture
def asking(moving: Layout) -> Iterator[Layout]:
    """The cluster, with task/hami_hpc."""
    conf = moving.slurm_conf.read_text()
    config.write(moving.slurm_conf, conf.replace("TaskPlugin=task/none\n", "TaskPlugin=task/hami_hpc\n"))
    restart(moving)
    yield moving
    jobs.admin(moving, "scancel", f"--user={USER}")
    jobs.wait(moving, lambda: not jobs.admin(moving, "squeue", "-h"), "all jobs to be gone")
    config.write(moving.slurm_conf, conf)
    restart(moving)


def test_slurmds_log_says_what_left_and_it_is_said_once(asking: Layout) -> None:
    """The step's own watch hears of it too."""
    job = running(asking, USING, *BE)
    allocated(asking, job)
    held = used_mib(asking)
    order(asking, "suspend", job)
    is_at_most(asking, held - MIB)
    jobs.wait(asking, lambda: "T" in state_of(job, asking), "the programs to be stopped")
    said = f"job {job}: {MIB + STACK_MIB} MiB of 1 process moved off the GPU, {STAYS}"
    assert f"hami_hpc: {said}" in (asking.log / "slurmd.log").read_text()
    order(asking, "resume", job)
    is_again(asking, held)
    go(asking)
    end(asking, job)
    assert events(asking).count(said) == 1


def test_memory_of_other_classes_stays_and_slurmds_log_says_why(asking: Layout) -> None:
    job = running(asking, USING, "--gres=vgpu:mem=8G,cores=50")
    allocated(asking, job)
    held = used_mib(asking)
    order(asking, "suspend", job)
    jobs.wait(asking, lambda: "T" in state_of(job, asking), "the programs to be stopped")
    assert used_mib(asking) == held
    said = f"job {job} is suspended, and its device memory stays on the GPU: job {job} cannot be moved: its class"
    assert f"hami_hpc: {said}" in (asking.log / "slurmd.log").read_text()
    order(asking, "resume", job)
    go(asking)
    end(asking, job)


def test_a_resume_that_root_was_not_told_of(asking: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when slurmd is killed between the two: here, a slurmd that does not find root's program."""
    job = running(asking, USING, *BE)
    allocated(asking, job)
    held = used_mib(asking)
    order(asking, "suspend", job)
    is_at_most(asking, held - MIB)
    jobs.wait(asking, lambda: "T" in state_of(job, asking), "the programs to be stopped")
    with monkeypatch.context() as deaf:
        deaf.setattr(services, "_gpu_node_environment", services.clean_environment)
        private_cluster.restart(asking, "slurmd", signal.SIGKILL)
    for pid in watches(job):
        os.kill(pid, signal.SIGKILL)
    order(asking, "resume", job)
    said = "/usr/libexec/hami-hpc/suspend is not there (No such file or directory). Administrator: install hami_hpc"
    jobs.wait(asking, lambda: said in (asking.log / "slurmd.log").read_text(), "slurmd to say so")
    assert used_mib(asking) <= held - MIB
    private_cluster.restart(asking, "slurmd")
    done = hami(asking, "root", "reconcile", "--node", asking.node)
    assert done.out == f"job {job}: Slurm has resumed it; its memory comes back to the GPU\n", done.text
    is_again(asking, held)
    go(asking)
    end(asking, job)
