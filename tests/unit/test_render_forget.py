# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc forget-node`: a node's lines leave the files that render wrote, and what still names it is shown."""

from __future__ import annotations

import re

from click.testing import CliRunner, Result
from node_testbed import Node
from test_render_site import merged, node, render, snapshot

from hami_hpc.cli import main
from hami_hpc.render.marks import is_ours
from hami_hpc.slurm.lines import logical_lines, parse_line

__all__ = ["node"]  # the fixture


def forget(node: Node, name: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["forget-node", name, "-o", str(node.root / "etc"), *arguments])


def test_a_node_that_is_gone_is_forgotten(node: Node) -> None:
    etc = node.root / "etc"
    for number in ("node10", "node1", "node2"):
        render(node, name=number)
    (etc / "slurm.conf").write_text(
        "include slurm-hami-hpc.conf\nNodeName=node[3-4]\nPartitionName=gpu Nodes=node[1-4]\n"
    )
    before = snapshot(etc)
    shown = forget(node, "node1", "--diff")
    assert "-NodeName=node[1-2,10] Name=vgpu_cores Count=200" in shown.output
    assert "+NodeName=node[2,10] Name=vgpu_cores Count=200" in shown.output
    assert snapshot(etc) == before
    done = forget(node, "node1")
    assert done.exit_code == 3
    assert f"{etc}/slurm.conf, line 3 still names node1. Take it out of:" in done.output
    assert merged(done.output) == ["PartitionName=gpu Nodes=node[1-4]"]
    for name in ("slurm-hami-hpc.conf", "hami-hpc-gres.conf"):
        text = (etc / name).read_text()
        assert is_ours(text)
        assert re.findall(r"^# --- node (\S+)$", text, re.MULTILINE) == ["node[2,10]"]
        assert {name for line in logical_lines(text) for name in parse_line("", *line).get("NodeName").split()} == {
            "node[2,10]"
        }
    after = snapshot(etc)
    unknown = forget(node, "node9")
    assert (unknown.exit_code, unknown.output) == (0, f"note: nothing in {etc} names node9\n")
    assert snapshot(etc) == after
    render(node, name="node1")
    assert snapshot(etc)[str(etc / "hami-hpc-gres.conf")][0] == before[str(etc / "hami-hpc-gres.conf")][0]


def test_a_rack_of_nodes_is_forgotten_by_one_host_list(node: Node) -> None:
    etc = node.root / "etc"
    for number in ("node1", "node2", "node3"):
        render(node, name=number)
    (etc / "slurm.conf").write_text("include slurm-hami-hpc.conf\nPartitionName=gpu Nodes=node[1-3]\n")
    done = forget(node, "node[1-2,7]")
    assert done.exit_code == 3
    assert f"{etc}/slurm.conf, line 2 still names node[1-2]. Take it out of:" in done.output
    assert set(re.findall(r"^# --- node (\S+)$", (etc / "hami-hpc-gres.conf").read_text(), re.MULTILINE)) == {"node3"}
    assert forget(node, "node[8-9]").output == f"note: nothing in {etc} names node[8-9]\n"


def test_forgetting_keeps_an_edited_file_and_takes_nothing_but_names(node: Node) -> None:
    render(node)
    path = node.root / "etc" / "hami-hpc-gres.conf"
    path.write_text(path.read_text() + "# edited\n")
    before = snapshot(node.root / "etc")
    assert "was edited since render wrote it" in forget(node, "node1").output
    for wrong in ("node[1-", "node1 node2", "DEFAULT", "", "node[2-1]"):
        assert forget(node, wrong).exit_code == 1, wrong
    assert "NODES: '2-1' does not ascend, or is too long. Give a node, or" in forget(node, "node[2-1]").output
    assert "NODES: '1-99999' does not ascend, or is too long." in forget(node, "node[1-99999]").output
    assert snapshot(node.root / "etc") == before
    assert forget(node, "node1", "--force").exit_code == 0
    assert "NodeName" not in path.read_text()
