# SPDX-License-Identifier: Apache-2.0
"""<run_dir>/mig-holds/: the places that `hami-hpc mig defragment` keeps for instances of one profile, a file for each.

A hold ends when an instance of its profile is made there, at its time, and at a restart of the node. A file that cannot
be read holds nothing, so that no job fails by it. The prolog of each MIG job reads this.
"""

from __future__ import annotations

import os

from hami_hpc.core.contexts import suppress
from hami_hpc.core.mig_layout import Hold
from hami_hpc.core.values import NamedTuple
from hami_hpc.errors import NodeError
from hami_hpc.node import boot
from hami_hpc.node.job_dirs import read_bounded

FOLDER = "mig-holds"
SIZE_MAX = 512
COUNT_MAX = 256  # files; a GPU has at most eight
NEW = ".new"


class Kept(NamedTuple):
    """A hold on a GPU, until a time."""

    gpu_uuid: str
    hold: Hold
    until_unix_s: int


def read(run_dir: str, now_unix_s: float, gpu_uuid: str = "") -> tuple[Kept, ...]:
    """Returns the holds that are in force, of all GPUs or of one. Never fails."""
    folder = f"{run_dir}/{FOLDER}"
    found = []
    with suppress(OSError):
        for name in sorted(os.listdir(folder))[:COUNT_MAX]:
            with suppress(OSError):
                data = None if name.endswith(NEW) else read_bounded(f"{folder}/{name}", SIZE_MAX, os.geteuid())
                kept = _parse(data)
                if kept is not None and kept.until_unix_s > now_unix_s and kept.gpu_uuid == (gpu_uuid or kept.gpu_uuid):
                    found.append(kept)
    return tuple(found)


def replace(run_dir: str, wanted: tuple[Kept, ...]) -> None:
    """Makes these the only holds. Killed in between, it leaves some of the old and the new ones. Raises NodeError."""
    folder = f"{run_dir}/{FOLDER}"
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        names = {_name(kept): kept for kept in wanted}
        for name in os.listdir(folder):
            if name not in names:
                with suppress(FileNotFoundError):
                    os.unlink(f"{folder}/{name}")
        for name, kept in names.items():
            _write(f"{folder}/{name}", kept)
    except OSError as error:
        raise NodeError(f"{folder}: {error.strerror}. See df, mount and ls -ld there") from error


def used(run_dir: str, gpu_uuid: str, profile: str, start: int) -> None:
    """Ends the hold for an instance that was made at its place. Never fails."""
    with suppress(OSError):
        os.unlink(f"{run_dir}/{FOLDER}/{_name(Kept(gpu_uuid, Hold(profile, -1, start, 0), 0))}")


def _name(kept: Kept) -> str:
    return f"{kept.gpu_uuid}.{kept.hold.profile.replace('/', '_')}.{kept.hold.start}"


def _write(path: str, kept: Kept) -> None:
    hold = kept.hold
    words = (kept.gpu_uuid, kept.until_unix_s, boot.boot_id(), hold.profile_id, hold.start, hold.size, hold.profile)
    data = (" ".join(map(str, words)) + "\n").encode()
    fd = os.open(path + NEW, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if os.write(fd, data) != len(data):
            raise OSError(28, "No space left on device")
        os.rename(path + NEW, path)
    except OSError:
        os.unlink(path + NEW)
        raise
    finally:
        os.close(fd)


def _parse(data: bytes | None) -> Kept | None:
    """Returns the hold of such a line of this boot, None for any other content."""
    words = (data or b"").decode("ascii", "replace").split(" ", 6)
    if len(words) != 7 or words[2] != boot.boot_id() or not words[6].endswith("\n"):
        return None
    try:
        until_unix_s, profile_id, start, size = (int(words[at]) for at in (1, 3, 4, 5))
    except ValueError:
        return None
    if not (0 <= start < 64 and 0 < size <= 64):
        return None
    return Kept(words[0], Hold(words[6][:-1], profile_id, start, size), until_unix_s)
