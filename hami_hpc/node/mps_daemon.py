# SPDX-License-Identifier: Apache-2.0
"""One MPS control daemon: where it is, how it is started, asked and ended. No shell, and a time limit on each call.

The daemon is root's. That of driver 580 takes its settings from root alone; that of 535 takes them from everybody who
can connect to it, and the access list of its pipe directory leaves that to one user (docs/adr/052).
"""

from __future__ import annotations

import os
import stat
import time

from hami_hpc.core.contexts import suppress
from hami_hpc.core.values import NamedTuple
from hami_hpc.errors import NodeError
from hami_hpc.node import mps_processes, programs
from hami_hpc.node.mps_processes import PIPE_VARIABLE

FOLDER = "mps"
ALL_USERS = "all"
STATIC = "-S"  # the option by which a control program of driver 590 and later has static partitions
START_S, ANSWER_S, QUIT_S, END_S, KILL_S = 10.0, 3.0, 2, 1.0, 3.0
STATIC_ANSWER_S = 10.0  # the first command for partitions initialises CUDA in the daemon
PATH_MAX, SAID_MAX, PID_DIGITS = 4096, 80, 10
NUMBERS_MAX = 128  # of servers or clients in an answer: a daemon has one server, and that 60 clients at most
CRASHES_MAX, CRASH_MAX = 8, 256  # lines of a log into which users write, and letters of each
LOG_BYTES = 1 << 20  # a user's connections are lines of the log, so it is alone on a tmpfs
# Not passed on to a daemon: what would choose another GPU, another directory, or a program or library of its own.
DROPPED = ("CUDA_", "NVIDIA_", "HAMI_HPC_", "SLURM_", "SPANK_", "LD_", "PATH")
SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


class MpsError(NodeError):
    """A control daemon does not do what it should; the message names its pipe directory or its program."""


class Place(NamedTuple):
    """Where one daemon is: `user` is a uid, or ALL_USERS where one server serves everybody on that GPU."""

    run_dir: str
    gpu_minor: int
    user: str

    @property
    def pipe(self) -> str:
        return f"{self.run_dir}/{FOLDER}/{self.gpu_minor}-{self.user}"

    @property
    def log(self) -> str:
        return f"{self.pipe}.log"

    @property
    def jobs(self) -> str:
        return f"{self.pipe}.jobs"

    @property
    def program(self) -> str:
        return f"{self.pipe}.program"


class Member(NamedTuple):
    """A job that needs a daemon, its limits, and, where the daemon has static partitions, its own: GPU-UUID/ID."""

    job_id: int
    created_unix_ns: int
    cores_percent: int
    mem_mib: int
    chunks: int = 0
    partition: str = ""

    @property
    def name(self) -> str:
        return f"{self.job_id}-{self.created_unix_ns}"


class Limits(NamedTuple):
    """What a daemon lets a client have at most. Each client is limited further by its own environment."""

    percent: int
    mem_mib: int


def check_program(program: str) -> str:
    """Returns the file of `program`, without links. Raises MpsError unless root alone can change or replace it: all
    folders above it are root's, and one that others can write is sticky."""
    real = os.path.realpath(program)
    path, sticky = real, 0
    while True:
        try:
            status = os.lstat(path)
        except OSError as error:
            raise MpsError(
                f"{path} cannot be used ({error.strerror}): mode=mps needs NVIDIA's {mps_processes.CONTROL_NAME}. "
                "Install the driver's package that has it, set control in [mps] of hami-hpc.toml, or take mps out of "
                "modes in [vgpu]"
            ) from error
        if status.st_uid != 0 or (status.st_mode & 0o022 and not status.st_mode & sticky):
            raise MpsError(f"{path} can be changed by others than root; run: chown root {path}; chmod go-w {path}")
        if path == "/":
            return real
        path, sticky = os.path.dirname(path), stat.S_ISVTX


def daemons(
    program: str, place: Place, found: tuple[mps_processes.Process, ...] | None = None
) -> tuple[mps_processes.Process, ...]:
    """Returns the daemons of a place: those that run `program`, and one that an earlier version of the settings, or of
    the driver's package, started from another file."""
    real = os.path.realpath(program)
    try:
        with open(place.program, "rb") as file:
            noted = os.fsdecode(file.read(PATH_MAX)).partition("\0")[0]
    except OSError:
        noted = real
    programs = (real,) if noted == real else (real, os.path.realpath(noted))
    found = mps_processes.processes() if found is None else found
    return tuple(one for each in programs for one in mps_processes.daemons_at(place.pipe, each, found))


def note_program(program: str, place: Place, static: bool = False) -> None:
    """Notes the file of the daemon that is about to be started, and whether it is started with static partitions; no
    daemon is there. Raises OSError."""
    new = f"{place.program}.new"
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, os.fsencode(os.path.realpath(program) + (f"\0{STATIC}" if static else "")))
    finally:
        os.close(fd)
    os.rename(new, place.program)


def is_static(place: Place) -> bool:
    """Returns whether the place's daemon was started with static partitions, whatever the settings say now."""
    with suppress(OSError), open(place.program, "rb") as file:
        return file.read(PATH_MAX + len(STATIC) + 1).endswith(b"\0" + STATIC.encode())
    return False


def ask(program: str, place: Place, command: str, timeout_s: float | None = None) -> str:
    """Returns what the daemon answers to a command, or to several in lines of their own, in one line. Raises MpsError
    when it does not in time, ANSWER_S if no other is given."""
    timeout_s = ANSWER_S if timeout_s is None else timeout_s
    status, output = _run([program], place, {}, command, timeout_s)
    asked = command.replace("\n", "', '")
    if status is None:
        raise MpsError(f"the MPS daemon of {place.pipe} does not answer '{asked}' within {timeout_s:g} s")
    if status != 0 and not command.startswith("quit"):  # of quit it says how the servers ended
        raise MpsError(f"the MPS daemon of {place.pipe} cannot be asked '{asked}': {output or f'status {status}'}")
    return output


def answers(program: str, place: Place) -> bool:
    """Returns whether the daemon is there and answers in time."""
    if is_static(place):
        from hami_hpc.core import mps_chunks

        with suppress(MpsError):
            return mps_chunks.parse(ask(program, place, "lspart", STATIC_ANSWER_S)) is not None
        return False
    try:
        float(ask(program, place, "get_default_active_thread_percentage"))
    except (MpsError, ValueError):
        return False
    return True


def servers(program: str, place: Place) -> tuple[int, ...]:
    """Returns the process ids of the daemon's servers. Raises MpsError when it does not answer."""
    return _numbers(ask(program, place, "get_server_list"))


def clients(program: str, place: Place, server: int) -> tuple[int, ...]:
    """Returns the process ids of a server's clients. Raises MpsError when the daemon does not answer."""
    return _numbers(ask(program, place, f"get_client_list {server}"))


def _numbers(answer: str) -> tuple[int, ...]:
    return tuple(int(word) for word in answer.split() if _is_pid(word))[:NUMBERS_MAX]


def _is_pid(word: str) -> bool:
    return word.isdecimal() and len(word) <= PID_DIGITS


def takes(program: str, place: Place, limits: Limits) -> bool:
    """Returns whether the daemon is there and has taken these limits in time."""
    try:
        adjust(program, place, limits)
    except MpsError:
        return False
    return not is_static(place) or answers(program, place)


def adjust(program: str, place: Place, limits: Limits) -> tuple[int, ...]:
    """Sets what clients that come from now on may have. Those that are connected keep what they had: the driver does
    not change them. Returns the process ids of the daemon's servers. Raises MpsError when the daemon does not take the
    limits for its next server."""
    static = is_static(place)
    running = _set_defaults(program, place, limits, static)
    with suppress(MpsError):  # a server that ends, or that its user has stopped
        for server in running:
            percent = "" if static else f"set_active_thread_percentage {server} {limits.percent}\n"
            ask(program, place, f"{percent}set_device_pinned_mem_limit {server} 0 {limits.mem_mib}M")
    return running


def _set_defaults(program: str, place: Place, limits: Limits, static: bool) -> tuple[int, ...]:
    """Sets the limits of the next server, and returns the servers, by one call of the program: it answers the commands
    in their order, the first by its number, the second by nothing (tried with driver 535, simulated for the others).
    Where that is not what it answers, each command is a call of its own. A daemon with static partitions is told
    nothing of percentages: NVIDIA says that they do not apply there, and if they did, a job would have a part of its
    part."""
    percent = "" if static else f"set_default_active_thread_percentage {limits.percent}\n"
    memory = f"set_default_device_pinned_mem_limit 0 {limits.mem_mib}M"
    words = ask(program, place, f"{percent}{memory}\nget_server_list").split()
    others = words if static else words[1:]
    if (static or words[:1] == [f"{limits.percent:.1f}"]) and all(map(_is_pid, others)):
        return tuple(map(int, others))[:NUMBERS_MAX]
    if percent:
        ask(program, place, percent.rstrip())
    ask(program, place, memory)
    try:
        return servers(program, place)
    except MpsError:
        return ()


def start(program: str, place: Place, gpu_uuid: str, limits: Limits) -> None:
    """Starts the daemon of one GPU, with these limits from the start, as its note says (note_program). Its directories
    are there. Raises MpsError."""
    static = is_static(place)
    more = {"CUDA_VISIBLE_DEVICES": gpu_uuid, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={limits.mem_mib}M"}
    if not static:
        more["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(limits.percent)
    options = ["-d", *(["-M"] if place.user == ALL_USERS else []), *([STATIC] if static else [])]
    status, output = _run([program, *options], place, more, "", START_S)
    if status != 0:
        mps_processes.kill(daemons(program, place), KILL_S)
        why = f"did not start within {START_S:g} s" if status is None else f"ended with status {status}"
        raise MpsError(
            f"{program} for GPU {place.gpu_minor} {why}: {output or 'it said nothing'}. See {place.log}/control.log, "
            "nvidia-smi and dmesg"
        )
    if static and not daemons(program, place):  # 580 prints its help for an option that it does not know, and ends by 0
        said = _plain(output[:SAID_MAX])
        raise MpsError(f"{program} does not start a daemon with {STATIC}: {said.strip() or 'it said nothing'}")
    adjust(program, place, limits)


def crashes(place: Place, since_unix_ns: int) -> tuple[str, ...]:
    """Returns the last lines of the daemon's log, from that time on, that say that a server crashed. A user's own
    commands are in that log too."""
    since = time.strftime("[%Y-%m-%d %H:%M:%S", time.localtime(since_unix_ns // 1_000_000_000))
    found = [
        line
        for line in _tail(f"{place.log}/control.log").split("\n")
        if line >= since
        and ("fatal exception" in line or ("exited with status" in line and not line.rstrip().endswith("status 0")))
    ]
    return tuple(f"MPS of GPU {place.gpu_minor}: {_plain(line[:CRASH_MAX])}" for line in found[-CRASHES_MAX:])


def _plain(text: str) -> str:
    return "".join(ch if ch.isprintable() else " " for ch in text)


def _tail(path: str) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_BYTES))
            return file.read(LOG_BYTES).decode(errors="replace")
    except OSError:
        return ""


def stop(program: str, place: Place) -> None:
    """Ends the daemon and its servers: by `quit`, else by SIGKILL. Raises MpsError when one of them does not end."""
    noted = daemons(program, place, mps_processes.noted(place.pipe))
    if os.path.lexists(place.pipe):
        with suppress(MpsError):  # there is no daemon, or it does not listen
            ask(program, place, f"quit -t {QUIT_S}", QUIT_S + ANSWER_S)
    mps_processes.wait(noted, END_S)
    found = mps_processes.processes()  # which takes as long as the node has processes
    running = daemons(program, place, found)
    if running and not noted:  # it may have started a server since
        mps_processes.wait(running, END_S)
        found = mps_processes.processes()
    rest = daemons(program, place, found) + mps_processes.servers_at(place.pipe, found)
    left = mps_processes.kill(rest, KILL_S)
    if left:
        pids = ", ".join(str(process.pid) for process in left)
        raise MpsError(
            f"process {pids} of MPS in {place.pipe} cannot be ended: it waits in the driver; see dmesg (Xid)"
        )


def _run(command: list[str], place: Place, more: dict[str, str], text: str, timeout_s: float) -> tuple[int | None, str]:
    """Runs a program, with `more` in its environment, and returns its status, None when it took too long, and what it
    printed in one line.

    Raises MpsError, also for a program that others than root can change.
    """
    real = check_program(command[0])  # a link may be another one by now: what was checked is what runs
    environment = _environment(real, place, more)
    try:
        status, printed = programs.run([real, *command[1:]], environment, f"{text}\n" if text else "", timeout_s)
    except OSError as error:
        raise MpsError(f"{command[0]} cannot be run: {error.strerror}") from error
    return status, " ".join(printed.split())


def _environment(real: str, place: Place, more: dict[str, str]) -> dict[str, str]:
    """Returns the environment of the daemon and of the commands for it: the caller's without what is a job's or CUDA's.

    The daemon finds its server by PATH, so only directories of root's are in it.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(DROPPED)}
    path = f"{os.path.dirname(real)}:{SYSTEM_PATH}"
    return kept | {"PATH": path, PIPE_VARIABLE: place.pipe, "CUDA_MPS_LOG_DIRECTORY": place.log} | more
