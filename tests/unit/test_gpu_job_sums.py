# SPDX-License-Identifier: Apache-2.0
"""What the agent adds up of jobs with whole GPUs, and how what a GPU counts is divided among its jobs."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from node_testbed import GPU_MIB, UID, UUIDS
from watcher_testbed import BLIND, GPUS, Bench, watched_node

from hami_hpc.agent import service
from hami_hpc.agent.gpus import GpuLook
from hami_hpc.agent.known_gpus import KnownGpus
from hami_hpc.core.agent_state import LOST, OK, JobState
from hami_hpc.core.gpu_jobs import GpuJob
from hami_hpc.core.watch import MIB, SECOND, Action, Kind, Limits
from hami_hpc.node import agent_file, boot, ended_dirs, gpu_jobs, history_file, job_dirs
from hami_hpc.node.agent_settings import AgentSettings

START = 10**18
BOTH = "JobId=9 JobName=a   Nodes=node1 CPU_IDs=0 Mem=0 GRES=gpu:h200:2(IDX:0-1) MinCPUsNode=1"
FIRST = "JobId=9 JobName=a   Nodes=node1 CPU_IDs=0 Mem=0 GRES=gpu:h200:1(IDX:0) MinCPUsNode=1"
SHARD = "JobId=9 JobName=a   Nodes=node1 CPU_IDs=0 Mem=0 GRES=shard:2(IDX:0) MinCPUsNode=1"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with watched_node(tmp_path) as bench:
        yield bench


@pytest.fixture
def pids() -> Iterator[list[int]]:
    """Three processes of a user."""
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(subprocess.Popen(["sleep", "100"], user=UID)) for _ in range(3)]
        yield [one.pid for one in started]
        for one in started:
            one.kill()


def note(bench: Bench, gpus: tuple[int, ...] = (0, 1), start: int = START, whole: str = "") -> None:
    gpu_jobs.place(bench.node.settings.run_dir, GpuJob(9, UID, gpus, start), whole)


def known(bench: Bench) -> None:
    """Looks until Slurm's answer is there."""
    bench.look()
    bench.slurm.finish()


def one(bench: Bench) -> JobState:
    (job,) = bench.look().gpu_jobs
    assert isinstance(job, JobState)
    return job


def test_a_job_with_whole_gpus_is_summed_over_all_of_them(bench: Bench, pids: list[int]) -> None:
    note(bench)
    bench.slurm.jobs[9] = BOTH
    bench.slurm.pids = dict.fromkeys(pids[:2], 9)
    known(bench)
    bench.hold(pids[0], 1000, 80.0, gpu=0)
    bench.hold(pids[1], 500, 40.0, gpu=1)
    bench.gpus.energy_mj, bench.gpus.pcie_bytes, bench.gpus.nvlink_bytes = 500, 70, 30
    job = one(bench)
    assert (job.job_id, job.uid, job.created_unix_ns, job.mode, job.service_class) == (9, UID, START, "gpu", "")
    assert job.gpu_uuid == ",".join(UUIDS)
    assert (job.mem_bytes, job.cores_percent, job.model, job.gpu_minor) == (2 * GPU_MIB * MIB, 200, "h200", 0)
    assert (job.used_bytes, job.peak_bytes, job.processes) == (1500 * MIB, 1500 * MIB, 2)
    assert (job.busy_ns, job.busy_percent) == (12 * SECOND // 10, 60.0)
    assert (job.energy_mj, job.pcie_bytes, job.nvlink_bytes) == (1000, 140, 60)
    bench.gpus.processes[UUIDS[0]].clear()
    assert (one(bench).used_bytes, one(bench).peak_bytes) == (500 * MIB, 1500 * MIB)
    assert [event for event in bench.events if event.job_id == 9] == []


def test_a_fault_of_one_of_its_gpus_is_the_jobs(bench: Bench) -> None:
    note(bench)
    bench.slurm.jobs[9] = BOTH
    known(bench)
    assert one(bench).gpu_fault == 0
    bench.watcher.sums.mark("GPU-elsewhere", 79)
    bench.watcher.sums.mark(UUIDS[1], 79)
    bench.watcher.sums.mark(UUIDS[0], 48)
    assert one(bench).gpu_fault == 79, "the first one stays"
    assert [job.job_id for job in bench.watcher.sums.on(UUIDS[1])] == [9]


def test_a_job_without_a_process_is_watched_too(bench: Bench) -> None:
    note(bench, (0,))
    bench.slurm.jobs[9] = FIRST
    known(bench)
    assert (one(bench).watched_ns, one(bench).watched_ns, one(bench).busy_ns) == (SECOND, 2 * SECOND, 0)


def test_shards_are_no_whole_gpus_although_the_credential_looks_the_same(bench: Bench, pids: list[int]) -> None:
    note(bench, (0,))
    bench.slurm.jobs[9] = SHARD
    bench.slurm.pids = {pids[0]: 9}
    bench.hold(pids[0], 100, 10.0)
    known(bench)
    assert bench.look(5).gpu_jobs == ()
    assert bench.events == [], "and it may use what it holds"


def test_only_the_gpus_of_this_node_count(bench: Bench) -> None:
    """Slurm's answer is about all nodes of a job; the note is about this one."""
    note(bench, (1,))
    bench.slurm.jobs[9] = BOTH
    known(bench)
    assert (one(bench).gpu_uuid, one(bench).cores_percent) == (UUIDS[1], 100)


def test_a_job_with_the_whole_node_needs_no_answer_of_slurm(bench: Bench) -> None:
    note(bench, whole="all of it")
    bench.slurm.is_up = False
    assert one(bench).gpu_uuid == ",".join(UUIDS)
    assert bench.events == []


def test_what_the_credential_says_is_what_a_job_may_use(bench: Bench, pids: list[int]) -> None:
    """Before slurmctld answers, and whatever its answer is: users write into it."""
    note(bench, (0,))
    bench.slurm.jobs[9] = FIRST.replace("=a ", "=x Nodes=n CPU_IDs=0 Mem=0 GRES= MinCPUsNode=1 ")
    bench.slurm.pids = {pids[0]: 9}
    bench.hold(pids[0], 100, 10.0, gpu=0)
    known(bench)
    bench.look(5)
    assert bench.events == []
    assert one(bench).gpu_uuid == UUIDS[0], "and the job hides nothing"
    bench.hold(pids[0], 100, 10.0, gpu=1)
    bench.look(6)
    assert bench.kinds() == ["no_grant"]


def test_a_job_whose_gpus_slurmctld_does_not_show_yet_is_asked_for_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    note(bench, (0,))
    bench.slurm.jobs[9] = FIRST.replace("gpu:h200:1(IDX:0)", "")
    known(bench)
    assert bench.look(3).gpu_jobs == ()
    bench.slurm.jobs[9] = FIRST
    known(bench)
    assert bench.look(3).gpu_jobs == ()
    monkeypatch.setattr("hami_hpc.agent.slurm_port.ASK_AGAIN_S", 0.0)
    known(bench)
    assert one(bench).gpu_uuid == UUIDS[0]


def test_a_slurmctld_that_does_not_answer_is_waited_for_and_an_answer_kept(bench: Bench) -> None:
    note(bench)
    bench.slurm.jobs[9] = BOTH
    bench.slurm.is_up = False
    known(bench)
    assert bench.look(3).gpu_jobs == ()
    bench.slurm.is_up = True
    bench.slurm._held.clear()
    known(bench)
    assert one(bench).watched_ns == SECOND
    bench.slurm._held.clear()
    bench.slurm.is_up = False
    assert one(bench).watched_ns == 2 * SECOND


def test_a_look_that_sees_nothing_and_a_lost_gpu_lose_no_sum(bench: Bench, pids: list[int]) -> None:
    note(bench)
    bench.slurm.jobs[9] = BOTH
    bench.slurm.pids = {pids[0]: 9}
    bench.hold(pids[0], 100, 50.0)
    known(bench)
    before = one(bench)
    bench.gpus.problem = BLIND
    assert bench.look(3).gpu_jobs == (before,)
    bench.gpus.problem = ""
    bench.gpus.states[UUIDS[0]] = LOST
    assert one(bench).busy_ns == before.busy_ns
    bench.gpus.states[UUIDS[0]] = OK
    assert one(bench).busy_ns == before.busy_ns + SECOND // 2
    assert one(bench).gpu_uuid == before.gpu_uuid


def test_a_look_that_sees_nothing_writes_no_minute(bench: Bench) -> None:
    folder = str(bench.node.jobs / "7")
    found = history_file.read(folder)
    assert found is not None
    bench.now_ns = found[0].start_boot_ns
    bench.look(10)
    bench.gpus.problem = BLIND
    bench.look(130)
    bench.gpus.problem = ""
    bench.look(10)
    found = history_file.read(folder)
    assert found is not None
    assert [one.minute for one in found[1]] == [0, 2]


def test_the_next_run_of_a_job_begins_at_nothing(bench: Bench, pids: list[int]) -> None:
    note(bench)
    bench.slurm.jobs[9] = BOTH
    bench.slurm.pids = {pids[0]: 9}
    bench.hold(pids[0], 100, 50.0)
    known(bench)
    assert one(bench).busy_ns > 0
    bench.gpus.processes[UUIDS[0]].clear()
    note(bench, start=START + 1)
    bench.look()
    assert (one(bench).created_unix_ns, one(bench).busy_ns, one(bench).peak_bytes) == (START + 1, 0, 0)


def test_what_was_seen_of_a_run_stays_until_its_record_is_written(bench: Bench, pids: list[int]) -> None:
    """A full disk: the epilog has set the directory aside, and the job's next run has begun."""
    note(bench)
    bench.slurm.jobs[9] = BOTH
    bench.slurm.pids = {pids[0]: 9}
    bench.hold(pids[0], 100, 50.0)
    known(bench)
    before = one(bench)
    run_dir = bench.node.settings.run_dir
    ended_dirs.set_aside(run_dir, GpuJob(9, UID, (0, 1), START))
    note(bench, start=START + 1)
    bench.look()
    first, second = sorted(bench.look().gpu_jobs, key=lambda job: job.created_unix_ns)
    assert (first, second.created_unix_ns, second.busy_ns > 0) == (before, START + 1, True)
    job_dirs.remove(run_dir, ended_dirs.ended_dir(run_dir, GpuJob(9, UID, (0, 1), START)))
    assert one(bench).created_unix_ns == START + 1


def test_an_agent_that_starts_again_goes_on_without_asking(bench: Bench, pids: list[int]) -> None:
    note(bench)
    bench.slurm.jobs[9] = BOTH
    bench.slurm.pids = {pids[0]: 9}
    bench.hold(pids[0], 100, 50.0)
    known(bench)
    before = one(bench)
    settings = bench.node.settings
    agent_file.make_folder(settings.run_dir)
    agent_file.write(settings.run_dir, bench.look())
    own = AgentSettings(1000, -1, Limits(0, frozenset()), dict.fromkeys(Kind, Action.LOG))
    again = service.make_watcher(settings, own, "node1")
    ((run, job),) = again.known_gpus._known.items()
    assert (run, job.gpu_uuids, job.mem_bytes) == ((9, START), UUIDS, before.mem_bytes)
    bench.watcher.known_gpus, bench.watcher.sums = again.known_gpus, again.sums
    bench.slurm._held.clear()
    bench.slurm.is_up = False
    assert one(bench).busy_ns == before.busy_ns + 2 * (SECOND // 2)


TYPED = BOTH.replace("gpu:h200:2(IDX:0-1)", "gpu:a:1(IDX:0),gpu:b:1(IDX:1)")


def test_where_types_are_places_slurm_says_which_gpus_a_prolog_was_not_told_of(bench: Bench, pids: list[int]) -> None:
    """From 23.02 on SLURM_JOB_GPUS of a prolog has the GPUs of the last type alone (docs/adr/055)."""
    bench.slurm.has_places = True
    note(bench, (1,))
    bench.slurm.jobs[9] = TYPED
    bench.slurm.pids = {pids[0]: 9}
    bench.hold(pids[0], 100, 10.0, gpu=0)
    known(bench)
    bench.look(5)
    assert bench.events == [], "the job may use what Slurm gave it"
    assert (one(bench).gpu_uuid, one(bench).cores_percent) == (",".join(UUIDS), 200)


def test_a_text_that_is_ambiguous_adds_no_gpu_and_hides_none(bench: Bench, pids: list[int]) -> None:
    bench.slurm.has_places = True
    note(bench, (1,))
    bench.slurm.jobs[9] = TYPED.replace("=a ", "=x   Nodes=node1 CPU_IDs=0 Mem=0 GRES=gpu:a:1(IDX:0) MinCPUsNode=1 ")
    known(bench)
    assert one(bench).gpu_uuid == UUIDS[1]


def test_where_types_are_places_nobody_is_judged_before_slurm_has_answered(bench: Bench, pids: list[int]) -> None:
    bench.slurm.has_places = True
    bench.slurm.is_up = False
    note(bench, (1,))
    bench.slurm.pids = {pids[0]: 9}
    bench.hold(pids[0], 100, 10.0, gpu=0)
    bench.look(5)
    assert bench.events == []


def test_with_mig_slurms_indices_are_those_of_parts_and_nobody_is_watched() -> None:
    looks = tuple(GpuLook(gpu, OK, is_mig=gpu.minor == 1) for gpu in GPUS)
    job = GpuJob(9, UID, (0,), START)
    assert KnownGpus().update([job], frozenset({9}), looks, lambda _job: None) == ()
    looks = tuple(GpuLook(gpu, OK) for gpu in GPUS)
    assert len(KnownGpus().update([job], frozenset({9}), looks, lambda _job: None)) == 1
    assert KnownGpus().update([job], frozenset({9}), (), lambda _job: None) == ()


def test_what_a_gpu_moved_is_divided_by_busy_time_and_idle_energy_is_nobodys(bench: Bench, pids: list[int]) -> None:
    bench.slurm.pids = {pids[0]: 7, pids[1]: 8}
    bench.look()
    bench.hold(pids[0], 100, 30.0)
    bench.hold(pids[1], 200, 10.0)
    bench.gpus.energy_mj, bench.gpus.pcie_bytes, bench.gpus.nvlink_bytes = 4000, 400, 8
    seven, eight = bench.look().jobs
    assert (seven.energy_mj, seven.pcie_bytes, seven.nvlink_bytes) == (3000, 300, 6)
    assert (eight.energy_mj, eight.pcie_bytes, eight.nvlink_bytes) == (1000, 100, 2)
    own = bench.gpus.processes[UUIDS[0]]
    own[:] = [process._replace(busy_ns=0) for process in own]
    bench.gpus.energy_mj, bench.gpus.pcie_bytes = 5000, 1000
    assert [(job.energy_mj, job.pcie_bytes) for job in bench.look().jobs] == [(3000, 300), (1000, 100)]
    own.pop()  # alone on the GPU: what it moves while nothing computes is its own
    bench.gpus.energy_mj, bench.gpus.pcie_bytes = 6000, 1500
    assert [(job.energy_mj, job.pcie_bytes) for job in bench.look().jobs] == [(3000, 800), (1000, 100)]


def test_a_state_file_of_an_older_agent_is_read(bench: Bench) -> None:
    """One without jobs with whole GPUs, and without their fields."""
    settings = bench.node.settings
    agent_file.make_folder(settings.run_dir)
    agent_file.write(settings.run_dir, bench.look())
    path = Path(agent_file.folder(settings.run_dir)) / agent_file.NAME
    text = path.read_text()
    for word in (',"gpu_jobs":[]', ',"pcie_bytes":0,"nvlink_bytes":0,"model":""'):
        assert word in text
        text = text.replace(word, "")
    path.write_text(text)
    state = agent_file.read(settings.run_dir, boot.boot_id())
    assert state is not None
    assert (state.gpu_jobs, [job.pcie_bytes for job in state.jobs]) == ((), [0, 0])
