# SPDX-License-Identifier: Apache-2.0
"""hami_hpc/agent/slow_reads.py: a process that makes its readers wait delays neither a look nor the other processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from hami_hpc.agent import slow_reads
from hami_hpc.agent.slow_reads import Identity, SlowReads, names_are_read

LOOKS_MAX = 1000  # only who waits for ever needs them


def named(pid: int, started: int = 1) -> Identity:
    return Identity(pid, started, (0, 0))


class Maps:
    """Memory maps of processes; those of `hanging` are not there before `release`. Even pids have a library mapped."""

    def __init__(self, *hanging: int) -> None:
        self.hanging = {pid: threading.Event() for pid in hanging}
        self.begun: list[int] = []
        self.is_begun = {pid: threading.Event() for pid in hanging}

    def read(self, pid: int) -> bool | None:
        self.begun.append(pid)
        if pid in self.hanging:
            self.is_begun[pid].set()
            self.hanging[pid].wait()
        return None if pid == 0 else pid % 2 == 0

    def release(self) -> None:
        for event in self.hanging.values():
            event.set()


@pytest.fixture
def maps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Maps]:
    """Processes 1 and 2 hang. A read is left to its thread at the next look."""
    monkeypatch.setattr(slow_reads, "STUCK_S", 0.0)
    monkeypatch.setattr(slow_reads, "WAIT_S", 0.05)
    made = Maps(1, 2)
    yield made
    made.release()


def looked(reads: SlowReads, *pids: int, until: int) -> dict[int, bool | None]:
    """Looks at these processes until the one of `until` is read; returns what the last look found, by pid."""
    for _ in range(LOOKS_MAX):
        found = {one.pid: value for one, value in reads.look(map(named, pids)).items()}
        if found[until] is not None:
            return found
        time.sleep(0.01)  # a thread that was left needs the lock, too
    raise AssertionError(f"process {until} was not read")


def test_each_process_has_what_was_read_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_reads, "WAIT_S", 10.0)
    maps = Maps()
    reads = SlowReads(maps.read)
    assert reads.look(map(named, (4, 5, 0))) == {named(4): True, named(5): False, named(0): None}
    assert reads.look([]) == {}
    assert reads.look([named(4)]) == {named(4): True}, "it is read at each look"
    assert maps.begun == [4, 5, 0, 4]
    threads = [thread for thread in threading.enumerate() if thread.name == "maps"]
    assert {thread.daemon for thread in threads} == {True}, "none of them keeps an agent from ending"


def test_one_that_hangs_is_unknown_and_keeps_no_other_from_being_read(maps: Maps) -> None:
    reads = SlowReads(maps.read)
    assert reads.look([named(1)]) == {named(1): None}
    assert looked(reads, 1, 4, until=4) == {1: None, 4: True}
    assert looked(reads, 5, 1, until=5) == {1: None, 5: False}
    assert maps.begun.count(1) == 1, "one thread waits for it"


def test_what_a_thread_that_was_left_reads_at_last_is_read_again(maps: Maps) -> None:
    """It may be of a long time ago."""
    reads = SlowReads(maps.read)
    reads.look([named(1)])
    looked(reads, 1, 4, until=4)
    maps.release()
    assert looked(reads, 1, until=1) == {1: False}
    assert maps.begun.count(1) == 2


def test_as_many_threads_as_may_hang_do_and_the_next_process_waits(maps: Maps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_reads, "THREADS_MAX", 1)
    reads = SlowReads(maps.read)
    reads.look([named(1)])
    reads.look([named(1), named(2)])
    for _ in range(3):
        assert reads.look([named(1), named(2), named(4)])[named(4)] is None
    assert sorted(maps.begun) == [1, 2]
    maps.release()
    assert looked(reads, 4, until=4) == {4: True}


def test_a_read_that_ends_between_two_looks_counts_at_the_second_one_if_it_is_of_the_same_process(
    maps: Maps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_reads, "STUCK_S", 3600.0)
    reads = SlowReads(maps.read)
    assert reads.look([named(1), named(2)]) == {named(1): None, named(2): None}
    maps.hanging[1].set()
    assert maps.is_begun[2].wait(10)
    assert reads.look([named(1), named(2)]) == {named(1): False, named(2): None}
    assert maps.begun == [1, 2], "each once"
    maps.release()
    monkeypatch.setattr(slow_reads, "WAIT_S", 10.0)
    assert reads.look([named(1, started=2)]) == {named(1, started=2): False}
    assert maps.begun.count(1) == 2, "another process with the same id"


def test_a_thread_that_has_nothing_to_read_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not left, however long ago its last read was: no look begins another thread."""
    monkeypatch.setattr(slow_reads, "WAIT_S", 10.0)
    reads = SlowReads(Maps().read)
    reads.look([named(4)])
    thread = reads._thread
    assert thread is not None
    for _ in range(LOOKS_MAX):
        if thread.reads is None:
            break
        time.sleep(0.01)
    monkeypatch.setattr(slow_reads, "STUCK_S", -1.0)
    assert reads.look([named(5)]) == {named(5): False}
    assert (reads._thread, reads._left) == (thread, [])


def test_nothing_more_is_waited_for_once_all_are_read_or_hang() -> None:
    one, two, three = map(named, (1, 2, 3))
    assert names_are_read((one, two), {two}, {one: None})
    assert not names_are_read((one, two, three), {two}, {one: True})
    assert names_are_read((), set(), {})
