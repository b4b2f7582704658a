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


def test_forgetting_keeps_an_edited_file_and_takes_no_list_of_nodes(node: Node) -> None:
    render(node)
    path = node.root / "etc" / "hami-hpc-gres.conf"
    path.write_text(path.read_text() + "# edited\n")
    before = snapshot(node.root / "etc")
    assert "was edited since render wrote it" in forget(node, "node1").output
    assert forget(node, "node[1-2]").exit_code == 1
    assert snapshot(node.root / "etc") == before
    assert forget(node, "node1", "--force").exit_code == 0
    assert "NodeName" not in path.read_text()
