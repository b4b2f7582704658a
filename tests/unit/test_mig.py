# SPDX-License-Identifier: Apache-2.0
"""mode=mig: what prolog, epilog and reconcile make of a GPU's instances, and what they leave alone."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from mig_testbed import HALF, SMALL, MigNode
from node_testbed import UID, slurms_commands

from hami_hpc.contract import constants as c
from hami_hpc.errors import NodeError
from hami_hpc.metrics.exposition import expose
from hami_hpc.node import boot, job_dirs, mig_notes

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="NVML lets only root divide a GPU")
JOB = 7


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MigNode:
    return MigNode.make(tmp_path, monkeypatch)


def test_a_job_has_an_instance_from_prolog_to_epilog_that_its_user_alone_can_open(bed: MigNode) -> None:
    assert bed.prolog(JOB) == 0
    (instance,) = bed.instances()
    assert (instance.profile_id, instance.size) == (19, 1)
    assert bed.note_of_job(JOB).split()[0] == instance.uuid
    assert set(bed.devices().values()) == {(UID, 0o400)}
    assert len(bed.devices()) == 2, "of the GPU instance, and of the compute instance"
    grant = bed.node.grants()[JOB]
    assert grant.mode == "mig"

    assert bed.epilog(JOB) == 0
    assert bed.instances() == ()
    assert bed.devices() == {}
    assert bed.notes() == []
    bed.node.assert_nothing_is_held()
    record = json.loads((bed.node.root / "state" / "usage" / f"{JOB}.json").read_text())
    assert (record["mode"], record["usage"]) == ("mig", "missing"), "no agent looked"


def test_the_driver_is_told_that_nobody_else_makes_the_devices(bed: MigNode) -> None:
    assert bed.prolog(JOB) == 0
    (instance,) = bed.instances()
    folder = bed.machine.directory / f"proc/driver/nvidia/capabilities/gpu0/mig/gi{instance.gi_id}"
    for access in (folder / "access", folder / "ci0/access"):
        assert access.read_text().splitlines()[-1] == "DeviceFileModify: 0"


def test_a_prolog_that_runs_twice_keeps_the_instance(bed: MigNode) -> None:
    assert bed.prolog(JOB) == 0
    before = bed.instances(), bed.note_of_job(JOB), bed.devices()
    assert bed.prolog(JOB) == 0
    assert (bed.instances(), bed.note_of_job(JOB), bed.devices()) == before


def test_a_requeued_job_whose_epilog_never_ran_has_one_instance(bed: MigNode) -> None:
    assert bed.prolog(JOB) == 0
    assert bed.prolog(JOB, mem_mib=HALF, cores=42) == 0
    (instance,) = bed.instances()
    assert instance.profile_id == 9
    assert len(bed.notes()) == 1
    assert bed.epilog(JOB) == 0
    assert bed.instances() == ()


def test_a_requeued_job_that_comes_back_in_another_mode_leaves_no_instance(bed: MigNode) -> None:
    assert bed.prolog(JOB) == 0
    assert bed.prolog(JOB, SLURM_JOB_CONSTRAINTS="vgpu_share") == 0
    assert bed.node.grants()[JOB].mode == "share"
    assert not (bed.node.jobs / str(JOB) / c.FILE_MIG).exists()
    assert (bed.instances(), bed.notes()) == ((), [])
    assert bed.prolog(JOB) == 0
    assert bed.node.grants()[JOB].mode == "mig"
    assert len(bed.instances()) == 1
    assert bed.epilog(JOB) == 0
    assert (bed.instances(), bed.notes()) == ((), [])


def test_the_next_run_starts_where_the_last_runs_instance_cannot_be_ended(
    bed: MigNode, capfd: pytest.CaptureFixture[str]
) -> None:
    assert bed.prolog(JOB) == 0
    assert bed.prolog(JOB, faults="nvmlComputeInstanceDestroy=999", SLURM_JOB_CONSTRAINTS="vgpu_share") == 0
    assert f"last run of job {JOB}: destroying a MIG instance" in capfd.readouterr().err
    assert bed.node.grants()[JOB].mode == "share"
    assert bed.epilog(JOB) == 0
    assert bed.instances() == ()


def test_an_instance_that_vanished_is_made_again_for_a_prolog_that_runs_again(bed: MigNode) -> None:
    assert bed.prolog(JOB) == 0
    (old,) = bed.instances()
    bed.restart()
    bed.switch_on()
    assert bed.prolog(JOB) == 0
    (new,) = bed.instances()
    assert new.uuid != old.uuid
    assert bed.note_of_job(JOB).split()[0] == new.uuid
    assert bed.node.grants()[JOB].mem_mib == SMALL


def test_seven_jobs_fill_a_gpu_and_the_eighth_is_sent_back_without_a_drained_node(
    bed: MigNode, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scontrol = slurms_commands(tmp_path, f'#!/bin/sh\necho "$@" >>{tmp_path}/said\n')
    monkeypatch.setattr("hami_hpc.node.drain.find_scontrol", lambda: scontrol)
    for job_id in range(1, 8):
        assert bed.prolog(job_id) == 0
    assert len({one.start for one in bed.instances()}) == 7
    assert bed.prolog(8) == 0, "slurmd drains the node for any other status"
    assert 8 not in bed.node.grants()
    assert "its 7 instances leave no place for it" in (bed.node.jobs / "8" / c.FILE_REFUSED).read_text()
    said = (tmp_path / "said").read_text().splitlines()
    assert said[0].startswith("update JobId=8 AdminComment=hami_hpc: job 8 needs a MIG instance 1g.18gb on GPU 0")
    assert said[1] == "requeue incomplete 8"
    assert "hami_hpc_mig_no_room_total 1.0" in expose(str(bed.node.root / "run")).text.decode()
    assert bed.epilog(8) == 0
    assert bed.epilog(3) == 0
    assert bed.prolog(8) == 0
    assert len(bed.instances()) == 7


def test_a_gpu_without_mig_sends_a_job_back_that_chose_the_mode(bed: MigNode) -> None:
    bed.restart()
    assert bed.prolog(JOB) == 0
    assert "MIG is off. Switch it on" in (bed.node.jobs / str(JOB) / c.FILE_REFUSED).read_text()
    assert bed.node.grants() == {}


def test_a_node_for_mig_alone_is_drained_where_it_is_off(bed: MigNode, capfd: pytest.CaptureFixture[str]) -> None:
    bed.node.config.write_text(bed.node.config.read_text().replace('["mig", "share"]', '["mig"]'))
    bed.restart()
    assert bed.prolog(JOB) == 1
    assert "MIG is off. Switch it on: hami-hpc mig enable GPU-" in capfd.readouterr().err


def test_no_profile_for_a_grant_refuses_the_job_and_no_other(bed: MigNode) -> None:
    bed.edit('"3g.71gb" =', '"9g.71gb" =')
    assert bed.prolog(JOB, mem_mib=HALF, cores=42) == 0
    assert "but no MIG profile covers" in (bed.node.jobs / str(JOB) / c.FILE_REFUSED).read_text()
    assert bed.node.grants() == {}
    assert bed.prolog(JOB + 1) == 0


@pytest.mark.parametrize(
    ("mem_mib", "cores", "is_granted"),
    [(1024, 1, False), (SMALL // 2, 7, False), (1024, 14, True), (SMALL - 1024, 1, True), (HALF, 1, True)],
)
def test_nobody_gets_an_instance_for_the_price_of_a_small_slice(
    bed: MigNode, mem_mib: int, cores: int, is_granted: bool
) -> None:
    """A user can write the feature vgpu_mig into --constraint; the units are then those of mode=share."""
    assert bed.prolog(JOB, mem_mib=mem_mib, cores=cores) == 0
    assert (JOB in bed.node.grants()) == is_granted
    assert len(bed.instances()) == int(is_granted)
    if not is_granted:
        assert "Ask for mode=mig" in (bed.node.jobs / str(JOB) / c.FILE_REFUSED).read_text()


def test_a_directory_that_cannot_be_made_leaves_an_instance_that_the_epilog_ends(
    bed: MigNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object) -> bool:
        raise NodeError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("hami_hpc.node.job_dirs.place", full)
        assert bed.prolog(JOB) == 1
    assert len(bed.instances()) == 1
    assert bed.epilog(JOB) == 0
    assert bed.instances() == ()


def test_reconcile_restores_a_lost_directory_with_the_instance_that_is_there(bed: MigNode) -> None:
    assert bed.prolog(JOB) == 0
    before = bed.instances(), bed.note_of_job(JOB)
    bed.run(lambda: job_dirs.remove(str(bed.node.root / "run"), str(bed.node.jobs / str(JOB))))
    bed.reconcile(JOB)
    assert (bed.instances(), bed.note_of_job(JOB)) == before


def test_what_others_made_is_never_touched(bed: MigNode) -> None:
    foreign = bed.make_foreign()
    assert bed.prolog(JOB) == 0
    bed.reconcile(JOB)
    assert foreign in bed.instances()
    assert bed.epilog(JOB) == 0
    bed.reconcile()
    assert bed.instances() == (foreign,)
    assert set(bed.devices().values()) == {(0, 0o444)}, "as the driver made them"


def test_another_instance_with_our_id_is_not_ours(bed: MigNode) -> None:
    """An administrator destroyed the job's instance and made one at the same place: it has the same id."""
    assert bed.prolog(JOB) == 0
    (ours,) = bed.instances()
    bed.restart()
    bed.switch_on()
    foreign = bed.make_foreign(ours.profile_id, ours.start)
    assert (foreign.gi_id, foreign.start) == (ours.gi_id, ours.start)
    bed.reconcile(JOB)
    assert bed.epilog(JOB) == 0
    bed.reconcile()
    assert bed.instances() == (foreign,)
    assert bed.notes() == []


def test_a_note_of_another_boot_is_of_no_instance(bed: MigNode, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bed.prolog(JOB) == 0
    (instance,) = bed.instances()
    monkeypatch.setattr(boot, "boot_id", lambda: "another")
    bed.reconcile()
    assert bed.instances() == (instance,), "the driver numbers anew after a restart: it may be anybody's"
    assert bed.notes() == []


def test_reconcile_ends_instances_of_jobs_that_are_gone_and_says_which(bed: MigNode) -> None:
    assert bed.prolog(JOB) == 0
    assert bed.prolog(JOB + 1) == 0
    texts = [result.action.text for result in bed.reconcile(JOB, dry_run=True)]
    assert len(bed.instances()) == 2, "a dry run changes nothing"
    assert [result.action.text for result in bed.reconcile(JOB)] == texts
    assert len(bed.instances()) == 1
    assert sorted(bed.node.grants()) == [JOB]


def test_reconcile_ends_an_instance_whose_grant_and_directory_are_gone(bed: MigNode) -> None:
    assert bed.prolog(JOB) == 0
    (instance,) = bed.instances()
    kept = next((bed.node.root / "run/mig").glob("GPU-*/*")).read_bytes()
    assert bed.epilog(JOB) == 0
    foreign = bed.make_foreign(instance.profile_id, instance.start)
    note = mig_notes.parse(kept)
    assert note is not None
    uuid = next((bed.node.root / "run/mig").glob("GPU-*/")).name
    mig_notes.write(str(bed.node.root / "run"), uuid, note._replace(instance=foreign))
    (result,) = bed.reconcile(dry_run=True)
    assert f"job {JOB}" in result.action.text
    assert foreign.uuid in result.action.text
    bed.reconcile()
    assert bed.instances() == ()


def test_an_epilog_without_nvml_keeps_the_rest_for_reconcile(bed: MigNode) -> None:
    assert bed.prolog(JOB) == 0
    assert bed.epilog(JOB, faults="nvmlInit_v2=9") == 0
    assert len(bed.instances()) == 1
    assert [result.error for result in bed.reconcile() if result.error] == []
    assert bed.instances() == ()
    assert bed.notes() == []
    bed.node.assert_nothing_is_held()


def test_a_lost_note_is_made_again_from_the_jobs_directory(bed: MigNode) -> None:
    assert bed.prolog(JOB) == 0
    for path in (bed.node.root / "run/mig").glob("GPU-*/*"):
        path.unlink()
    assert bed.epilog(JOB) == 0
    assert bed.instances() == ()
    assert bed.notes() == []


def test_two_prologs_at_once_have_two_places(bed: MigNode) -> None:
    import threading

    statuses: list[int] = []
    threads = [
        threading.Thread(target=lambda job=job: statuses.append(bed.prolog(job, faults=SLOW))) for job in (1, 2, 3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert statuses == [0, 0, 0]
    assert len({one.start for one in bed.instances()}) == 3
    assert len({bed.note_of_job(job).split()[0] for job in (1, 2, 3)}) == 3


SLOW = "nvmlDeviceCreateGpuInstanceWithPlacement=0:delay_us=200000"


@pytest.mark.parametrize(
    "content",
    [b"", b"MIG-1 live\n", b"x" * 600, b"- begun a b c d boot e f g h -".ljust(511) + b"\n", b"\xff" * 512],
)
def test_a_damaged_note_is_named_and_nothing_is_destroyed(bed: MigNode, content: bytes) -> None:
    assert bed.prolog(JOB) == 0
    before = bed.instances()
    (path,) = (bed.node.root / "run/mig").glob("GPU-*/*")
    path.write_bytes(content)
    results = bed.reconcile(JOB)
    assert any(str(path) in f"{result.action.text} {result.error}" for result in results)
    assert bed.instances() == before


def test_notes_are_read_as_they_were_written() -> None:
    from hami_hpc.core.mig_layout import Instance

    instance = Instance(7, 19, 3, 1, "MIG-2b0c3f61-1d2e-5a4b-8c9d-0123456789ab")
    note = mig_notes.Note("begun", 4294967295, 1 << 62, 65534, 31, "b" * 36, instance, tuple(range(14)))
    assert len(mig_notes.to_bytes(note)) == mig_notes.SIZE
    assert mig_notes.parse(mig_notes.to_bytes(note)) == note
    live = note._replace(state="live", before=(), instance=instance._replace(uuid=""))
    assert mig_notes.parse(mig_notes.to_bytes(live)) == live


def findings(bed: MigNode) -> list[tuple[str, str, str]]:
    from hami_hpc.isolation.table import BACKENDS

    settings = bed.node.settings
    found = bed.run(lambda: tuple(BACKENDS["mig"].check(settings)))
    return [(one.what, one.level.name, one.detail) for one in found]


def test_doctor_names_gpus_without_mig_others_instances_and_an_open_fence(bed: MigNode) -> None:
    bed.make_foreign()
    assert findings(bed) == [
        ("MIG mode", "OK", "GPU 0: MIG is on"),
        (
            "MIG and share",
            "FAIL",
            "GPU 0: MIG is on, and modes offers share, too: Slurm may give it to a job of that mode",
        ),
        ("MIG mode", "FAIL", "GPU 1: MIG is off"),
        ("MIG instances", "WARN", "GPU 0: 1 instance(s) that hami_hpc did not make take places from jobs"),
        ("MIG profiles", "OK", "GPU 0: as the driver lists them"),
        ("MIG profiles", "WARN", "GPU 1: the settings offer no profile of it, so each request for MIG is refused"),
        (
            "MIG devices",
            "WARN",
            "nvidia-modprobe makes the devices of new instances readable by all, until the prolog has them",
        ),
    ]
    (bed.machine.directory / "proc/driver/nvidia/params").write_text(
        "Mobile: 4\nModifyDeviceFiles: 0\nDeviceFileUID: 0\n"
    )
    assert findings(bed)[-1] == ("MIG devices", "OK", "only the prolog makes the devices of instances")


@pytest.mark.parametrize(
    ("old", "new", "wrong"),
    [
        ('"1g.18gb" =', '"9g.18gb" =', "9g.18gb"),
        ("16384 MiB", "16000 MiB", "1g.18gb"),
        ("at {0,4}", "at {0,2}", "3g.71gb"),
        ("at most 3", "at most 2", "2g.35gb"),
        ("/8 memory", "/9 memory", "1g.18gb, 1g.35gb, 2g.35gb, 3g.71gb, 4g.71gb, 7g.141gb"),
    ],
)
def test_doctor_names_profiles_that_are_not_as_the_driver_lists_them(
    bed: MigNode, old: str, new: str, wrong: str
) -> None:
    bed.edit(old, new)
    profiles = [one for one in findings(bed) if one[0] == "MIG profiles"]
    assert profiles[0] == ("MIG profiles", "FAIL", f"GPU 0: not as the driver lists them: {wrong}")


def test_doctor_warns_where_no_profile_is_offered(bed: MigNode) -> None:
    bed.edit(
        "[gpu_models.h200.mig_profiles]", "[gpu_models.h200x]\ntotal_mib = 999999\n[gpu_models.h200x.mig_profiles]"
    )
    profiles = [one for one in findings(bed) if one[0] == "MIG profiles"]
    assert profiles[0][1] == "WARN"
    assert "the settings offer no profile of it" in profiles[0][2]


def test_a_drivers_smaller_memory_makes_no_larger_instance(bed: MigNode) -> None:
    bed.edit("16384 MiB", "16400 MiB")
    assert bed.prolog(JOB, mem_mib=16400) == 0
    assert [one.profile_id for one in bed.instances()] == [19]


def test_the_sites_profiles_are_of_the_gpus_model_and_mig_nodes_are_for_mig_alone() -> None:
    from types import SimpleNamespace
    from typing import cast

    from hami_hpc.isolation.mig_instances import offered, serves_mig_alone
    from hami_hpc.node.config import Settings

    site = SimpleNamespace(modes=("share", "mig"), mig_profiles={"h200": {"1g.18gb": "1 of 7"}}, mig_nodes=())
    site.gpu_models = {"h200": 143104, "a100": 40960}
    settings = cast("Settings", site)
    assert offered(settings, "h200") == frozenset({"1g.18gb"})
    assert offered(settings, "a100") == frozenset(), "no units, so no instance"
    assert offered(settings, "h200-old-name") == frozenset({"1g.18gb"}), "renamed since the GPUs were entered"
    assert not serves_mig_alone(settings)
    site.mig_nodes = ("gpu[03-04]",)
    assert serves_mig_alone(settings)
    assert serves_mig_alone(cast("Settings", SimpleNamespace(modes=("mig",))))
