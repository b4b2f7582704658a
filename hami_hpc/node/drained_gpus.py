# SPDX-License-Identifier: Apache-2.0
"""The file of the GPUs out of service, <state_dir>/drained-gpus.json. Root writes it; it survives a reboot.

It does not exist while all GPUs are in service: a prolog looks for the file only.
"""

from __future__ import annotations

import os

from hami_hpc.errors import NodeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from hami_hpc.core.out_of_service import DrainedGpu

NAME = "drained-gpus.json"
MAX_BYTES = 1 << 20


def path_of(state_dir: str) -> str:
    return f"{state_dir}/{NAME}"


def read(state_dir: str) -> tuple[DrainedGpu, ...]:
    """Returns the GPUs out of service. Raises NodeError for a file that cannot be read or was not written by root."""
    import stat

    from hami_hpc.core.out_of_service import from_json

    path = path_of(state_dir)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        with open(fd, encoding="utf-8", errors="replace") as file:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
                raise NodeError(f"{path} is not a file that root alone can write. {_advice(path)}")
            return from_json(file.read(MAX_BYTES))
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise NodeError(f"{path}: {error.strerror}. {_advice(path)}") from error
    except ValueError as error:
        raise NodeError(f"{path} is damaged ({error}). {_advice(path)}") from error


def write(state_dir: str, gpus: Sequence[DrainedGpu]) -> None:
    """Replaces the file, whole or not at all; removes it when no GPU is out of service. Raises NodeError."""
    from contextlib import suppress

    from hami_hpc.core.out_of_service import to_json

    path = path_of(state_dir)
    try:
        if not gpus:
            with suppress(FileNotFoundError):
                os.unlink(path)
            return
        os.makedirs(state_dir, 0o755, exist_ok=True)
        fd = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        with open(fd, "w", encoding="utf-8") as file:
            file.write(to_json(gpus))
            file.flush()
            os.fsync(fd)
        os.replace(f"{path}.new", path)
    except OSError as error:
        raise NodeError(f"{path} cannot be written: {error.strerror}") from error


def _advice(path: str) -> str:
    return (
        f"No GPU counts as out of service until it can be read. Delete {path}, then run hami-hpc gpu drain for each "
        "GPU that is to stay out"
    )
