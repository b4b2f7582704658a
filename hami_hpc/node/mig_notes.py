# SPDX-License-Identifier: Apache-2.0
"""<run_dir>/mig/GPU-UUID/: which MIG instances hami_hpc made, one file for each. What is not noted there is not ours.

A note is written before its instance is made (state `begun`, without an id), and completed in place, which needs no
room on a disk. `ending` is written before the instance is taken apart. All is done under the GPU's lock, which dies
with its holder. Instances do not survive a restart of the node: a note of another boot is of none.
"""

from __future__ import annotations

import os

from hami_hpc.core.contexts import contextmanager, suppress
from hami_hpc.core.grant import Grant
from hami_hpc.core.mig_layout import Instance
from hami_hpc.core.values import NamedTuple
from hami_hpc.errors import NodeError
from hami_hpc.node import locks
from hami_hpc.node.job_dirs import read_bounded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = "mig"
LOCK_TIMEOUT_S = 60.0  # the driver may take seconds for an instance, and seven jobs may start at once
SIZE = 512
NO_UUID = "-"
BEGUN, LIVE, ENDING = "begun", "live", "ending"
STATES = (BEGUN, LIVE, ENDING)
NEW = ".new"
NO_ROOM_FILE = "mig-no-room"
STATIC = 0  # in place of a job's id: the instance is of the site's static layout


class Note(NamedTuple):
    """One instance of ours, of one run of a job. `before` are the ids of the GPU's instances when it was begun; its
    instance has no id (-1) until it is there, and no UUID until it is `live`."""

    state: str
    job_id: int
    created_unix_ns: int
    uid: int
    gpu_minor: int
    boot_id: str
    instance: Instance
    before: tuple[int, ...] = ()

    @property
    def is_static(self) -> bool:
        """Whether it is of the site's static layout: no job's, made and ended by `hami-hpc mig apply` alone."""
        return self.job_id == STATIC

    def is_of(self, grant: Grant) -> bool:
        """Returns whether it is of this run of the job."""
        return (self.job_id, self.created_unix_ns) == (grant.job_id, grant.created_unix_ns)

    def matches(self, present: Instance) -> bool:
        """Returns whether an instance of the GPU is the noted one, and not another that has its place or id since."""
        noted = self.instance
        if present[1:4] != noted[1:4]:
            return False
        if self.state == BEGUN and noted.gi_id < 0:  # one with a device has been completed, and not by the begun call
            return present.gi_id not in self.before and not present.uuid
        if self.state == BEGUN:
            return present.gi_id == noted.gi_id
        is_part = self.state == ENDING and not present.uuid
        return present.gi_id == noted.gi_id and (present.uuid == noted.uuid or is_part)


def folder(run_dir: str, gpu_uuid: str) -> str:
    """Returns the directory of one GPU's notes. Raises NodeError for what is no UUID."""
    if not gpu_uuid.startswith("GPU-") or "/" in gpu_uuid:
        raise NodeError(f"'{gpu_uuid[:64]}' is no UUID of a GPU")
    return f"{run_dir}/{FOLDER}/{gpu_uuid}"


def path_of(run_dir: str, gpu_uuid: str, note: Note) -> str:
    return f"{folder(run_dir, gpu_uuid)}/{note.job_id}-{note.created_unix_ns}"


@contextmanager
def locked(run_dir: str, gpu_uuid: str) -> Iterator[None]:
    """Holds the GPU's lock. Raises NodeError."""
    path = folder(run_dir, gpu_uuid)
    with _explained(path):
        for each in (f"{run_dir}/{FOLDER}", path):  # makedirs makes those above as open as the umask lets it
            os.makedirs(each, 0o700, exist_ok=True)
        lock = locks.acquire(f"{path}.lock", exclusive=True, timeout_s=LOCK_TIMEOUT_S)
    try:
        yield
    finally:
        os.close(lock)


def gpus(run_dir: str) -> tuple[str, ...]:
    """Returns the UUIDs of the GPUs that may have notes. Raises NodeError."""
    path = f"{run_dir}/{FOLDER}"
    with _explained(path):
        try:
            return tuple(sorted(name for name in os.listdir(path) if os.path.isdir(f"{path}/{name}")))
        except FileNotFoundError:
            return ()


def read(run_dir: str, gpu_uuid: str) -> tuple[Note, ...]:
    """Returns the GPU's notes. Raises NodeError for one that cannot be read: nothing is guessed about instances."""
    path = folder(run_dir, gpu_uuid)
    with _explained(path):
        try:
            names = sorted(os.listdir(path))
        except FileNotFoundError:
            return ()
    found = []
    for name in names:
        if name.endswith(NEW):
            continue
        note = parse(read_bounded(f"{path}/{name}", SIZE, os.geteuid()))
        if note is None:
            if not os.path.lexists(f"{path}/{name}"):  # removed meanwhile, by who has the lock
                continue
            raise NodeError(
                f"{path}/{name} is damaged: compare nvidia-smi mig -lgi with hami-hpc mig list, then remove the file"
            )
        found.append(note)
    return tuple(found)


def write(run_dir: str, gpu_uuid: str, note: Note) -> None:
    """Writes a new note, whole or not at all. Raises NodeError. Under the GPU's lock, as what follows."""
    path = path_of(run_dir, gpu_uuid, note)
    with _explained(path):
        fd = os.open(path + NEW, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            content = to_bytes(note)
            if os.write(fd, content) != len(content):
                raise OSError(28, "No space left on device")
        except OSError:
            os.unlink(path + NEW)
            raise
        finally:
            os.close(fd)
        os.rename(path + NEW, path)


def change(run_dir: str, gpu_uuid: str, note: Note) -> None:
    """Replaces a note's content in place, by one write. Raises NodeError."""
    path = path_of(run_dir, gpu_uuid, note)
    with _explained(path):
        fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.pwrite(fd, to_bytes(note), 0)
        finally:
            os.close(fd)


def remove(run_dir: str, gpu_uuid: str, note: Note) -> None:
    """Removes a note. No error when it is gone. Raises NodeError."""
    path = path_of(run_dir, gpu_uuid, note)
    with _explained(path), suppress(FileNotFoundError):
        os.unlink(path)


def sweep(run_dir: str, gpu_uuid: str) -> None:
    """Removes notes that were never completed: no instance was begun for them. Raises NodeError."""
    path = folder(run_dir, gpu_uuid)
    with _explained(path):
        for name in os.listdir(path):
            if name.endswith(NEW):
                os.unlink(f"{path}/{name}")


def count_no_room(run_dir: str) -> None:
    """Counts a job for which there was no place, since the node's start. Never fails."""
    with suppress(OSError):
        fd = os.open(
            f"{run_dir}/{NO_ROOM_FILE}", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644
        )
        try:
            os.write(fd, b".")  # the file's size is the number, so that two at once are both counted
        finally:
            os.close(fd)


def no_room_count(run_dir: str) -> int:
    """Returns how many were counted."""
    try:
        return os.lstat(f"{run_dir}/{NO_ROOM_FILE}").st_size
    except OSError:
        return 0


def to_bytes(note: Note) -> bytes:
    """Returns a note as one line of SIZE bytes, the UUID first: SPANK reads no more of it."""
    one = note.instance
    ids = ",".join(map(str, note.before)) or NO_UUID
    words = (
        *(one.uuid or NO_UUID, note.state, note.job_id, note.created_unix_ns, note.uid, note.gpu_minor, note.boot_id),
        *(one.gi_id, one.profile_id, one.start, one.size, ids),
    )
    return " ".join(map(str, words)).encode().ljust(SIZE - 1) + b"\n"


def parse(data: bytes | None) -> Note | None:
    """Returns the note of such a line, None for any other content."""
    words = (data or b"").decode("ascii", "replace").split()
    if len(words) != 12 or len(data or b"") != SIZE or words[1] not in STATES:
        return None
    try:
        job_id, created_unix_ns, uid, gpu_minor = map(int, words[2:6])
        gi_id, profile_id, start, size = map(int, words[7:11])
        before = () if words[11] == NO_UUID else tuple(map(int, words[11].split(",")))
    except ValueError:
        return None
    uuid = "" if words[0] == NO_UUID else words[0]
    instance = Instance(gi_id, profile_id, start, size, uuid)
    return Note(words[1], job_id, created_unix_ns, uid, gpu_minor, words[6], instance, before)


@contextmanager
def _explained(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NodeError(f"{path}: {error.strerror}. See df, mount and ls -ld there") from error
