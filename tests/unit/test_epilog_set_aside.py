# SPDX-License-Identifier: Apache-2.0
"""Directories of ended jobs that an earlier epilog set aside: which record they become, and who has ended them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from node_testbed import GPU_MIB, UUIDS, Node

from hami_hpc.contract import constants as c
from hami_hpc.core.grant import Grant
from hami_hpc.core.inventory import Device, make_inventory
from hami_hpc.core.reconcile_plan import Directory
from hami_hpc.errors import NodeError
from hami_hpc.node import ended_dirs, job_dirs, nvml, usage_spool
from hami_hpc.node.config import Settings
from hami_hpc.node.event_reader import EventReader
from hami_hpc.node.ledger import Ledger
from hami_hpc.stages import common, epilog
from hami_hpc.stages.reconcile import read_state, reconcile


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    devices = tuple(Device(minor, uuid, "NVIDIA H200", GPU_MIB) for minor, uuid in enumerate(UUIDS))
    monkeypatch.setattr(nvml, "read_devices", lambda: devices)
    return Node.make(tmp_path / "node")


def set_aside(node: Node, job_id: int, gpu: str = "0") -> None:
    """Leaves the job as an epilog does that could write its record nowhere."""
    node.prolog(job_id, gpu=gpu)
    node.write_usage(job_id, peak_bytes=4242)
    grant = node.grants()[job_id]
    ended_dirs.set_aside(node.settings.run_dir, grant)
    ledger = common.open_ledger(node.settings)
    ledger.remove(grant)
    ledger.close()


def enter_models(node: Node, *models: str) -> None:
    devices = [Device(minor, uuid, "NVIDIA H200", GPU_MIB) for minor, uuid in enumerate(UUIDS)]
    gpus = make_inventory(devices, node.settings.gpu_models)
    ledger = common.open_ledger(node.settings)
    ledger.set_inventory([gpu._replace(model=model) for gpu, model in zip(gpus, models, strict=False)])
    ledger.close()


def test_its_record_has_its_usage_and_the_model_of_its_own_gpu(node: Node) -> None:
    set_aside(node, 7, gpu="1")
    enter_models(node, "first", "second")
    node.epilog(8)
    record = node.record()
    assert (record["model"], record["usage"], record["peak_bytes"]) == ("second", "ok", 4242)


def test_one_that_cannot_be_ended_does_not_hold_up_the_others(
    node: Node, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for job in (6, 7, 8):
        set_aside(node, job)
    genuine = epilog.spool_usage

    def spool_usage(settings: Settings, grants: tuple[Grant, ...], *more: Any, **named: Any) -> str:
        if grants[0].job_id == 7:
            raise NodeError("job 7's slice cannot be taken back")
        return genuine(settings, grants, *more, **named)

    monkeypatch.setattr(epilog, "spool_usage", spool_usage)
    assert node.epilog(9) == 0
    assert "job 7's slice cannot be taken back" in capsys.readouterr().err
    assert node.spooled() == ["6.json", "8.json"]
    assert [name.startswith(".ended-7-") for name in node.names()] == [True]


def test_the_record_of_a_gpu_that_nobody_knows_any_more_has_no_model(node: Node) -> None:
    set_aside(node, 7, gpu="1")
    enter_models(node, "first")
    node.epilog(8)
    assert node.record()["model"] == ""


@pytest.mark.parametrize(("models", "model"), [(("first", "second"), "second"), (("first",), "")])
def test_a_row_that_reconcile_restores_has_the_model_of_its_gpu(
    node: Node, models: tuple[str, ...], model: str
) -> None:
    node.prolog(7, gpu="1")
    ledger = common.open_ledger(node.settings)
    ledger.remove(ledger.grants()[0])
    ledger.close()
    enter_models(node, *models)
    reconcile(node.settings, lambda: frozenset({7}), dry_run=False)
    assert node.grants()[7].model == model


def test_reconcile_removes_what_a_killed_epilog_left_beside_the_records_that_wait(node: Node) -> None:
    folder = Path(usage_spool.waiting_dir(node.settings.run_dir))
    folder.mkdir()
    (folder / ".7-1").touch()
    os.utime(folder / ".7-1", (1, 1))
    reconcile(node.settings, lambda: frozenset(), dry_run=False)
    assert list(folder.iterdir()) == []


def test_reconcile_moves_all_records_that_wait_and_an_epilog_a_part_of_them(node: Node) -> None:
    for job_id in range(usage_spool.DELIVERED_AT_ONCE + 3):
        usage_spool.keep(node.settings.run_dir, job_id, 1, '{"start_unix_ns":1}')
    node.epilog(8)
    assert len(node.spooled()) == usage_spool.DELIVERED_AT_ONCE
    for job_id in range(1000, 1000 + usage_spool.DELIVERED_AT_ONCE):
        usage_spool.keep(node.settings.run_dir, job_id, 1, '{"start_unix_ns":1}')
    reconcile(node.settings, lambda: frozenset(), dry_run=False)
    assert len(node.spooled()) == 2 * usage_spool.DELIVERED_AT_ONCE + 3


def test_what_reconcile_ends_is_an_event_of_reconcile(node: Node) -> None:
    set_aside(node, 7)
    reconcile(node.settings, lambda: frozenset(), dry_run=False)
    events = [line.event for line in EventReader(node.settings.state_dir).read() if line.event]
    assert [(one["kind"], one["source"]) for one in events] == [
        ("grant", "prolog"),
        ("grant_end", "reconcile"),
        ("reconciled", "reconcile"),
    ]


def test_another_process_may_remove_the_directory_while_this_one_spools_it(
    node: Node, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_aside(node, 7)
    remove = Ledger.remove

    def remove_both(ledger: Ledger, grant: object) -> None:
        remove(ledger, grant)  # type: ignore[arg-type]
        for name in node.names():
            job_dirs.remove(node.settings.run_dir, str(node.jobs / name))

    monkeypatch.setattr(Ledger, "remove", remove_both)
    assert node.epilog(8) == 0
    assert capsys.readouterr().err == ""
    assert node.spooled() == ["7.json"]


def directories(node: Node) -> tuple[Directory, ...]:
    ledger = common.open_ledger(node.settings)
    try:
        return read_state(node.settings, ledger, lambda: frozenset()).directories
    finally:
        ledger.close()


def test_reconcile_reads_no_grant_of_a_directory_that_is_not_whole_or_waits_for_an_administrator(node: Node) -> None:
    node.prolog(7)
    for name in (".new-7-1-1", f"{job_dirs.BAD}7-1"):
        shutil.copytree(node.jobs / "7", node.jobs / name)
        (node.jobs / name / c.FILE_GPUS).write_text("job=7 uid=5 gpus=0 start_unix_ns=1\n")
    found = {entry.name: entry for entry in directories(node)}
    assert found.pop("7").grants == (node.grants()[7]._replace(model=""),)
    assert [(entry.grants, entry.gpu_job, entry.job_id) for entry in found.values()] == [((), None, None)] * 2


def test_a_directory_with_a_grant_is_of_no_other_run(node: Node) -> None:
    node.prolog(7)
    (node.jobs / "7" / c.FILE_GPUS).write_text("job=7 uid=5 gpus=0 start_unix_ns=1\n")
    (entry,) = directories(node)
    assert entry.grants
    assert entry.gpu_job is None
