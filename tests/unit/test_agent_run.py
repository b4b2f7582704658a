# SPDX-License-Identifier: Apache-2.0
"""hami_hpc/agent/service.py from its start to its end in one process, without a GPU and without a look."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_states import make_gpu, make_state
from node_testbed import Node
from watcher_testbed import Bench, watched_node

from hami_hpc.agent import event_feed, hooks, service, settings_seen
from hami_hpc.agent.event_feed import Feed
from hami_hpc.agent.fault_events import FaultEvents
from hami_hpc.agent.watcher import Watcher
from hami_hpc.core.watch import Action, Kind
from hami_hpc.node import agent_file
from hami_hpc.node.event_reader import EventReader
from hami_hpc.node.fault_table import HARMLESS, GpuFault, Whose


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """Gives back what the agent sets."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node.make(tmp_path / "node")
    node.config.write_text(node.config.read_text() + "[agent]\nperiod_ms = 700\n")
    return node


@pytest.fixture
def watchers(monkeypatch: pytest.MonkeyPatch) -> list[Watcher]:
    """The watchers with which the agent would have looked. The first look ends it."""
    seen: list[Watcher] = []

    def look_until(end: threading.Event, wake: threading.Event, watcher: Watcher, *_more: object) -> None:
        seen.append(watcher)
        signal.raise_signal(signal.SIGTERM)
        assert end.is_set()
        assert wake.is_set()

    monkeypatch.setattr(service, "_look_until", look_until)
    return seen


def events_of(node: Node) -> list[dict[str, Any]]:
    return [line.event for line in EventReader(node.settings.state_dir).read() if line.event is not None]


def test_a_life_is_its_start_what_changed_in_the_settings_and_its_end(node: Node, watchers: list[Watcher]) -> None:
    settings_seen.update(node.settings)
    node.config.write_text(node.config.read_text().replace("700", "800"))
    service.run(node.settings, "node1")
    assert [(one["kind"], one["source"], one["text"]) for one in events_of(node)] == [
        ("started", "agent", "the agent watches node node1"),
        ("settings_changed", "agent", "agent.period_ms: 700 -> 800"),
        ("ended", "agent", "the agent was told to end"),
    ]
    assert [watcher.settings.period_ms for watcher in watchers] == [800]


def test_what_was_given_to_a_hook_that_is_gone_is_forgotten_and_the_journals_is_kept(
    node: Node, watchers: list[Watcher]
) -> None:
    service.run(node.settings, "node1")
    folder = Path(event_feed.folder(agent_file.folder(node.settings.run_dir)))
    (folder / "gone").write_text("1 2 3")
    (folder / ".journal").write_text("1 2 3")
    service.run(node.settings, "node1")
    assert [path.name for path in folder.iterdir()] == [".journal"]


def test_an_agent_that_starts_again_knows_the_last_error_of_each_gpu(node: Node, watchers: list[Watcher]) -> None:
    agent_file.make_folder(node.settings.run_dir)
    gpu = make_gpu(0, 1, last_fault="Xid 79", last_fault_unix_ns=5)
    agent_file.write(node.settings.run_dir, make_state()._replace(gpus=(gpu,)))
    service.run(node.settings, "node1")
    (watcher,) = watchers
    assert watcher.faults is not None
    assert watcher.faults.fields(gpu.uuid)[:2] == ("Xid 79", 5)


def test_an_error_of_a_gpu_is_an_event_with_its_code_its_cause_and_how_often_it_came(
    node: Node, tmp_path: Path
) -> None:
    woken: list[bool] = []
    with watched_node(tmp_path / "watched") as bench:
        service.watch_faults(bench.watcher, node.settings, "node1", lambda: woken.append(True))
        assert bench.watcher.faults is not None
        fault = GpuFault("79", Whose.HARDWARE, HARMLESS, "lost", 79)
        bench.watcher.faults.event(fault, "text", "GPU-x", "drained", 3)
        (event,) = bench.events
        assert event[1:] == ("gpu_fault", 0, "GPU-x", "drained", "text", 79, 3, "hardware")
        assert bench.watcher.faults.unix_ns == bench.watcher.unix_ns
        bench.watcher.gpus.fault_events.wake()
    assert woken == [True]


def test_the_end_waits_once_for_all_hooks_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    waits: list[float] = []

    class Hanging(Feed):
        def join(self, wait_s: float) -> None:
            waits.append(wait_s)
            clock[0] += wait_s

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    service.stop_feeds([Hanging("", "", lambda _line: None, lambda _count: None) for _ in range(3)])
    assert waits == [hooks.TIMEOUT_S + 1, 0.0, 0.0]


def test_one_look_by_hand_reads_the_settings_and_acts_on_nothing(
    tmp_path: Path, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[object] = []
    with watched_node(tmp_path / "watched") as bench:
        assert isinstance(bench, Bench)
        monkeypatch.setattr(bench.gpus, "fault_events", FaultEvents(), raising=False)

        def make_watcher(settings: object, own: Any, name: str) -> Watcher:
            given.extend((settings, own.period_ms, own.actions, name))
            return bench.watcher

        monkeypatch.setattr(service, "make_watcher", make_watcher)
        state = service.look_once(node.settings, "node1")
    assert given == [node.settings, 700, dict.fromkeys(Kind, Action.LOG), "node1"]
    assert [job.job_id for job in state.jobs] == [7, 8]
    assert bench.watcher.histories.is_off
