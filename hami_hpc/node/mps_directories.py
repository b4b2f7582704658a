# SPDX-License-Identifier: Apache-2.0
"""The directories of one MPS control daemon: its pipe directory and that of its log.

A user can make the log grow, by connections, and files of the pipe directory: `control_lock` (535) is for everybody to
write, and so may be the file with the daemon's number (580). So each directory is a tmpfs of its own. That of the pipe
directory stays for as long as jobs need a daemon: steps that run have it in mount namespaces of their own, and reach
the next daemon there.
"""

from __future__ import annotations

import os
import stat

from hami_hpc.contract import constants as c
from hami_hpc.core.contexts import suppress
from hami_hpc.node import acl, mounts
from hami_hpc.node.mps_daemon import ALL_USERS, FOLDER, LOG_BYTES, MpsError, Place

# A daemon whose log is full goes on (535).
LOG_INODES = 4  # with control.log, server.log and the directory
PIPE_BYTES, PIPE_INODES = 1 << 20, 256
INODES_OF_A_DAEMON = 32  # it makes five; a user can keep those of earlier daemons open
SOCKET_MAX = 107  # bytes of a Unix socket's path: sun_path of <sys/un.h>, less its NUL
LONGEST_NAME = "/control_privileged"
PARTITION = "partition-"  # the file of a job's static SM partition; also in slurm-plugins/spank/record.c


def make(place: Place) -> None:
    """Makes the directories of a daemon, without files of an earlier one. Nobody but root can enter them until let_in:
    who locks `control_lock` first would have the daemon's place. Raises MpsError where nobody but root could use it."""
    if len(os.fsencode(place.pipe + LONGEST_NAME)) > SOCKET_MAX:
        raise MpsError(f"{place.pipe} is too long a path for the sockets of MPS: choose a shorter run_dir in [paths]")
    for name in os.listdir(place.jobs):
        if name.startswith(PARTITION):  # an id of the earlier daemon's may mean another job's
            os.unlink(f"{place.jobs}/{name}")
    folder = f"{place.run_dir}/{FOLDER}"
    mounts.make_private(folder, f"{folder}.lock")
    make_directory(place.log, 0o700)
    _bound(place.log, LOG_BYTES, LOG_INODES)
    _make_pipe(place)
    if place.user not in (ALL_USERS, "0"):
        try:
            acl.let_enter(place.pipe, int(place.user))
        except OSError as error:
            raise MpsError(
                f"{place.pipe} cannot be opened to uid {place.user} alone ({error.strerror}): mode=mps needs a run_dir "
                "on a file system with access control lists, as tmpfs has them"
            ) from error
    os.chmod(place.pipe, 0o700)  # the mask of the access list, too


def let_in(place: Place) -> None:
    """Lets the daemon's users into its pipe directory, now that it has its files."""
    _make_clients_file(place)
    os.chmod(place.pipe, {ALL_USERS: 0o711, "0": 0o700}.get(place.user, 0o750))  # the group's rights are in the list


def _make_clients_file(place: Place) -> None:
    """Makes the file in which the server's clients tell each other what they pause, where it is missing: for its users
    to write (native/interposer/region/clients.h). Where it cannot be made they keep to no turns."""
    with suppress(OSError):
        path = f"{place.pipe}/{c.FILE_MPS_CLIENTS}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if place.user == ALL_USERS:
                os.fchmod(fd, 0o666)
            else:
                os.fchown(fd, int(place.user), -1)
        finally:
            os.close(fd)


def _make_pipe(place: Place) -> None:
    """Makes an empty pipe directory, or empties that which is there. Nobody but root can enter it then."""
    if mounts.is_mount_point(place.pipe):
        os.chmod(place.pipe, 0o700)
        _empty(place.pipe)
        if os.statvfs(place.pipe).f_ffree >= INODES_OF_A_DAEMON:
            return
    _remove_tree(place.pipe)
    os.mkdir(place.pipe, 0o700)
    _bound(place.pipe, PIPE_BYTES, PIPE_INODES)


def _bound(path: str, size_bytes: int, inodes: int) -> None:
    """Mounts a tmpfs on a directory where that is possible, unless one is there."""
    if mounts.is_mount_point(path):
        return
    folder = os.path.dirname(path)
    if mounts.is_mount_point(folder) and mounts.mount_bounded(path, size_bytes, inodes):
        os.chmod(path, 0o700)
    else:
        from hami_hpc.node import admin_log

        cause = mounts.obstacle() or "mount failed"
        admin_log.to_syslog(admin_log.WARNING, f"{path} is not bounded, a user can fill {folder}: {cause}")


def make_directory(path: str, mode: int) -> None:
    """Makes a directory of root's. Raises MpsError when somebody else made it."""
    with suppress(FileExistsError):
        os.mkdir(path, mode)
        os.chmod(path, mode)
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise MpsError(
            f"{path} is not a directory that only root can write: move it away, the next prolog makes it again"
        )


def remove(place: Place) -> None:
    for path in (place.program, f"{place.program}.new"):
        with suppress(FileNotFoundError):
            os.unlink(path)
    for path in (place.pipe, place.log, place.jobs):
        _remove_tree(path)


def _remove_tree(path: str) -> None:
    """Removes one of the directories. Follows no links."""
    mounts.detach(path)
    with suppress(FileNotFoundError):
        _empty(path)
        os.rmdir(path)


def _empty(path: str) -> None:
    """Removes what is in a directory: files and sockets, and a directory, which no daemon that was tried makes."""
    for name in os.listdir(path):
        try:
            os.unlink(f"{path}/{name}")
        except FileNotFoundError:
            pass
        except IsADirectoryError:
            import shutil  # the module needs as long as a small prolog

            shutil.rmtree(f"{path}/{name}", ignore_errors=True)
