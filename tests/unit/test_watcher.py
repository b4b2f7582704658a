# SPDX-License-Identifier: Apache-2.0
"""hami_hpc/agent/watcher.py: what is done about what was seen, and what happens when something fails."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from harness.mounting import unmount_below
from node_testbed import GPU_MIB, UID, UUIDS, Node
from watcher_testbed import BLIND, Bench, watched_node, write_count

from hami_hpc.agent.gpus import GpuProcess
from hami_hpc.contract import constants as c
from hami_hpc.core.agent_state import FAILED, LOST, OK
from hami_hpc.core.grant import Grant
from hami_hpc.core.watch import MIB, SECOND, Action, Incidents, Kind, Slice


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with watched_node(tmp_path) as bench:
        yield bench


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    """A process of a user."""
    with subprocess.Popen(["sleep", "100"], user=UID) as process:
        yield process
        process.kill()


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "100"], user=UID) as process:
        yield process
        process.kill()


Victim = subprocess.Popen[bytes]


def test_a_warning_goes_to_the_job_once(bench: Bench, victim: Victim) -> None:
    bench.slurm.pids = {victim.pid: 7}
    bench.hold(victim.pid, 100)
    bench.look(10)
    assert bench.kinds() == ["no_interposer"]
    ((name, how, job, text),) = bench.slurm.heard()
    assert (name, how, job) == ("scontrol", "notify", "7")
    assert text.endswith("runs without the interposer, so nothing limits it. This is recorded.")
    assert victim.poll() is None


def test_a_kill_tells_the_job_first_and_kills_this_process_only(bench: Bench, victim: Victim, other: Victim) -> None:
    bench.set(no_interposer=Action.KILL)
    bench.slurm.pids = {victim.pid: 7, other.pid: 8}
    bench.hold(victim.pid, 100)
    bench.look(2)
    bench.slurm.finish()
    bench.look()
    assert victim.wait(5) == -signal.SIGKILL
    assert other.poll() is None
    assert [event.action for event in bench.events] == [f"killed {victim.pid}"]


def test_a_kill_does_not_wait_for_a_slurmctld_that_does_not_answer(bench: Bench, victim: Victim) -> None:
    bench.set(memory_over=Action.KILL)
    bench.slurm.pids = {victim.pid: 7}
    hang = threading.Event()
    bench.slurm.run = lambda command, _timeout: (
        f"PID JOBID\n{victim.pid} 7\n" if command[1] == "listpids" else str(hang.wait(30))
    )
    bench.hold(victim.pid, 4096)
    bench.look(2)
    assert victim.poll() is None
    with mock.patch.object(Incidents, "is_waiting", return_value=False):
        assert bench.watcher.is_waiting(), "the next look comes soon"
    bench.look()
    assert victim.wait(5) == -signal.SIGKILL
    hang.set()
    bench.gpus.processes[UUIDS[0]].clear()
    bench.look(12)
    assert not bench.watcher.is_waiting()


def test_a_process_of_roots_is_never_killed(bench: Bench) -> None:
    bench.set(no_interposer=Action.KILL, memory_over=Action.FAIL)
    with subprocess.Popen(["sleep", "100"]) as process:
        bench.slurm.pids = {process.pid: 7}
        bench.hold(process.pid, 4096)
        bench.look(8)
        assert process.poll() is None
        process.kill()
    assert {event.action for event in bench.events} >= {"nothing left to kill", "nothing left to kill, job ended"}


def test_a_job_is_ended_with_a_comment_and_a_node_drained_once(bench: Bench, victim: Victim) -> None:
    bench.set(memory_over=Action.DRAIN, no_interposer=Action.IGNORE)
    bench.slurm.pids = {victim.pid: 7}
    bench.hold(victim.pid, 4096)
    bench.look(2)
    bench.slurm.finish()
    bench.look(20)
    notify, comment, cancel, drain = bench.slurm.heard()
    assert notify[:3] == ("scontrol", "notify", "7")
    assert comment[2] == "JobId=7"
    assert comment[3].startswith("AdminComment=hami_hpc: job 7 holds 4096 MiB")
    assert cancel == ("scancel", "7")
    assert drain[2:4] == ("NodeName=node1", "State=DRAIN")


def test_nothing_is_done_where_the_settings_say_so(bench: Bench, victim: Victim) -> None:
    for kind in Kind:
        bench.set(**{kind.value: Action.IGNORE})
    bench.hold(victim.pid, 4096, 100.0)
    assert bench.look(10).jobs[0].findings == ()
    assert bench.events == []


def test_a_lost_gpu_is_one_gpus_state_and_the_others_are_watched(bench: Bench, victim: Victim) -> None:
    bench.slurm.pids = {victim.pid: 7}
    bench.hold(victim.pid, 100, gpu=1)
    bench.gpus.states[UUIDS[0]] = LOST
    state = bench.look(3)
    assert [gpu.state for gpu in state.gpus] == [LOST, OK]
    assert bench.kinds() == ["gpu_lost", "wrong_gpu"]
    assert (bench.events[0].job_id, bench.events[0].gpu_uuid) == (0, UUIDS[0])
    bench.gpus.states[UUIDS[0]] = FAILED
    bench.look()
    bench.gpus.states[UUIDS[0]] = OK
    bench.look()
    assert bench.kinds()[2:] == ["gpu_lost", "gpu_back"]


def unseen(bench: Bench) -> dict[str, int]:
    look = bench.watcher.last_look()
    assert look is not None
    return dict(look.unseen)


def test_memory_of_no_process_is_told_once_where_it_lasts(bench: Bench, victim: Victim) -> None:
    bench.slurm.pids = {victim.pid: 7}
    bench.hold(victim.pid, 100)
    bench.set(no_interposer=Action.IGNORE)
    bench.gpus.unseen_bytes = 200 * MIB
    bench.look(40)
    assert unseen(bench) == {}, "the driver's own"
    bench.gpus.unseen_bytes = 2048 * MIB
    bench.look(20)
    assert unseen(bench) == dict.fromkeys(UUIDS, 2048 * MIB)
    assert bench.kinds() == []
    bench.look(40)
    assert bench.kinds() == ["memory_unseen"] * len(UUIDS)
    assert "2048 MiB are in use that NVML shows of no process" in bench.events[0].text
    bench.gpus.unseen_bytes = 0
    bench.look()
    bench.gpus.unseen_bytes = 2048 * MIB
    bench.look(40)
    assert len(bench.kinds()) == 2 * len(UUIDS)


def test_without_nvml_it_says_so_once_and_sees_again(bench: Bench) -> None:
    before = bench.look().jobs
    bench.gpus.problem = BLIND
    state = bench.look(5)
    assert (state.gpus, state.jobs, bench.kinds()) == ((), before, ["blind"])
    bench.gpus.problem = ""
    assert len(bench.look().jobs) == 2
    assert bench.kinds() == ["blind", "sees_again"]


def test_sums_of_time_memory_and_energy(bench: Bench, victim: Victim, other: Victim) -> None:
    bench.slurm.pids = {victim.pid: 7, other.pid: 8}
    bench.look()
    bench.hold(victim.pid, 100, 30.0)
    bench.hold(other.pid, 200, 10.0)
    bench.gpus.energy_mj = 4000
    bench.look()
    bench.gpus.energy_mj = 8000
    bench.gpus.processes[UUIDS[0]].pop(0)
    state = bench.look()
    seven, eight = state.jobs
    assert (seven.busy_ns, eight.busy_ns) == (3 * SECOND // 10, 2 * SECOND // 10)
    assert (seven.busy_percent, eight.busy_percent) == (0.0, 10.0), "in the last second"
    assert (seven.energy_mj, eight.energy_mj) == (3000, 1000 + 4000)
    assert (seven.used_bytes, seven.peak_bytes) == (0, 100 * MIB)
    assert seven.watched_ns == 3 * SECOND
    # the agent stood still for an hour: the sample covers a second of it
    bench.look(step_ns=3600 * SECOND)
    assert bench.look().jobs[1].busy_ns <= eight.busy_ns + 400_000_000


@pytest.fixture
def taker() -> Iterator[subprocess.Popen[bytes]]:
    """A process of another user than the jobs'."""
    with subprocess.Popen(["sleep", "100"], user=UID - 1) as process:
        yield process
        process.kill()


def test_who_has_no_memory_left_because_of_a_job_of_their_own_was_not_disturbed(
    bench: Bench, victim: Victim, other: Victim
) -> None:
    bench.slurm.pids = {victim.pid: 7, other.pid: 8}
    bench.hold(victim.pid, GPU_MIB - 1000)
    bench.look(2)
    write_count(bench.node, 8, 3)
    assert [job.disturbed_count for job in bench.look().jobs] == [0, 0]


def test_who_found_no_memory_because_of_another_is_told(bench: Bench, taker: Victim, other: Victim) -> None:
    bench.slurm.pids = {taker.pid: 7, other.pid: 8}
    bench.hold(taker.pid, GPU_MIB - 1000)
    bench.hold(other.pid, 200)
    bench.look(2)
    write_count(bench.node, 8, 3)
    state = bench.look()
    assert [job.disturbed_count for job in state.jobs] == [0, 3]
    assert "disturbed" in bench.kinds()
    assert any(command[2] == "8" and "found no memory" in command[3] for command in bench.slurm.heard())
    assert "memory_over" in state.jobs[0].findings
    assert "memory_over" not in state.jobs[1].findings
    bench.gpus.processes[UUIDS[0]][0] = GpuProcess(taker.pid, 100 * MIB, 0)  # enough is free
    write_count(bench.node, 8, 9)
    assert bench.look().jobs[1].disturbed_count == 3


def test_slurm_is_asked_once_about_the_gpus_of_a_job_without_a_slice(bench: Bench, victim: Victim) -> None:
    bench.slurm.pids = {victim.pid: 9}
    bench.slurm.jobs[9] = "JobId=9 JobName=a   Nodes=node1 CPU_IDs=0 Mem=0 GRES=gpu:h200:1(IDX:1) MinCPUsNode=1"
    bench.hold(victim.pid, 100, gpu=1)
    for _ in range(8):
        bench.look()
        bench.slurm.finish()
    assert bench.events == []
    bench.hold(victim.pid, 100, gpu=0)
    bench.look(6)
    assert bench.kinds() == ["no_grant"]


def test_events_are_kept_for_the_state_file_and_not_for_ever(bench: Bench) -> None:
    for number in range(300):
        bench.watcher.event("test", str(number))
    assert [event.text for event in bench.look().events] == [str(number) for number in range(200, 300)]


def open_usage_files(node: Node) -> int:
    """How many usage files of this node's jobs are open here; other tests may have left theirs."""
    links = [str(file.readlink()) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]
    return sum(link.startswith(str(node.jobs)) and c.FILE_USAGE in link for link in links)


def test_the_usage_file_stays_open_until_the_job_ends(bench: Bench) -> None:
    bench.look()
    assert open_usage_files(bench.node) == 2
    write_count(bench.node, 8, 3)
    assert [job.device_oom_count for job in bench.look().jobs] == [0, 3]
    bench.node.epilog(8)
    assert [job.job_id for job in bench.look().jobs] == [7]
    assert open_usage_files(bench.node) == 1
    bench.node.prolog(8, mem_mib=2048)  # requeued
    assert [job.device_oom_count for job in bench.look().jobs] == [0, 0]


def test_a_usage_file_that_is_none_says_nothing(bench: Bench) -> None:
    path = bench.node.jobs / "8" / c.FILE_USAGE
    unmount_below(bench.node.jobs / "8")
    path.unlink(missing_ok=True)
    for what in ("nothing", "a folder", "a pipe", "a link", "an empty file"):
        if what == "a folder":
            path.mkdir()
        elif what == "a pipe":
            os.mkfifo(path)
        elif what == "a link":
            path.symlink_to(bench.node.jobs / "7" / c.FILE_USAGE)
        elif what == "an empty file":
            path.touch()
        slices, _ = bench.watcher.slices.look()
        assert [one.accounted_bytes for one in slices] == [0, None], what
        assert slices[1][1:4] == (None, 0, 0), "what is not known is not counted"
        if what == "a folder":
            path.rmdir()
        else:
            path.unlink(missing_ok=True)


@pytest.mark.parametrize("name", ["9", "left"])
def test_a_link_to_itself_among_the_jobs_hides_no_job(bench: Bench, name: str) -> None:
    (bench.node.jobs / name).symlink_to(name)
    assert [job.job_id for job in bench.look().jobs] == [7, 8]


def test_a_slice_that_is_read_again_has_what_it_counts_now_and_nothing_once_it_has_ended(bench: Bench) -> None:
    slices = bench.watcher.slices
    ((first, *_), _) = slices.look()
    assert first.grant.job_id == 7
    write_count(bench.node, 7, 3)
    assert slices.slice_of(first.grant) == first._replace(device_oom_count=3)
    bench.node.epilog(7)
    slices.look()
    assert slices.slice_of(first.grant) == Slice(first.grant, None, 0, 0)


def test_a_process_of_no_job_is_shown_with_what_it_holds(bench: Bench, victim: Victim) -> None:
    bench.hold(victim.pid, 100, busy=50)
    (other,) = bench.look(2).others
    assert (other.pid, other.uid, other.job_id, other.gpu_uuid) == (victim.pid, UID, 0, UUIDS[0])
    assert (other.used_bytes, other.busy_percent) == (100 * MIB, 50.0)


def test_every_event_is_counted_by_kind(bench: Bench) -> None:
    assert bench.look().event_counts == tuple((kind.value, 0) for kind in Kind)
    for number in range(300):
        bench.watcher.event(("no_job", "started", "no_job")[number % 3], str(number))
    counts = dict(bench.look().event_counts)
    assert (counts["no_job"], counts["started"], counts["no_grant"]) == (200, 100, 0)


def test_a_program_that_takes_and_gives_all_the_time_counts_its_memory(bench: Bench, victim: Victim) -> None:
    """NVML's number and the program's own are never of the same moment."""
    bench.set(no_interposer=Action.IGNORE)
    bench.slurm.pids = {victim.pid: 7}
    bench.hold(victim.pid, 1536)
    read, times = bench.watcher.slices.slice_of, 0

    def slice_of(grant: Grant) -> Slice:
        nonlocal times
        times += 1
        return read(grant)._replace(accounted_bytes=(1536 if times % 7 == 0 else 512) * MIB)

    bench.watcher.slices.slice_of = slice_of  # type: ignore[method-assign]
    bench.look(100, SECOND // 5)
    assert bench.kinds() == []


def test_a_flood_of_findings_of_one_job_leaves_room_for_those_of_others(bench: Bench, victim: Victim) -> None:
    bench.set(no_interposer=Action.WARN)
    with contextlib.ExitStack() as stack:
        flood = [stack.enter_context(subprocess.Popen(["sleep", "100"], user=UID)) for _ in range(60)]
        bench.slurm.pids = {victim.pid: 8} | {one.pid: 7 for one in flood}
        for one in flood:
            bench.hold(one.pid, 1)
        bench.hold(victim.pid, 1)
        bench.look(3)
        for one in flood:
            one.kill()
    assert [event.job_id for event in bench.events].count(7) == 20
    assert [event.job_id for event in bench.events].count(8) == 1
    assert sorted(command[2] for command in bench.slurm.heard()) == ["7", "8"]


def test_a_job_has_as_many_processes_as_its_gpu_lists(bench: Bench, victim: Victim) -> None:
    assert [job.processes for job in bench.look().jobs] == [0, 0]
    bench.slurm.pids = {victim.pid: 7}
    bench.hold(victim.pid, 100)
    assert [job.processes for job in bench.look().jobs] == [1, 0]
