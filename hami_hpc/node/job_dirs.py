# SPDX-License-Identifier: Apache-2.0
"""The run directory: <run_dir>/jobs/<job id>/ with job.limits (owned by root) and shared/usage (owned by the user).

Root owns the directories, so users can change only the content, size and mode of their own usage file. That file is
alone on a tmpfs of exactly its size, so it cannot use up the node's memory. Where nothing can be mounted it is in a
plain directory, and syslog says so. Root opens it without following links or blocking, reads a bounded number of bytes,
never maps it, and trusts nothing in it.

A complete directory gets its job id as its name by one rename. Other names in `jobs/` begin with a dot: `.new-*` is
being built, `.gone-*` is being removed, `.ended-*` has usage that could not be written to the spool or a row that could
not be deleted, `.bad-*` could not be handled and waits for an administrator.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from hami_hpc.contract import constants as c
from hami_hpc.core.grant import Grant
from hami_hpc.core.records import (
    DAMAGED_USAGE,
    MISSING_USAGE,
    USAGE_FILE_SIZE,
    Usage,
    empty_usage_head,
    pack_limits,
    parse_limits,
    parse_usage,
)
from hami_hpc.errors import NodeError
from hami_hpc.node import history_file, mounts

TYPE_CHECKING = False  # prolog and epilog import this, and not typing: docs/adr/021
if TYPE_CHECKING:
    from hami_hpc.core.gpu_jobs import GpuJob

SELF = "self"  # SPANK's ldso mode mounts a job's directory here, in the task's mount namespace
ENDED = ".ended-"
BAD = ".bad-"
NEW = ".new-"
GONE = ".gone-"
ATTEMPTS = 20
SHARED, _, USAGE_NAME = c.FILE_USAGE.rpartition("/")
SHARED_INODES = 2  # the tmpfs's root and the usage file
JOBS_LOCK = "jobs.lock"


def jobs_dir(run_dir: str) -> str:
    return f"{run_dir}/jobs"


def job_dir(run_dir: str, job_id: int) -> str:
    return f"{run_dir}/jobs/{job_id}"


@contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        text = f"{what} failed on {error.filename}: {error.strerror}. See df, mount and ls -ld there"
        raise NodeError(text) from error


def prepare(run_dir: str) -> None:
    """Creates the run directory, `jobs` (a separate mount) and `self` where they are missing.

    Raises NodeError when somebody else than root can write there.
    """
    with _explained("making the run directory"):
        for path in (run_dir, jobs_dir(run_dir), f"{run_dir}/{SELF}"):
            try:
                os.makedirs(path, 0o755)
                os.chmod(path, 0o755)
            except FileExistsError:
                status = os.lstat(path)
                if os.geteuid() != 0 and status.st_uid == 0:
                    raise NodeError(f"{path} belongs to root: run this as root") from None
                if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
                    raise NodeError(
                        f"{path} is not a directory that only root can write (uid {status.st_uid}, mode "
                        f"{stat.S_IMODE(status.st_mode):04o}). Move it away; the next prolog makes it again",
                    ) from None
    mounts.make_private(jobs_dir(run_dir), f"{run_dir}/{JOBS_LOCK}")


def place(run_dir: str, grant: Grant, limits_record: bytes, files: Mapping[str, bytes] | None = None) -> bool:
    """Creates the job's directory with the limits record and other `files`, complete. Returns False when it already
    exists for the same grant; its `files` are made the same then, and its usage is kept.

    Several processes may do this at a time for one job: one succeeds, the others find its directory. A directory of
    another grant (an earlier run of the job) is removed.
    """
    target, added = job_dir(run_dir, grant.job_id), files or {}
    wanted = {c.FILE_JOB_LIMITS: limits_record, **added}

    def exists() -> bool:
        if read_grant(target) != _without_model(grant) or not os.path.lexists(f"{target}/{c.FILE_USAGE}"):
            return False
        return all(_has(target, name, text) for name, text in added.items())

    def fill(path: str) -> None:
        _make_shared(run_dir, path)
        _create_usage(f"{path}/{c.FILE_USAGE}", grant.uid)
        history_file.make(path, grant.job_id, grant.uid, grant.created_unix_ns, grant.mem_mib, 1)

    return not exists() and place_files(run_dir, grant.job_id, wanted, fill, exists)


def _has(directory: str, name: str, content: bytes) -> bool:
    """Gives a job's directory one file, whole or not at all: an epilog that was killed may have removed it, or the job
    has another MIG instance since. Returns False where that cannot be done, as in a directory that goes meanwhile."""
    path, new = f"{directory}/{name}", f"{directory}/{NEW}{name}-{os.getpid()}"
    if read_bounded(path, len(content), os.geteuid()) == content:
        return True
    try:
        fd = _create(new, 0o644)
        try:
            _write_all(fd, content)
        finally:
            os.close(fd)
        os.rename(new, path)
    except OSError:
        with suppress(OSError):
            os.unlink(new)
        return False
    return True


def place_files(
    run_dir: str, job_id: int, files: dict[str, bytes], fill: Callable[[str], None] | None, exists: Callable[[], bool]
) -> bool:
    """Creates a job's directory with these files, then what `fill` adds, complete or not at all. Returns False when,
    by `exists`, another process has made it meanwhile. Any other directory of the job is removed."""
    with _explained(f"making the run directory of job {job_id}"):
        built = _build(run_dir, job_id, files, fill)
        return _publish(run_dir, built, job_dir(run_dir, job_id), exists)


def place_refusal(run_dir: str, job_id: int, message: str) -> None:
    """Creates a directory without limits whose file `refused` says why: SPANK lets no step of this job start."""
    place_files(run_dir, job_id, {c.FILE_REFUSED: message.encode() + b"\n"}, None, lambda: False)


def _build(run_dir: str, job_id: int, files: dict[str, bytes], fill: Callable[[str], None] | None) -> str:
    """Creates a complete directory under a unique name and returns its path."""
    path = f"{jobs_dir(run_dir)}/{NEW}{job_id}-{os.getpid()}-{time.monotonic_ns()}"
    os.mkdir(path, 0o755)
    try:
        os.chmod(path, 0o755)
        for name, content in files.items():
            fd = _create(f"{path}/{name}", 0o644)
            try:
                _write_all(fd, content)
            finally:
                os.close(fd)
        if fill is not None:
            fill(path)
    except BaseException:
        remove_tree(path)
        raise
    return path


def _make_shared(run_dir: str, directory: str) -> None:
    """Creates the directory of the usage file, on a tmpfs with room for this one file only."""
    path = f"{directory}/{SHARED}"
    os.mkdir(path, 0o755)
    os.chmod(path, 0o755)
    if mounts.is_mount_point(jobs_dir(run_dir)) and mounts.mount_bounded(path, USAGE_FILE_SIZE, SHARED_INODES):
        return
    from hami_hpc.node import admin_log

    cause = mounts.obstacle() or f"mount failed below {jobs_dir(run_dir)}"
    admin_log.to_syslog(admin_log.WARNING, f"prolog: usage files are not bounded, a user can fill {run_dir}: {cause}")


def _create(path: str, mode: int) -> int:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    os.fchmod(fd, mode)
    return fd


def _write_all(fd: int, content: bytes) -> None:
    while content:
        content = content[os.write(fd, content) :]


def _create_usage(path: str, uid: int) -> None:
    fd = _create(path, 0o600)
    try:
        _write_all(fd, empty_usage_head())
        os.ftruncate(fd, USAGE_FILE_SIZE)
        # With a hole, a full file system would kill the job later (SIGBUS). Without one it fails here, with a reason.
        os.posix_fallocate(fd, 0, USAGE_FILE_SIZE)
        os.fchown(fd, uid, -1)
    finally:
        os.close(fd)


def _publish(run_dir: str, built: str, target: str, exists: Callable[[], bool]) -> bool:
    for _attempt in range(ATTEMPTS):
        try:
            os.rename(built, target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                remove_tree(built)
                raise
        else:
            return True
        if exists():
            remove_tree(built)
            return False
        remove(run_dir, target)
    remove_tree(built)
    raise NodeError(f"{target} was removed {ATTEMPTS} times and appeared again: another program than hami_hpc makes it")


def _without_model(grant: Grant) -> Grant:
    """Returns the grant as its limits record has it, which does not contain the model."""
    parsed = parse_limits(pack_limits(grant))
    assert parsed is not None
    return parsed


def read_bounded(path: str, most: int, want_uid: int | None) -> bytes | None:
    """Returns up to `most + 1` bytes of a regular file, or None. Never blocks, follows no link, allocates no more."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or (want_uid is not None and status.st_uid != want_uid):
            return None
        parts: list[bytes] = []
        left = most + 1
        while left > 0 and (part := os.read(fd, left)):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)
    except OSError:
        return None
    finally:
        os.close(fd)


def read_grant(directory: str) -> Grant | None:
    """Returns the grant of a job's directory, or None when the directory has none that root wrote."""
    data = read_bounded(f"{directory}/{c.FILE_JOB_LIMITS}", c.LIMITS_SIZE, os.geteuid())
    return None if data is None else parse_limits(data)


def read_usage(directory: str, grant: Grant, now_unix_ns: int) -> Usage:
    """Returns the job's usage so far: "missing" when the file cannot be read, "damaged" when its content is invalid.

    Never fails: a file that a user wrote must not stop the prolog, the epilog or reconcile.
    """
    data = read_bounded(f"{directory}/{c.FILE_USAGE}", USAGE_FILE_SIZE, None)
    if data is None:
        data = read_bounded(f"{directory}/{USAGE_NAME}", USAGE_FILE_SIZE, None)  # the path in older versions
    if data is None:
        return MISSING_USAGE
    try:
        return parse_usage(data, grant.mem_mib << 20, now_unix_ns - grant.created_unix_ns, grant.created_unix_ns)
    except Exception:  # a bug in hami_hpc that this content triggers: only this usage is lost
        return DAMAGED_USAGE


def entries(run_dir: str) -> tuple[str, ...]:
    """Returns the names in `jobs/`, sorted."""
    try:
        return tuple(sorted(os.listdir(jobs_dir(run_dir))))
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise NodeError(f"{jobs_dir(run_dir)} cannot be listed: {error.strerror}") from error


def held_grants(run_dir: str, booted_unix_ns: int) -> tuple[Grant, ...]:
    """Returns the grants of the job directories made in this boot, by job id.

    A directory whose tmpfs is mounted is of this boot, even if the clock was set since: the kernel computes the boot
    time from the clock.
    """
    grants = []
    for name in entries(run_dir):
        directory = f"{jobs_dir(run_dir)}/{name}"
        grant = read_grant(directory) if name.isdigit() else None
        if grant is not None and (
            grant.created_unix_ns >= booted_unix_ns or mounts.has_file_system(f"{directory}/{SHARED}")
        ):
            grants.append(grant)
    return tuple(sorted(grants, key=lambda grant: grant.job_id))


def ended_dir(run_dir: str, grant: Grant | GpuJob) -> str:
    """Returns the path where an ended job's directory waits for reconcile when its usage could not be spooled."""
    return f"{jobs_dir(run_dir)}/{ENDED}{grant.job_id}-{grant.created_unix_ns}"


def set_aside(run_dir: str, grant: Grant | GpuJob) -> None:
    """Renames an ended job's directory to the name under which reconcile looks for its usage."""
    what = f"setting aside the run directory of job {grant.job_id}"
    with _explained(what), suppress(FileNotFoundError):  # it does not exist, or was set aside before
        os.rename(job_dir(run_dir, grant.job_id), ended_dir(run_dir, grant))


def set_bad(run_dir: str, name: str) -> str:
    """Renames an entry of `jobs/` that cannot be handled, so that it is not tried again. Returns its new name."""
    bad = f"{BAD}{name.lstrip('.')}-{time.time_ns()}"
    with _explained(f"setting aside {name}"), suppress(FileNotFoundError):
        os.rename(f"{jobs_dir(run_dir)}/{name}", f"{jobs_dir(run_dir)}/{bad}")
    return bad


def ended_grants(run_dir: str) -> tuple[Grant, ...]:
    """Returns the grants of jobs that have ended, but whose rows may still be in the ledger."""
    names = (name for name in entries(run_dir) if name.startswith((ENDED, BAD)))
    grants = (read_grant(f"{jobs_dir(run_dir)}/{name}") for name in names)
    return tuple(grant for grant in grants if grant is not None)


def ended_unix_ns(directory: str) -> int:
    """Returns when a directory was set aside: the rename was the last change of its inode's ctime."""
    return os.stat(directory).st_ctime_ns


def remove_grant(run_dir: str, grant: Grant) -> None:
    """Removes the directory of a grant. Keeps that of a newer grant of the same job id."""
    directory = job_dir(run_dir, grant.job_id)
    present = read_grant(directory)
    if present is None or present.created_unix_ns == grant.created_unix_ns:
        remove(run_dir, directory)


def remove(run_dir: str, directory: str) -> None:
    """Removes a job's directory, which is renamed first, so that nobody sees half of it. No error when it is gone."""
    gone = f"{jobs_dir(run_dir)}/{GONE}{os.getpid()}-{time.monotonic_ns()}"
    try:
        os.rename(directory, gone)
    except FileNotFoundError:
        return
    except OSError as error:
        raise NodeError(f"{directory} cannot be removed ({error.strerror}); see mount and ls -ld") from error
    remove_tree(gone)


def remove_tree(directory: str) -> None:
    """Unlinks a directory's files and the directory, and unmounts what is mounted below. Follows no links.

    No error when parts are gone. The usage file is emptied first, to free the node's memory: its user may have it open
    or linked elsewhere.
    """
    try:
        if not stat.S_ISDIR(os.lstat(directory).st_mode):  # includes a link: listing it would list its target
            os.unlink(directory)
            return
        names = os.listdir(directory)
    except FileNotFoundError:
        return
    except OSError as error:
        raise NodeError(f"{directory} cannot be removed ({error.strerror}); see mount and ls -ld") from error
    with _explained("removing a run directory"):
        for name in names:
            path = f"{directory}/{name}"
            if name == USAGE_NAME:
                _empty(path)
            try:
                os.unlink(path)
            except FileNotFoundError:
                continue
            except IsADirectoryError:
                _empty(f"{path}/{USAGE_NAME}")
                if not mounts.detach(path):  # anything may be mounted there, so delete nothing in it
                    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path) from None
                remove_tree(path)
        with suppress(FileNotFoundError):
            os.rmdir(directory)


def _empty(path: str) -> None:
    """Empties a user's file to free its space, if that is possible without waiting."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return  # the caller unlinks it in any case
    try:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            os.ftruncate(fd, 0)
    except OSError:
        pass
    finally:
        os.close(fd)
