# SPDX-License-Identifier: Apache-2.0
"""Writes this node's events: <state_dir>/events.jsonl, one line of JSON for each (docs/events.md has the kinds).

Prolog, epilog, reconcile, the agent and `hami-hpc gpu` call `write`; it imports nothing that a prolog does not have
already. An event is one write to a file opened with O_APPEND, so that events of several processes never mix. A line
that a crash or a full disk cut off is ended by the next writer. At ROTATE_BYTES the file becomes events.jsonl.1; a lock
lets one process alone rename it, and never a second time. It is a file of root's own: who reads a file can lock it.
"""

from __future__ import annotations

import os
import stat
import time

from hami_hpc.core.contexts import suppress
from hami_hpc.errors import NodeError
from hami_hpc.node import locks

NAME = "events.jsonl"
OLD = f"{NAME}.1"
LOCK = "events.lock"
ROTATE_BYTES = 7 << 20
MAX_BYTES = 8 << 20  # also where nobody can rename the file: both files have at most twice as much
TEXT_MAX = 500  # characters of one text
MODE = 0o640
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def path_of(state_dir: str) -> str:
    return f"{state_dir}/{NAME}"


def write(state_dir: str, source: str, kind: str, group: int = -1, /, **fields: int | str) -> str:
    """Appends an event, and returns its line. Never fails: an event that cannot be written goes to syslog.

    `group` is the gid that may read the file; -1 keeps the file's own, which the agent sets.
    """
    line = to_line({"time_unix_ns": time.time_ns(), "kind": kind, "source": source, **fields})
    try:
        _append(state_dir, line, group)
    except Exception as error:
        from hami_hpc.node import admin_log

        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        admin_log.to_syslog(admin_log.WARNING, f"{path_of(state_dir)} cannot be written ({reason}): {line}")
    return line


def to_line(values: dict[str, int | str]) -> str:
    """Returns a flat record as one line of JSON in ASCII. Importing json takes 4 ms (docs/adr/021)."""
    pairs = [f'"{name}":{_text(value) if isinstance(value, str) else int(value)}' for name, value in values.items()]
    return "{" + ",".join(pairs) + "}"


def _text(value: str) -> str:
    value = value if len(value) <= TEXT_MAX else value[: TEXT_MAX - 3] + "..."
    if value.isascii() and value.isprintable() and '"' not in value and "\\" not in value:
        return f'"{value}"'
    return '"' + "".join([ch if " " <= ch <= "~" and ch not in '"\\' else _escaped(ch) for ch in value]) + '"'


def _escaped(ch: str) -> str:
    code = ord(ch)
    if code >= 0x10000:
        code -= 0x10000
        return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
    return "?" if 0xD800 <= code < 0xE000 else f"\\u{code:04x}"  # half of a pair stands for a byte that is no text


def _append(state_dir: str, line: str, group: int) -> None:
    path = path_of(state_dir)
    data = f"{line}\n".encode()
    while True:
        fd = _open(path, group)
        try:
            size = os.fstat(fd).st_size
            if size >= ROTATE_BYTES and _rotate(path, fd):
                group = os.fstat(fd).st_gid if group == -1 else group
                continue
            if size + len(data) > MAX_BYTES:
                raise NodeError(f"it is full, and cannot be renamed or {LOCK} is held by another process (fuser)")
            if size and os.pread(fd, 1, size - 1) != b"\n":  # what a crash or a full disk cut off
                data = b"\n" + data
            if os.write(fd, data) != len(data):
                raise NodeError("the disk is full")
            return
        finally:
            os.close(fd)


def _open(path: str, group: int) -> int:
    """Returns a descriptor of the file, made where it is missing. Raises NodeError for a file not root's own."""
    try:
        fd = os.open(path, _FLAGS)
    except FileNotFoundError:
        try:
            fd = os.open(path, _FLAGS | os.O_CREAT, MODE)
        except FileNotFoundError:
            from hami_hpc.node import root_file  # once in a node's life

            root_file.make_folders(os.path.dirname(path))
            fd = os.open(path, _FLAGS | os.O_CREAT, MODE)
        with suppress(OSError):  # the umask left less
            os.fchmod(fd, MODE)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
        os.close(fd)
        raise NodeError("it is not a file that root alone can write: move it away")
    if group not in (-1, status.st_gid):
        with suppress(OSError):  # a file system without owners: only root reads it
            os.fchown(fd, -1, group)
    return fd


def _rotate(path: str, fd: int) -> bool:
    """Makes the full file the old one. Returns False where it stays: another process does this now, or it cannot be
    renamed. Only the process that holds the lock renames it, and only the full one, so that no new file is."""
    try:
        lock = locks.acquire(f"{os.path.dirname(path)}/{LOCK}", exclusive=True, timeout_s=0)
    except (NodeError, OSError):
        return False
    try:
        at_path, full = os.stat(path, follow_symlinks=False), os.fstat(fd)
        if (at_path.st_dev, at_path.st_ino) == (full.st_dev, full.st_ino):
            os.rename(path, f"{path}.1")
    except FileNotFoundError:
        return True
    except OSError:
        return False
    finally:
        os.close(lock)
    return True
