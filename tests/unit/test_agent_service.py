# SPDX-License-Identifier: Apache-2.0
"""hami_hpc/agent/service.py and the state file: what the agent writes, and how it starts again."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from node_testbed import UID
from watcher_testbed import Bench, watched_node

from hami_hpc.agent import service
from hami_hpc.errors import NodeError
from hami_hpc.node import agent_file, boot

Victim = subprocess.Popen[bytes]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with watched_node(tmp_path) as bench:
        yield bench


@pytest.fixture
def victim() -> Iterator[Victim]:
    """A process of a user."""
    with subprocess.Popen(["sleep", "100"], user=UID) as process:
        yield process
        process.kill()


def test_an_event_is_a_line_of_json_and_one_in_syslog(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr("hami_hpc.node.admin_log.to_syslog", lambda _level, line: lines.append(line))
    bench.watcher.event("started", "on node1")
    (event,) = bench.events
    for action in ("", "kill"):
        service.emit(bench.node.settings, -1, event._replace(action=action))
    printed = capsys.readouterr().out
    first, second = (json.loads(line) for line in printed.splitlines())
    assert (first["kind"], first["source"], first["text"]) == ("started", "agent", "on node1")
    assert second == {**first, "action": "kill", "time_unix_ns": second["time_unix_ns"]}
    assert (Path(bench.node.settings.state_dir) / "events.jsonl").read_text().endswith(printed)
    assert lines == ["agent: started: on node1", "agent: started: on node1 [kill]"]


def test_a_state_that_cannot_be_written_is_said_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr("hami_hpc.node.admin_log.to_syslog", lambda _level, line: lines.append(line))
    state = bench.look()
    run_dir = bench.node.settings.run_dir
    in_the_way = Path(agent_file.folder(run_dir))
    in_the_way.write_text("a file")
    was_full = False
    for _ in range(3):
        was_full = service._write(run_dir, state, -1, was_full)
    assert was_full
    (line,) = lines
    assert line.endswith("state.json cannot be written (Not a directory); it goes on")
    in_the_way.unlink()
    agent_file.make_folder(run_dir)
    assert not service._write(run_dir, state, -1, was_full)


@pytest.mark.parametrize(
    ("period_ms", "waits_s"), [(1000, [service.SOON_S, 1.0]), (100, [0.1, 0.1])], ids=["usual", "shorter than soon"]
)
def test_the_look_that_confirms_a_suspicion_comes_soon(bench: Bench, period_ms: int, waits_s: list[float]) -> None:
    end, waited = threading.Event(), list[float]()
    agent_file.make_folder(bench.node.settings.run_dir)

    def wait(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 2:
            end.set()

    wake = SimpleNamespace(clear=lambda: None, wait=wait)
    watcher = SimpleNamespace(look=bench.watcher.look, is_waiting=lambda: not waited)
    own = bench.watcher.settings._replace(period_ms=period_ms)
    service._look_until(end, cast(Any, wake), cast(Any, watcher), bench.node.settings, own)
    assert waited == waits_s


@pytest.mark.parametrize("address", ["{}/socket", "@{}"])
def test_systemd_is_told_where_it_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    address = address.format(tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(address.replace("@", "\0"))
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        service.notify_systemd("READY=1")
        assert sock.recv(100) == b"READY=1"
    service.notify_systemd("READY=1")  # nobody listens any more
    for nothing in ("", "vsock:1:2"):
        monkeypatch.setenv("NOTIFY_SOCKET", nothing)
        service.notify_systemd("READY=1")


def test_an_agent_that_starts_again_goes_on_with_its_sums_and_events(bench: Bench, victim: Victim) -> None:
    bench.hold(victim.pid, 100, busy=50)
    bench.slurm.pids = {victim.pid: 7}
    bench.watcher.event("started", "first")
    state = bench.look(3)
    run_dir = bench.node.settings.run_dir
    agent_file.make_folder(run_dir)
    agent_file.write(run_dir, state)
    own = bench.watcher.settings
    again = service.make_watcher(bench.node.settings, own, "node1")
    assert again.boot_id == boot.boot_id()
    assert [event.text for event in again.events] == [event.text for event in state.events]
    assert again.sums.last() == (state.jobs, state.gpu_jobs)


def test_one_agent_per_node_and_none_in_a_folder_of_a_user(bench: Bench) -> None:
    run_dir = bench.node.settings.run_dir
    with (
        service.only_one(run_dir, -1),
        pytest.raises(NodeError, match="already running"),
        service.only_one(run_dir, -1),
    ):
        pass
    with service.only_one(run_dir, -1):
        pass
    os.chown(agent_file.folder(run_dir), UID, -1)
    with pytest.raises(NodeError, match="only root can write"), service.only_one(run_dir, -1):
        pass


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 1}', '{"version": 99}', "\0" * 100])
def test_a_state_file_that_is_not_whole_is_none(bench: Bench, content: str) -> None:
    run_dir = bench.node.settings.run_dir
    agent_file.make_folder(run_dir)
    Path(f"{agent_file.folder(run_dir)}/{agent_file.NAME}").write_text(content)
    assert agent_file.read(run_dir, boot.boot_id()) is None


def test_the_state_file_is_root_s_and_of_this_boot(bench: Bench) -> None:
    run_dir = bench.node.settings.run_dir
    state = bench.look()
    agent_file.write(run_dir, state)
    assert agent_file.read(run_dir, boot.boot_id()) == state
    assert agent_file.read(run_dir, "another") is None
    path = Path(f"{agent_file.folder(run_dir)}/{agent_file.NAME}")
    assert path.stat().st_mode & 0o777 == 0o640
    os.chown(path, UID, -1)
    assert agent_file.read(run_dir, boot.boot_id()) is None
