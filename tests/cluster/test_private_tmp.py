# SPDX-License-Identifier: Apache-2.0
"""Slices and MPS where each job has a /tmp and a /dev/shm of its own (job_container/tmpfs): its mount namespace is made
for its first step, and has what the prolog mounted."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import cluster as private_cluster
from harness import config, jobs, layout, mounting, node
from harness.layout import Layout
from test_mps_live import daemons, ended, offer, start
from test_requests import total_mib

USER = "games"
PLACE = "/var/tmp"  # /tmp and /dev/shm are the job's own
pytestmark = pytest.mark.skipif(not mounting.can_mount(), reason="nothing can be mounted here")


@pytest.fixture(scope="module")
def private_tmp() -> Iterator[Layout]:
    folder = Path(tempfile.mkdtemp(prefix="hami-", dir=PLACE))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "PUBLIC_PARENT", PLACE)
        made = private_cluster.up(folder / "cluster")
    try:
        (folder / "jobs").mkdir(mode=0o755)
        folder.chmod(0o755)
        config.write(made.etc / "job_container.conf", f"AutoBasePath=true\nBasePath={folder}/jobs\n")
        text = made.slurm_conf.read_text()
        config.write(made.slurm_conf, f"{text}JobContainerType=job_container/tmpfs\nPrologFlags=Alloc,Contain\n")
        offer(made)
        yield made
    finally:
        private_cluster.remove(made.root)
        mounting.unmount_below(folder)
        shutil.rmtree(folder)


def test_a_slice_is_limited_in_each_job_and_step(private_tmp: Layout) -> None:
    script = "touch /tmp/mine; ls /tmp; slice --use 16\nsrun -n2 --overlap slice --use 16"
    numbers = [jobs.submit(private_tmp, USER, "-n2", "--gres=vgpu:mem=2G,cores=10", script=script) for _ in range(3)]
    for job in numbers:
        jobs.wait_for_state(private_tmp, job, "COMPLETED")
        text = jobs.output(private_tmp, USER, job)
        assert text.startswith("mine\n"), "its /tmp is its own"
        assert total_mib(text) == [2048] * 3
    node.wait_until_clean(private_tmp)


def test_jobs_of_one_user_share_a_daemon_of_mps(private_tmp: Layout) -> None:
    first, variables, got = start(private_tmp, USER, "mem=8G,cores=75")
    second, same, more = start(private_tmp, USER, "mem=4G,cores=25")
    assert variables["CUDA_MPS_PIPE_DIRECTORY"] == same["CUDA_MPS_PIPE_DIRECTORY"]
    assert (got["sms"], more["sms"]) == (99, 33)
    ended(private_tmp, first)
    assert len(daemons(private_tmp)) == 1
    ended(private_tmp, second)
    assert not daemons(private_tmp)
    node.wait_until_clean(private_tmp)
