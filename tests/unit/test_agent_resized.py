# SPDX-License-Identifier: Apache-2.0
"""What the agent sees of a job that is resized: the size of now, and nothing of what it used before as too much."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from node_testbed import UID, UUIDS
from watcher_testbed import Bench, watched_node

from hami_hpc.agent import slices
from hami_hpc.core import resize as rules
from hami_hpc.core.agent_state import JobState
from hami_hpc.core.watch import MIB, Limits
from hami_hpc.slurm import job_shards
from hami_hpc.stages import resize as stage

JOB = 9


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A watched node with job 9, which has 8 GiB and 50 % of GPU 0."""
    monkeypatch.setattr(job_shards, "read", lambda *_: {0: 279})
    monkeypatch.setattr("hami_hpc.node.drain.find_scontrol", lambda: "/usr/bin/scontrol")
    with watched_node(tmp_path) as bench:
        assert bench.node.prolog(JOB) == 0
        bench.watcher.settings = bench.watcher.settings._replace(limits=Limits(64 * MIB, frozenset({0})))
        yield bench


@pytest.fixture
def pid(bench: Bench) -> Iterator[int]:
    with subprocess.Popen(["sleep", "100"], user=UID) as process:
        bench.slurm.pids = {process.pid: JOB}
        yield process.pid
        process.kill()


def resize(bench: Bench, size: str) -> None:
    stage.resize(bench.node.settings, JOB, None, rules.parse_size(size), {"SLURMD_NODENAME": "n1"}, False)


def job_of(state: object) -> JobState:
    (job,) = (job for job in state.jobs if job.job_id == JOB)  # type: ignore[attr-defined]
    assert isinstance(job, JobState)
    return job


def works(bench: Bench, pid: int, percent: float) -> None:
    """The process has this part of the GPU's time from now on, for a minute."""
    bench.gpus.processes[UUIDS[0]].clear()
    bench.hold(pid, 100, percent)
    bench.look(60)


def kinds(bench: Bench) -> set[str]:
    return set(bench.kinds()) - {"no_interposer"}  # of sleep


def test_the_next_look_has_the_new_size(bench: Bench) -> None:
    assert job_of(bench.look()).mem_bytes == 8192 * MIB
    for size, mib, cores in (("mem=16G,cores=30", 16384, 30), ("mem=2G", 2048, 30), ("cores=50", 2048, 50)):
        resize(bench, size)
        job = job_of(bench.look())
        assert (job.mem_bytes, job.cores_percent) == (mib * MIB, cores)


def test_a_resize_within_a_tick_of_the_last_change_is_seen(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory's times are then the same as at the look before."""
    monkeypatch.setattr(slices, "SETTLED_NS", 60_000_000_000)
    bench.look()
    monkeypatch.setattr("os.utime", lambda *_: None)
    resize(bench, "mem=16G")
    assert job_of(bench.look()).mem_bytes == 16384 * MIB


def test_an_old_directory_is_not_read_again_at_each_look(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SETTLED_NS", -1)
    bench.look()
    monkeypatch.setattr(slices, "_read", lambda *_: pytest.fail("read again"))
    bench.look()


def test_memory_that_a_larger_slice_allows_is_no_finding(bench: Bench, pid: int) -> None:
    resize(bench, "mem=16G")
    bench.hold(pid, 12000)
    bench.look(6)
    assert "memory_over" not in kinds(bench)
    resize(bench, "mem=4G")  # nothing is counted by the interposer of sleep, so that is not refused
    bench.look(6)
    assert "memory_over" in kinds(bench)


def test_time_before_the_share_became_smaller_is_no_finding(bench: Bench, pid: int) -> None:
    works(bench, pid, 50)
    resize(bench, "cores=10")
    works(bench, pid, 10)
    assert "time_over" not in kinds(bench)
    works(bench, pid, 50)
    assert "time_over" in kinds(bench)
