# SPDX-License-Identifier: Apache-2.0
"""Which plugin runs cli_filter.lua, as render writes it: hami_hpc's, unless the script has rules of the site's own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from node_testbed import ROOT, Node

from hami_hpc.cli import main

RULE = '\toptions.comment = "x"\n'
SHIPPED = (ROOT / "slurm-plugins/lua/cli_filter.lua").read_text()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node.make(tmp_path / "node", with_gpus=False)


def render(node: Node, slurm_conf: str | None = None, script: str | None = None) -> list[str]:
    """Returns what CliFilterPlugins is in what render writes, and in what it tells the administrator to write."""
    etc = node.root / "etc"
    etc.mkdir(exist_ok=True)
    for name, text in (("slurm.conf", slurm_conf), ("cli_filter.lua", script)):
        if text is not None:
            (etc / name).write_text(text)
    given = ["render", "--config", str(node.config), "--gpus", "h200:2", "--node", "node1", "--output", str(etc)]
    done: Result = CliRunner().invoke(main, given, catch_exceptions=False)
    text = f"{done.output}\n{(etc / 'slurm-hami-hpc.conf').read_text()}"
    return re.findall(r"^ *CliFilterPlugins=(\S+)$", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("setting", "rule", "named"),
    [
        ("", "", ["hami_hpc"]),
        ("", RULE, ["lua"]),
        ("CliFilterPlugins=cli_filter/lua\n", "", []),
        ("CliFilterPlugins=lua\n", RULE, []),
        ("CliFilterPlugins=hami_hpc\n", "", []),
        ("CliFilterPlugins=hami_hpc\n", RULE, ["hami_hpc,lua"]),
        ("CliFilterPlugins=syslog\n", "", ["syslog,hami_hpc"]),
        ("CliFilterPlugins=syslog\n", RULE, ["syslog,lua"]),
    ],
)
def test_the_script_runs_for_every_command_only_where_it_has_rules_of_the_sites(
    node: Node, setting: str, rule: str, named: list[str]
) -> None:
    script = SHIPPED.replace("\treturn hami.cli", f"{rule}\treturn hami.cli") + "-- a remark of the site\n"
    assert render(node, f"ClusterName=site\n{setting}", script) == named


def test_without_a_script_only_commands_that_can_concern_hami_hpc_run_one(node: Node) -> None:
    assert render(node) == ["hami_hpc"]
    assert render(node, "ClusterName=site\n") == ["hami_hpc"]


def test_the_plugin_in_c_looks_at_the_options_that_the_script_looks_at() -> None:
    lua = (ROOT / "slurm-plugins/lua/hami_hpc.lua").read_text()
    source = (ROOT / "slurm-plugins/cli_filter/cli_filter_hami_hpc.c").read_text()
    (in_lua,) = re.findall(r"^local OPTIONS = \{(.*?)\}", lua, re.MULTILINE | re.DOTALL)
    (in_c,) = re.findall(r"OPTIONS\[\] = \{(.*?)\}", source, re.DOTALL)
    assert re.findall(r'"([^"]+)"', in_c) == re.findall(r'"([^"]+)"', in_lua)
