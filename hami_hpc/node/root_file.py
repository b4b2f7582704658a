# SPDX-License-Identifier: Apache-2.0
"""Small files of root's that are replaced whole: modes and GPUs out of service, the static MIG layout."""

from __future__ import annotations

import os

from hami_hpc.errors import NodeError

MAX_BYTES = 1 << 20


def read(path: str, advice: str) -> str | None:
    """Returns the text of the file at `path`, None where there is none.

    Raises NodeError, which ends with `advice`, for a file that cannot be read or that others than root can write.
    """
    import stat

    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        with open(fd, encoding="utf-8", errors="replace") as file:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
                raise NodeError(f"{path} is not a file that root alone can write. {advice}")
            return file.read(MAX_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise NodeError(f"{path}: {error.strerror}. {advice}") from error


def make_folders(path: str) -> None:
    """Makes a directory that all can read, and those above it, where they are missing, whatever the umask: users read
    some of what is there. Raises OSError."""
    if not path or os.path.isdir(path):
        return
    make_folders(os.path.dirname(path))
    try:
        os.mkdir(path, 0o755)
        os.chmod(path, 0o755)
    except FileExistsError:  # another process has made it
        if not os.path.isdir(path):
            raise


def write(path: str, text: str, mode: int = 0o644) -> None:
    """Replaces the file, whole or not at all; removes it where there is no text. Raises NodeError."""
    from hami_hpc.core.contexts import suppress

    try:
        if not text:
            with suppress(FileNotFoundError):
                os.unlink(path)
            return
        make_folders(os.path.dirname(path))
        fd = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        with open(fd, "w", encoding="utf-8") as file:
            os.fchmod(fd, mode)  # the umask left less, or an interrupted write had another mode
            file.write(text)
            file.flush()
            os.fsync(fd)
        os.replace(f"{path}.new", path)
    except OSError as error:
        raise NodeError(f"{path} cannot be written: {error.strerror}") from error
