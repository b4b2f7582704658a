# SPDX-License-Identifier: Apache-2.0
"""The agent's state file as prolog and epilog use it: it adds to a record, and never stops a job."""

from __future__ import annotations

import os
import syslog
import time
from pathlib import Path

import pytest
from node_testbed import UID, Node, job_environment

from hami_hpc.core.agent_state import AgentState, JobState
from hami_hpc.core.records import NOT_OBSERVED, Observed
from hami_hpc.node import agent_file, boot


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node.make(tmp_path / "node")
    node.config.write_text(node.config.read_text() + "[agent]\n")
    return node


def write_state(node: Node, boot_id: str | None = None) -> None:
    """Writes what the agent saw of job 7."""
    grant = node.grants()[7]
    numbers = dict.fromkeys(JobState._fields, 0)
    job = JobState(
        **numbers  # type: ignore[arg-type]
        | {
            "job_id": 7,
            "created_unix_ns": grant.created_unix_ns,
            "watched_ns": 11,
            "peak_bytes": 12,
            "busy_ns": 13,
            "energy_mj": 14,
            "pcie_bytes": 15,
            "nvlink_bytes": 16,
            "disturbed_count": 17,
            "findings": (),
            "gpu_fault": 79,
            "off_gpu_ns": 18,
        }
    )
    run_dir = node.settings.run_dir
    agent_file.make_folder(run_dir)
    state = AgentState(boot_id or boot.boot_id(), 1, time.time_ns(), agent_file.now_boot_ns(), 1, 1, (), (job,), (), ())
    agent_file.write(run_dir, state)


def observed(node: Node) -> tuple[object, ...]:
    record = node.record()
    return tuple(record[name] for name in Observed._fields)


def test_the_epilog_adds_what_the_agent_saw(node: Node) -> None:
    node.prolog(7)
    write_state(node)
    assert node.run("epilog", job_environment(7)) == (0, "")
    assert observed(node) == (11, 12, 13, 14, 15, 16, 17, 79, 18)


@pytest.mark.parametrize(
    "how", ["missing", "cut off", "of another boot", "of a user", "a directory", "a link", "negative"]
)
def test_whatever_the_file_is_the_epilog_writes_its_record(node: Node, how: str) -> None:
    node.prolog(7)
    path = Path(agent_file.folder(node.settings.run_dir)) / agent_file.NAME
    if how != "missing":
        write_state(node, "another" if how == "of another boot" else None)
    if how == "cut off":
        path.write_text(path.read_text()[:-20])
    elif how == "negative":
        path.write_text(path.read_text().replace('"busy_ns":13', '"busy_ns":-13'))
    elif how == "of a user":
        os.chown(path, UID, -1)
    elif how == "a directory":
        path.unlink()
        path.mkdir()
    elif how == "a link":
        path.rename(path.with_name("other"))
        path.symlink_to("other")
    assert node.run("epilog", job_environment(7)) == (0, "")
    assert observed(node) == tuple(NOT_OBSERVED)
    node.assert_nothing_is_held()


@pytest.mark.parametrize(
    ("age_s", "warning"),
    [
        (0, None),
        (50, None),
        (3600, "the agent has not looked for 3600 s"),
        (None, "the agent has not looked in this boot"),
        (-3600, None),
    ],
)
def test_the_prolog_says_when_nobody_watches(
    node: Node, monkeypatch: pytest.MonkeyPatch, age_s: int | None, warning: str | None
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(syslog, "syslog", lambda _level, text: lines.append(text) if "the agent" in text else None)
    node.prolog(7)
    lines.clear()
    if age_s is not None:
        write_state(node)
        path = f"{agent_file.folder(node.settings.run_dir)}/{agent_file.NAME}"
        os.utime(path, (time.time() - age_s, time.time() - age_s))
    assert node.prolog(8) == 0
    assert [warning in line for line in lines] == [True] if warning else not lines


def test_without_an_agent_in_the_settings_nobody_asks_for_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(syslog, "syslog", lambda _level, text: lines.append(text) if "the agent" in text else None)
    node = Node.make(tmp_path / "other")
    assert node.prolog(7) == 0
    assert not lines
