# SPDX-License-Identifier: Apache-2.0
"""Writes render's files, each by a rename. A file that render did not write, or that was edited, is kept as a copy."""

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
    """What exists at the path of a file that is to be written."""

    ABSENT = "absent"
    SAME = "same"
    OURS = "ours"  # written by render and not edited, with other content than now
    FOREIGN = "foreign"  # edited, or not written by render, or not a regular file


def is_public(path: Path) -> bool:
    """Returns whether every user can read a file: it, and each directory above it, is open to others."""
    return bool(path.stat().st_mode & 0o004) and all(parent.stat().st_mode & 0o001 for parent in path.resolve().parents)


def read(path: Path) -> str | None:
    """Reads a file. Returns None when it does not exist. Raises NodeError when it cannot be read as text."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise NodeError(f"{path} cannot be read ({error})") from error


def mode_of(content: str) -> int:
    """Returns the permission bits of a file with this content."""
    return 0o755 if content.startswith("#!") else 0o644


def state(path: Path, content: str) -> State:
    """Compares the file at `path` with the `content` that is to be written."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        return State.FOREIGN
    old = read(path)
    if old is None:
        return State.ABSENT
    if not is_ours(old):
        return State.FOREIGN
    return State.SAME if old == content and path.stat().st_mode & 0o777 == mode_of(content) else State.OURS


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lets one render run at a time, because it reads the blocks of other nodes and writes them back."""
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
    """Writes the files, each by a rename. Keeps a copy of each foreign file and returns the copies' paths.

    Raises NodeError, which names the file that could not be written; the files before it are written.
    """
    copies = []
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
                copies.append(_keep(path, stamp))
            temporary.replace(path)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink()
            raise NodeError(f"{path} cannot be written ({error.strerror})") from error
    return copies


def _keep(path: Path, stamp: str) -> Path:
    """Links the file to a new name beside it, or renames it where links are not possible. Returns that path."""
    for count in range(1000):
        copy = path.with_name(f"{path.name}.bak-{stamp}{f'-{count}' if count else ''}")
        if not os.path.lexists(copy):
            break
    try:
        os.link(path, copy, follow_symlinks=False)
    except OSError:
        path.rename(copy)
    return copy
