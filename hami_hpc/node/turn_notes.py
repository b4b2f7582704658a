# SPDX-License-Identifier: Apache-2.0
"""What the users of jobs that wait for a GPU are told: <run_dir>/turns/JOB, written by the agent for each job that is
not on its GPU, and read by that job's user through an access control list. Only where memory is oversold.

The agent's state file has the same for root and the group of [agent]. The folder's time says when the agent decided
last. A note that cannot be written is left out. A new agent learns from the notes whose memory had left, and nothing
else of them decides anything.
"""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from dataclasses import dataclass, field

from hami_hpc.contract import constants as c
from hami_hpc.core import standing
from hami_hpc.core.agent_state import Standing, standing_from_json, standing_to_json
from hami_hpc.core.grant import Grant
from hami_hpc.errors import NodeError
from hami_hpc.node import acl, boot, swapped
from hami_hpc.node.config import Settings

FOLDER = c.FILE_TURNS
MAX_BYTES = 4096
SILENT_S = 15.0  # after which nobody decides: twenty times the agent's period, and a slow disk


def folder(run_dir: str) -> str:
    return f"{run_dir}/{FOLDER}"


@dataclass
class TurnNotes:
    """The notes that one agent wrote. The first call of `update` removes those of an earlier agent."""

    run_dir: str
    _written: dict[str, Standing] = field(default_factory=dict)
    _is_clean: bool = False

    def kept(self) -> dict[int, Standing]:
        """Returns the notes of this boot that an earlier agent left, by job id. Never fails."""
        found = {}
        with suppress(OSError, NodeError):
            for name in os.listdir(folder(self.run_dir)):
                one = _read(f"{folder(self.run_dir)}/{name}", os.geteuid())
                if one is not None and name == str(one.job_id):
                    found[one.job_id] = one
        return found

    def update(self, standings: dict[Standing, int]) -> None:
        """Makes the folder have these standings, each with the uid of its job, and no others. Never fails."""
        try:
            self._update({str(one.job_id): (one, uid) for one, uid in standings.items()})
        except FileNotFoundError:  # somebody emptied the run directory
            self._written.clear()
            self._is_clean = False
        except (OSError, NodeError):
            pass

    def _update(self, wanted: dict[str, tuple[Standing, int]]) -> None:
        path = folder(self.run_dir)
        if not self._is_clean:
            _make_folder(path)
            for name in set(os.listdir(path)) - wanted.keys():
                os.unlink(f"{path}/{name}")
            self._is_clean = True
        for name in self._written.keys() - wanted.keys():
            with suppress(FileNotFoundError):
                os.unlink(f"{path}/{name}")
            del self._written[name]
        for name, (one, uid) in wanted.items():
            if self._written.get(name) != one:
                self._replace(f"{path}/{name}", name, one, uid)
        os.utime(path)

    def _replace(self, path: str, name: str, one: Standing, uid: int) -> None:
        """Writes one note. Where that fails (the disk is full) there is none, rather than an old one. Raises NodeError,
        and FileNotFoundError where the folder is gone."""
        try:
            _write(path, standing_to_json(one, boot.boot_id()), uid)
            self._written[name] = one
        except OSError:
            self._written.pop(name, None)
            for wrong in (f"{path}.new", path):
                with suppress(OSError):
                    os.unlink(wrong)
            os.stat(os.path.dirname(path))


def _make_folder(path: str) -> None:
    """Makes the folder, in which users find their note and cannot list others'. Raises OSError."""
    with suppress(FileExistsError):
        os.mkdir(path, 0o711)
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise PermissionError(f"{path} is not a directory that only root can write")
    os.chmod(path, 0o711)


def _write(path: str, text: str, uid: int) -> None:
    new = f"{path}.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(new, flags, 0o640)
    with open(fd, "w", encoding="utf-8") as file:
        os.fchmod(fd, 0o640)
        with suppress(OSError, OverflowError):  # a file system without ACLs: the user is not told
            acl.let_read(fd, uid)
        file.write(text)
    os.replace(new, path)


def _read(path: str, owner: int) -> Standing | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, encoding="utf-8", errors="replace") as file:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != owner:
                return None
            return standing_from_json(file.read(MAX_BYTES), boot.boot_id())
    except (OSError, NodeError):
        return None


def read(run_dir: str, grant: Grant) -> Standing | None:
    """Returns where a running job stands by its note; None where there is none that this user may read, for a job that
    is on its GPU, and where no agent has decided for a while. Never fails."""
    one = _read(f"{folder(run_dir)}/{grant.job_id}", 0)
    if one is None or (one.job_id, one.created_unix_ns) != (grant.job_id, grant.created_unix_ns):
        return None
    return one if seconds_silent(run_dir) <= SILENT_S else None


def standing_of(run_dir: str, grant: Grant) -> Standing:
    """Returns where a running job stands on an oversold GPU: by its note, else by what root's record and its own
    programs say. Never fails."""
    order = swapped.order_of(run_dir, grant.job_id)
    note = read(run_dir, grant)
    if note is not None and order not in standing.ON_ORDERS:
        return note
    if note is not None and note.state == standing.STAYS:
        return note
    wants = any(process.state == "wanted" for process in swapped.processes(run_dir, grant))
    return standing.by_order(grant, order, wants)


def are_taken(settings: Settings) -> bool:
    """Returns whether jobs of this node take turns, or did in this boot: those that wait go on when memory is not
    oversold any more."""
    return settings.memory_scaling > 1 or os.path.isdir(folder(settings.run_dir))


def end(run_dir: str) -> None:
    """Has no jobs take turns any more on this node: the agent does not decide, and nobody waits. Never fails."""
    with suppress(OSError):
        for name in os.listdir(folder(run_dir)):
            os.unlink(f"{folder(run_dir)}/{name}")
        os.rmdir(folder(run_dir))


def seconds_silent(run_dir: str) -> float:
    """Returns how long ago the agent decided last, s, by the clock; infinity where none did."""
    try:
        return max(0.0, time.time() - os.stat(folder(run_dir)).st_mtime)
    except OSError:
        return float("inf")
