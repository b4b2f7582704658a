# SPDX-License-Identifier: Apache-2.0
"""The agent as a service: one per node, until it is told to end.

It may be killed at any line: the state file is replaced whole, and the next start goes on with its sums. What stands
still when the agent is gone is the watching, not the limits: those are in the jobs' processes.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import os
import signal
import socket
import threading
from collections.abc import Iterator

from hami_hpc.agent.gpus import Gpus
from hami_hpc.agent.known_gpus import KnownGpus
from hami_hpc.agent.processes import Processes
from hami_hpc.agent.slices import Slices
from hami_hpc.agent.slurm_port import SlurmPort
from hami_hpc.agent.watcher import Watcher
from hami_hpc.core.agent_state import AgentState, Event
from hami_hpc.core.job_sums import JobSums
from hami_hpc.errors import NodeError
from hami_hpc.node import admin_log, agent_file, boot, job_dirs
from hami_hpc.node.agent_settings import AgentSettings, read_agent
from hami_hpc.node.config import Settings

SOON_S = 0.2  # until the look that confirms a suspicion
LOCK = "lock"


def emit(event: Event) -> None:
    """Writes an event as a line of JSON on standard output, which systemd's journal takes, and as text in syslog."""
    with contextlib.suppress(OSError):  # nobody reads standard output any more
        print(json.dumps(event._asdict()), flush=True)
    action = f" [{event.action}]" if event.action else ""
    admin_log.to_syslog(admin_log.WARNING, f"agent: {event.kind}: {event.text}{action}")


def make_watcher(settings: Settings, own: AgentSettings, node: str) -> Watcher:
    """Returns a watcher of this node that goes on with the sums of the last state file."""
    slurm = SlurmPort(node, lambda text: admin_log.to_syslog(admin_log.WARNING, f"agent: {text}"))
    watcher = Watcher(
        settings=own,
        boot_id=boot.boot_id(),
        gpus=Gpus(dict(settings.gpu_models)),
        processes=Processes(slurm.listed_pids),
        slices=Slices(settings.run_dir),
        slurm=slurm,
        emit=emit,
    )
    last = agent_file.read(settings.run_dir, watcher.boot_id)
    if last is not None:
        watcher.sums = JobSums.resumed(last.jobs, last.gpu_jobs)
        watcher.known_gpus = KnownGpus.resumed(last.gpu_jobs)
        watcher.events.extend(last.events)
    return watcher


@contextlib.contextmanager
def only_one(run_dir: str, group: int) -> Iterator[None]:
    """Holds the agent's lock. Raises NodeError when another agent of this node has it."""
    job_dirs.prepare(run_dir)
    agent_file.make_folder(run_dir, group)
    lock = os.open(f"{agent_file.folder(run_dir)}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NodeError("an agent of this node is already running: see systemctl status hami-hpc-agent") from None
        yield
    finally:
        os.close(lock)


def notify_systemd(text: str) -> None:
    """Tells systemd `READY=1` or `WATCHDOG=1` where it started this process and listens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address[:1] in ("/", "@"):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.sendto(text.encode(), address.replace("@", "\0", 1) if address[0] == "@" else address)


def run(settings: Settings, node: str) -> None:
    """Watches until SIGTERM or SIGINT."""
    own = read_agent(settings)
    end = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: end.set())
    with only_one(settings.run_dir, own.group):
        watcher = make_watcher(settings, own, node)
        watcher.event("started", f"the agent watches node {node}")
        gc.freeze()  # what was imported stays: no collection goes through it again
        notify_systemd("READY=1")
        is_full = False
        while not end.is_set():
            state = watcher.look()
            is_full = _write(settings.run_dir, state, own.group, is_full)
            notify_systemd("WATCHDOG=1")
            end.wait(min(SOON_S, own.period_ms / 1000) if watcher.is_waiting() else own.period_ms / 1000)


def _write(run_dir: str, state: AgentState, group: int, was_full: bool) -> bool:
    """Writes the state. Returns whether that failed; says so once."""
    try:
        agent_file.write(run_dir, state, group)
    except OSError as error:
        if not was_full:
            where = f"{agent_file.folder(run_dir)}/{agent_file.NAME}"
            admin_log.to_syslog(admin_log.ERROR, f"agent: {where} cannot be written ({error.strerror}); it goes on")
        return True
    return False


def look_once(settings: Settings, node: str) -> AgentState:
    """Looks often enough to confirm what there is, and returns the last state. Acts on nothing, writes nothing."""
    from hami_hpc.core.watch import Action, Kind

    own = read_agent(settings)
    own = own._replace(actions=dict.fromkeys(Kind, Action.LOG))
    watcher = make_watcher(settings, own, node)
    watcher.events.clear()
    watcher.histories.is_off = True
    watcher.emit = lambda _event: None
    state = watcher.look()
    pause = threading.Event()
    for _ in range(20):
        if not watcher.is_waiting():
            break
        pause.wait(SOON_S)
        state = watcher.look()
    return state
