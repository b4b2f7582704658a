# SPDX-License-Identifier: Apache-2.0
"""Processes that divide their job's turn beside a latency-critical one, where the job's own record is nonsense, or its
processes are stopped, killed, many, or of two steps; on the simulation. Others keep their shares."""

from __future__ import annotations

import mmap
import os
import random
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conformance import BUILD, REAL_GPU, Slice, make_slice
from swapped import SLOTS_AT, Program
from test_changes_wait import SHORT, Busy, made
from test_compute import machine, measured, run
from test_swap import START

from hami_hpc.contract import constants as c

__all__ = ["machine"]
pytestmark = pytest.mark.skipif(REAL_GPU, reason="these kernels exist on the simulation only")
Machine = tuple[Path, str]
KIND = str(BUILD / "compute/work_of_a_kind")
LONGEST_NS = (1 << 63) - 1
FIELDS = c.USAGE_SLOT_FIELDS
BUSY_S = 1.0  # for which a process that said so counts as busy


def place(tmp_path: Path) -> Path:
    return tmp_path / f"job{len(list(tmp_path.iterdir()))}"


def slot_at(index: int, field: str) -> int:
    return int(SLOTS_AT + index * c.USAGE_SLOT_SIZE + FIELDS[field][0])


def forge(record: mmap.mmap, index: int, pid: int, busy_ns: int, state: int = 1) -> None:
    struct.pack_into("<I", record, slot_at(index, "pid"), pid)
    struct.pack_into("<Q", record, slot_at(index, "busy_unix_ns"), busy_ns)
    struct.pack_into("<I", record, slot_at(index, "state"), state)


def set_processes(record: mmap.mmap, count: int) -> None:
    struct.pack_into("<I", record, c.USAGE_FIELDS["processes"][0], count)


def no_processes(record: mmap.mmap, _chance: random.Random) -> None:
    set_processes(record, 0)


def most_processes(record: mmap.mmap, _chance: random.Random) -> None:
    set_processes(record, (1 << 32) - 1)


def busy_in_the_future(record: mmap.mmap, _chance: random.Random) -> None:
    set_processes(record, c.USAGE_SLOT_COUNT)
    for index in range(c.USAGE_SLOT_COUNT):
        forge(record, index, 1, LONGEST_NS)


def all_are_busy(record: mmap.mmap, _chance: random.Random) -> None:
    set_processes(record, c.USAGE_SLOT_COUNT)
    now = time.time_ns()
    for index in range(c.USAGE_SLOT_COUNT):
        forge(record, index, 1, now)


def nonsense(record: mmap.mmap, chance: random.Random) -> None:
    set_processes(record, chance.choice((0, 1, 2, 5, 1 << 31, (1 << 32) - 1)))
    for index in range(c.USAGE_SLOT_COUNT):
        busy = chance.choice((0, time.time_ns(), time.time_ns() + 10**12, LONGEST_NS, LONGEST_NS + 1, (1 << 64) - 1))
        forge(record, index, chance.choice((0, 1, os.getpid(), (1 << 32) - 1)), busy, chance.choice((0, 1, 2, 77)))


@contextmanager
def forging(job: Slice, how: Callable[[mmap.mmap, random.Random], None]) -> Iterator[None]:
    stop, chance = threading.Event(), random.Random(5)

    def work() -> None:
        with (job.directory / c.FILE_USAGE).open("r+b") as file, mmap.mmap(file.fileno(), 0) as record:
            while not stop.wait(0.02):
                how(record, chance)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def longest_pause_s(busy: Busy) -> float:
    """The longest time between two changes: what is open for as long is no pause, but for half of its turns."""
    gaps = [after - before for before, after in zip(busy.changes, busy.changes[1:], strict=False)]
    return max(gaps, default=0) / 1e9


@pytest.mark.parametrize("how", [no_processes, most_processes, busy_in_the_future, all_are_busy, nonsense])
def test_nonsense_in_a_jobs_record_takes_nothing_from_others(
    how: Callable[[mmap.mmap, random.Random], None], tmp_path: Path, machine: Machine
) -> None:
    def found() -> tuple[float, float, float]:
        jobs = [made(tmp_path, machine, **SHORT, turn_begin_permille=begin) for begin in (0, 200)]
        running = [Busy(jobs[0], 3000), Busy(jobs[0], 3000), Busy(jobs[1], 3000)]
        time.sleep(0.5)
        with forging(jobs[0], how):
            _, _, other = (each.share() for each in running)
        assert all(each.process.returncode == 0 for each in running)
        return other, longest_pause_s(running[2]), max(map(longest_pause_s, running[:2]))

    measured(found, lambda seen: seen[0] > 16 and seen[1] < 0.2 and seen[2] < BUSY_S)


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
def test_others_go_on_and_get_the_part_of_a_process_that_was_stopped_or_killed(
    how: signal.Signals, tmp_path: Path, machine: Machine
) -> None:
    def found() -> float:
        job = made(tmp_path, machine, **SHORT | {"turn_length_permille": 1000})
        running = [Busy(job, 4000), Busy(job, 30000)]
        time.sleep(1)
        running[1].process.send_signal(how)
        share = running[0].share()
        running[1].process.kill()
        running[1].reader.join()
        running[1].process.communicate()
        return share  # half of one second, half of the next, and all of the last two

    measured(found, lambda share: share > 60)


def test_a_job_of_two_steps_divides_its_turn(tmp_path: Path, machine: Machine) -> None:
    def found() -> tuple[float, float]:
        directory, fields = place(tmp_path), SHORT | {"turn_length_permille": 1000}
        steps = [
            make_slice(
                directory, *machine, job_mib=8192, step_id=i, cores_percent=30, step_cores_percent=15, policy="burst",
                fields=fields,
            )
            for i in range(2)
        ]  # fmt: skip
        one, two = (each.share() for each in [Busy(step, 3000) for step in steps])
        return one, two

    measured(found, lambda seen: sum(seen) > 75 and min(seen) > 30)


def test_forty_busy_processes_have_their_jobs_turn(tmp_path: Path, machine: Machine) -> None:
    """In a turn of 5 ms, which has one part: none of them waits for longer than the second for which it counts."""

    def found() -> tuple[float, float]:
        fields = SHORT | {"turn_length_permille": 100}
        many = make_slice(place(tmp_path), *machine, job_mib=40_000, cores_percent=30, policy="burst", fields=fields)
        running = [Busy(many, 5000) for _ in range(40)]
        running.append(Busy(made(tmp_path, machine, **SHORT, turn_begin_permille=200), 5000))
        shares = [each.share() for each in running]
        assert all(each.process.returncode == 0 for each in running)
        return shares[-1], max(map(longest_pause_s, running[:-1]))

    measured(found, lambda seen: seen[0] > 10 and seen[1] < 2 * BUSY_S)


def test_processes_that_come_and_go_leave_two_busy_ones_their_turn(tmp_path: Path, machine: Machine) -> None:
    def found() -> float:
        job = made(tmp_path, machine, **SHORT | {"turn_length_permille": 1000})
        running = [Busy(job, 5000) for _ in range(2)]
        until, count = time.monotonic() + 4.5, 0
        while time.monotonic() < until and count < 100:
            short = [Busy(job, 5) for _ in range(2)]
            for each in short:
                each.share()
                assert each.process.returncode == 0
            count += len(short)
        return sum(each.share() for each in running)

    measured(found, lambda share: share > 35)


def test_a_process_of_several_contexts_keeps_to_its_part(tmp_path: Path, machine: Machine) -> None:
    job = made(tmp_path, machine, **SHORT | {"turn_length_permille": 1000})
    busy = Busy(job, 3000)
    run(job, KIND, "contexts", 2000, 0)
    busy.share()
    assert busy.process.returncode == 0


FORKS = (
    START
    + """
import os, time, signal
module, kernel = P(), P()
ok(cu.cuModuleLoadData(ctypes.byref(module), b"sim"))
ok(cu.cuModuleGetFunction(ctypes.byref(kernel), module, b"sim_spin_ns"))
ns = U64(1000000); params = (P * 1)(ctypes.cast(ctypes.byref(ns), P))
def spin(seconds):
    until = time.time() + seconds
    while time.time() < until:
        for _ in range(4):
            ok(cu.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, params, None))
        ok(cu.cuCtxSynchronize())
print("ready")
sys.stdin.readline()
spin(0.5)
child = os.fork()
if not child:
    time.sleep(30); os._exit(0)
spin(0.5)
print(child)
spin(0.1)
os.kill(os.getpid(), signal.SIGKILL)
"""
)


def live(job: Slice) -> list[tuple[int, int]]:
    """The process and the time at which it was last busy, of each slot in use."""
    data = (job.directory / c.FILE_USAGE).read_bytes()
    word = {name: (slot_at(0, name), FIELDS[name][1]) for name in ("state", "pid", "busy_unix_ns")}

    def of(index: int, name: str) -> int:
        at = word[name][0] + index * c.USAGE_SLOT_SIZE
        return int.from_bytes(data[at : at + word[name][1]], "little")

    return [(of(i, "pid"), of(i, "busy_unix_ns")) for i in range(c.USAGE_SLOT_COUNT) if of(i, "state")]


def test_a_forked_child_has_no_part_and_says_nothing_for_its_parent(tmp_path: Path, machine: Machine) -> None:
    job = made(tmp_path, machine, **SHORT | {"turn_length_permille": 1000})
    program = Program([sys.executable, "-u", "-c", FORKS], job.environment())
    with program:
        child = int(program.ask())
        try:
            ((pid, busy_ns),) = live(job)
            assert pid == program.process.pid
            assert time.time_ns() - busy_ns < BUSY_S * 1e9
            program.process.wait(10)
            ended = time.time_ns()
            time.sleep(0.5)
            assert all(busy_ns <= ended for _, busy_ns in live(job))
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_new_process_has_nothing_of_the_slots_last_one(tmp_path: Path, machine: Machine) -> None:
    """That its memory is on the host, or that it is busy: a process that was killed said so."""
    job = made(tmp_path, machine, **SHORT)
    with (job.directory / c.FILE_USAGE).open("r+b") as file, mmap.mmap(file.fileno(), 0) as record:
        for index in range(c.USAGE_SLOT_COUNT):
            for name, value in (("swap_state", 1), ("swap_count", 3), ("swapped_bytes", 5), ("busy_unix_ns", 7)):
                record[slot_at(index, name)] = value
    with Program([sys.executable, "-u", "-c", START + 'alloc(8); print("ready"); sys.stdin.readline()'],
                 job.environment()) as program:  # fmt: skip
        data = (job.directory / c.FILE_USAGE).read_bytes()
        own = [i for i in range(c.USAGE_SLOT_COUNT) if data[slot_at(i, "state")]]
        assert [data[slot_at(own[0], name)] for name in ("swap_state", "swap_count", "swapped_bytes")] == [0, 0, 0]
        assert data[slot_at(own[0], "busy_unix_ns")] != 7
        program.end()
