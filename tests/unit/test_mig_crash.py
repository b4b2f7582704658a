# SPDX-License-Identifier: Apache-2.0
"""mode=mig stopped anywhere: killed at each line that changes something, NVML failing by each function, a full disk.

test_fault_points.py has the orders of what can follow. Whatever comes after leaves the node right, nothing of ours
behind, and the instance that an administrator made as it was.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from forked import points
from mig_testbed import KILLED, MigNode, is_of, mig_environment

from hami_hpc.contract import constants as c
from hami_hpc.core.mig_layout import Instance
from hami_hpc.node import mig_notes
from hami_hpc.stages.epilog import main as epilog_main
from hami_hpc.stages.prolog import main as prolog_main

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="NVML lets only root divide a GPU")
JOB = 7
IN_USE = "nvmlComputeInstanceDestroy=19"
# The functions of hami_hpc that change something; what they call to look at the GPU changes nothing.
CHANGING = is_of(
    *("prepare", "release", "_kept", "_made", "make", "made", "end", "settle", "create", "destroy", "_destroy"),
    *("write", "change", "remove", "sweep", "give", "revoke", "_stop_modprobe"),
)
# Each of NVML's calls that prolog and epilog make, with an error that nvml.h gives for it.
CALLS = {
    "nvmlInit_v2": 9,  # driver not loaded
    "nvmlDeviceGetHandleByUUID": 15,  # GPU is lost
    "nvmlDeviceGetMigMode": 999,  # unknown
    "nvmlDeviceGetGpuInstanceProfileInfoV": 4,  # no permission
    "nvmlDeviceGetGpuInstancePossiblePlacements_v2": 999,
    "nvmlDeviceGetGpuInstances": 999,
    "nvmlGpuInstanceGetInfo": 999,
    "nvmlDeviceGetMaxMigDeviceCount": 999,
    "nvmlDeviceGetMigDeviceHandleByIndex": 999,
    "nvmlDeviceGetGpuInstanceId": 999,
    "nvmlDeviceGetComputeInstanceId": 999,
    "nvmlDeviceGetUUID": 999,
    "nvmlDeviceCreateGpuInstanceWithPlacement": 24,  # insufficient resources
    "nvmlGpuInstanceGetComputeInstanceProfileInfoV": 999,
    "nvmlGpuInstanceCreateComputeInstance": 24,
    "nvmlComputeInstanceGetInfo_v2": 999,
    "nvmlDeviceGetGpuInstanceById": 6,  # not found
    "nvmlGpuInstanceGetComputeInstances": 999,
    "nvmlComputeInstanceDestroy": 999,
    "nvmlGpuInstanceDestroy": 999,
}


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MigNode:
    return MigNode.make(tmp_path, monkeypatch)


@pytest.fixture
def foreign(bed: MigNode) -> Instance:
    return bed.make_foreign()


def assert_clean(bed: MigNode, foreign: Instance) -> None:
    assert bed.instances() == (foreign,)
    assert bed.notes() == []
    assert set(bed.devices().values()) == {(0, 0o444)}, "those of the foreign instance"
    bed.node.assert_nothing_is_held()


def by_epilog(bed: MigNode, foreign: Instance) -> None:
    assert bed.epilog(JOB) == 0
    by_reconcile(bed, foreign)


def by_reconcile(bed: MigNode, foreign: Instance) -> None:
    assert [result.error for result in bed.reconcile() if result.error] == []
    assert_clean(bed, foreign)


def by_the_next_jobs_prolog(bed: MigNode, foreign: Instance) -> None:
    assert bed.prolog(JOB + 1) == 0
    assert bed.epilog(JOB + 1) == 0
    by_reconcile(bed, foreign)


def all_lines(bed: MigNode, body: Callable[[], object], before: Callable[[], None], least: int) -> Iterator[int]:
    """Kills `body` at the lines of points() of CHANGING until it ends by itself; `before` is done each time."""
    for line in points():
        before()
        if bed.run(body, at_line=line, traced=CHANGING) != KILLED:
            break
        yield line
    assert line > least, "hardly any line was traced"


@pytest.mark.own_process
def test_the_next_jobs_prolog_ends_what_a_prolog_killed_at_any_line_left(bed: MigNode, foreign: Instance) -> None:
    def before() -> None:
        assert bed.instances() == (foreign,)

    for _line in all_lines(bed, lambda: prolog_main(bed.node.arguments, mig_environment(JOB)), before, 60):
        by_the_next_jobs_prolog(bed, foreign)
    bed.epilog(JOB)


@pytest.mark.own_process
def test_the_next_jobs_prolog_ends_what_an_epilog_killed_at_any_line_left(bed: MigNode, foreign: Instance) -> None:
    def before() -> None:
        assert bed.prolog(JOB) == 0

    for _line in all_lines(bed, lambda: epilog_main(bed.node.arguments, mig_environment(JOB)), before, 30):
        by_the_next_jobs_prolog(bed, foreign)


def errors(name: str, code: int, stage: Callable[..., int]) -> Iterator[int]:
    """Runs a stage with the first, second, ... call of `name` failing, at most MOST_CALLS."""
    for call in range(MOST_CALLS):
        assert stage(JOB, faults=f"{name}={code}:after={call}:times=1") in (0, 1)
        yield call


MOST_CALLS = 3


@pytest.mark.parametrize("name", CALLS)
def test_a_prolog_whose_nvml_fails_once_leaves_what_an_epilog_can_end(
    bed: MigNode, foreign: Instance, name: str
) -> None:
    for _call in errors(name, CALLS[name], bed.prolog):
        by_epilog(bed, foreign)


@pytest.mark.parametrize("name", CALLS)
def test_an_epilog_whose_nvml_fails_once_never_fails_and_leaves_the_rest_to_reconcile(
    bed: MigNode, foreign: Instance, name: str
) -> None:
    assert bed.prolog(JOB) == 0
    for _call in errors(name, CALLS[name], bed.epilog):
        by_reconcile(bed, foreign)
        assert bed.prolog(JOB) == 0


@pytest.mark.parametrize("name", CALLS)
def test_nvml_that_goes_on_failing_loses_nothing(bed: MigNode, foreign: Instance, name: str) -> None:
    always = f"{name}={CALLS[name]}"
    assert bed.prolog(JOB, faults=always) in (0, 1)
    assert bed.epilog(JOB, faults=always) == 0
    bed.reconcile(faults=always)
    by_reconcile(bed, foreign)


def test_an_instance_in_use_is_kept_until_it_is_free(
    bed: MigNode, foreign: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hami_hpc.node.mig.IN_USE_WAIT_S", 0.3)
    assert bed.prolog(JOB) == 0
    assert bed.epilog(JOB, faults=IN_USE) == 0
    assert len(bed.instances()) == 2
    assert bed.notes() != []
    by_reconcile(bed, foreign)


def test_an_instance_that_stays_in_use_fails_no_other_job(
    bed: MigNode, foreign: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user can keep a process outside of the job that uses the job's instance."""
    monkeypatch.setattr("hami_hpc.node.mig.IN_USE_WAIT_S", 0.3)
    assert bed.prolog(JOB) == 0
    assert bed.epilog(JOB, faults=IN_USE) == 0
    monkeypatch.setattr("hami_hpc.node.mig.IN_USE_WAIT_S", 60.0)
    began = time.monotonic()
    assert bed.prolog(JOB + 1, faults=IN_USE) == 0
    assert bed.prolog(JOB, faults=IN_USE) == 0, "its next run"
    assert len(bed.instances()) == 4
    assert len(bed.notes()) == 3
    assert time.monotonic() - began < 30, "nobody waits for it again"
    assert bed.epilog(JOB) == 0
    assert bed.epilog(JOB + 1) == 0
    by_reconcile(bed, foreign)


def test_a_run_whose_instance_is_still_in_use_is_sent_back_and_keeps_its_note(
    bed: MigNode, foreign: Instance, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its epilog was killed while it waited, and the next run has the same slice."""
    assert bed.prolog(JOB) == 0
    (path,) = (bed.node.root / "run/mig").glob("GPU-*/*")
    note = mig_notes.parse(path.read_bytes())
    assert note is not None
    path.write_bytes(mig_notes.to_bytes(note._replace(state=mig_notes.ENDING)))
    assert bed.prolog(JOB, faults=IN_USE) == 0
    assert "cannot start before its last run's MIG instance is free" in capfd.readouterr().err
    assert (bed.node.jobs / str(JOB) / c.FILE_REFUSED).exists()
    assert len(bed.notes()) == 1
    assert bed.node.grants() == {}
    by_epilog(bed, foreign)


def test_an_instance_in_use_for_a_moment_is_waited_for(bed: MigNode, foreign: Instance) -> None:
    assert bed.prolog(JOB) == 0
    assert bed.epilog(JOB, faults="nvmlComputeInstanceDestroy=19:times=3") == 0
    assert_clean(bed, foreign)


@pytest.mark.parametrize("call", ["write", "pwrite"])
def test_a_full_disk_leaves_no_instance(
    bed: MigNode, foreign: Instance, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    genuine = getattr(os, call)

    def full(fd: int, data: bytes, *more: int) -> int:
        if len(data) == mig_notes.SIZE:
            raise OSError(28, "No space left on device")
        return int(genuine(fd, data, *more))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        assert bed.prolog(JOB) == 1
    by_epilog(bed, foreign)
