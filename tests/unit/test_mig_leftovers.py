# SPDX-License-Identifier: Apache-2.0
"""Notes of MIG instances that no job has: which reconcile removes, what it says of each, and what cannot be done.

No GPU is needed: instances of an earlier boot are gone, and the lock of a GPU is asked for by a stand-in.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from node_testbed import UUIDS, Node

from hami_hpc.core.mig_layout import Instance
from hami_hpc.core.reconcile_plan import Action, Kind
from hami_hpc.errors import NodeError
from hami_hpc.node import boot, mig_gpu, mig_notes
from hami_hpc.node.config import Settings
from hami_hpc.node.mig_notes import BEGUN, ENDING, LIVE, Note
from hami_hpc.stages import common, mig_leftovers

OURS, OTHERS = UUIDS
INSTANCE = Instance(3, 19, 2, 1, "MIG-2b0c3f61-1d2e-5a4b-8c9d-0123456789ab")
Done = list[tuple[Action, str | None]]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node.make(tmp_path / "node")


class Gpu:
    """Stands for the GPU: ends the notes that it has."""

    problem = ""
    ended: list[tuple[str, int]]

    def __init__(self, run_dir: str) -> None:
        self.run_dir, self.ended, self.uuid = run_dir, [], ""

    @contextmanager
    def locked(self, settings: Settings, uuid: str) -> Iterator[Gpu]:
        assert settings.run_dir == self.run_dir
        self.uuid = uuid
        yield self

    def notes(self) -> tuple[Note, ...]:
        return mig_notes.read(self.run_dir, self.uuid)

    def end(self, note: Note) -> None:
        if self.problem:
            raise NodeError(self.problem)
        self.ended.append((self.uuid, note.job_id))
        mig_notes.remove(self.run_dir, self.uuid, note)


@pytest.fixture
def gpu(node: Node, monkeypatch: pytest.MonkeyPatch) -> Gpu:
    made = Gpu(node.settings.run_dir)
    monkeypatch.setattr(mig_gpu, "locked", made.locked)
    return made


def note(job_id: int, state: str = LIVE, created_unix_ns: int = 5, **more: object) -> Note:
    made = Note(state, job_id, created_unix_ns, 1000, 0, boot.boot_id(), INSTANCE)
    return made._replace(**more)  # type: ignore[arg-type]


def write(node: Node, uuid: str, *notes: Note) -> None:
    for one in notes:
        with mig_notes.locked(node.settings.run_dir, uuid):
            mig_notes.write(node.settings.run_dir, uuid, one)


def notes(node: Node, uuid: str) -> list[int]:
    return [one.job_id for one in mig_notes.read(node.settings.run_dir, uuid)]


def remove(node: Node, dry_run: bool = False) -> Done:
    ledger = common.open_ledger(node.settings)
    try:
        return list(mig_leftovers.remove(node.settings, ledger, dry_run))
    finally:
        ledger.close()


def removed(job_id: int, what: str, why: str, uuid: str = OURS) -> Action:
    text = f"job {job_id}: its MIG instance {what} of GPU 0 ({uuid}) {why} and is removed"
    return Action(Kind.REMOVE_INSTANCE, text, job_id)


def test_what_has_no_job_was_left_half_made_or_is_of_an_earlier_boot_goes(node: Node, gpu: Gpu) -> None:
    node.prolog(7)
    start = node.grants()[7].created_unix_ns
    half = INSTANCE._replace(uuid="")
    write(node, OURS, note(7, created_unix_ns=start), note(8), note(9, BEGUN, instance=half), note(10, ENDING))
    write(node, OTHERS, note(7, created_unix_ns=start, boot_id="earlier"), note(7, created_unix_ns=start + 1))
    expected = [
        removed(10, INSTANCE.uuid, "was left half made"),
        removed(8, INSTANCE.uuid, "has no job"),
        removed(9, "of profile 19 at 2", "was left half made"),
        removed(7, INSTANCE.uuid, "is of an earlier boot", OTHERS),
        removed(7, INSTANCE.uuid, "has no job", OTHERS),
    ]
    left_over = Path(mig_notes.path_of(node.settings.run_dir, OURS, note(11)) + mig_notes.NEW)
    left_over.write_text("cut off")
    assert remove(node, dry_run=True) == [(action, None) for action in expected]
    assert (gpu.ended, notes(node, OURS), left_over.exists()) == ([], [10, 7, 8, 9], True), "nothing is changed"
    assert remove(node) == [(action, None) for action in expected]
    assert gpu.ended == [(OURS, 10), (OURS, 8), (OURS, 9), (OTHERS, 7)], "one of an earlier boot is not asked for"
    assert (notes(node, OURS), notes(node, OTHERS), left_over.exists()) == ([7], [], False)
    assert remove(node) == []


def test_a_job_whose_row_is_lost_keeps_its_instance_as_long_as_it_has_its_directory(node: Node, gpu: Gpu) -> None:
    node.prolog(7)
    grant = node.grants()[7]
    write(node, OURS, note(7, created_unix_ns=grant.created_unix_ns))
    ledger = common.open_ledger(node.settings)
    ledger.remove(grant)
    ledger.close()
    assert remove(node) == []
    assert notes(node, OURS) == [7]


def test_what_cannot_be_ended_is_said_and_the_others_go(node: Node, gpu: Gpu) -> None:
    write(node, OURS, note(8))
    write(node, OTHERS, note(9, boot_id="earlier"))
    gpu.problem = "in use"
    assert [error for _, error in remove(node)] == ["in use", None]
    assert (notes(node, OURS), notes(node, OTHERS)) == ([8], [])


def test_a_note_that_a_stage_has_ended_meanwhile_is_not_ended_again(
    node: Node, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(node, OURS, note(8))
    monkeypatch.setattr(gpu, "notes", lambda: ())
    assert [error for _, error in remove(node)] == [None]
    assert gpu.ended == []


def test_notes_that_cannot_be_read_are_a_problem_and_those_of_other_gpus_are_read(node: Node, gpu: Gpu) -> None:
    write(node, OURS, note(8))
    write(node, OTHERS, note(9))
    path = Path(mig_notes.path_of(node.settings.run_dir, OURS, note(8)))
    path.write_text("")
    damage = f"{path} is damaged: compare nvidia-smi mig -lgi with hami-hpc mig list, then remove the file"
    assert remove(node, dry_run=True) == [
        (Action(Kind.PROBLEM, damage), None),
        (removed(9, INSTANCE.uuid, "has no job", OTHERS), None),
    ]
    folder = Path(node.settings.run_dir) / mig_notes.FOLDER
    folder.rename(folder.with_name("away"))
    folder.write_text("")
    problem = f"{folder}: Not a directory. See df, mount and ls -ld there"
    assert remove(node) == [(Action(Kind.PROBLEM, problem), None)]
