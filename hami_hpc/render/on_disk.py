# SPDX-License-Identifier: Apache-2.0
"""Writing render's files: own ones whole by a rename, edited ones only when told to and with a copy kept."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path

from hami_hpc.errors import NodeError
from hami_hpc.render.marks import is_ours


class State(Enum):
    """What lies where a file is to be written."""

    ABSENT = "absent"
    SAME = "same"
    OURS = "ours"  # as render wrote it, with other content than now
    FOREIGN = "foreign"  # edited, or not render's, or no regular file


def is_public(path: Path) -> bool:
    """Returns whether every user can read a file: it, and each directory above it, is open to others."""
    return bool(path.stat().st_mode & 0o004) and all(parent.stat().st_mode & 0o001 for parent in path.resolve().parents)


def read(path: Path) -> str | None:
    """The file's text; None when there is none. NodeError when it cannot be read as text."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise NodeError(f"{path} cannot be read ({error})") from error


def mode_of(content: str) -> int:
    return 0o755 if content.startswith("#!") else 0o644


def state(path: Path, content: str) -> State:
    """How the file at `path` stands to the content that is to be there."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        return State.FOREIGN
    there = read(path)
    if there is None:
        return State.ABSENT
    if not is_ours(there):
        return State.FOREIGN
    return State.SAME if there == content and path.stat().st_mode & 0o777 == mode_of(content) else State.OURS


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One render at a time: the blocks of other nodes are read and written back."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise NodeError(f"{folder} cannot be used ({error.strerror})") from error
    try:
        with suppress(OSError):  # some network file systems have no locks
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def write(folder: Path, files: Mapping[str, str]) -> list[Path]:
    """Writes the files, each by a rename; a foreign one is renamed first. Returns the copies that were kept so.

    NodeError names the file that could not be written; those before it are written.
    """
    kept = []
    stamp = time.strftime("%Y%m%dT%H%M%S")
    for name, content in files.items():
        path = folder / name
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("w", encoding="utf-8") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.chmod(mode_of(content))
            if state(path, content) is State.FOREIGN:
                kept.append(_keep(path, stamp))
            temporary.replace(path)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink()
            raise NodeError(f"{path} cannot be written ({error.strerror})") from error
    return kept


def _keep(path: Path, stamp: str) -> Path:
    """Links the file to a name of its own beside it (renames it where links are not possible)."""
    for count in range(1000):
        copy = path.with_name(f"{path.name}.bak-{stamp}{f'-{count}' if count else ''}")
        if not os.path.lexists(copy):
            break
    try:
        os.link(path, copy, follow_symlinks=False)
    except OSError:
        path.rename(copy)
    return copy
