# SPDX-License-Identifier: Apache-2.0
"""The agent as a service: one per node, until it is told to end.

It may be killed at any line: the state file is replaced whole, and the next start goes on with its sums. What stands
still when the agent is gone is the watching, not the limits: those are in the jobs' processes.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

from hami_hpc.agent import (
    event_feed,
    hooks,
    latency_beyond,
    left_jobs,
    mode_returns,
    resumed_jobs,
    room_returns,
    settings_seen,
    turns_taken,
)
from hami_hpc.agent.driver_limits import DriverLimits
from hami_hpc.agent.event_feed import Feed
from hami_hpc.agent.fault_events import FaultEvents
from hami_hpc.agent.faults import Faults
from hami_hpc.agent.gpu_drains import GpuDrains
from hami_hpc.agent.gpus import Gpus
from hami_hpc.agent.known_gpus import KnownGpus
from hami_hpc.agent.processes import Processes
from hami_hpc.agent.slices import Slices
from hami_hpc.agent.slurm_port import SlurmPort
from hami_hpc.agent.watcher import Watcher
from hami_hpc.core.agent_state import AgentState, Event
from hami_hpc.core.job_sums import JobSums
from hami_hpc.errors import HamiError, NodeError
from hami_hpc.node import admin_log, agent_file, boot, events, job_dirs, mig_static, sluids, turn_notes
from hami_hpc.node.agent_settings import AgentSettings, read_agent
from hami_hpc.node.config import Settings
from hami_hpc.node.event_reader import Line
from hami_hpc.node.fault_table import GpuFault

SOON_S = 0.2  # until the look that confirms a suspicion
LOCK = "lock"
GC_OBJECTS = 20_000  # a look makes some thousands that live until the next one, none of them in a cycle
LAST_HOOK_S = hooks.TIMEOUT_S + 1  # that the end waits for hooks which run
SOURCE = "agent"


def show(line: str) -> None:
    """Writes a line to standard output, which systemd's journal takes."""
    with contextlib.suppress(OSError):  # nobody reads it any more
        print(line, flush=True)


def emit(settings: Settings, group: int, event: Event) -> None:
    """Writes an event as a line of JSON into the node's events and on standard output, and as text in syslog."""
    fields = {name: value for name, value in event._asdict().items() if value and name != "kind"}
    show(events.write(settings.state_dir, SOURCE, event.kind, group, **fields))
    action = f" [{event.action}]" if event.action else ""
    admin_log.to_syslog(admin_log.WARNING, f"agent: {event.kind}: {event.text}{action}")


def report(text: str) -> None:
    admin_log.to_syslog(admin_log.WARNING, f"agent: {text}")


def make_watcher(settings: Settings, own: AgentSettings, node: str) -> Watcher:
    """Returns a watcher of this node that goes on with the sums of the last state file."""
    slurm = SlurmPort(node, report, has_places=settings.slices_max > 1)
    watcher = Watcher(
        settings=own,
        boot_id=boot.boot_id(),
        gpus=Gpus(dict(settings.gpu_models)),
        processes=Processes(slurm.listed_pids, sluids=partial(sluids.jobs_by_sluid, settings.run_dir)),
        slices=Slices(settings.run_dir),
        slurm=slurm,
        emit=lambda event: emit(settings, own.group, event),
        by_index=lambda uuids: mig_static.by_index(settings.state_dir, uuids),
    )
    last = agent_file.read(settings.run_dir, watcher.boot_id)
    if last is not None:
        watcher.sums = JobSums.resumed(last.jobs, last.gpu_jobs)
        watcher.known_gpus = KnownGpus.resumed(last.gpu_jobs)
        watcher.events.extend(last.events)
    return watcher


def watch_faults(watcher: Watcher, settings: Settings, node: str, wake: Callable[[], None]) -> None:
    """Has the watcher act on errors of the GPUs; `wake` is called when NVML tells of one."""

    def event(fault: GpuFault, text: str, uuid: str, action: str, count: int) -> None:
        watcher.event("gpu_fault", text, 0, uuid, action, xid=fault.xid, times=count, fault=fault.whose.value)

    drains = GpuDrains(settings, node, report)
    watcher.gpus.fault_events = FaultEvents(wake)
    watcher.faults = Faults(watcher.settings.faults, watcher.slurm, drains.drain, event, watcher.unix_ns)
    last = agent_file.read(settings.run_dir, watcher.boot_id)
    watcher.faults.resume(last.gpus if last is not None else ())


def start_feeds(settings: Settings, own: AgentSettings, since_ns: int) -> list[Feed]:
    """Starts what takes this node's events: the journal (those that others write), and the site's hooks."""

    def journal(line: Line) -> None:
        if line.event is not None and (line.event.get("source") != SOURCE or line.event["kind"] == "gpu_drain"):
            show(line.text)

    def about_hooks(kind: str, text: str, count: int) -> None:
        emit(settings, own.group, Event(time.time_ns(), kind, 0, "", "", text, times=count))

    folder = event_feed.prepare(agent_file.folder(settings.run_dir))
    feeds = [Feed(settings.state_dir, f"{folder}/.journal", journal, lambda _count: None, since_ns)]
    if own.events_hooks:
        try:
            names = hooks.names(own.events_hooks)
        except OSError as error:
            text = f"no hooks are run: {own.events_hooks} cannot be listed ({error.strerror})"
            about_hooks("hook_refused", text, 0)
            names = ()
        for name in names:
            hook = hooks.Hook(own.events_hooks, name, about_hooks)
            feeds.append(Feed(settings.state_dir, f"{folder}/{name}", hook.take, hook.drop, since_ns))
    event_feed.forget_others(folder, [feed.path for feed in feeds])
    for feed in feeds:
        feed.start()
    return feeds


def stop_feeds(feeds: list[Feed]) -> None:
    """Ends them; a hook that runs has the rest of its time, so that it does not get its event again."""
    for feed in feeds:
        feed.end()
    end_s = time.monotonic() + LAST_HOOK_S
    for feed in feeds:
        feed.join(max(0.0, end_s - time.monotonic()))


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
    end, wake = threading.Event(), threading.Event()

    def stop(*_: object) -> None:
        end.set()
        wake.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    with only_one(settings.run_dir, own.group):
        # Events from before the first agent of this boot are of its jobs, those of earlier boots are old.
        is_first = agent_file.read(settings.run_dir, boot.boot_id()) is None
        since_ns = boot.booted_unix_ns() if is_first else time.time_ns()
        watcher = make_watcher(settings, own, node)
        watch_faults(watcher, settings, node, wake.set)
        if own.driver_limits:
            slack_bytes = own.limits.memory_slack_bytes
            by_sluid = watcher.processes.sluids
            watcher.driver_limits = DriverLimits(node, slack_bytes, watcher.gpus.opened, report, sluids=by_sluid)
        watcher.event("started", f"the agent watches node {node}")
        changed = settings_seen.update(settings)
        if changed:
            watcher.event("settings_changed", changed)
        feeds = start_feeds(settings, own, since_ns)
        beside = [
            mode_returns.make(settings, node, report),
            left_jobs.make(settings, node, SlurmPort(node, report).listed_pids, report),
            resumed_jobs.make(settings, node, report),
            room_returns.make(settings, node, report),
        ]
        if settings.memory_scaling > 1 or turns_taken.are_left(settings):
            watcher.turns = turns_taken.TurnsTaken(settings, watcher.last_look, hurry=wake.set)
            beside.append(turns_taken.make(watcher.turns, report))
        else:
            turn_notes.end(settings.run_dir)
        beyond = latency_beyond.LatencyBeyond(settings)
        beside.append(latency_beyond.make(beyond, report))
        for repeated in beside:
            repeated.start()
        gc.freeze()  # what was imported stays: no collection goes through it again
        gc.set_threshold(GC_OBJECTS)
        notify_systemd("READY=1")
        _look_until(end, wake, watcher, settings, own)
        for repeated in beside:
            repeated.end()
        try:
            problem = beyond.end()
        except (HamiError, OSError) as error:
            problem = str(error)
        if problem:
            report(f"latency-critical jobs stay as they are treated: {problem}")
        watcher.event("ended", "the agent was told to end")
        stop_feeds(feeds)


def _look_until(
    end: threading.Event, wake: threading.Event, watcher: Watcher, settings: Settings, own: AgentSettings
) -> None:
    """Looks each period; sooner when something has to be confirmed, or when NVML tells of an error."""
    is_full = False
    period_s = own.period_ms / 1000
    while not end.is_set():
        wake.clear()
        state = watcher.look()
        is_full = _write(settings.run_dir, state, own.group, is_full)
        notify_systemd("WATCHDOG=1")
        if end.is_set():
            return
        wake.wait(min(SOON_S, period_s) if watcher.is_waiting() else period_s)


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
    watcher.gpus.fault_events.is_on = False
    state = watcher.look()
    pause = threading.Event()
    for _ in range(20):
        if not watcher.is_waiting():
            break
        pause.wait(SOON_S)
        state = watcher.look()
    return state
