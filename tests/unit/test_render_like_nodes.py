# SPDX-License-Identifier: Apache-2.0
"""Like nodes have one NodeName line and one block of gres.conf, and each node's lines can still be changed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from node_testbed import Node
from test_node_inventory import printed, put
from test_node_inventory import render as render_all
from test_render_forget import forget
from test_render_site import node, render

from hami_hpc.cli.exit_codes import ExitCode
from hami_hpc.render.marks import block, blocks, composed, is_ours, marked
from hami_hpc.slurm.lines import logical_lines, names_node, parse_line

__all__ = ["node"]  # the fixture

FRAGMENT, GRES = "slurm-hami-hpc.conf", "hami-hpc-gres.conf"
GPUS = {"rack1-gpu02": 2, "rack1-gpu03": 2, "n9": 2, "n10": 2, "n010": 2, "a.example.org": 2, "big1": 4, "big2": 4}
TWO, FOUR = "a.example.org,n[9-10,010],rack1-gpu[02-03]", "big[1-2]"


def rendered(node: Node, *arguments: str) -> None:
    folder = put(node.root / "gathered", *(printed(name, count=count) for name, count in GPUS.items()))
    done = render_all(node, "--inventory", str(folder), *arguments)
    assert done.exit_code == ExitCode.DONE, done.output


def lines_of(node: Node, file: str) -> list[tuple[str, str]]:
    """Returns (NodeName=, the rest) of each line that describes nodes."""
    text = (node.root / "etc" / file).read_text()
    assert is_ours(text)
    parsed = [parse_line(file, *line) for line in logical_lines(text)]
    return [(line.get("NodeName"), line.text.partition(" ")[2]) for line in parsed if line.kind == "nodename"]


def test_like_nodes_share_a_line_and_unlike_ones_do_not(node: Node) -> None:
    rendered(node, "--node-parameters", "CPUs=64")
    assert [(name, rest.split(",")[0]) for name, rest in lines_of(node, FRAGMENT)] == [
        (TWO, "CPUs=64 Gres=gpu:h200:2"),
        (FOUR, "CPUs=64 Gres=gpu:h200:4"),
    ]
    gpus = [(name, rest) for name, rest in lines_of(node, GRES) if rest.startswith("Name=gpu")]
    assert gpus == [
        (TWO, "Name=gpu Type=h200 File=/dev/nvidia[0-1]"),
        (FOUR, "Name=gpu Type=h200 File=/dev/nvidia[0-3]"),
    ]
    assert len(lines_of(node, GRES)) == 2 * 8
    assert re.findall(r"^# --- node (.*)$", (node.root / "etc" / GRES).read_text(), re.MULTILINE) == [TWO, FOUR]


def test_the_order_of_the_runs_makes_no_difference(node: Node) -> None:
    rendered(node)
    at_once = {name: (node.root / "etc" / name).read_text() for name in (FRAGMENT, GRES)}
    for name in (FRAGMENT, GRES):
        (node.root / "etc" / name).unlink()
    for name, count in reversed(GPUS.items()):
        render(node, name=name, gpus=f"h200:{count}")
    assert {name: (node.root / "etc" / name).read_text() for name in at_once} == at_once


def test_a_node_that_changes_leaves_its_line_and_comes_back(node: Node) -> None:
    rendered(node)
    before = (node.root / "etc" / FRAGMENT).read_text()
    render(node, name="n10", gpus="h200:4")
    assert [name for name, _ in lines_of(node, FRAGMENT)] == ["a.example.org,n[9,010],rack1-gpu[02-03]", "big[1-2],n10"]
    assert render(node, "--diff", name="n10", gpus="h200:4").exit_code == ExitCode.DONE
    render(node, name="n10")
    assert (node.root / "etc" / FRAGMENT).read_text() == before
    assert forget(node, "n9").exit_code == 0
    for file in (FRAGMENT, GRES):
        names = {name for name, _ in lines_of(node, file)}
        assert names == {"a.example.org,n[10,010],rack1-gpu[02-03]", FOUR}
        assert not any(names_node(name, "n9") for name in names)


def test_nodes_that_slurm_conf_itself_has_by_now_leave_the_shared_line(node: Node) -> None:
    rendered(node)
    (node.root / "etc" / "slurm.conf").write_text("NodeName=n[9-10] CPUs=8\ninclude slurm-hami-hpc.conf\n")
    render(node, name="big1", gpus="h200:4")
    assert [name for name, _ in lines_of(node, FRAGMENT)] == ["a.example.org,n010,rack1-gpu[02-03]", FOUR]
    assert {name for name, _ in lines_of(node, GRES)} == {TWO, FOUR}


@pytest.mark.parametrize("word", ["NodeAddr=10.0.0.1", "nodehostname=host", "Port=17001", "BcastAddr=10.0.0.1"])
def test_nodes_with_an_address_of_their_own_have_a_line_each(node: Node, word: str) -> None:
    rendered(node, "--node-parameters", f"CPUs=8 {word}")
    assert sorted(name for name, _ in lines_of(node, FRAGMENT)) == sorted(GPUS)
    assert len({name for name, _ in lines_of(node, GRES)}) == 2


def test_a_file_of_a_release_that_wrote_a_block_for_each_node_is_taken_over(node: Node) -> None:
    rendered(node)
    path = node.root / "etc" / FRAGMENT
    new = path.read_text()
    head = new.partition("\n")[2].partition("\n# --- node")[0]
    by_node = blocks(new)
    assert by_node.keys() == GPUS.keys()
    path.write_text(marked(f"{head.rstrip()}\n" + "".join(f"\n{by_node[name]}" for name in sorted(by_node))))
    assert is_ours(path.read_text())
    render(node, name="n9")
    assert path.read_text() == new


def test_a_templates_line_that_names_the_node_elsewhere_keeps_nodes_apart(node: Node) -> None:
    folder = node.config.with_name("gres-conf")
    folder.mkdir()
    (folder / "node-gres.j2").write_text("NodeName={{ node }} Name=gpu File=/dev/{{ node }}\n")
    rendered(node)
    assert sorted(name for name, _ in lines_of(node, GRES)) == sorted(GPUS)
    assert len(lines_of(node, FRAGMENT)) == 2


def test_a_heading_that_somebody_spoilt_keeps_its_lines(tmp_path: Path) -> None:
    spoilt = "# head\n\n# --- node n[1-\nNodeName=n[1- Name=gpu\n\n# --- node n[1-99999999]\nNodeName=x Name=gpu\n"
    assert composed("# head", blocks(spoilt)) == spoilt


@given(
    st.dictionaries(
        st.from_regex(r"(n|rack1-gpu)(0{0,2}[0-9]{1,2})", fullmatch=True), st.sampled_from(["A=1", "A=2"]), max_size=40
    )
)
def test_blocks_that_are_put_together_come_apart_as_they_were(nodes: dict[str, str]) -> None:
    apart = {
        name: block(name, f"NodeName={name} {rest}\n# of all\nNodeName={name} B=1") for name, rest in nodes.items()
    }
    text = composed("# head", apart)
    assert blocks(text) == apart
    assert text.count("# --- node") == len(set(nodes.values()))
    assert composed("# head", blocks(text)) == text
