# SPDX-License-Identifier: Apache-2.0
"""The prolog's own checks of the node: the SPANK plugin's line in plugstack.conf, and GPUs of several models."""

from __future__ import annotations

from pathlib import Path

import pytest
from node_testbed import GPU_MIB, UUIDS, Node, job_environment

from hami_hpc.contract import constants as c
from hami_hpc.core.inventory import Device, make_inventory
from hami_hpc.stages import common

OURS = "required /opt/lib/spank_hami_hpc.so run_dir=/run/hami-hpc\n"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node.make(tmp_path / "node")
    (tmp_path / "slurm.conf").write_text("ClusterName=x\n")
    (tmp_path / "plugstack.conf").write_text(OURS)
    return node


def prolog(node: Node, **more: str) -> tuple[int, str]:
    more.setdefault("SLURM_CONF", str(node.root.parent / "slurm.conf"))
    return node.run("prolog", job_environment(7) | more)


def write(node: Node, name: str, text: str) -> None:
    path = node.root.parent / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("plugstack.conf", OURS),
        ("plugstack.conf", f"optional site.so\n\t{OURS}"),
        ("d/x.conf", OURS),
        ("plugstack.conf", OURS.replace("/opt/lib/", "")),
    ],
)
def test_a_job_runs_where_plugstack_conf_has_the_line(node: Node, file: str, line: str) -> None:
    write(node, "plugstack.conf", "include d/*.conf\n")
    write(node, file, line)
    assert prolog(node) == (0, "")
    node.assert_job_is_ready(7)


@pytest.mark.parametrize(
    "text", [None, "", f"# {OURS}", "required other.so\n", "include none/*\n", f"Required{OURS[8:]}"]
)
def test_without_the_line_the_node_is_at_fault_and_nothing_is_granted(node: Node, text: str | None) -> None:
    path = node.root.parent / "plugstack.conf"
    path.unlink() if text is None else path.write_text(text)
    status, errors = prolog(node)
    assert status == 1
    assert f"{path} has no line for spank_hami_hpc.so" in errors
    assert "the whole GPU" in errors
    node.assert_nothing_is_held()


def test_an_optional_line_is_no_fence(node: Node) -> None:
    write(node, "plugstack.conf", OURS.replace("required", "optional"))
    status, errors = prolog(node)
    assert status == 1
    assert "plugstack.conf:1 has 'optional'" in errors


def test_the_place_that_slurm_conf_names_counts(node: Node) -> None:
    write(node, "slurm.conf", f"ClusterName=x\ninclude more.conf\nPlugStackConfig={node.root.parent}/other.conf\n")
    write(node, "more.conf", "PlugStackConfig=/nowhere.conf\n")
    write(node, "other.conf", OURS)
    write(node, "plugstack.conf", "")
    assert prolog(node) == (0, "")


@pytest.mark.parametrize("slurm_conf", ["/nowhere/slurm.conf", "/proc/self/mem"])
def test_where_slurm_conf_cannot_be_read_the_job_goes_on_and_the_admin_is_told(node: Node, slurm_conf: str) -> None:
    status, errors = prolog(node, SLURM_CONF=slurm_conf)
    assert status == 0
    assert "was not checked" in errors
    node.assert_job_is_ready(7)


def mixed(node: Node) -> Node:
    """The same node, its second GPU an A100."""
    settings = node.config.read_text() + "[gpu_models.a100]\ntotal_mib = 40330\n"
    node.config.write_text(settings)
    devices = (Device(0, UUIDS[0], "NVIDIA H200", GPU_MIB), Device(1, UUIDS[1], "NVIDIA A100", 40330))
    ledger = common.open_ledger(node.settings)
    ledger.set_inventory(make_inventory(devices, node.settings.gpu_models))
    ledger.close()
    return node


def refusal(node: Node, job_id: int) -> str:
    return (node.jobs / str(job_id) / c.FILE_REFUSED).read_text()


def test_on_a_mixed_node_a_job_that_got_the_smaller_gpu_is_refused_and_the_node_stays(node: Node) -> None:
    status, errors = node.run("prolog", job_environment(7, mem_mib=GPU_MIB + 1, gpu="1"))
    assert status == 1, "two GPUs of one model: the settings are wrong, and the node with them"
    mixed(node)
    status, errors = node.run("prolog", job_environment(7, mem_mib=GPU_MIB, gpu="1"))
    assert status == 0
    assert "GPU 1 (a100, 40330 MiB). This node has GPUs of 2 models (a100, h200)" in refusal(node, 7)
    assert "hami_hpc: prolog: job 7 has 143156 MiB" in errors, "the administrator is told too"
    assert 7 not in node.grants()


@pytest.mark.parametrize(
    ("constraints", "gpu", "is_refused"),
    [
        ("vgpu_share&vgpu_type_h200", "1", True),
        ("vgpu_share&vgpu_type_h200", "0", False),
        ("vgpu_type_a100|vgpu_type_h200", "1", False),
        ("vgpu_share", "1", False),
        ("", "1", False),
    ],
)
def test_a_job_never_runs_on_another_model_than_it_asked_for(
    node: Node, constraints: str, gpu: str, is_refused: bool
) -> None:
    mixed(node)
    status, _ = node.run("prolog", job_environment(7, gpu=gpu, SLURM_JOB_CONSTRAINTS=constraints))
    assert status == 0
    assert (7 not in node.grants()) == is_refused
    if is_refused:
        assert "asked for h200 and was given GPU 1 (a100)" in refusal(node, 7)


@pytest.mark.parametrize(
    "key", ["PlugStackConfig={}", 'plugstackconfig = "{}"', "ClusterName=x PLUGSTACKCONFIG={} A=1\nB=/include=x"]
)
def test_slurm_conf_is_read_as_slurm_reads_it(node: Node, key: str) -> None:
    write(node, "slurm.conf", f"A=include\n{key.format(node.root.parent / 'other.conf')}\n#PlugStackConfig=/no.conf\n")
    write(node, "other.conf", "include ./d/*x.c?nf\n")
    write(node, "d/1x.conf", OURS)
    write(node, "plugstack.conf", "")
    assert prolog(node) == (0, "")


@pytest.mark.parametrize(
    ("name", "is_read"), [("a.conf", True), (".conf", False), (".a.conf", False), ("a.conf~", False)]
)
def test_a_pattern_takes_what_glob_takes(node: Node, name: str, is_read: bool) -> None:
    write(node, "plugstack.conf", "include d/*.conf\n")
    write(node, f"d/{name}", OURS)
    assert prolog(node)[0] == (0 if is_read else 1)
