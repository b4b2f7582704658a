# SPDX-License-Identifier: Apache-2.0
"""mode=mig against a user who changes the devices of their instance, and beside an administrator who makes an instance
by hand in the middle of a grant: what hami_hpc did not make is never destroyed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from mig_testbed import MigNode, mig_environment
from node_testbed import UID

from hami_hpc.core.mig_layout import Instance, Profile
from hami_hpc.node import locks, mig, mig_notes
from hami_hpc.stages.epilog import main as epilog_main
from hami_hpc.stages.prolog import main as prolog_main

JOB = 7


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MigNode:
    return MigNode.make(tmp_path, monkeypatch)


@pytest.mark.parametrize("mode", [0o444, 0o666, 0o000, 0o4755])
def test_a_device_whose_mode_its_user_has_changed_is_removed_with_the_instance(bed: MigNode, mode: int) -> None:
    """Its minor number comes back with the next instance of the same id, whoever makes that."""
    assert bed.prolog(JOB) == 0
    folder = bed.machine.directory / "dev/nvidia-caps"
    given = [path for path in folder.iterdir() if path.stat().st_uid == UID]
    assert len(given) == 2
    for path in given:
        path.chmod(mode)
    assert bed.epilog(JOB) == 0
    assert bed.devices() == {}


def make_by_hand(nvml: object, handle: object, name: str, start: int) -> Instance:
    [profile] = [one for one in mig.profiles(nvml, handle) if one.name == name]  # type: ignore[arg-type]
    return mig.create(nvml, handle, profile, start)  # type: ignore[arg-type]


@pytest.mark.parametrize("when", ["before the prolog's own", "after a kill before the prolog's own"])
def test_an_instance_made_by_hand_at_the_place_of_a_grant_is_left_alone(
    bed: MigNode, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    genuine = mig.create
    killed = when.startswith("after")

    def create(nvml: object, handle: object, profile: Profile, start: int, made: object) -> Instance:
        monkeypatch.setattr(mig, "create", genuine)
        if killed:
            os.kill(os.getpid(), signal.SIGKILL)
        make_by_hand(nvml, handle, profile.name, start)
        return genuine(nvml, handle, profile, start, made)  # type: ignore[arg-type]

    def body() -> int:
        monkeypatch.setattr(mig, "create", create)
        return prolog_main(bed.node.arguments, mig_environment(JOB))

    if killed:
        with pytest.raises(AssertionError, match=f"ended with status {signal.SIGKILL}"):
            bed.run(body)
        [note] = mig_notes.read(bed.node.settings.run_dir, bed_uuid(bed))
        by_hand = bed.make_foreign(note.instance.profile_id, note.instance.start)
        assert bed.epilog(JOB) == 0
        bed.reconcile()
        assert bed.instances() == (by_hand,)
    else:
        bed.run(body)
        assert len(bed.instances()) == 1, "the one made by hand"
        assert bed.epilog(JOB) == 0
        assert len(bed.instances()) == 1
    assert bed.notes() == []


def bed_uuid(bed: MigNode) -> str:
    [uuid] = mig_notes.gpus(bed.node.settings.run_dir)
    return uuid


def test_a_kill_as_soon_as_the_instance_is_there_leaves_none(bed: MigNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its number is noted it is known by its place, and by having no device yet."""

    def body() -> int:
        monkeypatch.setattr(mig_notes, "change", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        return prolog_main(bed.node.arguments, mig_environment(JOB))

    with pytest.raises(AssertionError, match=f"ended with status {signal.SIGKILL}"):
        bed.run(body)
    assert [one.uuid for one in bed.instances()] == [""]
    assert bed.epilog(JOB) == 0
    assert (bed.instances(), bed.notes()) == ((), [])


def test_the_folders_of_notes_are_roots_alone_whatever_the_umask(bed: MigNode) -> None:
    old = os.umask(0)
    try:
        assert bed.prolog(JOB) == 0
    finally:
        os.umask(old)
    folder = Path(bed.node.settings.run_dir) / mig_notes.FOLDER
    assert [path for path in (folder, *folder.rglob("*")) if path.stat().st_mode & 0o022] == []
    assert bed.epilog(JOB) == 0


IN_USE = "nvmlComputeInstanceDestroy=19"


def test_an_instance_that_has_the_uuid_of_one_that_ended_is_not_ended_in_its_place(
    bed: MigNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one was in use when its job ended, and another's prolog destroyed it later. The driver makes UUIDs of
    names, so that the next instance at that place may have the same."""
    genuine = mig.device_uuids
    monkeypatch.setattr(
        mig, "device_uuids", lambda nvml, handle: {gi_id: f"MIG-{gi_id}" for gi_id in genuine(nvml, handle)}
    )
    monkeypatch.setattr(mig, "IN_USE_WAIT_S", 0.1)
    assert bed.prolog(JOB) == 0
    first = bed.instances()
    assert bed.epilog(JOB, faults=IN_USE) == 0
    assert bed.prolog(JOB + 1) == 0
    assert bed.instances() == first, "another one, and nothing tells it from the first"
    assert [result.error for result in bed.reconcile(JOB + 1) if result.error] == []
    assert bed.instances() == first
    assert bed.node.names() == [str(JOB + 1)]
    assert bed.epilog(JOB + 1) == 0
    assert (bed.instances(), bed.notes()) == ((), [])


def test_while_an_instance_in_use_is_waited_for_others_have_the_gpus_lock(
    bed: MigNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user can have processes of a longer job in the instances of six that end at once."""
    assert bed.prolog(JOB) == 0
    path = f"{mig_notes.folder(bed.node.settings.run_dir, bed_uuid(bed))}.lock"
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        os.close(locks.acquire(path, exclusive=True, timeout_s=0))
        pauses.append(seconds)

    def body() -> tuple[int, list[float]]:
        monkeypatch.setattr("time.sleep", sleep)
        return epilog_main(bed.node.arguments, mig_environment(JOB)), pauses

    status, waited = bed.run(body, faults=f"{IN_USE}:times=13")
    assert (status, waited) == (0, [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
    assert (bed.instances(), bed.notes()) == ((), [])


OWN = "MIG-2b0c3f61-1d2e-5a4b-8c9d-0123456789ab"


@pytest.mark.parametrize(
    ("state", "noted", "present", "is_it"),
    [
        # Begun, not yet there: at its place, new, and without a device.
        ("begun", (-1, 19, 2, 1, ""), (5, 19, 2, 1, ""), True),
        ("begun", (-1, 19, 2, 1, ""), (0, 19, 2, 1, ""), True),
        ("begun", (-1, 19, 2, 1, ""), (5, 19, 2, 1, OWN), False),
        ("begun", (-1, 19, 2, 1, ""), (3, 19, 2, 1, ""), False),
        ("begun", (-1, 19, 2, 1, ""), (5, 19, 1, 1, ""), False),
        ("begun", (-1, 19, 2, 1, ""), (5, 20, 2, 1, ""), False),
        # Begun and there, with or without its device. The largest instance of a GPU has the id 0.
        ("begun", (5, 19, 2, 1, ""), (5, 19, 2, 1, OWN), True),
        ("begun", (5, 19, 2, 1, ""), (5, 19, 2, 1, ""), True),
        ("begun", (0, 0, 0, 8, ""), (0, 0, 0, 8, OWN), True),
        ("begun", (0, 0, 0, 8, ""), (1, 0, 0, 8, ""), False),
        ("begun", (5, 19, 2, 1, ""), (6, 19, 2, 1, ""), False),
        ("live", (5, 19, 2, 1, OWN), (5, 19, 2, 1, OWN), True),
        ("live", (5, 19, 2, 1, OWN), (5, 19, 2, 1, ""), False),
        ("live", (5, 19, 2, 1, OWN), (5, 19, 2, 1, OWN[::-1]), False),
        ("live", (5, 19, 2, 1, OWN), (6, 19, 2, 1, OWN), False),
        ("ending", (5, 19, 2, 1, OWN), (5, 19, 2, 1, OWN), True),
        ("ending", (5, 19, 2, 1, OWN), (5, 19, 2, 1, ""), True),
        ("ending", (5, 19, 2, 1, OWN), (5, 19, 2, 1, OWN[::-1]), False),
        ("ending", (5, 19, 2, 1, OWN), (6, 19, 2, 1, ""), False),
    ],
)
def test_a_noted_instance_is_told_from_others_at_its_place(
    state: str, noted: tuple[int, int, int, int, str], present: tuple[int, int, int, int, str], is_it: bool
) -> None:
    note = mig_notes.Note(state, JOB, 1, UID, 0, "boot", Instance(*noted), before=(3, 4))
    assert note.matches(Instance(*present)) == is_it


GOOD = mig_notes.to_bytes(mig_notes.Note("live", JOB, 1, UID, 0, "boot", Instance(5, 19, 2, 1, OWN)))


@pytest.mark.parametrize(
    "data",
    [
        None,
        b"",
        GOOD[:-1],
        GOOD + b"\n",
        b"\0" * mig_notes.SIZE,
        b"\xff" * mig_notes.SIZE,
        GOOD.replace(b" live ", b" dead "),
        GOOD.replace(b" 19 ", b" x9 "),
        GOOD.replace(b" 19 2", b"   2 "),
        GOOD.replace(b" - ", b" 1,"),
        GOOD.replace(b" boot ", b" a b o "),
        b"9 live " + b"9" * (mig_notes.SIZE - 7),
    ],
)
def test_a_damaged_note_is_none(data: bytes | None) -> None:
    assert mig_notes.parse(data) is None
    note = mig_notes.parse(GOOD)
    assert note is not None
    assert mig_notes.to_bytes(note) == GOOD
