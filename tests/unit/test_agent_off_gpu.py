# SPDX-License-Identifier: Apache-2.0
"""How long a job's memory was off the GPU: by root's order and what NVML shows, and by nothing that the job says."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from node_testbed import UID, UUIDS, job_environment
from watcher_testbed import Bench, watched_node

from hami_hpc.agent.slices import Slices
from hami_hpc.contract import constants as c
from hami_hpc.core.agent_state import LOST, JobState, from_json, to_json
from hami_hpc.core.job_sums import JobSums, merged
from hami_hpc.core.swap import OFF
from hami_hpc.core.watch import SECOND
from hami_hpc.node import agent_file, boot

JOB = 7


def order(bench: Bench, value: int, job_id: int = JOB) -> None:
    """Writes an order into the job's record, in place, as root does."""
    offset, width, _kind = c.LIMITS_FIELDS["swap"]
    directory = bench.node.jobs / str(job_id)
    before = directory.stat().st_ctime_ns
    with (directory / c.FILE_JOB_LIMITS).open("r+b") as file:
        file.seek(offset)
        file.write(value.to_bytes(width, "little"))
    assert directory.stat().st_ctime_ns == before, "the directory does not tell of it"


def job(bench: Bench, looks: int = 1) -> JobState:
    (found,) = [one for one in bench.look(looks).jobs if one.job_id == JOB]
    return found  # type: ignore[no-any-return]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A watched node, whose job 7 may be moved."""
    with watched_node(tmp_path) as bench:
        order(bench, c.SWAP_IN)
        yield bench


@pytest.fixture
def pid(bench: Bench) -> Iterator[int]:
    """A process of job 7."""
    with subprocess.Popen(["sleep", "100"], user=UID) as process:
        bench.slurm.pids = {process.pid: JOB}
        yield process.pid
        process.kill()


def holds(bench: Bench, pid: int, mib: int, busy: float = 0.0) -> None:
    """The process holds so much of its GPU from now on."""
    bench.gpus.processes[UUIDS[0]].clear()
    bench.hold(pid, mib, busy)


def test_time_counts_from_the_order_on_once_the_memory_has_left_and_until_it_is_called_back(
    bench: Bench, pid: int
) -> None:
    holds(bench, pid, 1900)
    assert (job(bench, 3).off_gpu_ns, job(bench).place) == (0, "gpu")
    order(bench, c.SWAP_OUT)
    assert (job(bench, 2).off_gpu_ns, job(bench).place) == (0, "gpu"), "it has not left yet"
    holds(bench, pid, 600)
    first = job(bench)
    assert (first.off_gpu_ns, first.place) == (SECOND, "host")
    assert job(bench, 4).off_gpu_ns == 5 * SECOND
    order(bench, c.SWAP_IN)
    assert (job(bench).off_gpu_ns, job(bench).place) == (5 * SECOND, "gpu"), "by the order, before the memory is back"


@pytest.mark.parametrize("value", [c.SWAP_IN, *OFF])
def test_each_order_by_which_memory_leaves_counts_and_no_other(bench: Bench, pid: int, value: int) -> None:
    holds(bench, pid, 10)
    order(bench, value)
    assert job(bench, 2).off_gpu_ns == (2 * SECOND if value in OFF else 0)


def test_a_program_that_works_on_the_gpu_is_not_off_it_however_little_it_holds(bench: Bench, pid: int) -> None:
    order(bench, c.SWAP_OUT)
    holds(bench, pid, 10, busy=5.0)
    assert (job(bench, 3).off_gpu_ns, job(bench).place) == (0, "gpu")


def test_many_programs_that_keep_most_of_a_jobs_memory_on_the_gpu_are_not_off_it(bench: Bench, pid: int) -> None:
    """What stays of each, in objects that are not moved: 1,025 of 2,048 MiB, which nobody else can have."""
    order(bench, c.SWAP_TURN)
    with subprocess.Popen(["sleep", "100"], user=UID) as other:
        bench.slurm.pids[other.pid] = JOB
        holds(bench, pid, 600)
        bench.hold(other.pid, 425)
        assert (job(bench, 3).off_gpu_ns, job(bench).place) == (0, "gpu")
        holds(bench, pid, 600)
        bench.hold(other.pid, 424)
        assert (job(bench, 2).off_gpu_ns, job(bench).place) == (2 * SECOND, "host")
        other.kill()


def test_a_job_without_a_process_on_the_gpu_is_off_it_and_one_on_a_lost_gpu_is_not_known_to_be(bench: Bench) -> None:
    order(bench, c.SWAP_WAIT)
    assert job(bench, 2).off_gpu_ns == 2 * SECOND
    bench.gpus.states[UUIDS[0]] = LOST
    assert job(bench, 3).off_gpu_ns == 2 * SECOND
    bench.gpus.problem = "NVML cannot be used"
    assert job(bench, 3).off_gpu_ns == 2 * SECOND


def test_of_a_gpu_that_the_driver_does_not_show_nothing_is_known_from_the_first_look_on(bench: Bench) -> None:
    """An agent that began when the GPU was lost never saw it: its jobs are not off it, and have no turns there."""
    shown = bench.gpus.look
    bench.gpus.look = lambda: shown()[1:]  # type: ignore[method-assign]
    order(bench, c.SWAP_TURN)
    assert job(bench, 2).off_gpu_ns == 0
    look = bench.watcher.last_look()
    assert look is not None
    assert look.silent == {UUIDS[0]}
    bench.gpus.look = shown  # type: ignore[method-assign]
    assert job(bench, 2).off_gpu_ns == 2 * SECOND
    look = bench.watcher.last_look()
    assert look is not None
    assert look.silent == frozenset()


def test_what_the_job_writes_of_itself_changes_nothing(bench: Bench, pid: int) -> None:
    holds(bench, pid, 1900)
    order(bench, c.SWAP_OUT)
    path = bench.node.jobs / str(JOB) / c.FILE_USAGE
    at = len(path.read_bytes()) - c.USAGE_SLOT_COUNT * c.USAGE_SLOT_SIZE
    with path.open("r+b") as file:
        for name, number in (
            ("state", 1),
            ("pid", pid),
            ("swap_state", c.SWAP_STATES["host"]),
            ("swapped_bytes", 1 << 31),
        ):
            offset, width, _kind = c.USAGE_SLOT_FIELDS[name]
            file.seek(at + offset)
            file.write(number.to_bytes(width, "little"))
    assert job(bench, 3).off_gpu_ns == 0


def test_time_for_which_the_agent_stood_still_is_not_counted(bench: Bench) -> None:
    order(bench, c.SWAP_OUT)
    job(bench)
    bench.look(step_ns=600 * SECOND)
    assert job(bench).off_gpu_ns == 4 * SECOND, "of the 600 s two, as of all sums"


def test_the_sum_is_kept_when_the_agent_starts_again(bench: Bench) -> None:
    order(bench, c.SWAP_OUT)
    state = from_json(to_json(bench.look(3)))
    assert state is not None
    bench.watcher.sums = JobSums.resumed(state.jobs)
    bench.watcher.slices = Slices(bench.node.settings.run_dir)
    assert job(bench).off_gpu_ns == 4 * SECOND


def test_a_state_file_of_before_has_none(bench: Bench) -> None:
    text = to_json(bench.look())
    for field in (',"off_gpu_ns":0', ',"place":"gpu"'):
        assert field in text
        text = text.replace(field, "")
    state = from_json(text)
    assert state is not None
    assert {(one.off_gpu_ns, one.place) for one in state.jobs} == {(0, "gpu")}


def test_of_a_job_whose_class_allows_no_move_the_record_is_not_read_again(bench: Bench) -> None:
    bench.look()
    os.utime(bench.node.jobs / "8" / c.FILE_JOB_LIMITS)
    kept = {name: set(one.kept) for name, one in bench.watcher.slices._jobs.items()}
    assert kept == {"7": {"job.limits", c.FILE_USAGE}, "8": {c.FILE_USAGE}}


def test_the_record_has_it(bench: Bench) -> None:
    order(bench, c.SWAP_OUT)
    state = bench.look(3)
    run_dir = bench.node.settings.run_dir
    agent_file.make_folder(run_dir)
    agent_file.write(run_dir, state)
    bench.node.config.write_text(bench.node.config.read_text() + "[agent]\n")
    assert bench.node.run("epilog", job_environment(JOB)) == (0, "")
    assert bench.node.record()["off_gpu_ns"] == 3 * SECOND


def test_slices_are_summed_and_the_job_is_off_when_all_are() -> None:
    from agent_states import make_job

    one = make_job(5, 0, off_gpu_ns=3, place="host")
    (both,) = merged([one, make_job(5, 1, off_gpu_ns=4)])
    assert (both.off_gpu_ns, both.place) == (7, "gpu")
    (both,) = merged([one, make_job(5, 1, place="host")])
    assert (both.off_gpu_ns, both.place) == (3, "host")


def test_of_a_record_of_several_slices_the_sum_is_read(bench: Bench) -> None:
    state = bench.look()
    (seven,) = [one for one in state.jobs if one.job_id == JOB]
    slices = (seven._replace(off_gpu_ns=3), seven._replace(gpu_uuid=UUIDS[1], off_gpu_ns=4))
    run_dir = bench.node.settings.run_dir
    agent_file.make_folder(run_dir)
    agent_file.write(run_dir, state._replace(jobs=slices))
    assert agent_file.read_observed(run_dir, boot.boot_id(), JOB, seven.created_unix_ns).off_gpu_ns == 7
    seen = agent_file.read_off_gpu(run_dir, boot.boot_id(), JOB, seven.created_unix_ns)
    assert seen == {UUIDS[0]: 3, UUIDS[1]: 4}
    assert agent_file.read_off_gpu(run_dir, boot.boot_id(), JOB, 1) is None
