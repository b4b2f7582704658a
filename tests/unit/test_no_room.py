# SPDX-License-Identifier: Apache-2.0
"""A run directory that was full: the node that a prolog drained for it returns to service, and no other one does."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from node_testbed import Node

from hami_hpc.agent import left_jobs, room_returns
from hami_hpc.errors import NodeError
from hami_hpc.node import drain, no_room, nvml, usage_spool
from hami_hpc.slurm import commands
from hami_hpc.stages import room_service
from hami_hpc.stages.reconcile import reconcile

OURS = (
    f"State=IDLE+DRAIN Boards=1 Reason=hami_hpc: prolog: ledger is full. {no_room.RETURNS} [root@2026-11-26T18:23:15]"
)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node.make(tmp_path / "node")


class Slurm:
    """What slurmctld shows of the node, and whether it was told to resume it."""

    def __init__(self) -> None:
        self.shown: str | NodeError = f"NodeName=n1 {OURS} \n"
        self.resumed: list[str] = []
        self.asked = 0

    def show_node(self, node: str) -> str:
        self.asked += 1
        if isinstance(self.shown, NodeError):
            raise self.shown
        assert node == "n1"
        return self.shown


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    made = Slurm()
    monkeypatch.setattr(commands, "show_node", made.show_node)
    monkeypatch.setattr(commands, "resume_node", made.resumed.append)
    return made


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The file system of the run directory."""
    made = SimpleNamespace(f_bfree=0, f_frsize=4096, f_files=1000, f_ffree=900)
    monkeypatch.setattr(os, "statvfs", lambda _path: made)
    return made


def make_room(disk: SimpleNamespace) -> None:
    disk.f_bfree = no_room.ROOM_BYTES // disk.f_frsize


def is_noted(node: Node) -> bool:
    return Path(no_room.path_of(node.settings.run_dir)).exists()


def note(node: Node) -> None:
    Path(node.settings.run_dir).mkdir(exist_ok=True)
    assert no_room.note(node.settings.run_dir)


def kinds(node: Node) -> list[str]:
    path = node.root / "state/events.jsonl"
    return [json.loads(line)["kind"] for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize(
    ("blocks", "files", "free_files", "expected"),
    [
        (0, 1000, 900, True),
        (1023, 1000, 900, True),
        (1024, 1000, 900, False),
        (1024, 1000, 63, True),
        (1024, 0, 0, False),
    ],
)
def test_full_is_too_little_room_or_too_few_files(
    disk: SimpleNamespace, blocks: int, files: int, free_files: int, expected: bool
) -> None:
    disk.f_bfree, disk.f_files, disk.f_ffree = blocks, files, free_files
    assert no_room.is_full("/run") is expected


def test_a_directory_of_which_nothing_is_known_is_not_full(tmp_path: Path) -> None:
    assert not no_room.is_full(str(tmp_path / "none"))
    assert not no_room.note(str(tmp_path / "none"))


def test_a_prolog_that_fails_by_a_full_run_directory_says_that_the_node_returns(
    node: Node, disk: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reasons: list[str] = []
    monkeypatch.setattr(drain, "drain_node", lambda _environment, reason: reasons.append(reason))

    def fails(*_arguments: object) -> None:
        raise NodeError("x" * 1000)

    monkeypatch.setattr("hami_hpc.stages.prolog.grant_or_make_room", fails)
    Path(node.settings.run_dir).mkdir(exist_ok=True)
    assert node.prolog(7) == 1
    assert reasons[0].startswith("hami_hpc: prolog: xxx")
    assert reasons[0].endswith(f"x. {no_room.RETURNS}")
    assert drain.plain(reasons[0]) == reasons[0], "slurmctld gets all of it"
    assert reasons[0] in capsys.readouterr().err
    assert is_noted(node)
    make_room(disk)
    assert node.prolog(7) == 1
    assert no_room.RETURNS not in reasons[1], "another fault"


def test_what_somebody_put_in_the_notes_place_holds_no_prolog_up(node: Node, disk: SimpleNamespace) -> None:
    Path(node.settings.run_dir).mkdir(exist_ok=True)
    os.mkfifo(no_room.path_of(node.settings.run_dir))
    assert not no_room.note(node.settings.run_dir)


def test_the_node_returns_once_when_there_is_room(node: Node, slurm: Slurm, disk: SimpleNamespace) -> None:
    lines: list[str] = []
    agent = room_returns.make(node.settings, "n1", lines.append)
    agent.once()
    note(node)
    agent.once()
    assert (slurm.asked, slurm.resumed) == (0, []), "it is full"
    make_room(disk)
    agent.once()
    agent.once()
    assert (slurm.asked, slurm.resumed) == (1, ["n1"])
    assert lines == ["the run directory has room again; node n1 returns to service"]
    assert kinds(node) == ["node_resume"]


@pytest.mark.parametrize(
    "shown",
    [
        "State=IDLE+DRAIN Boards=1 Reason=new disk [root@2026-11-26T18:23:15]",
        OURS.replace(no_room.RETURNS, "See df"),
        OURS.replace("hami_hpc: ", "me: "),
        OURS.replace("+DRAIN", ""),
        "State=IDLE Boards=1",
    ],
)
def test_a_node_that_is_drained_for_another_reason_or_not_at_all_stays_as_it_is(
    node: Node, slurm: Slurm, disk: SimpleNamespace, shown: str
) -> None:
    note(node)
    make_room(disk)
    slurm.shown = f"NodeName=n1 {shown} \n"
    assert room_service.settle(node.settings, "n1", "agent") == ""
    assert (slurm.asked, slurm.resumed, is_noted(node), kinds(node)) == (1, [], False, [])


def test_while_slurmctld_does_not_answer_it_is_tried_again(node: Node, slurm: Slurm, disk: SimpleNamespace) -> None:
    note(node)
    make_room(disk)
    answer, slurm.shown = slurm.shown, NodeError("no answer")
    with pytest.raises(NodeError, match="no answer"):
        room_service.settle(node.settings, "n1", "agent")
    assert is_noted(node)
    slurm.shown = answer
    assert room_service.settle(node.settings, "n1", "agent")
    assert slurm.resumed == ["n1"]


def test_reconcile_returns_the_node_and_a_dry_run_says_that_it_would(
    node: Node, slurm: Slurm, disk: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "read_devices", lambda: ())

    def run(dry_run: bool) -> list[str]:
        results = reconcile(node.settings, frozenset, dry_run, lambda: "n1")
        return [one.action.text for one in results]

    text = "the run directory has room again; node n1 returns to service"
    make_room(disk)
    assert run(dry_run=False) == []
    disk.f_bfree = 0
    note(node)
    assert run(dry_run=False) == []
    make_room(disk)
    assert (run(dry_run=True), slurm.resumed) == ([text], [])
    answer, slurm.shown = slurm.shown, NodeError("no answer")
    assert run(dry_run=False) == ["the run directory was full, and has room again: no answer"]
    slurm.shown = answer
    assert (run(dry_run=False), slurm.resumed) == ([text], ["n1"])
    assert run(dry_run=False) == []


def test_the_agent_delivers_records_that_wait_and_finishes_what_was_set_aside(
    node: Node, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(nvml, "read_devices", lambda: ())

    def running_jobs(name: str) -> frozenset[int]:
        asked.append(name)
        return frozenset()

    monkeypatch.setattr(commands, "running_jobs", running_jobs)
    agent = left_jobs.make(node.settings, "n1", dict, lambda _line: None)
    usage = node.root / "state/usage"
    usage.parent.mkdir(exist_ok=True)
    usage.write_text("")  # takes nothing
    assert [node.prolog(7), node.epilog(7)] == [0, 0]
    assert len(usage_spool.waiting(node.settings.run_dir)) == 1
    (node.root / "run/spool").rename(node.root / "run/kept")
    (node.root / "run/spool").write_text("")
    assert [node.prolog(8), node.epilog(8)] == [0, 0]
    assert [name[:8] for name in node.names()] == [".ended-8"]
    (node.root / "run/spool").unlink()
    (node.root / "run/kept").rename(node.root / "run/spool")
    agent.once()
    assert len(usage_spool.waiting(node.settings.run_dir)) == 2, "nothing is lost while the disk is full"
    usage.unlink()
    agent.once()
    assert (node.names(), node.spooled()) == ([], ["7.json", "8.json"])
    asked.clear()
    agent.once()
    assert asked == [], "slurmctld is left alone"


def test_a_records_name_is_on_the_disk_before_its_job_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, bool]] = []
    genuine = os.fsync

    def fsync(fd: int) -> None:
        name = str(Path(f"/proc/self/fd/{fd}").readlink())
        synced.append((name, (tmp_path / "usage/7.json").exists()))
        genuine(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    usage_spool.write(str(tmp_path), 7, 1, '{"start_unix_ns": 1}')
    (file, before), (folder, after) = synced
    assert (Path(file).parent, before) == (tmp_path / "usage", False)
    assert (folder, after) == (str(tmp_path / "usage"), True)
