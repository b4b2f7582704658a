# SPDX-License-Identifier: Apache-2.0
"""MPS daemons as jobs need them, one per GPU and user: started for the first job, stopped after the last.

    <run_dir>/mps/GPU-USER/        the daemon's pipe directory: root, 0700, a tmpfs of 1 MiB, and one user may enter it
                                   by an ACL
    <run_dir>/mps/GPU-USER.log/    root, 0700, a tmpfs of 1 MiB: control.log and server.log
    <run_dir>/mps/GPU-USER.jobs/   root, 0700: one file for each job that needs the daemon, and for one with a static SM
                                   partition partition-JOB-CREATED: its name
    <run_dir>/mps/GPU-USER.program root, 0600: the file of the daemon's program, and whether it has static partitions
    <run_dir>/mps/GPU-USER.lock    held while any of this is changed; stays until the next boot

The daemon runs as root, the server that it starts as the client's user; users can write in none of these directories.
A job's file is made before the daemon is started and removed before it is stopped: whoever is killed in between leaves
what the next call for the same place completes (docs/adr/052).
"""

from __future__ import annotations

import os

from hami_hpc.contract import constants as c
from hami_hpc.core.contexts import contextmanager, suppress
from hami_hpc.node import boot, locks, mps_daemon, mps_directories, mps_processes
from hami_hpc.node.mps_daemon import ALL_USERS, FOLDER, KILL_S, Limits, Member, MpsError, Place, crashes
from hami_hpc.node.mps_directories import PARTITION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOCK_S = 120.0  # longer than a call that replaces a daemon and one that stops it take at worst
NEW = ".new"
MEMBER_MAX = 256
SHOWN, PIPE_SHOWN = 4, 64  # of daemons of others, whose pipe directories are texts of users


def place_of(run_dir: str, gpu_minor: int, uid: int, multi_user: bool) -> Place:
    return Place(run_dir, gpu_minor, ALL_USERS if multi_user else str(uid))


def hold(program: str, place: Place, gpu_uuid: str, member: Member, static: bool = False) -> tuple[str, ...]:
    """Makes sure that a daemon that answers is there for this job; with `static` one that gives each of its jobs a
    partition, where the driver has that. Returns lines about what had to be repaired.

    Safe to call again, and beside others for the same place. Raises MpsError when no daemon can be had, NoChunksError,
    with nothing left of the job, when others have what its partition needs.
    """
    mps_daemon.check_program(program)
    with _locked(place):
        _enter(place, member)
        lines = _ensure(program, place, gpu_uuid, static)
        return lines + _settle(program, place, gpu_uuid, member.name) if mps_daemon.is_static(place) else lines


def repair(program: str, place: Place, gpu_uuid: str, static: bool = False) -> tuple[str, ...]:
    """As hold, for the jobs that need the daemon already. Does nothing where there is none any more."""
    mps_daemon.check_program(program)
    with _locked(place):
        if not members(place):
            return ()
        lines = _ensure(program, place, gpu_uuid, static)
        return lines + _settle(program, place, gpu_uuid) if mps_daemon.is_static(place) else lines


def _ensure(program: str, place: Place, gpu_uuid: str, static: bool) -> tuple[str, ...]:
    """Gives the daemon its jobs' limits, and replaces one that does not answer. Returns lines as hold does."""
    limits = _limits(members(place))
    found = mps_processes.noted(place.pipe)  # where it is enough, no other process is looked at
    daemons = mps_daemon.daemons(program, place, found)
    has_all = not daemons
    if has_all:
        found = mps_processes.processes()
        daemons = mps_daemon.daemons(program, place, found)
    if len(daemons) == 1 and mps_daemon.takes(program, place, limits):
        mps_directories.let_in(place)  # who started it may have been killed before
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
    return (*lines, *_begin(program, place, gpu_uuid, static))


def _begin(program: str, place: Place, gpu_uuid: str, static: bool) -> tuple[str, ...]:
    """Starts a daemon where there is none; with static partitions where that is wanted and the program has them, which
    it is asked once in a boot (mps_partitions.why_not). Returns lines as hold does. Raises MpsError."""
    limits, why, knows_option = _limits(members(place)), "", False
    if static:
        from hami_hpc.node import mps_partitions

        if not mps_partitions.why_not(program, place.run_dir):
            mps_directories.make(place)
            mps_daemon.note_program(program, place, static=True)
            try:
                mps_daemon.start(program, place, gpu_uuid, limits)
                knows_option = True
                seen = mps_partitions.listing(program, place)
                if seen is not None and seen.total > 0:
                    mps_directories.let_in(place)
                    return ()
                why = "it lists no chunks of multiprocessors"
            except MpsError as error:
                why = str(error)
            if mps_daemon.daemons(program, place):
                mps_daemon.stop(program, place)
    mps_directories.make(place)
    mps_daemon.note_program(program, place)
    mps_daemon.start(program, place, gpu_uuid, limits)
    mps_directories.let_in(place)
    lines = _give_up(program, place, why) if why else ()
    return lines if knows_option else ()  # a program without the option, of driver 580 or older, is nothing to tell


def _give_up(program: str, place: Place, why: str, *, died: bool = False) -> tuple[str, ...]:
    """Notes that this program gives no partitions, if that can be written; of a daemon that died over one the next few
    try again. Returns the line about it."""
    from hami_hpc.node import mps_partitions

    with suppress(OSError):
        mps_partitions.note_why_not(program, place.run_dir, why, died=died)
    return (f"jobs with mode=mps have percentages of the multiprocessors and no partitions of their own: {why}",)


def _settle(program: str, place: Place, gpu_uuid: str, new: str = "", is_first: bool = True) -> tuple[str, ...]:
    """Gives the jobs of a daemon their partitions. Where it makes none, and no job of it has one, it is replaced by one
    without; else what runs goes on, and the job `new` (Member.name) waits. Returns lines and raises as hold does."""
    from hami_hpc.node import mps_partitions

    jobs = members(place)
    try:
        left = mps_partitions.settle(program, place, gpu_uuid, jobs, new, lambda job: _write_job(place, job))
    except MpsError as error:
        has_no_room = isinstance(error, mps_partitions.NoChunksError)
        if len(jobs) == 1 and has_no_room and is_first:  # programs of no job keep its chunks: they end with the daemon
            mps_daemon.stop(program, place)
            lines = _begin(program, place, gpu_uuid, static=True)
            again = _settle(program, place, gpu_uuid, new, is_first=False) if mps_daemon.is_static(place) else ()
            return lines + again
        if len(jobs) > 1 or has_no_room:
            if new:
                _wait_in_queue(program, place, new, error)
            raise
        left = {jobs[0].name: str(error)}
    if not left:
        return ()
    why = next(iter(left.values()))
    lines = _give_up(program, place, why, died=not mps_daemon.daemons(program, place))
    if len(left) == len(jobs):
        mps_daemon.stop(program, place)
        _begin(program, place, gpu_uuid, static=False)
    elif new in left:
        _wait_in_queue(program, place, new, MpsError(why))
    return lines


def _wait_in_queue(program: str, place: Place, name: str, why: MpsError) -> None:
    """Takes a job that cannot have its partition from a daemon again. Raises NoChunksError."""
    from hami_hpc.node import mps_partitions

    died = not mps_daemon.daemons(program, place)  # before it is replaced
    _unlink_job(place, name)
    _after_change(program, place)
    if isinstance(why, mps_partitions.NoChunksError):
        raise why
    _give_up(program, place, str(why), died=died)  # the next daemon has percentages, unless this one died
    raise mps_partitions.NoChunksError(f"job {name.partition('-')[0]} gets no multiprocessors of its own: {why}")


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
        _unlink_job(place, member.name)
        _after_change(program, place)
    return lines


def keep_only(program: str, place: Place, kept: Callable[[], frozenset[str]]) -> None:
    """Takes all jobs but those of `kept` (Member.name) from a daemon; stops it when none is left. Raises MpsError.

    `kept` is called while no job can come to the daemon or leave it.
    """
    with _locked(place):
        names = kept()
        for name in _job_names(place):
            if name not in names:
                _unlink_job(place, name)
        _after_change(program, place)


def restart(program: str, place: Place, gpu_uuid: str, static: bool = False) -> None:
    """Replaces a daemon and its servers, whose clients lose their contexts. Raises MpsError when that fails."""
    mps_daemon.check_program(program)
    with _locked(place):
        jobs = members(place)
        if not jobs:
            raise MpsError(f"no job needs the MPS daemon of {place.pipe}. Clear what is left of it: hami-hpc reconcile")
        mps_daemon.stop(program, place)
        _begin(program, place, gpu_uuid, static)
        if mps_daemon.is_static(place):
            _settle(program, place, gpu_uuid)


def places(run_dir: str) -> tuple[Place, ...]:
    """Returns the places that have files, sorted: with a daemon, with jobs, or left by something that was killed."""
    found = (_place_named(run_dir, name) for name in _names(f"{run_dir}/{FOLDER}"))
    return tuple(sorted({place for place in found if place is not None}))


def lost(program: str, run_dir: str) -> tuple[Place, ...]:
    """Returns the places without files whose daemon runs: somebody has removed the files under it."""
    found = mps_processes.processes()
    folder = f"{run_dir}/{FOLDER}/"
    named = {one.pipe.removeprefix(folder) for one in found if one.pipe.startswith(folder) and not one.is_server}
    others = {place for name in named if (place := _place_named(run_dir, name)) is not None} - {*places(run_dir)}
    return tuple(sorted(place for place in others if mps_daemon.daemons(program, place, found)))


def _place_named(run_dir: str, name: str) -> Place | None:
    base, _, kind = name.partition(".")
    gpu, _, user = base.partition("-")
    if kind in ("", "log", "jobs") and gpu.isdecimal() and (user.isdecimal() or user == ALL_USERS):
        return Place(run_dir, int(gpu), user)
    return None


def members(place: Place) -> tuple[Member, ...]:
    """Returns the jobs of this boot that need the daemon."""
    jobs, this_boot = [], boot.boot_id()
    for name in _job_names(place):
        with suppress(OSError, ValueError), open(f"{place.jobs}/{name}", "rb") as file:
            job_id, created = name.split("-")
            boot_id, percent, mem_mib, *own = file.read(MEMBER_MAX).split()  # of bytes: a codec takes time to import
            if boot_id == this_boot.encode():
                chunks, partition = (int(own[0]), _partition(place, name)) if own else (0, "")
                jobs.append(Member(int(job_id), int(created), int(percent), int(mem_mib), chunks, partition))
    return tuple(jobs)


def _partition(place: Place, name: str) -> str:
    with suppress(OSError), open(f"{place.jobs}/{PARTITION}{name}", encoding="ascii") as file:
        return file.read(MEMBER_MAX).strip()
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
        mps_directories.remove(place)
    elif os.path.lexists(place.pipe):
        mps_directories.let_in(place)
        with suppress(MpsError):  # the next prolog replaces a daemon that is gone or does not answer
            _end_dead_clients(program, place, mps_daemon.adjust(program, place, _limits(jobs)))
            if mps_daemon.is_static(place):
                from hami_hpc.node import mps_partitions

                mps_partitions.tidy(program, place, jobs)


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
        mps_directories.make_directory(f"{place.run_dir}/{FOLDER}", 0o711)
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
    """Notes that the job needs the daemon, and keeps its partition where it has one."""
    mps_directories.make_directory(place.jobs, 0o700)
    for name in _job_names(place):
        if name.startswith(f"{member.job_id}-") and name != member.name:  # an earlier run, whose epilog never came
            _unlink_job(place, name)
    same = [one for one in members(place) if one.name == member.name]
    _write_job(place, member._replace(chunks=same[0].chunks) if same else member)


def _write_job(place: Place, member: Member) -> None:
    """Writes a job's file, and that which names its partition, where it has one, for SPANK."""
    own = f" {member.chunks}" if member.chunks else ""
    text = f"{boot.boot_id()} {member.cores_percent} {member.mem_mib}{own}\n"
    _write(place, f"{place.jobs}/{member.name}", text)
    if member.partition:
        _write(place, f"{place.jobs}/{PARTITION}{member.name}", f"{member.partition}\n")


def _write(place: Place, path: str, text: str) -> None:
    """Writes a file that is whole or not there."""
    new = f"{place.jobs}/{NEW}"
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
    os.rename(new, path)


def _unlink_job(place: Place, name: str) -> None:
    for path in (f"{place.jobs}/{PARTITION}{name}", f"{place.jobs}/{name}"):
        with suppress(FileNotFoundError):
            os.unlink(path)


def _job_names(place: Place) -> tuple[str, ...]:
    return tuple(name for name in _names(place.jobs) if not name.startswith((NEW, PARTITION)))


def _names(folder: str) -> tuple[str, ...]:
    """Returns the sorted names in a directory, none where there is none. Raises MpsError."""
    try:
        return tuple(sorted(os.listdir(folder)))
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise MpsError(f"{folder} cannot be listed ({error.strerror}); see mount and ls -ld") from error
