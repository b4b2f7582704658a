# SPDX-License-Identifier: Apache-2.0
"""How render reads what is there: its own marks, a site's lines and host lists, and what is public."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_hpc.render import on_disk
from hami_hpc.render.marks import is_ours, marked
from hami_hpc.slurm import plugstack
from hami_hpc.slurm.files import ConfFile
from hami_hpc.slurm.lines import logical_lines, names_node, settings_of


@given(st.text(max_size=200), st.booleans())
def test_a_mark_holds_for_exactly_the_text_it_was_made_for(text: str, script: bool) -> None:
    content = ("#!/bin/sh\n" if script else "") + text
    full = marked(content)
    assert is_ours(full)
    assert not is_ours(full + "x")
    assert not is_ours(content)


@pytest.mark.parametrize(
    ("expression", "node", "is_named"),
    [
        ("node[1-4]", "node3", True),
        ("node[01-04],login", "node3", False),
        ("a,node3", "node3", True),
        ("rack[1-2]node[1-4]", "rack1node3", True),
        ("rack[1-2]node[1-4]", "rack1", False),
        ("rack[1-2]node[1-4]", "rack3node1", False),
        ("n[1-3][10-20]", "n110", True),  # scontrol show hostnames names it; scontrol prints no list of that form
        ("n[1-3][10-20]", "n121", False),
        ("n[08-10][1]x", "n091x", True),
        ("n[1,11][1,11]", "n1111", True),
        ("node[01-16]", "node07", True),
        ("node[1-16]", "node07", False),
        ("node[1-16,01-16]", "node07", True),
        ("node[1,3-4],x[x", "node4", True),
        ("node.1", "nodex1", False),
    ],
)
def test_host_lists_name_nodes_as_slurm_reads_them(expression: str, node: str, is_named: bool) -> None:
    assert names_node(expression, node) == is_named


def test_lines_are_taken_apart_as_slurm_does() -> None:
    text = 'A=1 # no\nB="x y" \\\n  C=2\n\n# D=3\nE=\\#4\n'
    assert list(logical_lines(text)) == [(1, "A=1"), (2, 'B="x y"   C=2'), (6, "E=#4")]


def test_the_latest_plugstackconfig_counts_includes_followed(tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    (tmp_path / "more.conf").write_text(f"plugstackconfig = {tmp_path}/two.conf\n")
    conf.write_text("PlugStackConfig=/one.conf\n  Include more.conf\n# PlugStackConfig=/three.conf\nA=1 # include x\n")
    assert plugstack.plugstack_path(str(conf)) == f"{tmp_path}/two.conf"
    conf.write_text("ClusterName=x\n")
    assert plugstack.plugstack_path(str(conf)) == f"{tmp_path}/plugstack.conf"
    assert settings_of(ConfFile(str(conf)).lines)["clustername"][0].value == "x"


def test_a_file_is_public_when_it_and_all_directories_above_it_are_open_to_others() -> None:
    with tempfile.TemporaryDirectory() as top:  # pytest's own directories are their user's alone
        path = Path(top) / "a" / "hami_hpc.lua"
        path.parent.mkdir()
        path.write_text("")
        for opened in (path, path.parent, Path(top)):
            opened.chmod(0o755)
        assert on_disk.is_public(path)
        for closed, mode in ((path, 0o640), (path.parent, 0o750), (Path(top), 0o700)):
            closed.chmod(mode)
            assert not on_disk.is_public(path)
            closed.chmod(0o755)
