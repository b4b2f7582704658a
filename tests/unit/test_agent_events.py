# SPDX-License-Identifier: Apache-2.0
"""The agent as a whole, on the simulated driver: its start, end and changed settings are events, and hooks get them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sim_testbed
from node_testbed import Node

from hami_hpc.agent import settings_seen
from hami_hpc.node import events
from hami_hpc.node.event_reader import EventReader


class Agent:
    """A node with an agent that a test starts and ends."""

    def __init__(self, root: Path, hooks: Path) -> None:
        self.machine = sim_testbed.make(root / "machine")
        self.node = Node.make(root / "node", with_gpus=False)
        self.hooks = hooks
        self.given = hooks / "given"
        script = hooks / "hooks.d" / "keep"
        script.parent.mkdir()
        script.write_text(f"#!/bin/sh\n{{ printf '%s ' \"$1\"; cat; }} >>{self.given}\n")
        script.chmod(0o755)
        self.node.config.write_text(
            f'{self.node.config.read_text()}[agent]\nperiod_ms = 200\nevents_hooks = "{script.parent}"\n'
        )
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "hami_hpc.cli", "agent", "--node", "n1", "--config", str(self.node.config)]
        self.process = subprocess.Popen(command, env=self.machine.env, stdout=subprocess.PIPE, text=True)
        self.wait("started", 1 + self.kinds().count("started"))

    def end(self, number: int = signal.SIGTERM) -> str:
        assert self.process is not None
        self.process.send_signal(number)
        out, _ = self.process.communicate(timeout=20)
        self.process = None
        return out

    def events(self) -> list[dict[str, Any]]:
        reader = EventReader(self.node.settings.state_dir)
        return [line.event for line in reader.read() if line.event is not None]

    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.events()]

    def wait(self, kind: str, count: int = 1) -> None:
        end = time.monotonic() + 20
        while self.kinds().count(kind) < count:
            assert time.monotonic() < end, self.events()
            time.sleep(0.05)

    def given_kinds(self, count: int) -> list[str]:
        """Waits for so many events, and returns the kinds that the hook got."""
        end = time.monotonic() + 20
        lines: list[str] = []
        while len(lines) < count:
            assert time.monotonic() < end, lines
            time.sleep(0.05)
            text = self.given.read_text() if self.given.exists() else ""
            lines = text.rpartition("\n")[0].splitlines()  # the last one may be half written
        assert all(json.loads(line.partition(" ")[2])["kind"] == line.partition(" ")[0] for line in lines)
        return [line.partition(" ")[0] for line in lines]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    hooks = Path(f"/root/.hami-agent-hooks-{os.getpid()}")  # pytest's own folder is below one that others can write
    hooks.mkdir(mode=0o755)
    made = Agent(tmp_path, hooks)
    yield made
    if made.process is not None:
        made.process.kill()
        made.process.communicate()
    shutil.rmtree(hooks)


def test_a_life_of_the_agent_in_events_and_what_hooks_and_journal_get_of_it(agent: Agent) -> None:
    agent.start()
    state_dir = agent.node.settings.state_dir
    events.write(state_dir, "prolog", "grant", text="job 7 has a slice", job_id=7)
    while "gpu_fault" not in agent.kinds():  # NVML tells of no error before the agent waits for it
        agent.machine.state("--xid", 1, 13)
        time.sleep(0.2)
    agent.given_kinds(3)
    journal = agent.end()
    assert agent.kinds() == ["started", "grant", "gpu_fault", "ended"]
    assert agent.given_kinds(3)[:3] == ["started", "grant", "gpu_fault"]
    printed = sorted(json.loads(line)["kind"] for line in journal.splitlines())
    assert printed == ["ended", "gpu_fault", "grant", "started"]
    fault = agent.events()[2]
    assert (fault["xid"], fault["fault"], fault["times"] >= 1) == (13, "application", True)

    events.write(state_dir, "epilog", "grant_end", text="while the agent is down", job_id=7)
    text = agent.node.config.read_text()
    agent.node.config.write_text(f'{text}[agent.actions]\nno_job = "ignore"\n')
    agent.start()
    agent.wait("settings_changed")
    agent.given_kinds(7)
    agent.end(signal.SIGKILL)
    changed = next(event for event in agent.events() if event["kind"] == "settings_changed")
    assert changed["text"] == "agent.actions.no_job: not set -> ignore"
    assert agent.given_kinds(7) == [
        *("started", "grant", "gpu_fault", "ended", "grant_end", "started", "settings_changed")
    ]


def test_a_directory_of_hooks_that_is_missing_is_said_and_the_agent_watches(agent: Agent) -> None:
    shutil.rmtree(agent.hooks / "hooks.d")
    agent.start()
    agent.wait("hook_refused")
    agent.end()
    assert agent.kinds() == ["started", "hook_refused", "ended"]


def test_events_from_before_the_first_agent_of_a_boot_are_given_too(agent: Agent) -> None:
    events.write(agent.node.settings.state_dir, "prolog", "grant", text="before", job_id=7)
    agent.start()
    assert agent.given_kinds(2) == ["grant", "started"]
    agent.end()


def test_the_agent_goes_on_where_events_cannot_be_written(agent: Agent) -> None:
    agent.start()
    agent.end()
    state = Path(agent.node.settings.state_dir)
    shutil.rmtree(state)
    state.write_text("in the way")
    command = [sys.executable, "-m", "hami_hpc.cli", "agent", "--node", "n1", "--config", str(agent.node.config)]
    with subprocess.Popen(command, env=agent.machine.env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(0.5)  # some looks
        assert process.poll() is None
        process.terminate()
        rest, _ = process.communicate(timeout=20)
    assert [json.loads(line)["kind"] for line in (first, *rest.splitlines())] == ["started", "ended"]


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"a": 1}', "[" * 100_000])
def test_settings_that_were_not_kept_have_not_changed(tmp_path: Path, text: str | None) -> None:
    node = Node.make(tmp_path / "node", with_gpus=False)
    path = Path(node.settings.state_dir) / settings_seen.NAME
    if text is not None:
        path.parent.mkdir()
        path.write_text(text)
    assert settings_seen.update(node.settings) == ""
    assert settings_seen.update(node.settings) == ""
    assert path.stat().st_mode & 0o777 == 0o640
    node.config.write_text(node.config.read_text().replace("143156", "143157") + "[agent]\ngroup = 'x'\n")
    assert settings_seen.update(node.settings) == "agent.group: not set -> x; gpu_models.h200: 143156 -> 143157"


def test_many_changes_are_named_in_part() -> None:
    before = {f"k{number}": "1" for number in range(20)}
    text = settings_seen.difference(before, {})
    assert text.count("->") == settings_seen.NAMED_MAX
    assert text.endswith("; and 12 more")
