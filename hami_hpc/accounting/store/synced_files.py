# SPDX-License-Identifier: Apache-2.0
"""Files that must be on the disk before something else is done."""

from __future__ import annotations

import os
from pathlib import Path

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def write_new(path: Path, text: str, synced: bool, mode: int = 0o640) -> None:
    """Writes a new file, also where a writer that died has left one; never through a link. synced: waits until it is on
    the disk.

    Raises OSError with the file's name, and leaves no file then: part of one would keep a full disk full.
    """
    try:
        handle = os.open(path, _NEW, mode)
    except FileExistsError:
        path.unlink()
        handle = os.open(path, _NEW, mode)
    try:
        try:
            rest = text.encode()
            while rest:  # a large text is written in parts, and so is one for which the disk has too little room
                rest = rest[os.write(handle, rest) :]
            if synced:
                os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error


def sync(path: Path) -> None:
    """Waits until a file, or the names in a directory, are on the disk."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
