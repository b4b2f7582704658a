# SPDX-License-Identifier: Apache-2.0
"""A backend that fails repeatedly is taken out of the node's features: what prologs do (docs/adr/056)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from mode_testbed import AVAILABLE, REASON, Bed, bed, broken

from hami_hpc.contract import constants as c
from hami_hpc.core.grant import Grant
from hami_hpc.core.mode_outage import Failure
from hami_hpc.errors import JobError, NodeError
from hami_hpc.isolation import share
from hami_hpc.node import admin_log, boot, drain, mode_outages
from hami_hpc.node.event_reader import EventReader
from hami_hpc.slurm import node_features
from hami_hpc.stages import detached, mode_service
from hami_hpc.stages.epilog import main as epilog_main

__all__ = ["bed", "broken"]  # fixtures


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(admin_log, "to_syslog", lambda _level, message: lines.append(message))
    return lines


@pytest.mark.usefixtures("broken")
def test_the_third_failure_takes_the_mode_out_of_the_nodes_features(bed: Bed, logged: list[str]) -> None:
    for job_id in (7, 8, 9):
        assert bed.prolog(job_id) == 0, "slurmd drains the node for any other status"
        assert f"requeue incomplete {job_id}" in bed.said()
        assert REASON in (bed.node.jobs / str(job_id) / c.FILE_REFUSED).read_text()
        assert bed.active() == (AVAILABLE if job_id < 9 else "vgpu_mps,vgpu_type_h200")
    assert bed.node.grants() == {}, "nothing is held for jobs that went back"
    outage = bed.outages()["share"]
    assert (outage.until_unix_s - outage.since_unix_s, outage.reason) == (3600, REASON)
    assert bed.kinds() == ["mode_failed", "refused"] * 2 + ["mode_failed", "mode_out", "refused"]
    assert not any("state=drain" in line for line in bed.said())
    (line,) = [line for line in logged if "is out of this node's features" in line]
    assert "as it failed 3 times in 30 minutes; jobs of other modes go on" in line
    assert line.endswith("Next: hami-hpc doctor; when it is well: hami-hpc mode resume share")
    assert any("AdminComment=hami_hpc: mode=share failed on this node for job 9 (3 of 3)" in s for s in bed.said())
    assert mode_outages.read_failures(bed.node.settings.state_dir) == (), "they count anew"


@pytest.mark.usefixtures("broken")
def test_what_a_failed_backend_made_for_the_job_is_taken_back(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    released: list[tuple[str, list[int]]] = []

    def release(_settings: object, folder: str, grants: tuple[Grant, ...], _now: int) -> None:
        released.append((folder, [grant.job_id for grant in grants]))

    monkeypatch.setattr(share, "release", release)
    assert bed.prolog(7) == 0
    assert released == [(str(bed.node.jobs / "7"), [7])]
    failed, _refused = [line.event for line in EventReader(bed.node.settings.state_dir).read() if line.event]
    assert (failed["source"], failed["job_id"], failed["mode"]) == ("prolog", 7, "share")


@pytest.mark.usefixtures("broken")
def test_failures_of_another_mode_boot_or_time_do_not_count(bed: Bed) -> None:
    now, boot_id = int(time.time()), boot.boot_id()
    others = (
        Failure("mps", now, boot_id, 1, ""),
        Failure("share", now - 1801, boot_id, 2, ""),
        Failure("share", now - 1, "another", 3, ""),
        Failure("share", now + 999, boot_id, 4, ""),
        Failure("share", now - 5, boot_id, 5, ""),
    )
    mode_outages.write_failures(bed.node.settings.state_dir, others)
    assert bed.prolog(7) == 0
    assert bed.outages() == {}
    assert bed.prolog(8) == 0
    assert list(bed.outages()) == ["share"]


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize(
    "text", ["", "{", '{"version": 2}', '{"version": 1, "rows": [{"mode": "share"}]}', "[" * 99999]
)
def test_a_damaged_file_of_failures_begins_anew(bed: Bed, text: str) -> None:
    Path(bed.node.settings.state_dir).mkdir(exist_ok=True)
    Path(mode_outages.failures_path_of(bed.node.settings.state_dir)).write_text(text)
    assert bed.prolog(7) == 0
    assert [each.job_id for each in mode_outages.read_failures(bed.node.settings.state_dir)] == [7]


@pytest.mark.usefixtures("broken")
def test_the_node_is_drained_where_slurm_cannot_keep_the_jobs_away(bed: Bed) -> None:
    """A job whose features name no mode; a setting that says so; a count that cannot be written."""
    assert bed.prolog(7, mode="") == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mode_outages, "write_failures", no_room)
        assert bed.prolog(8) == 1
    bed.node.config.write_text(bed.node.config.read_text().replace("mode_failures = 3", "mode_failures = 0"))
    assert bed.prolog(9) == 1
    assert sum("state=drain" in line for line in bed.said()) == 3
    assert bed.kinds() == ["node_drain"] * 3


def no_room(*_arguments: object) -> None:
    raise NodeError("no room")


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("fault", ["slurmctld is down", "the node has no such feature", "there is no scontrol"])
def test_a_mode_that_cannot_be_taken_out_drains_the_node(
    bed: Bed, fault: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for job_id in (7, 8):
        bed.prolog(job_id)
    if fault == "slurmctld is down":
        (bed.folder / "down").touch()
    elif fault == "the node has no such feature":
        (bed.folder / "available").write_text("vgpu_mps")
    else:
        monkeypatch.setattr(drain, "find_scontrol", lambda: None)
    assert bed.prolog(9) == 1
    is_kept = fault != "the node has no such feature"
    assert list(bed.outages()) == (["share"] if is_kept else []), "slurmctld may have done it without an answer"
    (bed.folder / "down").unlink(missing_ok=True)
    if is_kept:
        mode_service.settle(bed.node.settings, bed.slurm(), "agent")
        assert bed.active() == "vgpu_mps,vgpu_type_h200", "the feature comes back with the end of the outage"
    error = capsys.readouterr().err
    assert "mode=share cannot be taken out of this node's features" in error
    assert is_kept or "slurmctld knows no feature vgpu_share of node node1: hami-hpc render" in error


# What slurmctld does with an update that it does not answer in time.
LATE = {
    "does it": 'echo "$1" >active',
    "does it after the time": '(sleep 2; echo "$1" >active) >/dev/null 2>&1 &',
    "does the next": "rm late",
    "does not do it": "",
}


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("late", LATE)
def test_an_answer_that_comes_too_late_drains_the_node_only_where_the_feature_stays(
    bed: Bed, late: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for job_id in (7, 8):
        bed.prolog(job_id)
    (bed.folder / "late").write_text(LATE[late])
    monkeypatch.setattr(node_features, "TIMEOUT_S", 1)
    monkeypatch.setattr(mode_service, "LOOK_AGAIN_S", 1.0 if late == "does not do it" else 15.0)
    is_done = late != "does not do it"
    assert bed.prolog(9) == (0 if is_done else 1)
    assert bed.active() == ("vgpu_mps,vgpu_type_h200" if is_done else AVAILABLE)
    assert any("state=drain" in line for line in bed.said()) == (not is_done)
    assert ("requeue incomplete 9" in bed.said()) == is_done
    assert list(bed.outages()) == ["share"]


@pytest.mark.usefixtures("broken")
def test_a_slurmctld_that_is_back_within_the_time_is_asked_again(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    for job_id in (7, 8):
        bed.prolog(job_id)
    monkeypatch.setattr(mode_service, "LOOK_AGAIN_S", 15.0)
    (bed.folder / "down").write_text("once")
    assert bed.prolog(9) == 0
    assert bed.active() == "vgpu_mps,vgpu_type_h200"


def test_a_fault_of_the_job_does_not_count(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(*_arguments: object) -> None:
        raise JobError("the job asked for too much")

    monkeypatch.setattr(share, "prepare", prepare)
    for job_id in range(7, 12):
        assert bed.prolog(job_id) == 0
    assert bed.outages() == {}
    assert mode_outages.read_failures(bed.node.settings.state_dir) == ()


def test_a_running_job_keeps_its_slice_when_its_prolog_fails_at_a_second_run(bed: Bed) -> None:
    assert bed.prolog(7) == 0
    grant = bed.node.grants()[7]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(share, "prepare", no_room)
        assert bed.prolog(7) == 1
    assert bed.node.grants()[7] == grant


def test_jobs_that_slurm_sends_to_a_mode_that_is_out_go_back_and_others_run(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart of slurmctld, which gives a node all of its features again."""
    started: list[str] = []
    monkeypatch.setattr(detached, "start", lambda module, *_arguments: started.append(module))
    bed.put_out("mps")
    assert bed.prolog(7, mode="mps") == 0
    assert "mode=mps, which is out of service on this node until" in (bed.node.jobs / "7" / c.FILE_REFUSED).read_text()
    assert (bed.said()[-1], started) == ("requeue incomplete 7", [mode_service.MODULE])
    assert bed.prolog(8) == 0
    assert list(bed.node.grants()) == [8]
    (bed.folder / "interactive").touch()
    assert bed.prolog(9, mode="mps") == 0, "its steps are refused"
    bed.put_out("share")
    assert bed.prolog(10, mode="") == 1, "Slurm cannot keep a job that names no mode away"
    assert bed.prolog(8) == 0, "a job that has its slice keeps it"


@pytest.mark.parametrize("text", ["{", '{"version": 1, "rows": [{"mode": "rm"}]}'])
def test_a_damaged_file_of_modes_blocks_no_job(bed: Bed, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(mode_outages.path_of(bed.node.settings.state_dir)).parent.mkdir(exist_ok=True)
    Path(mode_outages.path_of(bed.node.settings.state_dir)).write_text(text)
    assert bed.prolog(7) == 0
    assert list(bed.node.grants()) == [7]
    assert "is damaged" in capsys.readouterr().err
    assert epilog_main(bed.node.arguments, bed.environment(7)) == 0


def test_a_file_that_a_user_can_write_is_not_believed(bed: Bed) -> None:
    bed.put_out("share")
    Path(mode_outages.path_of(bed.node.settings.state_dir)).chmod(0o666)
    with pytest.raises(NodeError, match="is not a file that root alone can write"):
        bed.outages()
    assert bed.prolog(7) == 0
    assert list(bed.node.grants()) == [7]
