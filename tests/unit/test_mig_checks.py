# SPDX-License-Identifier: Apache-2.0
"""MIG beside other modes: what doctor says of a GPU in MIG mode, settings that changed, records without an agent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from mig_testbed import MigNode

from hami_hpc.doctor.facts import Facts
from hami_hpc.doctor.node_checks import check_isolation
from hami_hpc.isolation import mig_checks

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="NVML lets only root divide a GPU")
JOB = 7


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MigNode:
    return MigNode.make(tmp_path, monkeypatch)


def test_doctor_names_each_mode_that_a_divided_gpu_cannot_serve(bed: MigNode) -> None:
    bed.edit('["mig", "share"]', '["mig", "share", "mps"]')
    settings = bed.node.settings
    found = bed.run(lambda: tuple(mig_checks.check(settings)))
    assert [one.what for one in found if one.what.startswith("MIG and")] == ["MIG and share", "MIG and mps"]


def test_doctor_names_a_divided_gpu_of_a_node_that_is_not_to_be_divided(bed: MigNode) -> None:
    bed.edit('["mig", "share"]', '["mig", "share"]\nmig_nodes = ["other"]')
    facts = Facts(bed.node.settings, "this")
    found = bed.run(lambda: tuple(check_isolation(facts)))
    assert [(one.level.name, one.detail) for one in found if one.what == "MIG mode"] == [
        ("FAIL", "GPU 0: MIG is on, and mig_nodes does not name this node: its jobs cannot use the GPU")
    ]


def found_by(bed: MigNode) -> dict[str, list[tuple[str, str, str]]]:
    """Level, detail and advice of each finding, by what was looked at."""
    settings = bed.node.settings
    found: dict[str, list[tuple[str, str, str]]] = {}
    for one in bed.run(lambda: tuple(mig_checks.check(settings))):
        found.setdefault(one.what, []).append((one.level.name, one.detail, one.advice))
    return found


def test_doctor_wants_one_mode_of_all_gpus_where_mig_nodes_names_the_node(bed: MigNode) -> None:
    bed.edit('["mig", "share"]', '["mig", "share"]\nmig_nodes = ["this"]')
    advice = "hami-hpc mig enable or disable: mig_nodes names whole nodes"
    assert found_by(bed)["MIG mode"] == [("FAIL", "MIG by GPU: GPU 0: on, GPU 1: off", advice)]
    bed.switch_on(1)
    assert found_by(bed)["MIG mode"] == [("OK", "MIG by GPU: GPU 0: on, GPU 1: on", "")]
    assert "MIG and share" not in found_by(bed)


def test_each_finding_says_what_to_do(bed: MigNode) -> None:
    bed.make_foreign()
    found = found_by(bed)
    assert [advice for *_, advice in found["MIG mode"]] == [
        "",
        "hami-hpc mig enable 1, or take mig out of modes in [vgpu]",
    ]
    assert [advice for *_, advice in found["MIG and share"]] == ["hami-hpc mig disable 0, or correct modes"]
    assert [advice for *_, advice in found["MIG instances"]] == [
        "see hami-hpc mig list; nvidia-smi mig -dci, then -dgi, removes them"
    ]
    no_profile = "write into [gpu_models.NAME.mig_profiles] what `hami-hpc mig profiles` prints"
    assert [advice for *_, advice in found["MIG profiles"]] == ["", no_profile]
    assert [advice for *_, advice in found["MIG devices"]] == [
        "options nvidia NVreg_ModifyDeviceFiles=0 in /etc/modprobe.d, then load the driver again (docs/security.md)"
    ]
    bed.edit("16384 MiB", "16000 MiB")
    assert found_by(bed)["MIG profiles"][0][2] == no_profile.replace("NAME", "h200")


def test_units_that_no_profile_has_are_those_of_one_that_the_site_offers(bed: MigNode) -> None:
    """The settings were changed after the job was submitted."""
    bed.edit('"1g.35gb" =', '"8g.35gb" =')
    bed.edit('"2g.35gb" =', '"9g.35gb" =')
    assert bed.prolog(JOB, mem_mib=20000, cores=14) == 0
    assert "the smallest MIG instance for that, 3g.71gb, has" in (bed.node.jobs / str(JOB) / "refused").read_text()


def test_a_model_that_was_renamed_in_the_settings_drains_no_node(bed: MigNode) -> None:
    bed.node.config.write_text(bed.node.config.read_text().replace("h200", "h200x"))
    assert bed.prolog(JOB) == 0
    assert len(bed.instances()) == 1
    assert bed.epilog(JOB) == 0
    assert bed.instances() == ()


def test_the_record_of_a_job_that_no_agent_saw_does_not_say_that_it_used_nothing(bed: MigNode) -> None:
    with bed.node.config.open("a") as config:
        config.write("[agent]\n")
    assert bed.prolog(JOB) == 0
    assert bed.epilog(JOB) == 0
    record = bed.node.record()
    assert (record["mode"], record["usage"], record["observed_ns"]) == ("mig", "missing", 0)


def test_a_job_gets_no_profile_of_a_model_that_offers_none(bed: MigNode) -> None:
    """Its units cannot be those of an instance: slurmctld would admit what the GPU cannot hold."""
    bed.edit(
        "[gpu_models.h200.mig_profiles]", "[gpu_models.h200x]\ntotal_mib = 999999\n[gpu_models.h200x.mig_profiles]"
    )
    assert bed.prolog(JOB) == 0
    assert bed.instances() == ()
    assert "offers on GPU 0: none." in (bed.node.jobs / str(JOB) / "refused").read_text()


def test_doctor_looks_at_the_interposer_where_no_other_mode_does(bed: MigNode) -> None:
    """Steps with a part of an instance need it (docs/adr/068). With mode=share its findings are not said twice."""
    assert "interposer" not in found_by(bed)
    bed.edit('["mig", "share"]', '["mig"]')
    assert {"interposer", "preload", "user namespaces"} <= found_by(bed).keys()
