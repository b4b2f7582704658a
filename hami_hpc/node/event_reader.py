# SPDX-License-Identifier: Apache-2.0
"""Reads this node's events in order, across the renaming of a full file, from a position that can be kept.

For `hami-hpc events` and the agent. Nothing here writes: a reader that is stopped keeps no writer waiting.
"""

from __future__ import annotations

import json
import os
import stat
import zlib
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from hami_hpc.errors import NodeError
from hami_hpc.node import events

CHUNK = 256 << 10  # longer than any line
MARK_BYTES = 64  # of a file's beginning, which has the time of its first event


class Position(NamedTuple):
    """The end of a line: in the file of this inode, which began with text of this checksum (inodes are used again)."""

    inode: int
    mark: int
    offset: int


class Line(NamedTuple):
    """An event, and the position after it. `event` is None for a line that is no event, such as one cut off."""

    text: str
    event: dict[str, Any] | None
    after: Position


@dataclass
class _File:
    fd: int
    inode: int
    mark: int


def _open(path: str) -> _File | None:
    """Raises PermissionError where this user may not read it, NodeError for a file that is not root's own."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
        os.close(fd)
        raise NodeError(f"{path} is not a file that root alone can write: move it away, the next event makes it again")
    return _File(fd, status.st_ino, _mark(fd))


def _mark(fd: int) -> int:
    """Returns the checksum of the file's first bytes. It stays as it is once the file has a whole event."""
    return zlib.crc32(os.pread(fd, MARK_BYTES, 0))


class EventReader:
    """Reads on from `position`; from the oldest event where it is None. `missed` says, after a read, whether the
    position's file was gone: what came between is lost."""

    def __init__(self, state_dir: str, position: Position | None = None) -> None:
        self.state_dir, self.position = state_dir, position
        self.missed = False

    def read(self) -> list[Line]:
        """Returns the next lines, [] when there are none yet. Raises PermissionError, OSError and NodeError."""
        self.missed = False
        files: list[_File] = []
        opened: list[int] = []
        try:
            # In this order: a file that is renamed in between is found twice, and not missed.
            current = _open(f"{self.state_dir}/{events.NAME}")
            if current is not None:
                opened.append(current.fd)
                files.append(current)
            old = _open(f"{self.state_dir}/{events.OLD}")
            if old is not None:
                opened.append(old.fd)
                files.insert(0, old)
            if old is not None and current is not None and old.inode == current.inode:
                files.pop()
            return self._read(files)
        finally:
            for fd in opened:
                os.close(fd)

    def _read(self, files: list[_File]) -> list[Line]:
        begun = next((i for i, one in enumerate(files) if self._is_at(one)), None)
        if begun is None:
            self.missed = self.position is not None and bool(files)
            begun, offset = 0, 0
        else:
            offset = self.position.offset if self.position else 0
        for one in files[begun:]:
            lines = _lines(one, offset)
            if lines:
                self.position = lines[-1].after
                return lines
            offset = 0
        return []

    def _is_at(self, one: _File) -> bool:
        at = self.position
        return at is not None and (one.inode, one.mark) == (at.inode, at.mark) and os.fstat(one.fd).st_size >= at.offset

    def to_end(self) -> None:
        """Goes on after the last event that there is."""
        while self.read():
            pass


def _lines(one: _File, offset: int) -> list[Line]:
    """Returns the whole lines of one chunk. A last line without its end is left for later."""
    data = os.pread(one.fd, CHUNK, offset)
    mark = _mark(one.fd)  # after the data: the file may have been empty when it was opened
    end = data.rfind(b"\n") + 1
    if not end and len(data) == CHUNK:  # no event is as long
        return [Line("", None, Position(one.inode, mark, offset + CHUNK))]
    found = []
    for raw in data[:end].split(b"\n")[:-1]:
        offset += len(raw) + 1
        text = raw.decode("utf-8", "replace")
        found.append(Line(text, parse(text), Position(one.inode, mark, offset)))
    return found


def parse(text: str) -> dict[str, Any] | None:
    """Returns the event in a line; None for other text."""
    with suppress(ValueError, RecursionError):
        event = json.loads(text)
        if isinstance(event, dict) and isinstance(event.get("kind"), str) and type(event.get("time_unix_ns")) is int:
            return event
    return None
