# SPDX-License-Identifier: Apache-2.0
"""hami-hpc mig: what it lists, and when it refuses to switch a GPU."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from mig_testbed import MigNode
from test_out_of_service import FakeNode

from hami_hpc.core.out_of_service import Holding
from hami_hpc.node import admin_log, mig
from hami_hpc.node import nvml as nvml_door
from hami_hpc.node.event_reader import EventReader
from hami_hpc.slurm import placeholders
from hami_hpc.stages import common

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="NVML lets only root divide a GPU")
JOB = 7


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MigNode:
    monkeypatch.setattr(placeholders, "Node", lambda _name, _environment: FakeNode())
    return MigNode.make(tmp_path, monkeypatch)


def run(bed: MigNode, *words: str, faults: str = "") -> tuple[int, str]:
    return bed.command("mig", *words, faults=faults)


def modes(bed: MigNode) -> list[tuple[bool, bool] | None]:
    def body() -> list[tuple[bool, bool] | None]:
        nvml = nvml_door.open_nvml()
        return [mig.mode(nvml, nvml.nvmlDeviceGetHandleByIndex(index)) for index in (0, 1)]

    return bed.run(body)


def test_list_shows_gpus_instances_and_whose_they_are(bed: MigNode) -> None:
    foreign = bed.make_foreign()
    assert bed.prolog(JOB) == 0
    status, output = run(bed, "list")
    assert status == 0
    lines = [line.split() for line in output.splitlines()]
    assert lines[0] == ["GPU", "MIG", "INSTANCE", "PROFILE", "SLICES", "MiB", "OF", "UUID"]
    assert lines[1][:2] == ["0", "on"]
    own = bed.note_of_job(JOB).split()[0]
    assert any(line[-3:] == ["job", str(JOB), own] for line in lines)
    assert any(line[-3:] == ["not", "hami_hpc", foreign.uuid] for line in lines)
    assert lines[-1][:2] == ["1", "off"]

    listed = json.loads(run(bed, "list", "--format", "json")[1])
    assert [gpu["mode"] for gpu in listed] == ["on", "off"]
    rows = {row["uuid"]: row for row in listed[0]["instances"]}
    assert (rows[own]["job_id"], rows[own]["is_ours"], rows[own]["profile"]) == (JOB, True, "1g.18gb")
    assert (rows[foreign.uuid]["job_id"], rows[foreign.uuid]["is_ours"]) == (None, False)
    assert listed[0]["profiles"][0]["starts"] == [0, 1, 2, 3, 4, 5, 6]
    assert "--format" in run(bed, "list", "--json")[1], "the old spelling is named"


def test_disable_and_enable_switch_one_gpu_and_can_be_repeated(bed: MigNode) -> None:
    for _ in range(2):
        assert run(bed, "disable", "0")[0] == 0
    assert modes(bed) == [(False, False), (False, False)]
    status, output = run(bed, "enable", "1")
    assert (status, "GPU 1 (GPU-" in output, "MIG is on. Check modes" in output) == (0, True, True)
    assert "already" in run(bed, "enable", "1")[1]
    assert modes(bed) == [(False, False), (True, True)]
    events = (bed.node.root / "state" / "events.jsonl").read_text()
    assert events.count('"mig_mode"') == 2, "one for each change"


def test_a_switch_is_a_line_an_event_and_a_warning_and_the_gpus_are_read_again(
    bed: MigNode, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ledger = common.open_ledger(bed.node.settings)
    ledger.set_inventory(())
    ledger.close()
    told = tmp_path / "told"
    monkeypatch.setattr(admin_log, "to_syslog", lambda level, line: told.write_text(f"{level} {line}"))
    uuid = bed.run(lambda: nvml_door.read_devices()[1].uuid)
    name = f"GPU 1 ({uuid})"
    advice = f"Check modes in [vgpu] of {bed.node.config}, then: hami-hpc doctor"
    for word, state in (("enable", "on"), ("disable", "off")):
        assert run(bed, word, uuid) == (0, f"{name}: MIG is {state}. {advice}\n")
        assert told.read_text() == f"{admin_log.WARNING} {name}: MIG is {state}"
        event = dict([line.event for line in EventReader(bed.node.settings.state_dir).read() if line.event][-1])
        del event["time_unix_ns"]
        text = f"{name}: MIG is {state}"
        assert event == {"kind": "mig_mode", "source": "mig", "text": text, "gpu_uuid": uuid}
        assert run(bed, word, "1") == (0, f"{name}: MIG is {state} already\n")
    ledger = common.open_ledger(bed.node.settings)
    assert [gpu.minor for gpu in ledger.inventory()] == [0, 1]
    ledger.close()


@pytest.mark.parametrize(
    ("faults", "text"),
    [
        (
            "nvmlDeviceGetMigMode=3",
            "has no MIG: it is of the Ampere generation or later in data center GPUs only",
        ),
        (
            "nvmlDeviceGetComputeRunningProcesses_v3=999",
            "NVML does not say which processes use it (Unknown Error): see nvidia-smi",
        ),
    ],
)
def test_what_nvml_does_not_say_or_have_switches_nothing(bed: MigNode, faults: str, text: str) -> None:
    status, output = run(bed, "enable", "1", faults=faults)
    assert (status, text in output) == (1, True), output
    assert modes(bed) == [(True, True), (False, False)]


def test_of_many_jobs_the_first_eight_are_named(bed: MigNode, monkeypatch: pytest.MonkeyPatch) -> None:
    for count, listed in ((8, "1, 2, 3, 4, 5, 6, 7, 8."), (9, "1, 2, 3, 4, 5, 6, 7, 8 and 1 more.")):
        held = [Holding(job_id, 1, 8, False, False) for job_id in range(count, 0, -1)]
        monkeypatch.setattr(placeholders, "Node", lambda _name, _environment, held=held: FakeNode(*held))
        uuid = bed.run(lambda: nvml_door.read_devices()[1].uuid)
        advice = f"Take it out of service and wait for them: hami-hpc gpu drain {uuid} --reason MIG."
        status, output = run(bed, "enable", "1")
        assert f"GPU 1 ({uuid}) has {count} running job(s): {listed} {advice}" in output
        assert f"After the switch: hami-hpc gpu resume {uuid}" in output
        assert status == 1


def test_nothing_is_switched_while_a_job_has_a_part_of_the_gpu(bed: MigNode, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bed.prolog(JOB) == 0
    status, output = run(bed, "disable", "0")
    assert status == 1
    assert "1 running job(s): 7. Take it out of service and wait for them: hami-hpc gpu drain GPU-" in output
    monkeypatch.setattr(placeholders, "Node", lambda _name, _environment: FakeNode(Holding(9, 1, 8, False, False)))
    status, output = run(bed, "enable", "1")
    assert (status, "1 running job(s): 9." in output) == (1, True), "by slurmctld: whole GPUs are in no ledger"
    assert modes(bed)[0] == (True, True)


def test_disable_names_instances_that_are_left(bed: MigNode) -> None:
    foreign = bed.make_foreign()
    status, output = run(bed, "disable", "0")
    assert (status, f"has 1 MIG instance(s): {foreign.uuid}." in output) == (1, True)
    assert bed.instances() == (foreign,)


def test_a_process_on_the_gpu_is_named(bed: MigNode) -> None:
    tenant = bed.machine.tenant()  # on the A100: the H200 is divided
    try:
        status, output = run(bed, "enable", "1")
        assert (status, f"is used by process {tenant.pid}: end it" in output) == (1, True)
    finally:
        tenant.kill()
        tenant.communicate(timeout=10)


@pytest.mark.parametrize(("code", "text"), [("19", "the GPU is in use"), ("16", "after a reset of the GPU")])
def test_a_mode_that_did_not_take_effect_says_what_it_waits_for(
    bed: MigNode, monkeypatch: pytest.MonkeyPatch, code: str, text: str
) -> None:
    genuine = mig.set_mode

    def pending(nvml: object, handle: object, on: bool) -> str:
        class Fake:
            NVML_SUCCESS, NVML_ERROR_IN_USE, NVML_ERROR_RESET_REQUIRED = 0, 19, 16
            NVMLError = type("NVMLError", (Exception,), {})
            nvmlDeviceSetMigMode = staticmethod(lambda handle, mode: int(code))  # noqa: N815

        return genuine(Fake, handle, on)  # type: ignore[arg-type]

    monkeypatch.setattr(mig, "set_mode", pending)
    status, output = run(bed, "enable", "1")
    assert (status, "MIG is not on yet" in output, text in output) == (1, True, True)


def test_wrong_words_say_what_is_right(bed: MigNode) -> None:
    assert run(bed, "enable")[0] == 2
    assert run(bed, "list", "0")[0] == 2
    assert "this node has no GPU 9" in run(bed, "enable", "9")[1]
    status, output = run(bed, "enable", "1", faults="nvmlDeviceSetMigMode=4")
    assert (status, "run this as root" in output) == (1, True)


def test_profiles_are_printed_as_the_settings_have_them(bed: MigNode) -> None:
    status, output = run(bed, "profiles")
    assert status == 0
    h200, other = (table.splitlines() for table in output.strip().split("\n\n"))
    assert h200[:2] == ["# NVIDIA H200", "[gpu_models.h200.mig_profiles]"]
    assert h200[2] == '"1g.18gb" = "16384 MiB, 1/7 compute, 1/8 memory at {0,1,2,3,4,5,6}, at most 7"'
    assert "\n".join(h200[1:]) in bed.node.config.read_text(), "these lines are what the settings of the test have"
    assert other[1] == "[gpu_models.NAME.mig_profiles]", "the settings have no such model"
    assert run(bed, "profiles", "0")[0] == 2


def test_a_dry_run_of_apply_makes_no_ledger(bed: MigNode) -> None:
    """It would have replaced one of an earlier release, too."""
    ledger = bed.node.root / "run" / "ledger.db"
    ledger.unlink()
    layout = bed.node.root / "layout.toml"
    layout.write_text('version = 1\n[nodes.node1]\n1 = ["3g.20gb"]\n')
    layout.chmod(0o644)
    status, output = run(bed, "apply", "--dry-run", str(layout))
    assert (status, "3g.20gb at 0 is made (dry run)" in output) == (0, True), output
    assert not ledger.exists()
