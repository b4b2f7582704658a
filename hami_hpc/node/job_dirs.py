# SPDX-License-Identifier: Apache-2.0
"""The run directory: <run_dir>/jobs/<job id>/ with job.limits (owned by root) and shared/usage (owned by the user).

A job with several slices has both files for each: job.1.limits, shared/usage.1 and so on (docs/architecture.md).

Root owns the directories, so users can change only the content, size and mode of their own usage files. These are alone
on a tmpfs of exactly their size, so they cannot use up the node's memory. Where nothing can be mounted they are in a
plain directory, and syslog says so. Root opens them without following links or blocking, reads a bounded number of
bytes, never maps them, and trusts nothing in them.

A complete directory gets its job id as its name by one rename. Other names in `jobs/` begin with a dot: `.new-*` is
being built, `.gone-*` is being removed, `.ended-*` has usage that could not be written to the spool or a row that could
not be deleted, `.bad-*` could not be handled and waits for an administrator.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from hami_hpc.contract import constants as c
from hami_hpc.core.contexts import contextmanager, suppress
from hami_hpc.core.grant import Grant, total
from hami_hpc.core.records import (
    USAGE_FILE_SIZE,
    empty_usage_head,
    is_of_another_version,
    limits_file,
    pack_limits,
    parse_limits,
    usage_file,
)
from hami_hpc.errors import NodeError
from hami_hpc.node import history_file, mounts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

SELF = "self"  # SPANK's ldso mode mounts a job's directory here, in the task's mount namespace
ENDED = ".ended-"
BAD = ".bad-"
NEW = ".new-"
GONE = ".gone-"
ATTEMPTS = 20
SHARED, _, USAGE_NAME = c.FILE_USAGE.rpartition("/")
SHARED_INODES = 1  # the tmpfs's root, besides the usage files
JOBS_LOCK = "jobs.lock"


def jobs_dir(run_dir: str) -> str:
    return f"{run_dir}/jobs"


def job_dir(run_dir: str, job_id: int) -> str:
    return f"{run_dir}/jobs/{job_id}"


@contextmanager
def explained(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        text = f"{what} failed on {error.filename}: {error.strerror}. See df, mount and ls -ld there"
        raise NodeError(text) from error


def prepare(run_dir: str) -> None:
    """Creates the run directory, `jobs` (a separate mount) and `self` where they are missing.

    Raises NodeError when somebody else than root can write there.
    """
    with explained("making the run directory"):
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


def place(
    run_dir: str, grants: Sequence[Grant], limits_records: Sequence[bytes], files: Mapping[str, bytes] | None = None
) -> bool:
    """Creates the job's directory with the limits record of each of its slices and other `files`, complete. Returns
    False when it already exists for the same grants; its `files` are made the same then, and its usage is kept.

    Several processes may do this at a time for one job: one succeeds, the others find its directory. A directory of
    other grants (an earlier run of the job) is removed. Records of slices other than the first are put back in place.
    """
    first, added = grants[0], files or {}
    target = job_dir(run_dir, first.job_id)
    records = {limits_file(i): record for i, record in enumerate(limits_records)}

    def exists() -> bool:
        if not _is_of(read_grant(target), first):
            return False
        if not all(os.path.lexists(f"{target}/{usage_file(grant.slice_index)}") for grant in grants):
            return False
        for grant, (name, record) in zip(grants[1:], list(records.items())[1:], strict=True):
            if not _is_of(read_grant(target, grant.slice_index), grant) and not give_file(target, name, record):
                return False
        return all(give_file(target, name, text) for name, text in added.items())

    def fill(path: str) -> None:
        _make_shared(run_dir, path, len(grants))
        for grant in grants:
            _create_usage(f"{path}/{usage_file(grant.slice_index)}", grant.uid)
        whole = total(grants)
        history_file.make(path, first.job_id, first.uid, first.created_unix_ns, whole.mem_mib, len(grants))

    return not exists() and place_files(run_dir, first.job_id, {**records, **added}, fill, exists)


def give_file(directory: str, name: str, content: bytes) -> bool:
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
    with explained(f"making the run directory of job {job_id}"):
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


def _make_shared(run_dir: str, directory: str, count: int) -> None:
    """Creates the directory of the usage files, on a tmpfs with room for so many of them only."""
    path = f"{directory}/{SHARED}"
    os.mkdir(path, 0o755)
    os.chmod(path, 0o755)
    size = USAGE_FILE_SIZE * count
    if mounts.is_mount_point(jobs_dir(run_dir)) and mounts.mount_bounded(path, size, SHARED_INODES + count):
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


def _is_of(written: Grant | None, grant: Grant) -> bool:
    """Returns whether a record is of this grant, whatever size the slice was resized to."""
    return written is not None and written.asked() == _without_model(grant).asked()


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


def read_grant(directory: str, slice_index: int = 0, owner: int | None = None) -> Grant | None:
    """Returns the grant of one slice of a job's directory, or None when the directory has none that `owner` (None: this
    process's user, root) wrote.

    That of slice 0 has what makes the run: job, user and creation time.
    """
    uid = os.geteuid() if owner is None else owner
    data = read_bounded(f"{directory}/{limits_file(slice_index)}", c.LIMITS_SIZE, uid)
    grant = None if data is None else parse_limits(data)
    return grant if grant is not None and grant.slice_index == slice_index else None


def is_foreign(directory: str, owner: int | None = None) -> bool:
    """Returns whether another version of hami_hpc wrote a job's records, as when a node is upgraded while it runs."""
    uid = os.geteuid() if owner is None else owner
    data = read_bounded(f"{directory}/{limits_file(0)}", c.LIMITS_SIZE, uid)
    return data is not None and is_of_another_version(data)


def read_grants(directory: str, owner: int | None = None) -> tuple[Grant, ...]:
    """Returns the grants of a job's directory in the order of the slices; none where slice 0 has none.

    Other slices whose record is missing, or of another run than slice 0's, are left out.
    """
    first = read_grant(directory, 0, owner)
    if first is None:
        return ()
    run = (first.job_id, first.uid, first.created_unix_ns, first.slice_count)
    others = (read_grant(directory, i, owner) for i in range(1, first.slice_count))
    return first, *(one for one in others if one and (one.job_id, one.uid, one.created_unix_ns, one.slice_count) == run)


def entries(run_dir: str) -> tuple[str, ...]:
    """Returns the names in `jobs/`, sorted."""
    try:
        return tuple(sorted(os.listdir(jobs_dir(run_dir))))
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise NodeError(f"{jobs_dir(run_dir)} cannot be listed: {error.strerror}") from error


def held_grants(run_dir: str, booted_unix_ns: int) -> tuple[Grant, ...]:
    """Returns the grants of the job directories made in this boot, by job id and slice.

    A directory whose tmpfs is mounted is of this boot, even if the clock was set since: the kernel computes the boot
    time from the clock.
    """
    grants: list[Grant] = []
    for name in entries(run_dir):
        directory = f"{jobs_dir(run_dir)}/{name}"
        slices = read_grants(directory) if name.isdigit() else ()
        if slices and (slices[0].created_unix_ns >= booted_unix_ns or mounts.has_file_system(f"{directory}/{SHARED}")):
            grants.extend(slices)
    return tuple(sorted(grants, key=lambda grant: (grant.job_id, grant.slice_index)))


def ended_grants(run_dir: str) -> tuple[Grant, ...]:
    """Returns a grant of each job that has ended, but whose rows may still be in the ledger."""
    names = (name for name in entries(run_dir) if name.startswith((ENDED, BAD)))
    grants = (read_grant(f"{jobs_dir(run_dir)}/{name}") for name in names)
    return tuple(grant for grant in grants if grant is not None)


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
    with explained("removing a run directory"):
        for name in names:
            path = f"{directory}/{name}"
            if name.startswith(USAGE_NAME):
                _empty(path)
            try:
                os.unlink(path)
            except FileNotFoundError:
                continue
            except IsADirectoryError:
                for shared_name in (USAGE_NAME, *_more_usage(path)):
                    _empty(f"{path}/{shared_name}")
                if not mounts.detach(path):  # anything may be mounted there, so delete nothing in it
                    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path) from None
                remove_tree(path)
        with suppress(FileNotFoundError):
            os.rmdir(directory)


def _more_usage(shared: str) -> list[str]:
    """Returns the names of the usage files of slices other than the first."""
    with suppress(OSError):
        return [name for name in os.listdir(shared) if name.startswith(f"{USAGE_NAME}.")]
    return []


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
