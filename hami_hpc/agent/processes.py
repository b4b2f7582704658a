# SPDX-License-Identifier: Apache-2.0
"""Whose a process is: its start, user and Slurm job, and whether the interposer is in it. Read from /proc, by root.

Nothing of the process is trusted: its name, command line and environment are not read, a cgroup counts as Slurm's only
where no user can make one, and a library counts as the interposer only if root owns the file that is mapped.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from hami_hpc.agent.kept_file import KEPT_MAX, KeptFile
from hami_hpc.agent.slow_reads import Identity, SlowReads

LIBRARY = "libhami-hpc.so"
DELETED = " (deleted)"
# cgroup v1: /slurm/uid_1000/job_7/step_0; v2: /system.slice/slurmstepd.scope/job_7/step_0, since Slurm 26.05 with the
# job's SLUID for job_7. A NodeName can be part of both, and a container's own path can come before. The first match
# counts: users can make cgroups below their own.
_V1 = re.compile(r"/slurm(?:_[^/]+)?/uid_\d+/job_(\d+)(?:/|$)")
_V2 = re.compile(r"/(?:[^/]+_)?slurmstepd\.scope/(?:job_(\d+)|(s[0-9A-Z]{13}))(?:/|$)")
_USERS_OWN = "/user.slice/"  # where systemd lets users make cgroups of any name
ASK = 5  # how often Slurm is asked about a process that it does not list
READS = 3  # how often a process without the interposer is read at each look; later at each EVERY-th only
EVERY = 16
EXEC_S = 0.05  # longer than a program is loaded for before the interposer is there
THREADS_TRIED = 64  # of a process whose first thread has ended; those that have ended leave the list at once
NO_IMAGE = (0, 0)  # what the kernel shows of a process that has given its memory back and is about to end
STAT_BYTES = 4096  # more than all of /proc/PID/stat
MAX_BYTES = 64 << 20  # of one file of /proc; a process with every mapping that the kernel allows has some 8 MiB of maps


class Known(NamedTuple):
    """What was read of a process. `job_id` is 0 for none, -1 while Slurm does not say; has_interposer None: it could
    not be read."""

    uid: int
    job_id: int
    has_interposer: bool | None


@dataclass
class Processes:
    """Reads processes once, and again when they execute another program. `listed_pids` asks Slurm (pid -> job id, None
    when it does not answer) for processes without a cgroup of Slurm's; `sluids` says which jobs have a SLUID here;
    `root` is /proc, or a test's."""

    listed_pids: Callable[[], Mapping[int, int] | None]
    root: str = "/proc"
    sluids: Callable[[], Mapping[str, int]] = dict
    _known: dict[Identity, Known] = field(default_factory=dict)
    _asked: dict[Identity, int] = field(default_factory=dict)
    _looks: dict[Identity, int] = field(default_factory=dict)
    _files: dict[int, KeptFile] = field(default_factory=dict)
    _slow: SlowReads = field(init=False)

    def __post_init__(self) -> None:
        self._slow = SlowReads(self._has_interposer)

    def look(self, pids: Iterable[int]) -> dict[int, tuple[int, Known]]:
        """Returns start and knowledge of each process that still runs, by pid."""
        identities = [found for pid in sorted(set(pids)) if (found := self._identity(pid)) is not None]
        known = {one: self._next(one) for one in identities}
        # Of the others all is known, until they execute another program, which makes another identity of them.
        unsettled = [one for one, who in known.items() if who.job_id <= 0 or not who.has_interposer]
        self._looks = {one: self._looks.get(one, -1) + 1 for one in unsettled}
        strangers = [one for one in unsettled if known[one].job_id <= 0 and self._asked.get(one, 0) < ASK]
        listed = self.listed_pids() if strangers else {}
        self._asked = {one: times for one, times in self._asked.items() if one in known}
        if listed is not None:
            self._asked |= {one: self._asked.get(one, 0) + 1 for one in strangers}
        for one in strangers:
            # Slurm does not list a process that has ended by then.
            unlisted = 0 if listed is not None and self._identity(one.pid) == one else -1
            known[one] = known[one]._replace(job_id=(listed or {}).get(one.pid, unlisted))
        unread = [one for one in unsettled if not known[one].has_interposer and self._is_due(one)]
        for one, has_interposer in self._read_twice(unread).items():
            known[one] = known[one]._replace(has_interposer=has_interposer)
        self._known = known
        self._files = {one.pid: self._files[one.pid] for one in identities if one.pid in self._files}
        return {one.pid: (one.started, who) for one, who in known.items()}

    def _next(self, one: Identity) -> Known:
        """Returns what is known of a process; reads its job again where it was missing."""
        old = self._known.get(one)
        if old is not None and old.job_id > 0:
            return old
        new = self._read(one.pid)
        return new if old is None else new._replace(job_id=new.job_id or old.job_id, has_interposer=old.has_interposer)

    def _is_due(self, one: Identity) -> bool:
        """Returns whether to read for the interposer: it is there before a process can use a GPU, or never."""
        old = self._known.get(one)
        looks = self._looks[one]
        return old is None or old.has_interposer is None or looks < READS or looks % EVERY == 0

    def _read_twice(self, identities: list[Identity]) -> dict[Identity, bool | None]:
        """Returns who has the interposer. A process that executes a program has none for a moment: None then."""
        read = self._slow.look(identities)
        without = [one for one, has_interposer in read.items() if has_interposer is False]
        if without:
            time.sleep(EXEC_S)
            same = [one for one in without if self._identity(one.pid) == one]
            read |= dict.fromkeys(without) | self._slow.look(same)
        return read

    def is_same(self, pid: int, started: int) -> bool:
        """Returns whether the process of this pid still is the one that was started then."""
        now = self._identity(pid)
        return now is not None and now.started == started

    def kill(self, pid: int, started: int) -> bool:
        """Kills exactly this process. Returns False when it has ended: another one may have its pid."""
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            return False
        try:
            if not self.is_same(pid, started):
                return False
            signal.pidfd_send_signal(fd, signal.SIGKILL)
            return True
        except OSError:
            return False
        finally:
            os.close(fd)

    def _identity(self, pid: int) -> Identity | None:
        fields = _fields(self._stat(pid))
        if len(fields) < 26:
            return None
        started, image = int(fields[19]), (int(fields[23]), int(fields[25]))
        if fields[0] in b"ZX":
            if int(fields[17]) < 2:  # ended
                return None
            place = self._place(pid)
            fields = _fields(self._read_bytes(f"{place}/stat")) if place != str(pid) else []
            image = (int(fields[23]), int(fields[25])) if len(fields) >= 26 else NO_IMAGE
        if image == NO_IMAGE:  # it is about to end
            image = next((one.image for one in self._known if (one.pid, one.started) == (pid, started)), image)
        return Identity(pid, started, image)

    def _place(self, pid: int) -> str:
        """Returns where /proc shows a process. Where its first thread has ended while others run, which any program can
        do, that is a thread that runs: the kernel shows no memory map and, in cgroup v1, no cgroup of the first."""
        fields = _fields(self._stat(pid))
        if len(fields) < 26 or fields[0] not in b"ZX":
            return str(pid)
        with suppress(OSError), os.scandir(f"{self.root}/{pid}/task") as threads:
            for thread in islice(threads, THREADS_TRIED):
                place = f"{pid}/task/{thread.name}"
                fields = _fields(self._read_bytes(f"{place}/stat"))
                if fields and fields[0] not in b"ZX":
                    return place
        return str(pid)

    def _read_bytes(self, name: str) -> bytes:
        """Returns the start of a file of /proc; b"" where its process or thread has ended."""
        try:
            return KeptFile(f"{self.root}/{name}").read(STAT_BYTES)
        except OSError:
            return b""

    def _stat(self, pid: int) -> bytes:
        """Returns the text of /proc/PID/stat; b"" where the process has ended. Reading a kept one fails once its
        process is gone, also when another process has the pid."""
        file = self._files.get(pid)
        if file is not None:
            with suppress(OSError):
                return file.read(STAT_BYTES)
            del self._files[pid]
        try:
            file = KeptFile(f"{self.root}/{pid}/stat")
            text = file.read(STAT_BYTES)
        except OSError:
            return b""
        if len(self._files) < KEPT_MAX:
            self._files[pid] = file
        return text

    def _read(self, pid: int) -> Known:
        place = self._place(pid)
        status = re.search(r"^Uid:\s+(\d+)", self._text(place, "status"), re.MULTILINE)
        return Known(
            uid=int(status[1]) if status else -1,
            job_id=job_of(self._text(place, "cgroup"), self.sluids),
            has_interposer=None,
        )

    def _has_interposer(self, pid: int) -> bool | None:
        place = self._place(pid)
        maps = self._text(place, "maps")
        if not maps:
            return None
        for line in maps.splitlines():
            words = line.split(None, 5)  # addresses, permissions, offset, device, inode, path
            if len(words) == 6 and words[1].startswith("r-x"):
                name = words[5].removesuffix(DELETED)
                if not name.endswith(f"/{LIBRARY}"):
                    continue
                if place != str(pid):  # the kernel does not show whose file it is
                    return None
                if self._is_roots(pid, words[0], int(words[4]), words[5]):
                    return True
        return False

    def _is_roots(self, pid: int, addresses: str, inode: int, path: str) -> bool:
        """Returns whether root owns a mapped file and nobody else can write it. Without CAP_SYS_ADMIN the kernel shows
        only its path; a file that is not there any more then counts, because an installation may have replaced it."""
        try:
            status = os.stat(f"{self.root}/{pid}/map_files/{addresses}")
        except PermissionError:
            if path.endswith(DELETED):
                return True
            try:
                status = os.stat(f"{self.root}/{pid}/root{path}", follow_symlinks=False)
            except OSError:
                return False
        except OSError:
            return False
        return status.st_ino == inode and status.st_uid == 0 and not status.st_mode & 0o022

    def _text(self, place: str, name: str) -> str:
        """Returns a file's text; "" where the process has ended."""
        try:
            with open(f"{self.root}/{place}/{name}", "rb") as file:
                return file.read(MAX_BYTES).decode("utf-8", "replace")
        except OSError:
            return ""


def _fields(stat: bytes) -> list[bytes]:
    """Returns what a text of /proc/PID/stat has behind the program's name, which may have any character."""
    return stat[stat.rfind(b")") + 1 :].split(None, 26)


def job_of(cgroups: str, sluids: Callable[[], Mapping[str, int]] = dict) -> int:
    """Returns the Slurm job in the text of /proc/PID/cgroup; 0 for none, and for a SLUID that `sluids` has not."""
    for line in cgroups.splitlines():
        hierarchy, _, rest = line.partition(":")
        path = rest.partition(":")[2]
        match = (_V2 if hierarchy == "0" else _V1).search(path)
        if match is None or _USERS_OWN in path[: match.start() + 1]:
            continue
        if match.lastindex == 2:
            return sluids().get(match[2], 0)
        if len(match[1]) <= 10:
            return int(match[1])
    return 0
