# SPDX-License-Identifier: Apache-2.0
"""The processes of MPS on this node, found in /proc: control daemons and servers, and whose they are.

A user can name a program, its arguments and its environment as they like. So a daemon counts as ours only if all of its
uids are root's, its program is the file that the settings name, and its pipe directory, as it was at its start, is the
one asked for. A server is ours by its program's name and pipe directory; its uid is the job's user.

The kernel shows arguments and environment of a process only while nothing changes its memory map, and a user can keep
that going for ever (a page of a file system of their own, FUSE). So those of processes of others than root are read by
a program that is ended after a while.
"""

from __future__ import annotations

import os
import time

from hami_hpc.core.contexts import suppress
from hami_hpc.core.values import NamedTuple
from hami_hpc.node import programs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

CONTROL_NAME, SERVER_NAME = "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"
PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
PID_FILE, PID_MAX = f"{CONTROL_NAME}.pid", 32
DEFAULT_PIPE = "/tmp/nvidia-mps"
DELETED = " (deleted)"  # the kernel's mark where a package was updated under a running program
ENVIRONMENT_MAX, PIPE_MAX = 1 << 20, 4096
CAT = "/bin/cat"
OTHERS_S, STUCK_MAX = 0.5, 4  # for what is read of a user's process; users of whom none is read to its end
UNKNOWN = "?"  # the pipe directory of a process whose environment is not shown
LOOK_S, PAUSE_S = 0.01, 0.1


class Process(NamedTuple):
    """A control daemon or a server. `started` and `pid` together name a process for ever."""

    pid: int
    started: int
    uid: int
    is_server: bool
    program: str
    pipe: str


def processes(root: str = "/proc") -> tuple[Process, ...]:
    """Returns all control daemons and servers of the node, by pid. A process that ends meanwhile is left out."""
    pids = []
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in os.listdir(folder):
            if name.isdigit():
                try:
                    program = os.readlink(f"{name}/exe", dir_fd=folder)
                except OSError:  # one of the kernel's, or one that has ended
                    continue
                if _is_named(program):
                    pids.append(int(name))
    finally:
        os.close(folder)
    stuck: set[int] = set()
    return tuple(found for pid in sorted(pids) if (found := read(pid, root, stuck)) is not None)


def noted(pipe: str) -> tuple[Process, ...]:
    """Returns the process whose number a daemon (580) has left in its pipe directory, if that is a control daemon of
    root's; none without the file. The daemon may let everybody write it, so all else has to be asked of the process as
    of any other: the file spares looking at each process of the node."""
    try:
        with open(f"{pipe}/{PID_FILE}", "rb") as file:
            process = read(int(file.read(PID_MAX)))
    except (OSError, ValueError):
        return ()
    return () if process is None else (process,)


def _is_named(program: str) -> bool:
    """Returns whether a program has the name of a control program or server. Of all processes few have."""
    return program.removesuffix(DELETED).endswith((f"/{CONTROL_NAME}", f"/{SERVER_NAME}"))


def numbers(root: str = "/proc") -> frozenset[int]:
    """Returns the pids of all processes of the node: each one's in this PID namespace, and in those that it is in."""
    found: set[int] = set()
    for name in os.listdir(root):
        if not name.isdigit():
            continue
        found.add(int(name))
        with suppress(OSError, ValueError), open(f"{root}/{name}/status", "rb") as file:
            for line in file:
                if line.startswith(b"NSpid:"):
                    found.update(map(int, line.split()[1:]))
                    break
    return frozenset(found)


def read(pid: int, root: str = "/proc", stuck: set[int] | None = None) -> Process | None:
    """Returns one process if it is a control daemon or server that runs, else None.

    One of another user's than root is read with `stuck` alone: it has the users of whom a process could not be read in
    time, of whom no other is tried, and gets more. The pipe directory of such a process is UNKNOWN.
    """
    folder = f"{root}/{pid}"
    try:
        program = os.readlink(f"{folder}/exe").removesuffix(DELETED)
        name = program.rpartition("/")[2]
        if name not in (CONTROL_NAME, SERVER_NAME):
            return None
        uids = _uids(folder)
        uid = uids[0] if len(set(uids)) == 1 else -1  # -1: a program that changes its user, so nobody's
        if uid == os.geteuid():
            words, environment = _words(folder, "cmdline"), _words(folder, "environ")
        elif stuck is None:
            return None
        else:
            words = environment = _words_of_other(folder, uid, stuck)
        if name != SERVER_NAME and not _is_daemon(words):
            return None
        state, started = _state(folder)
        if state in ("Z", "X"):
            return None
        return Process(pid, started, uid, name == SERVER_NAME, program, _pipe(environment))
    except (OSError, ValueError, IndexError):
        return None


def _words(folder: str, name: str) -> list[bytes]:
    with open(f"{folder}/{name}", "rb") as file:
        return file.read(ENVIRONMENT_MAX).split(b"\0")


def _words_of_other(folder: str, uid: int, stuck: set[int]) -> list[bytes]:
    """Returns arguments and environment of a user's process, and what stands for them when they cannot be read in time:
    whoever hides them may be a daemon. Raises OSError for a process that has ended."""
    if uid not in stuck and len(stuck) < STUCK_MAX:
        status, text = programs.run([CAT, f"{folder}/cmdline", f"{folder}/environ"], {}, "", OTHERS_S)
        if status is not None:
            if status != 0:
                raise ProcessLookupError
            return os.fsencode(text).split(b"\0")
        stuck.add(uid)
    return [b"", b"-d", f"{PIPE_VARIABLE}={UNKNOWN}".encode()]


def _is_daemon(words: list[bytes]) -> bool:
    """Returns whether a control program is the daemon and not a command that asks one."""
    return any(word in (b"-d", b"-f", b"--daemon") for word in words[1:])


def _state(folder: str) -> tuple[str, int]:
    with open(f"{folder}/stat", "rb") as file:
        fields = file.read(4096).rpartition(b")")[2].split()
    return fields[0].decode(), int(fields[19])


def _parent(folder: str) -> int:
    with open(f"{folder}/stat", "rb") as file:
        return int(file.read(4096).rpartition(b")")[2].split()[1])


def _uids(folder: str) -> tuple[int, ...]:
    with open(f"{folder}/status", "rb") as file:
        for line in file:
            if line.startswith(b"Uid:"):
                return tuple(int(word) for word in line.split()[1:])
    return ()


def _pipe(environment: list[bytes]) -> str:
    for variable in environment:
        name, _, value = variable.partition(b"=")
        if name == PIPE_VARIABLE.encode():
            text = os.fsdecode(value)  # a user's own text, which is shown to administrators
            return "".join(ch if ch.isprintable() and ch != "\ufffd" else "?" for ch in text[:PIPE_MAX])
    return DEFAULT_PIPE


def daemons_at(pipe: str, file: str, found: tuple[Process, ...] | None = None) -> tuple[Process, ...]:
    """Returns root's control daemons of this pipe directory that run the program `file`, a path without links, as
    os.path.realpath returns it. At most one, but for a fault."""
    return tuple(
        process
        for process in (processes() if found is None else found)
        if not process.is_server and process.pipe == pipe and process.uid == os.geteuid() and process.program == file
    )


def servers_at(pipe: str, found: tuple[Process, ...] | None = None) -> tuple[Process, ...]:
    """Returns the servers of this pipe directory, whoever they run as."""
    return tuple(
        process for process in (processes() if found is None else found) if process.is_server and process.pipe == pipe
    )


def foreign(run_dir_mps: str, found: tuple[Process, ...] | None = None) -> tuple[Process, ...]:
    """Returns control daemons of pipe directories outside `run_dir_mps`: of users, or of another configuration."""
    return tuple(
        process
        for process in (processes() if found is None else found)
        if not process.is_server and not process.pipe.startswith(f"{run_dir_mps}/")
    )


def is_jobs_server(pid: int, run_dir_mps: str, root: str = "/proc") -> bool:
    """Returns whether a process is the server of a daemon that hami_hpc started: its parent is root's daemon. Reads
    nothing by which its user could hold up the caller."""
    try:
        program = os.readlink(f"{root}/{pid}/exe").removesuffix(DELETED)
        if program.rpartition("/")[2] != SERVER_NAME:
            return False
        parent = read(_parent(f"{root}/{pid}"), root)
    except (OSError, ValueError, IndexError):
        return False
    return parent is not None and not parent.is_server and parent.pipe.startswith(f"{run_dir_mps}/")


def kill(targets: tuple[Process, ...], within_s: float) -> tuple[Process, ...]:
    """Kills these processes (SIGKILL) if they are still the same ones, and waits. Returns those that did not end."""
    for process in targets:
        _signal(process)
    return wait(targets, within_s)


def wait(targets: tuple[Process, ...], within_s: float) -> tuple[Process, ...]:
    """Waits until these processes have ended. Returns those that had not within the time."""
    end = time.monotonic() + within_s
    left = tuple(_alive(targets))
    while left and (remaining_s := end - time.monotonic()) > 0:
        _pause(left, min(remaining_s, PAUSE_S))
        left = tuple(_alive(left))
    return left


def _pause(targets: tuple[Process, ...], most_s: float) -> None:
    """Waits until one of these processes ends, which the kernel tells at once, but no longer than `most_s`."""
    fds: list[int] = []
    try:
        for process in targets:
            fds.append(os.pidfd_open(process.pid))
        programs.wait_for(fds, most_s)
    except ProcessLookupError:
        return
    except OSError:  # a kernel before 5.3, or no descriptor is left
        time.sleep(min(most_s, LOOK_S))
    finally:
        for fd in fds:
            os.close(fd)


def _alive(targets: tuple[Process, ...]) -> Iterator[Process]:
    for process in targets:
        if _is_alive(process):
            yield process


def _is_alive(process: Process) -> bool:
    """Returns whether the process runs, whatever program it has become."""
    try:
        state, started = _state(f"/proc/{process.pid}")
    except (OSError, ValueError, IndexError):
        return False
    return started == process.started and state not in ("Z", "X")


def _signal(process: Process) -> None:
    """Sends SIGKILL by a descriptor of the process, so that a pid that is used again is no danger."""
    import signal  # which imports enum, and is not needed where all ends as it should

    with suppress(OSError):
        fd = os.pidfd_open(process.pid)
        try:
            if _is_alive(process):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        finally:
            os.close(fd)
