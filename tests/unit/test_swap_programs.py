# SPDX-License-Identifier: Apache-2.0
"""What programs say of their memory: those that hold the lock of their slot, whatever else the job's file has."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from node_testbed import Node

from hami_hpc.contract import constants as c
from hami_hpc.core import swap
from hami_hpc.core.grant import Grant
from hami_hpc.core.records import USAGE_FILE_SIZE
from hami_hpc.node import swapped

F_OFD_SETLK = 37
JOB = 7


class Programs:
    """The programs of a job, each with an open file description of its own, as processes have."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fds: list[int] = []

    def add(self, slot: int, word: str = "wanted", locks: int = 1, in_use: int = 1) -> None:
        self.fds.append(fd := os.open(self.path, os.O_RDWR | os.O_CLOEXEC))
        for name, value in (("state", in_use), ("swap_state", c.SWAP_STATES[word]), ("pid", 1000 + slot)):
            offset, width, _kind = c.USAGE_SLOT_FIELDS[name]
            os.pwrite(fd, value.to_bytes(width, "little"), swap.slot_at(slot) + offset)
        if locks:
            wanted = swapped.FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, c.SLOT_LOCK_BASE + slot, locks, 0)
            fcntl.fcntl(fd, F_OFD_SETLK, wanted)


@pytest.fixture
def programs(node: Node) -> Iterator[Programs]:
    made = Programs(node.jobs / str(JOB) / c.FILE_USAGE)
    yield made
    for fd in made.fds:
        os.close(fd)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node.make(tmp_path / "node")
    assert made.prolog(JOB) == 0
    return made


def said(node: Node) -> list[tuple[int, str]]:
    grant: Grant = node.grants()[JOB]
    return [(one.slot, one.state) for one in swapped.processes(node.settings.run_dir, grant)]


def test_those_that_live_are_asked_wherever_their_slots_are(node: Node, programs: Programs) -> None:
    assert said(node) == []
    for slot, word in ((2047, "host"), (0, "wanted"), (901, "busy"), (900, "gpu")):
        programs.add(slot, word)
    programs.add(5, locks=0)  # it has died
    programs.add(6, in_use=0)  # it begins
    assert said(node) == [(0, "wanted"), (900, "gpu"), (901, "busy"), (2047, "host")]


def test_a_full_file_and_one_lock_on_all_are_read(node: Node, programs: Programs) -> None:
    programs.add(0, "host", locks=c.USAGE_SLOT_COUNT)
    for slot in range(1, c.USAGE_SLOT_COUNT):
        programs.add(slot, "wanted", locks=0)
    assert said(node) == [(0, "host"), *((slot, "wanted") for slot in range(1, c.USAGE_SLOT_COUNT))]


def test_locks_of_slots_that_nobody_uses_are_asked_for_some_times_only(
    node: Node, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel tells of one lock at a time: a process with a lock on each other slot makes it answer 2,048 times."""
    for slot in range(0, 600, 2):
        programs.add(slot, in_use=0)
    calls: list[int] = []
    real = fcntl.fcntl
    monkeypatch.setattr(fcntl, "fcntl", lambda *words: calls.append(1) or real(*words))  # type: ignore[func-returns-value]
    assert said(node) == []
    assert len(calls) <= 2 * swapped.BEGINNING_MAX


@pytest.mark.parametrize("length", [0, 1, 5000])
def test_locks_beyond_the_slots_and_to_the_end_of_the_file_are_bounded(
    node: Node, programs: Programs, length: int
) -> None:
    programs.add(2046, "wanted", locks=0)
    fd = programs.fds[0]
    wanted = swapped.FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, c.SLOT_LOCK_BASE + 2046, length, 0)
    fcntl.fcntl(fd, F_OFD_SETLK, wanted)
    assert said(node) == [(2046, "wanted")]


def test_a_file_of_another_size_says_nothing(node: Node, programs: Programs) -> None:
    programs.add(0)
    assert len(said(node)) == 1
    os.truncate(programs.path, USAGE_FILE_SIZE - 1)
    assert said(node) == []
