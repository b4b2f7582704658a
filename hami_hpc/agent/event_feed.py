# SPDX-License-Identifier: Apache-2.0
"""Gives each event of this node to one taker (a hook, or the journal), once and in order, in a thread of its own.

What a taker was given is kept as a position in <run_dir>/agent/events/NAME, so that after a restart of the agent it
gets what came meanwhile. It gets an event twice only if the agent died between the taker's end and the writing of that
position. The file of events is the queue: of the events that wait, the newest WAITING_MAX are given and the others are
counted.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from hami_hpc.errors import NodeError
from hami_hpc.node.event_reader import EventReader, Line, Position

FOLDER = "events"
WAITING_MAX = 1000
POLL_S = 1.0
DROPS_EVERY_S = 60.0  # s between two reports of dropped events


def folder(agent_folder: str) -> str:
    return f"{agent_folder}/{FOLDER}"


def prepare(agent_folder: str) -> str:
    """Makes the folder of the positions, which root alone reads. Raises NodeError."""
    path = folder(agent_folder)
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
    except OSError as error:
        raise NodeError(f"{path} cannot be made: {error.strerror}") from error
    return path


def forget_others(path: str, kept: Collection[str]) -> None:
    """Deletes positions of takers that there are no more: one that comes back begins with the events to come."""
    with contextlib.suppress(OSError):
        for name in os.listdir(path):
            if f"{path}/{name}" not in kept:
                os.unlink(f"{path}/{name}")


def read_position(path: str) -> Position | None:
    """Returns a kept position; None where there is none, or no whole one."""
    try:
        with open(path, encoding="ascii") as file:
            inode, mark, offset = map(int, file.read(200).split())
    except (OSError, ValueError):
        return None
    return Position(inode, mark, offset)


def write_position(path: str, position: Position) -> None:
    """Replaces a kept position, whole or not at all. Raises OSError."""
    folder, _, name = path.rpartition("/")
    temporary = f"{folder}/.{name}.new"  # no hook's name begins with a dot
    with open(temporary, "w", encoding="ascii") as file:
        file.write(" ".join(map(str, position)))
    os.replace(temporary, path)


@dataclass
class Feed:
    """One taker's thread. `take` is called with each event; `dropped` with a count of those that were left out.

    `since_ns` is for a taker without a position: it begins with the first event from then on.
    """

    state_dir: str
    path: str  # of its position
    take: Callable[[Line], None]
    dropped: Callable[[int], None]
    since_ns: int = 0
    _end: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _waiting: deque[Line] = field(default_factory=deque)
    _drops: int = 0
    _reported_s: float = -1e9

    def start(self) -> None:
        self._thread = threading.Thread(target=self._work, name="events", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Tells the thread to end after what it does now."""
        self._end.set()

    def join(self, wait_s: float) -> None:
        """Waits for the thread's end, at most so long."""
        if self._thread is not None:
            self._thread.join(wait_s)

    def _work(self) -> None:
        reader: EventReader | None = None
        while not self._end.is_set():
            try:
                reader = reader or self._begin()
                self._read(reader)
            except (OSError, NodeError):  # whoever writes an event says so in syslog
                pass
            self._report()
            if self._waiting:
                self._give(self._waiting.popleft())
            else:
                self._end.wait(POLL_S)

    def _begin(self) -> EventReader:
        """Returns a reader at the kept position; without one at the first event since `since_ns`, and keeps that."""
        reader = EventReader(self.state_dir, read_position(self.path))
        if reader.position is not None:
            return reader
        old = None
        while lines := reader.read():
            for line in lines:
                if line.event is not None and line.event["time_unix_ns"] >= self.since_ns:
                    reader.position = old
                    self._keep(old)
                    return reader
                old = line.after
        self._keep(old)
        return reader

    def _keep(self, position: Position | None) -> None:
        if position is not None:
            with contextlib.suppress(OSError):  # the run directory is full, or was emptied
                write_position(self.path, position)

    def _read(self, reader: EventReader) -> None:
        """Takes what has come since; of more than WAITING_MAX the newest."""
        while lines := reader.read():
            self._drops += reader.missed  # the file with what came next was replaced: nobody knows how many
            self._waiting.extend(line for line in lines if line.event is not None)
            while len(self._waiting) > WAITING_MAX:
                self._waiting.popleft()
                self._drops += 1

    def _report(self) -> None:
        if self._drops and time.monotonic() - self._reported_s >= DROPS_EVERY_S:
            drops, self._drops = self._drops, 0
            self._reported_s = time.monotonic()
            self.dropped(drops)

    def _give(self, line: Line) -> None:
        try:
            self.take(line)
        except Exception:  # a bug in hami_hpc: the other events are given all the same
            self._drops += 1
        self._keep(line.after)
