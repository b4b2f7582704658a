# SPDX-License-Identifier: Apache-2.0
"""Writes render's files, each by a rename. A file that render did not write, or that was edited, is kept as a copy."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path

from hami_hpc.errors import NodeError
from hami_hpc.node import locks, root_file
from hami_hpc.render.marks import is_ours
from hami_hpc.slurm.plugstack import read_text

LOCK, LOCK_S = ".hami-hpc-render.lock", 60.0


class State(Enum):
    """What exists at the path of a file that is to be written."""

    ABSENT = "absent"
    SAME = "same"
    OURS = "ours"  # written by render and not edited, with other content than now
    FOREIGN = "foreign"  # edited, or not written by render, or not a regular file


def is_public(path: Path) -> bool:
    """Returns whether every user can read a file: it is there, and it and all directories above are open to others."""
    try:
        return bool(path.stat().st_mode & 0o004) and all(
            parent.stat().st_mode & 0o001 for parent in path.resolve().parents
        )
    except OSError:
        return False


def open_to_others(folder: Path) -> Path | None:
    """The folder, or one above it, whose files another user than root can replace; None when there is none."""
    for path in (folder.resolve(), *folder.resolve().parents):
        try:
            status = path.stat()
        except OSError:
            continue
        if status.st_uid != 0 or (status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX):
            return path
    return None


def read(path: Path) -> str | None:
    """Reads a file, line ends as they are. Returns None when it does not exist. Raises NodeError as read_text."""
    return read_text(str(path))


def mode_of(content: str) -> int:
    """Returns the permission bits of a file with this content."""
    return 0o755 if content.startswith("#!") else 0o644


def state(path: Path, content: str) -> State:
    """Compares the file at `path` with the `content` that is to be written. Raises NodeError when it cannot be read."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return State.ABSENT
    except OSError as error:
        raise NodeError(f"{path} cannot be read ({error.strerror})") from error
    if not stat.S_ISREG(status.st_mode):
        return State.FOREIGN
    old = read(path)
    if old is None or not is_ours(old):
        return State.FOREIGN
    return State.SAME if old == content and status.st_mode & 0o777 == mode_of(content) else State.OURS


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lets one render run at a time, because it reads the blocks of other nodes and writes them back.

    The lock is a file for its owner alone, which is removed at the end: every user can lock the directory. Raises
    HeldError when another render takes longer than LOCK_S, such as one that waits for an answer at a terminal.
    """
    try:
        root_file.make_folders(str(folder))
    except OSError as error:
        raise NodeError(f"{folder} cannot be used ({error.strerror})") from error
    path, lock = folder / LOCK, -1
    with suppress(OSError):  # some network file systems have no locks; where nothing can be written, write() says so
        lock = locks.acquire(str(path), True, LOCK_S)
    try:
        yield
    finally:
        if lock >= 0:
            with suppress(OSError):
                path.unlink()
            os.close(lock)


def write(folder: Path, files: Mapping[str, str]) -> list[Path]:
    """Writes the files beside the old ones, then renames each. Keeps a copy of each foreign file and returns the
    copies' paths.

    Raises NodeError, which names the file that could not be written. Where the disk is full no file is changed: they
    belong together.
    """
    new = {folder / name: content for name, content in files.items()}
    stamp = time.strftime("%Y%m%dT%H%M%S")
    copies = []
    try:
        for path, content in new.items():
            with _explained(path, ". No file was changed"):
                root_file.make_folders(str(path.parent))
                _write_new(_beside(path), content)
        for path, content in new.items():
            with _explained(path):
                if state(path, content) is State.FOREIGN:
                    copies.append(_keep(path, stamp))
                _beside(path).replace(path)
    except BaseException:
        for path in new:
            with suppress(OSError):
                _beside(path).unlink()
        raise
    return copies


@contextmanager
def _explained(path: Path, kept: str = "") -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NodeError(f"{path} cannot be written ({error.strerror}){kept}") from error


def _beside(path: Path) -> Path:
    """Returns the path of the new file that is to be renamed."""
    return path.with_name(f".{path.name}.new")


def _write_new(path: Path, content: str) -> None:
    """Writes a new file; one of that name, left by a run that was killed, is deleted. OSError when it cannot.

    The directory may be another user's, such as SlurmUser's: a link that was put there is not followed.
    """
    path.unlink(missing_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8", newline="") as file:
        file.write(content)
        file.flush()
        os.fchmod(fd, mode_of(content))
        os.fsync(fd)


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
