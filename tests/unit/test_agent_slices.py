# SPDX-License-Identifier: Apache-2.0
"""What the agent sees of a job with two slices: each on its own GPU, and all of them in its record and time line."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from node_testbed import UID, UUIDS, pair_environment
from watcher_testbed import Bench, watched_node

from hami_hpc.agent.driver_limits import DriverLimits
from hami_hpc.contract import constants as c
from hami_hpc.core.agent_state import JobState
from hami_hpc.core.job_sums import JobSums, merged
from hami_hpc.core.time_watch import TimeWatch
from hami_hpc.core.watch import MIB, SECOND, Limits, Process, Slice, judge
from hami_hpc.metrics.samples import newest_runs
from hami_hpc.node import agent_file, boot, history_file, job_dirs
from hami_hpc.stages.prolog import main as prolog_main

JOB = 9


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A watched node with job 9, which has 8 GiB and 50 % of both GPUs."""
    monkeypatch.setattr("hami_hpc.stages.several_gpus._shards", lambda _job, _environment: {0: 32, 1: 32})
    with watched_node(tmp_path) as bench:
        assert prolog_main(bench.node.arguments, pair_environment(JOB)) == 0
        bench.watcher.settings = bench.watcher.settings._replace(limits=Limits(64 * MIB, frozenset({0})))
        yield bench


@pytest.fixture
def pid() -> Iterator[int]:
    """A process of the user that uses both GPUs."""
    with subprocess.Popen(["sleep", "100"], user=UID) as process:
        yield process.pid
        process.kill()


def count(bench: Bench, name: str, **values: int) -> None:
    """Writes into the head of a usage file, as the interposer does."""
    with (bench.node.jobs / str(JOB) / "shared" / name).open("r+b") as file:
        for field, value in values.items():
            offset, width, _ = c.USAGE_FIELDS[field]
            file.seek(offset)
            file.write(value.to_bytes(width, "little"))


def slices(state: Any) -> list[JobState]:
    return [job for job in state.jobs if job.job_id == JOB]


def test_a_process_on_both_gpus_is_the_jobs_own_and_each_slice_has_its_part(bench: Bench, pid: int) -> None:
    bench.slurm.pids = {pid: JOB}
    bench.hold(pid, 1000, 40.0, gpu=0)
    bench.hold(pid, 500, 10.0, gpu=1)
    count(bench, "usage", used_bytes=1000 * MIB)
    count(bench, "usage.1", used_bytes=500 * MIB, oom_count=3)
    first, second = slices(bench.look(3))
    assert (first.gpu_uuid, first.used_bytes, first.busy_percent, first.processes) == (UUIDS[0], 1000 * MIB, 40.0, 1)
    assert (second.gpu_uuid, second.used_bytes, second.busy_percent) == (UUIDS[1], 500 * MIB, 10.0)
    assert (first.mem_bytes, second.mem_bytes, second.gpu_minor) == (8192 * MIB, 8192 * MIB, 1)
    assert (first.accounted_bytes, second.accounted_bytes, second.oom_count) == (1000 * MIB, 500 * MIB, 3)
    assert bench.kinds() == ["no_interposer", "no_interposer"], "of sleep, on each GPU"
    assert len(newest_runs((first, second))) == 2, "a tenant of each GPU"


def test_a_finding_is_the_slices_on_whose_gpu_it_is(bench: Bench, pid: int) -> None:
    bench.slurm.pids = {pid: JOB}
    bench.hold(pid, 100, gpu=0)
    bench.hold(pid, 9000, gpu=1)
    first, second = slices(bench.look(6))
    assert "memory_over" in second.findings
    assert "memory_over" not in first.findings
    (event,) = [event for event in bench.events if event.kind == "memory_over"]
    assert event.gpu_uuid == UUIDS[1]


def test_a_gpu_of_neither_slice_is_the_wrong_one(bench: Bench) -> None:
    look = bench.watcher._last
    bench.look()
    assert look is None
    assert bench.watcher._last is not None
    seen = bench.watcher._last[1]
    own = [one for one in seen.slices if one.grant.job_id == JOB]
    process = Process(5, 1, UID, JOB, "GPU-x", 1, 0, True)
    (found,) = judge(seen._replace(processes=(process,)), Limits(0, frozenset()))
    assert found.text == f"process 5 of job 9 uses GPU GPU-x; its slices are on {UUIDS[0]}, {UUIDS[1]}"
    assert [one.grant.slice_index for one in own] == [0, 1]
    one_known = seen._replace(processes=(process,), slices=tuple(one for one in seen.slices if one != own[1]))
    assert not list(judge(one_known, Limits(0, frozenset()))), "the record of the other slice was lost"


def test_the_time_of_each_gpu_is_judged_by_itself(bench: Bench) -> None:
    """Half of two GPUs is no whole GPU."""
    bench.look()
    assert bench.watcher._last is not None
    seen = bench.watcher._last[1]
    watch = TimeWatch()
    for second in range(4):
        processes = tuple(Process(5, 1, UID, JOB, uuid, 0, SECOND // 2, True) for uuid in UUIDS)
        look = seen._replace(boot_ns=second * SECOND, processes=processes)
        assert list(watch.judge(look)) == []


def test_a_fault_of_one_gpu_is_of_that_slice_and_of_the_whole_record(bench: Bench) -> None:
    bench.look()
    bench.watcher.sums.mark(UUIDS[1], 79)
    first, second = slices(bench.look())
    assert (first.gpu_fault, second.gpu_fault) == (0, 79)
    assert {job.job_id for job in bench.watcher.sums.on(UUIDS[1])} == {JOB}


def test_sums_go_on_for_each_slice_when_the_agent_starts_again(bench: Bench, pid: int) -> None:
    bench.slurm.pids = {pid: JOB}
    bench.hold(pid, 500, 10.0, gpu=1)
    before = slices(bench.look(3))
    bench.watcher.sums = JobSums.resumed(before)
    first, second = slices(bench.look())
    assert (first.busy_ns, second.busy_ns) == (0, before[1].busy_ns + SECOND // 10)


def test_the_record_has_the_sums_of_all_slices(bench: Bench, pid: int) -> None:
    bench.slurm.pids = {pid: JOB}
    bench.hold(pid, 1000, 40.0, gpu=0)
    bench.hold(pid, 500, 10.0, gpu=1)
    bench.look()
    bench.watcher.sums.mark(UUIDS[1], 79)
    state = bench.look()
    run_dir, start = bench.node.settings.run_dir, slices(state)[0].created_unix_ns
    agent_file.make_folder(run_dir)
    agent_file.write(run_dir, state)
    seen = agent_file.read_observed(run_dir, boot.boot_id(), JOB, start)
    assert (seen.observed_peak_bytes, seen.observed_busy_ns) == (1500 * MIB, SECOND)
    assert (seen.observed_ns, seen.gpu_fault) == (2 * SECOND, 79)
    assert agent_file.read_observed(run_dir, boot.boot_id(), JOB, start + 1).observed_ns == 0


def test_its_time_line_is_of_all_its_gpus(bench: Bench, pid: int) -> None:
    bench.slurm.pids = {pid: JOB}
    bench.hold(pid, 1000, 40.0, gpu=0)
    bench.hold(pid, 500, 10.0, gpu=1)
    found = history_file.read(str(bench.node.jobs / str(JOB)))
    assert found is not None
    head = found[0]
    assert (head.gpu_count, head.mem_mib) == (2, 16384)
    bench.now_ns = head.start_boot_ns
    both = merged(bench.look().jobs)
    (job,) = [job for job in both if job.job_id == JOB]
    assert (job.gpu_uuid, job.used_bytes, job.busy_percent) == (",".join(UUIDS), 1500 * MIB, 25.0)
    bench.look(8)
    found = history_file.read(str(bench.node.jobs / str(JOB)))
    assert found is not None
    (minute,) = found[1]
    assert (minute.mem_mib, minute.percent) == (1500, 25)


def test_the_driver_gets_a_limit_for_each_gpu(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_on: list[tuple[str, int]] = []
    (tmp_path / f"system.slice/slurmstepd.scope/job_{JOB}").mkdir(parents=True)
    limits = DriverLimits("n1", 0, lambda _uuid: None, lambda _text: None, str(tmp_path))
    monkeypatch.setattr(limits, "_set", lambda uuid, _path, hard: set_on.append((uuid, hard)))
    own = [Slice(grant, 0, 0, 0) for grant in job_dirs.read_grants(str(bench.node.jobs / str(JOB)))]
    limits.apply(own)
    limits.apply(own)
    assert set_on == [(uuid, 8192 * MIB) for uuid in UUIDS], "once for each"
