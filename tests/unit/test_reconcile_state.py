# SPDX-License-Identifier: Apache-2.0
"""What reconcile reads of a node before it plans, and what it says of files that are left over or wait."""

from __future__ import annotations

import errno
import os
import sqlite3
import time
from pathlib import Path

import pytest
from node_testbed import GPU_MIB, UUIDS, Node

from hami_hpc.contract import constants as c
from hami_hpc.core.inventory import Device
from hami_hpc.core.reconcile_plan import Action, Directory, Kind, NodeState
from hami_hpc.errors import NodeError
from hami_hpc.node import ended_dirs, job_dirs, nvml, usage_spool
from hami_hpc.node.config import Settings
from hami_hpc.node.ledger import Ledger
from hami_hpc.stages import common
from hami_hpc.stages.reconcile import Result, read_state, reconcile


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    devices = tuple(Device(minor, uuid, "NVIDIA H200", GPU_MIB) for minor, uuid in enumerate(UUIDS))
    monkeypatch.setattr(nvml, "read_devices", lambda: devices)
    return Node.make(tmp_path / "node")


def state_of(node: Node, running: frozenset[int] | NodeError = frozenset()) -> NodeState:
    def jobs() -> frozenset[int]:
        if isinstance(running, NodeError):
            raise running
        return running

    ledger = common.open_ledger(node.settings)
    try:
        return read_state(node.settings, ledger, jobs)
    finally:
        ledger.close()


def test_records_of_another_version_are_known_as_such(node: Node) -> None:
    node.prolog(7)
    node.prolog(8)
    (node.jobs / "8/job.limits").write_bytes(b"HAMI")
    record = node.jobs / "7/job.limits"
    data = bytearray(record.read_bytes())
    data[c.LIMITS_FIELDS["abi_version"][0]] += 1
    record.write_bytes(data)
    assert [(entry.name, entry.is_foreign) for entry in state_of(node).directories] == [("7", True), ("8", False)]


def test_the_state_is_what_ledger_directories_slurm_and_driver_say(node: Node) -> None:
    node.prolog(7)
    node.config.write_text(node.config.read_text() + "[vgpu]\nmemory_scaling = 0.5\n")
    for name in (".ended-8-1", ".bad-9-1", ".new-10-1", "11", "x"):
        (node.jobs / name).mkdir()
        os.utime(node.jobs / name, (1, time.time() - 500))
    state = state_of(node, frozenset({7}))
    (row,) = state.rows
    assert row == node.grants()[7]
    assert state.void == ()
    assert state.running == frozenset({7})
    assert (state.slurm_problem, state.driver_problem) == ("", "")
    assert state.capacity_mib == dict.fromkeys(UUIDS, GPU_MIB // 2)
    assert [(entry.name, entry.job_id, entry.is_ended, entry.is_bad) for entry in state.directories] == [
        (".bad-9-1", None, False, True),
        (".ended-8-1", None, True, False),
        (".new-10-1", None, False, False),
        ("11", 11, False, False),
        ("7", 7, False, False),
        ("x", None, False, False),
    ]
    assert [entry.grants for entry in state.directories] == [()] * 4 + [(row._replace(model=""),), ()]
    assert all(499 < entry.age_s < 600 for entry in state.directories if entry.name != "7")


def test_an_ended_directory_shows_its_grant(node: Node) -> None:
    node.prolog(7)
    grant = node.grants()[7]._replace(model="")
    ended_dirs.set_aside(node.settings.run_dir, grant)
    (entry,) = state_of(node).directories
    assert (entry.grants, entry.is_ended) == ((grant,), True)


def test_a_directory_that_goes_while_it_is_read_is_of_no_age(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_dirs, "entries", lambda _run_dir: (".new-1",))
    assert state_of(node).directories == (Directory(".new-1", None, (), False, 0.0),)


def test_who_does_not_answer_is_named_with_the_reason(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver() -> None:
        raise NodeError("no driver")

    monkeypatch.setattr(nvml, "read_devices", no_driver)
    state = state_of(node, NodeError("no slurmctld"))
    assert (state.running, state.slurm_problem) == (None, "no slurmctld")
    assert (state.capacity_mib, state.driver_problem) == (None, "no driver")


def results(node: Node, dry_run: bool = False) -> tuple[Result, ...]:
    return reconcile(node.settings, lambda: frozenset(), dry_run)


def test_files_left_over_are_named_and_one_that_stays_does_not_stop_the_next(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    state_dir = Path(node.settings.state_dir)
    (state_dir / usage_spool.DIRECTORY).mkdir(parents=True)
    left = [state_dir / usage_spool.DIRECTORY / ".7-1", state_dir / "ledger.db", state_dir / "ledger.db-wal"]
    for path in left:
        path.write_text("")
        os.utime(path, (1, 1))
    texts = [
        f"{left[0]}: left by an interrupted epilog; removed",
        *(f"{path}: a ledger of an older hami_hpc; it is now in {node.settings.run_dir}; removed" for path in left[1:]),
    ]
    planned = [Result(Action(Kind.REMOVE_FILE, text), None) for text in texts]
    assert list(results(node, dry_run=True)) == planned
    assert all(path.exists() for path in left)
    unlink = os.unlink

    def cannot(path: str, **more: int) -> None:
        if path == str(left[0]):
            raise OSError(errno.EROFS, "Read-only file system")
        unlink(path, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", cannot)
        first, *others = results(node)
    assert first.error == "Read-only file system; see mount and ls -ld"
    assert others == planned[1:]
    assert [path.exists() for path in left] == [True, False, False]


def test_records_that_wait_are_counted_and_what_cannot_be_moved_is_a_problem(node: Node) -> None:
    waiting = Path(usage_spool.waiting_dir(node.settings.run_dir))
    spool = f"{node.settings.state_dir}/{usage_spool.DIRECTORY}"
    for job_id in (7, 8):
        assert usage_spool.keep(node.settings.run_dir, job_id, 1, "{}")
    delivered = Result(Action(Kind.DELIVER, f"2 waiting usage record(s) moved to {spool}"), None)
    assert results(node, dry_run=True) == (delivered,)
    assert len(list(waiting.iterdir())) == 2
    Path(node.settings.state_dir).write_text("in the way")
    text = (
        f"2 usage record(s) wait in {waiting}, which a reboot empties, because {spool} cannot be written. "
        "Free some space there (df), then run hami-hpc reconcile again"
    )
    assert results(node) == (Result(Action(Kind.PROBLEM, text), None),)
    Path(node.settings.state_dir).unlink()
    assert results(node) == (delivered,)
    assert results(node) == ()


def test_a_ledger_that_gets_damaged_while_it_is_open_is_replaced_or_told(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.prolog(7)
    found = iter([None, "torn", None, "torn", None, None, None])
    monkeypatch.setattr("hami_hpc.node.ledger.Ledger.damage", lambda _ledger: next(found))
    with pytest.raises(
        NodeError, match=r"ledger .*/ledger.db is damaged \(torn\); without --dry-run a new one is made"
    ):
        results(node, dry_run=True)
    monkeypatch.setattr(common, "make_ledger_sound", lambda _settings: None)
    first, second = results(node)
    text = "the ledger was damaged (torn); it was renamed, and a new one filled from the run directory"
    assert first == Result(Action(Kind.RESTORE_ROW, text), None)
    assert second.action.kind is Kind.END


def test_a_ledger_whose_rows_change_after_it_was_opened_is_made_anew_from_the_run_directory(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.prolog(7)
    before = node.grants()
    open_ledger, path = common.open_ledger, Path(node.settings.run_dir) / "ledger.db"

    def open_then_damage(settings: Settings) -> Ledger:
        monkeypatch.setattr(common, "open_ledger", open_ledger)
        ledger = open_ledger(settings)
        connection = sqlite3.connect(path)
        connection.execute("UPDATE grants SET mem_mib = 1")
        connection.commit()
        connection.close()
        return ledger

    monkeypatch.setattr(common, "open_ledger", open_then_damage)
    (first,) = reconcile(node.settings, lambda: frozenset({7}), dry_run=False)
    assert "damaged (the checksum of its rows is wrong)" in first.action.text
    assert len(list(path.parent.glob("ledger.db.damaged-*"))) == 1
    assert node.grants() == {7: before[7]._replace(model="")}, "a directory does not say its GPU's model"
