# SPDX-License-Identifier: Apache-2.0
"""Reconcile on a node with MIG where the ledger, the directories and the GPU do not agree."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from mig_testbed import MigNode

from hami_hpc.core.reconcile_plan import Kind
from hami_hpc.errors import NodeError
from hami_hpc.node import job_dirs
from hami_hpc.stages import common
from hami_hpc.stages.reconcile import reconcile

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="NVML lets only root divide a GPU")
JOB = 7


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MigNode:
    return MigNode.make(tmp_path, monkeypatch)


def lose_row(bed: MigNode) -> None:
    ledger = common.open_ledger(bed.node.settings)
    ledger.remove(bed.node.grants()[JOB])
    ledger.close()


@pytest.mark.parametrize("dry_run", [True, False])
def test_reconcile_destroys_no_instance_of_a_job_whose_row_is_lost(bed: MigNode, dry_run: bool) -> None:
    assert bed.prolog(JOB) == 0
    lose_row(bed)

    def silent() -> frozenset[int]:
        raise NodeError("slurmctld does not answer")

    settings = bed.node.settings
    results = bed.run(lambda: reconcile(settings, silent, dry_run=dry_run))
    assert Kind.REMOVE_INSTANCE not in [result.action.kind for result in results]
    assert [result.action.kind for result in bed.reconcile(JOB, dry_run=True)] == [Kind.RESTORE_ROW]
    assert len(bed.instances()) == 1
    assert bed.epilog(JOB) == 0
    assert (bed.instances(), bed.notes()) == ((), [])


def test_reconcile_says_why_a_running_job_gets_no_instance_again(bed: MigNode) -> None:
    assert bed.prolog(JOB) == 0
    bed.run(lambda: job_dirs.remove(str(bed.node.root / "run"), str(bed.node.jobs / str(JOB))))
    bed.restart()
    bed.switch_on()
    bed.make_foreign(profile_id=0, start=0)  # of all of the GPU
    (error,) = [result.error for result in bed.reconcile(JOB) if result.error]
    assert error.startswith(f"job {JOB} needs a MIG instance 1g.18gb on GPU 0, but its 1 instances leave no place")
    assert error.endswith(f"requeue or cancel job {JOB}")
