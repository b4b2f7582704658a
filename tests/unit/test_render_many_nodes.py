# SPDX-License-Identifier: Apache-2.0
"""What render says of hundreds of nodes: once what is alike, and for lines whose nodes are not, how to divide them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from node_testbed import GPU_MIB, Node
from test_node_inventory import A100_MIB, printed, put
from test_node_inventory import node as node
from test_node_inventory import render as render_all
from test_render_forget import forget
from test_render_site import SLURMDBD, merged

from hami_hpc.cli.exit_codes import ExitCode
from hami_hpc.slurm.lines import logical_lines, parse_line

MANY = 300


@pytest.fixture
def etc(node: Node) -> Path:
    folder = node.root / "etc"
    folder.mkdir()
    return folder


def gathered(node: Node, a100: int = 0, count: int = MANY) -> Path:
    """The inventories of nodes gpu001 and so on, the first `a100` of them with other GPUs than the rest."""
    of_each = [
        printed(f"gpu{number:03}", *(("NVIDIA A100-PCIE-40GB", A100_MIB) if number <= a100 else ()))
        for number in range(1, count + 1)
    ]
    return put(node.root / "gathered", *of_each)


def render(node: Node, folder: Path, *arguments: str) -> str:
    return render_all(node, "--inventory", str(folder), *arguments).output


def notes(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("note: ")]


def test_nodes_that_slurm_conf_lacks_are_one_remark(node: Node, etc: Path) -> None:
    (etc / "slurm.conf").write_text(f"NodeName=login1\n{SLURMDBD}")
    [note] = notes(render(node, gathered(node)))
    assert f"slurm.conf has no NodeName=gpu[001-{MANY}] ({etc}/slurm.conf, line 1 has login1)" in note
    assert f"run hami-hpc forget-node 'gpu[001-{MANY}]', then" in note


def test_gpus_of_a_product_with_less_memory_than_the_settings_say_are_pointed_out(node: Node, etc: Path) -> None:
    (etc / "slurm.conf").write_text(f"NodeName=gpu[001-004]\n{SLURMDBD}")
    large = [printed(f"gpu00{number}", "NVIDIA A100-PCIE-80GB", 2 * A100_MIB) for number in (1, 2)]
    small = [printed(f"gpu00{number}", "NVIDIA A100-PCIE-40GB", A100_MIB) for number in (3, 4)]
    folder = put(node.root / "gathered", *large, *small)
    assert notes(render(node, folder)) == []
    node.config.write_text(node.config.read_text().replace(f"{A100_MIB}", f"{2 * A100_MIB}"))
    [note] = notes(render(node, folder))
    assert note.startswith(f"note: GPUs of gpu[003-004] have {A100_MIB} MiB, and total_mib of a100 in {node.config} is")
    assert f"Write total_mib = {A100_MIB}, or give GPUs of this size a model of their own" in note


@pytest.mark.parametrize(
    ("names", "spelling"),
    [
        ("gpu001.example.org,gpu002.example.org,gpu003.example.org", "with .example.org at its end"),
        ("GPU[001-003]", "with other capital letters or another domain"),
        ("Gpu001,Gpu002,Gpu003", "with other capital letters or another domain"),
    ],
)
def test_a_name_that_slurm_conf_spells_otherwise_is_pointed_out(
    node: Node, etc: Path, names: str, spelling: str
) -> None:
    (etc / "slurm.conf").write_text(f"NodeName={names}\n{SLURMDBD}")
    [note] = notes(render(node, gathered(node, count=3)))
    assert f"has no NodeName=gpu[001-003] (it has this name {spelling})" in note


def test_names_with_a_domain_that_slurm_conf_leaves_out_are_pointed_out(node: Node, etc: Path) -> None:
    (etc / "slurm.conf").write_text(f"NodeName=gpu[1-2],gpu3\n{SLURMDBD}")
    folder = put(node.root / "gathered", *(printed(f"gpu{number}.example.org") for number in (1, 2, 3)))
    [note] = notes(render(node, folder))
    assert "has no NodeName=gpu1.example.org,gpu2.example.org,gpu3.example.org (it has this name without " in note


def test_a_host_list_too_long_to_read_is_said_by_its_first_and_their_number(node: Node, etc: Path) -> None:
    (etc / "slurm.conf").write_text(f"NodeName=login1\n{SLURMDBD}")
    folder = put(node.root / "gathered", *(printed(f"gpu{number}.example.org") for number in range(30)))
    [note] = notes(render(node, folder))
    assert "has no NodeName=gpu0.example.org and 29 other nodes (" in note
    assert "gpu29.example.org" in note, "the command has all of them"


def test_cores_that_cannot_be_written_are_one_remark_for_like_nodes(node: Node) -> None:
    node.config.write_text(node.config.read_text() + '[placement]\nnuma = "prefer"\n')
    found = [note for note in notes(render(node, gathered(node))) if "Cores=" in note]
    assert len(found) == 1
    assert f"Cores= is left out for gpu[001-{MANY}]: its sockets differ" in found[0]


def test_gpus_that_the_settings_lack_are_said_with_all_nodes_that_have_them(node: Node) -> None:
    folder = gathered(node, count=6)
    for number in (3, 4, 5):
        path = folder / f"{number}.json"
        path.write_text(path.read_text().replace("NVIDIA H200", "NVIDIA B200" if number < 5 else "NVIDIA L40S"))
    done = render_all(node, "--inventory", str(folder))
    assert done.exit_code == ExitCode.FAILED
    assert done.output.startswith("Error: gpu[004-005]: GPU 0 is a NVIDIA B200 ")
    assert "; gpu006: GPU 0 is a NVIDIA L40S " in done.output
    assert not (node.root / "etc").exists()


def test_a_line_of_unlike_nodes_is_to_be_divided_and_then_nothing_is_left(node: Node, etc: Path) -> None:
    slurm_conf = etc / "slurm.conf"
    slurm_conf.write_text(f"include slurm-hami-hpc.conf\nNodeName=gpu[001-{MANY + 9}] CPUs=8 Gres=gpu:2,bandwidth:5\n")
    (etc / "gres.conf").write_text("include hami-hpc-gres.conf\nName=gpu File=/dev/nvidia[0-1]\n")
    (etc / "plugstack.conf").write_text("include plugstack.conf.d/*.conf\n")
    folder = gathered(node, a100=100)
    output = render(node, folder)
    assert f"{slurm_conf}, line 2: its nodes are not alike. Instead of it write a line for each kind:" in output
    assert f"{etc}/gres.conf, line 2: its nodes are not alike." in output
    lines = [line for line in merged(output) if line.startswith("NodeName=")]
    in_slurm, in_gres = lines[:3], lines[3:]
    parsed = [parse_line("", 0, line) for line in in_slurm]
    assert [line.get("NodeName") for line in parsed] == ["gpu[001-100]", f"gpu[101-{MANY}]", "gpu[301-309]"]
    assert [line.get("Gres").split(",")[0] for line in parsed] == ["gpu:a100:2", "gpu:h200:2", "gpu:2"]
    assert all("bandwidth:5" in line.get("Gres") and line.get("CPUs") == "8" for line in parsed)
    assert in_gres == [
        "NodeName=gpu[001-100] Name=gpu File=/dev/nvidia[0-1] Type=a100",
        f"NodeName=gpu[101-{MANY}] Name=gpu File=/dev/nvidia[0-1] Type=h200",
    ]
    slurm_conf.write_text("\n".join(["include slurm-hami-hpc.conf", *in_slurm, ""]))
    (etc / "gres.conf").write_text("\n".join(["include hami-hpc-gres.conf", *in_gres, ""]))
    assert not [line for line in merged(render(node, folder)) if "NodeName=" in line or "Type=" in line]


def test_several_lines_are_divided_from_the_last_on_so_that_their_numbers_hold(node: Node, etc: Path) -> None:
    (etc / "slurm.conf").write_text("NodeName=gpu[001-004] CPUs=8\nNodeName=gpu[005-008] CPUs=4\n")
    folder = gathered(node, count=8)
    for number in (0, 4):
        path = folder / f"{number}.json"
        text = path.read_text().replace("NVIDIA H200", "NVIDIA A100-PCIE-40GB").replace(str(GPU_MIB), str(A100_MIB))
        path.write_text(text)
    output = render(node, folder)
    assert re.findall(r"slurm\.conf, line (\d): its nodes are not alike", output) == ["2", "1"]
    assert output.rindex("add the line") < output.index("its nodes are not alike")


def test_a_line_that_serves_some_of_its_nodes_already_is_divided_too(node: Node, etc: Path) -> None:
    folder = gathered(node, a100=1, count=3)
    assert render_all(node, "--inventory", str(folder)).exit_code == ExitCode.DONE
    line = next(
        text
        for _, text in logical_lines((etc / "slurm-hami-hpc.conf").read_text())
        if text.startswith("NodeName=gpu[002-003]")
    )
    (etc / "slurm.conf").write_text(line.replace("gpu[002-003]", "gpu[001-003] NodeAddr=10.0.0.[1-3] Port=9") + "\n")
    output = render(node, folder)
    assert "its nodes are not alike. Instead of it write a line for each kind, and divide NodeAddr likewise:" in output
    names = [parse_line("", 0, text).get("NodeName") for text in merged(output) if text.startswith("NodeName")]
    assert names == ["gpu001", "gpu[002-003]"]


def test_lines_of_many_nodes_that_need_the_same_are_one_step(node: Node, etc: Path) -> None:
    names = [f"gpu{number:03}" for number in range(1, MANY + 1)]
    (etc / "slurm.conf").write_text("".join(f"NodeName={name} CPUs=8\n" for name in names))
    of_each = "NodeName={0} Name=gpu File=/dev/nvidia[0-1]\nNodeName={0} Name=shard Count=4\n"
    (etc / "gres.conf").write_text("".join(of_each.format(name) for name in names))
    folder = gathered(node)
    output = render(node, folder)
    assert f"{etc}/slurm.conf, lines 1-{MANY} (gpu[001-{MANY}]): write these two into each of these" in output
    where = f"{etc}/gres.conf, lines 1 to {2 * MANY - 1}, {MANY} of them (gpu[001-{MANY}]): "
    assert where + "write this into each of these gpu lines:\n         Type=h200\n" in output
    assert "(gpu[001-300]): delete these lines; hami-hpc-gres.conf has those for the same gres:\n" in output
    assert "         line 2 is: NodeName=gpu001 Name=shard Count=4\n" in output
    assert len(re.findall(r"^ *\d+\. ", output, re.MULTILINE)) < 12


def test_nodes_that_lost_their_gpus_keep_their_lines_and_are_pointed_out(node: Node) -> None:
    folder = gathered(node, count=5)
    render(node, folder)
    for number in (1, 2, 9):
        (folder / f"{number}.json").write_text(json.dumps(printed(f"gpu{number + 1:03}", count=0)))
    output = render(node, folder)
    assert "note: 3 nodes have no GPU for slices, and nothing is written for them: gpu[002-003,010]\n" in output
    assert "has lines of before for gpu[002-003], which stay. If the GPUs are gone: hami-hpc forget-node 'gpu" in output
    assert "# --- node gpu[001-005]" in (node.root / "etc" / "hami-hpc-gres.conf").read_text()


def test_hundreds_of_lines_that_name_forgotten_nodes_are_one_step(node: Node, etc: Path) -> None:
    names = [f"gpu{number:03}" for number in range(1, MANY + 1)]
    partition = f"PartitionName=gpu Nodes=gpu[001-{MANY}]\n"
    (etc / "slurm.conf").write_text("".join(f"NodeName={name} CPUs=8\n" for name in names) + partition)
    render(node, gathered(node))
    done = forget(node, "gpu[011-210]")
    assert done.exit_code == ExitCode.FOUND
    assert re.findall(r"^ *\d+\. (.*)$", done.output, re.MULTILINE) == [
        f"{etc}/slurm.conf, lines 11-210 (gpu[011-210]): still name nodes that are gone. Take these out of the lines:",
        f"{etc}/slurm.conf, line {MANY + 1} still names gpu[011-210]. Take it out of:",
    ]


def test_instances_of_like_static_layouts_are_one_step(node: Node, etc: Path) -> None:
    (etc / "gres.conf").write_text("include hami-hpc-gres.conf\nName=gpu Type=h200 File=/dev/nvidia0\n")
    folder = gathered(node, count=20)
    for path in folder.iterdir():
        document = json.loads(path.read_text())
        document["gpus"][1]["static_mig_layout"] = True
        document["static_mig_instances"] = [{"type": "1g.18gb", "device": "/dev/nvidia_mig/0"}]
        path.write_text(json.dumps(document))
    lines = [line for line in merged(render(node, folder)) if "1g.18gb File=" in line]
    assert lines == ["NodeName=gpu[001-020] Name=gpu Type=1g.18gb File=/dev/nvidia_mig/0"]
