# SPDX-License-Identifier: Apache-2.0
"""MPS daemons as jobs need them, one per GPU and user: started for the first job, stopped after the last.

    <run_dir>/mps/GPU-USER/        the daemon's pipe directory: root, 0700, and one user may enter it by an ACL
    <run_dir>/mps/GPU-USER.log/    root, 0700, a tmpfs of 1 MiB: control.log and server.log
    <run_dir>/mps/GPU-USER.jobs/   root, 0700: one file for each job that needs the daemon
    <run_dir>/mps/GPU-USER.program root, 0600: the file of the daemon's program
    <run_dir>/mps/GPU-USER.lock    held while any of this is changed; stays until the next boot

The daemon runs as root, the server that it starts as the client's user; users can write in none of these directories.
A job's file is made before the daemon is started and removed before it is stopped: whoever is killed in between leaves
what the next call for the same place completes (docs/adr/052).
"""

from __future__ import annotations

import os
import stat
import time

from hami_hpc.contract import constants as c
from hami_hpc.core.contexts import contextmanager, suppress
from hami_hpc.core.values import NamedTuple
from hami_hpc.node import acl, boot, locks, mounts, mps_daemon, mps_processes
from hami_hpc.node.mps_daemon import ALL_USERS, FOLDER, KILL_S, Limits, MpsError, Place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SOCKET_MAX = 107  # bytes of a Unix socket's path: sun_path of <sys/un.h>, less its NUL
LONGEST_NAME = "/control_privileged"
LOCK_S = 60.0  # longer than a call that replaces a daemon and one that stops it take at worst
NEW = ".new"
# A user's connections are lines of the log, so it is alone on a tmpfs. A daemon whose log is full goes on (535).
LOG_BYTES, LOG_INODES = 1 << 20, 4  # with control.log, server.log and the directory
MEMBER_MAX = 256
SHOWN, PIPE_SHOWN = 4, 64  # of daemons of others, whose pipe directories are texts of users


class Member(NamedTuple):
    """A job that needs a daemon, and its limits."""

    job_id: int
    created_unix_ns: int
    cores_percent: int
    mem_mib: int

    @property
    def name(self) -> str:
        return f"{self.job_id}-{self.created_unix_ns}"


def place_of(run_dir: str, gpu_minor: int, uid: int, multi_user: bool) -> Place:
    return Place(run_dir, gpu_minor, ALL_USERS if multi_user else str(uid))


def hold(program: str, place: Place, gpu_uuid: str, member: Member) -> tuple[str, ...]:
    """Makes sure that a daemon that answers is there for this job. Returns lines about what had to be repaired.

    Safe to call again, and beside others for the same place. Raises MpsError when no daemon can be had.
    """
    mps_daemon.check_program(program)
    with _locked(place):
        _enter(place, member)
        return _ensure(program, place, gpu_uuid)


def repair(program: str, place: Place, gpu_uuid: str) -> tuple[str, ...]:
    """As hold, for the jobs that need the daemon already. Does nothing where there is none any more."""
    mps_daemon.check_program(program)
    with _locked(place):
        return _ensure(program, place, gpu_uuid) if members(place) else ()


def _ensure(program: str, place: Place, gpu_uuid: str) -> tuple[str, ...]:
    """Gives the daemon its jobs' limits, and replaces one that does not answer. Returns lines as hold does."""
    limits = _limits(members(place))
    found = mps_processes.noted(place.pipe)  # where it is enough, no other process is looked at
    has_all = not mps_daemon.daemons(program, place, found)
    found = mps_processes.processes() if has_all else found
    daemons = mps_daemon.daemons(program, place, found)
    if len(daemons) == 1 and mps_daemon.takes(program, place, limits):
        return ()
    if not has_all:
        found = mps_processes.processes()
        daemons = mps_daemon.daemons(program, place, found)
    foreign = mps_processes.foreign(f"{place.run_dir}/{FOLDER}", found)
    lines = []
    if foreign:
        listed = ", ".join(f"process {one.pid} of uid {one.uid} in {one.pipe[:PIPE_SHOWN]}" for one in foreign[:SHOWN])
        lines.append(f"{len(foreign)} control daemon(s) of MPS that hami_hpc did not start are left alone: {listed}")
    if daemons:
        lines.append(f"the MPS daemon of {place.pipe} did not answer and was replaced")
        if mps_processes.kill(daemons, KILL_S):
            raise MpsError(f"the MPS daemon of {place.pipe} (process {daemons[0].pid}) cannot be ended: see dmesg")
    elif os.path.isdir(place.pipe):
        lines.append(f"the MPS daemon of {place.pipe} had ended and was replaced")
    # Servers without a daemon stay: other jobs of the user may be their clients. The last job's end ends them.
    _make_directories(place)
    mps_daemon.note_program(program, place)
    mps_daemon.start(program, place, gpu_uuid, limits)
    return tuple(lines)


def forget(directory: str) -> None:
    """Removes the note of the daemon from a job's directory, before the job leaves the daemon: from then on reconcile
    starts none for it. Raises MpsError."""
    try:
        os.unlink(f"{directory}/{c.FILE_MPS}")
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise MpsError(
            f"{directory}/{c.FILE_MPS} cannot be removed ({error.strerror}); see mount and ls -ld"
        ) from error


def leave(program: str, place: Place, member: Member) -> tuple[str, ...]:
    """Takes a job from its daemon, stops the daemon after the last one. Returns lines on crashes during the job.

    No error when there is nothing. Raises MpsError when a process of the daemon cannot be ended.
    """
    if not any(os.path.lexists(path) for path in (place.pipe, place.log, place.jobs)):
        return ()
    with _locked(place):
        lines = crashes(place, member.created_unix_ns)
        with suppress(FileNotFoundError):
            os.unlink(f"{place.jobs}/{member.name}")
        _after_change(program, place)
    return lines


def keep_only(program: str, place: Place, kept: Callable[[], frozenset[str]]) -> None:
    """Takes all jobs but those of `kept` (Member.name) from a daemon; stops it when none is left. Raises MpsError.

    `kept` is called while no job can come to the daemon or leave it.
    """
    with _locked(place):
        names = kept()
        for name in _names(place.jobs):
            if name not in names:
                os.unlink(f"{place.jobs}/{name}")
        _after_change(program, place)


def restart(program: str, place: Place, gpu_uuid: str) -> None:
    """Replaces a daemon and its servers, whose clients lose their contexts. Raises MpsError when that fails."""
    mps_daemon.check_program(program)
    with _locked(place):
        jobs = members(place)
        if not jobs:
            raise MpsError(f"no job needs the MPS daemon of {place.pipe}. Clear what is left of it: hami-hpc reconcile")
        mps_daemon.stop(program, place)
        _make_directories(place)
        mps_daemon.note_program(program, place)
        mps_daemon.start(program, place, gpu_uuid, _limits(jobs))


def places(run_dir: str) -> tuple[Place, ...]:
    """Returns the places that have files, sorted: with a daemon, with jobs, or left by something that was killed."""
    found = set()
    for name in _names(f"{run_dir}/{FOLDER}"):
        base, _, kind = name.partition(".")
        gpu, _, user = base.partition("-")
        if kind in ("", "log", "jobs") and gpu.isdecimal() and (user.isdecimal() or user == ALL_USERS):
            found.add(Place(run_dir, int(gpu), user))
    return tuple(sorted(found))


def members(place: Place) -> tuple[Member, ...]:
    """Returns the jobs of this boot that need the daemon."""
    jobs, this_boot = [], boot.boot_id()
    for name in _names(place.jobs):
        if name.startswith(NEW):
            continue
        with suppress(OSError, ValueError), open(f"{place.jobs}/{name}", "rb") as file:
            job_id, created = name.split("-")
            boot_id, percent, mem_mib = file.read(MEMBER_MAX).split()  # of bytes: a codec takes time to import
            if boot_id == this_boot.encode():
                jobs.append(Member(int(job_id), int(created), int(percent), int(mem_mib)))
    return tuple(jobs)


def crashes(place: Place, since_unix_ns: int) -> tuple[str, ...]:
    """Returns the lines of the daemon's log, from that time on, that say that a server crashed."""
    since = time.strftime("[%Y-%m-%d %H:%M:%S", time.localtime(since_unix_ns // 1_000_000_000))
    return tuple(
        f"MPS of GPU {place.gpu_minor}: {line}"
        for line in _tail(f"{place.log}/control.log").splitlines()
        if line >= since
        and ("fatal exception" in line or ("exited with status" in line and not line.rstrip().endswith("status 0")))
    )


def _tail(path: str) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_BYTES))
            return file.read(LOG_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _limits(jobs: tuple[Member, ...]) -> Limits:
    return Limits(max(job.cores_percent for job in jobs), max(job.mem_mib for job in jobs))


def _after_change(program: str, place: Place) -> None:
    """Stops the daemon if no job needs it, else lowers its limits and ends what is left of jobs that have ended."""
    with suppress(FileNotFoundError):
        os.unlink(f"{place.jobs}/{NEW}")  # of a prolog that was killed: whoever writes one holds the lock
    jobs = members(place)
    if not jobs:
        mps_daemon.stop(program, place)
        _remove(place)
    elif os.path.lexists(place.pipe):
        with suppress(MpsError):  # the next prolog replaces a daemon that is gone or does not answer
            _end_dead_clients(program, place, mps_daemon.adjust(program, place, _limits(jobs)))


def _end_dead_clients(program: str, place: Place, servers: tuple[int, ...]) -> None:
    """Ends the work of clients whose process is no more: slurmd ended the job's processes before the epilog.

    A client can be in a PID namespace, and its number be that of no process, or of another, outside. So nothing is
    ended whose number any process has in any namespace: it may be a client that runs, of any job, or a number that is
    used again. 0 is a client in a namespace that the daemon cannot see.
    """
    for server in servers:
        for client in mps_daemon.clients(program, place, server):
            is_gone = client > 0 and not os.path.lexists(f"/proc/{client}")
            if is_gone and client not in mps_processes.numbers():  # read for each, just before it is ended
                mps_daemon.ask(program, place, f"terminate_client {server} {client}")


@contextmanager
def _locked(place: Place) -> Iterator[None]:
    """Holds the lock of one place. Raises locks.HeldError, and MpsError when its file cannot be made."""
    with _explained(place):
        _make_directory(f"{place.run_dir}/{FOLDER}", 0o711)
        fd = locks.acquire(f"{place.pipe}.lock", exclusive=True, timeout_s=LOCK_S)
        try:
            yield
        finally:
            os.close(fd)


@contextmanager
def _explained(place: Place) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = error.filename or place.pipe
        raise MpsError(
            f"the files of MPS cannot be changed ({where}: {error.strerror}); see df, mount and ls -ld there"
        ) from error


def _enter(place: Place, member: Member) -> None:
    """Notes that the job needs the daemon, in a file that is whole or not there."""
    _make_directory(place.jobs, 0o700)
    new = f"{place.jobs}/{NEW}"
    for name in _names(place.jobs):
        if name.startswith(f"{member.job_id}-") and name != member.name:  # an earlier run, whose epilog never came
            os.unlink(f"{place.jobs}/{name}")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, f"{boot.boot_id()} {member.cores_percent} {member.mem_mib}\n".encode())
    finally:
        os.close(fd)
    os.rename(new, f"{place.jobs}/{member.name}")


def _make_directories(place: Place) -> None:
    """Makes the directories of a daemon anew, without files of an earlier one. Raises MpsError where nobody but root
    could use it."""
    if len(os.fsencode(place.pipe + LONGEST_NAME)) > SOCKET_MAX:
        raise MpsError(f"{place.pipe} is too long a path for the sockets of MPS: choose a shorter run_dir in [paths]")
    _remove_tree(place.pipe)
    _make_log(place)
    os.mkdir(place.pipe, 0o700)
    os.chmod(place.pipe, 0o711 if place.user == ALL_USERS else 0o700)
    if place.user not in (ALL_USERS, "0"):
        try:
            acl.let_enter(place.pipe, int(place.user))
        except OSError as error:
            raise MpsError(
                f"{place.pipe} cannot be opened to uid {place.user} alone ({error.strerror}): mode=mps needs a run_dir "
                "on a file system with access control lists, as tmpfs has them"
            ) from error


def _make_log(place: Place) -> None:
    """Makes the log directory, on a tmpfs of its own where that is possible."""
    folder = f"{place.run_dir}/{FOLDER}"
    mounts.make_private(folder, f"{folder}.lock")
    _make_directory(place.log, 0o700)
    if mounts.is_mount_point(place.log):
        return
    if mounts.is_mount_point(folder) and mounts.mount_bounded(place.log, LOG_BYTES, LOG_INODES):
        os.chmod(place.log, 0o700)
    else:
        from hami_hpc.node import admin_log

        cause = mounts.obstacle() or "mount failed"
        admin_log.to_syslog(admin_log.WARNING, f"{place.log} is not bounded, a user can fill {folder}: {cause}")


def _make_directory(path: str, mode: int) -> None:
    """Makes a directory of root's. Raises MpsError when somebody else made it."""
    with suppress(FileExistsError):
        os.mkdir(path, mode)
        os.chmod(path, mode)
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise MpsError(
            f"{path} is not a directory that only root can write: move it away, the next prolog makes it again"
        )


def _remove(place: Place) -> None:
    for path in (place.program, place.program + NEW):
        with suppress(FileNotFoundError):
            os.unlink(path)
    for path in (place.pipe, place.log, place.jobs):
        _remove_tree(path)


def _remove_tree(path: str) -> None:
    """Removes one of the directories, which have files and sockets alone. Follows no links."""
    mounts.detach(path)
    try:
        for name in os.listdir(path):
            with suppress(FileNotFoundError):
                os.unlink(f"{path}/{name}")
        os.rmdir(path)
    except FileNotFoundError:
        pass
    except (
        OSError
    ):  # a directory in it, which no daemon that was tried makes: the module needs as long as a small prolog
        import shutil

        with suppress(FileNotFoundError):
            shutil.rmtree(path)


def _names(folder: str) -> tuple[str, ...]:
    with suppress(FileNotFoundError):
        return tuple(sorted(os.listdir(folder)))
    return ()
