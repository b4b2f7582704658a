# SPDX-License-Identifier: Apache-2.0
"""render: the script that writes the QoS of the settings into slurmdbd, where there are both."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from node_testbed import ROOT, Node
from test_qos_plan import FULL
from test_render_site import SLURMDBD, render

from hami_hpc.cli import main

SCRIPT = "hami-hpc-qos.sh"
# Notes what it is asked for, and knows no QoS.
SACCTMGR = '#!/bin/sh\necho "$@" >>{asked}\n'


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node whose settings have QoS, beside a slurm.conf with slurmdbd."""
    node = Node.make(tmp_path / "node", with_gpus=False)
    node.config.write_text(node.config.read_text() + FULL)
    (node.root / "etc").mkdir()
    (node.root / "etc/slurm.conf").write_text(f"ClusterName=small\n{SLURMDBD}")
    return node


def commands_of(text: str) -> list[str]:
    return [line.removeprefix("#").strip() for line in text.splitlines() if "sacctmgr --immediate" in line]


def test_the_script_has_the_commands_of_qos_render_as_comments(node: Node) -> None:
    assert f"wrote  {node.root}/etc/{SCRIPT}" in render(node).output
    script = node.root / "etc" / SCRIPT
    assert script.stat().st_mode & 0o777 == 0o755
    printed = CliRunner().invoke(main, ["qos", "render", "--config", str(node.config)]).output
    text = script.read_text()
    assert commands_of(text) == commands_of(printed)
    assert len(commands_of(text)) == 3
    code = [line for line in text.splitlines() if not line.startswith("#")]
    assert code[0] == "set -eu"
    assert len(code) == 2, "all else is comments"
    assert f"unchanged  {script}" in render(node).output


@pytest.mark.parametrize("arguments", [("--dry-run",), ("--no-such-option",)])
def test_the_script_is_qos_apply_of_these_settings_with_its_arguments_and_status(
    node: Node, arguments: tuple[str, ...]
) -> None:
    render(node)
    asked, program = node.root / "asked", node.root / "bin/sacctmgr"
    program.parent.mkdir()
    program.write_text(SACCTMGR.format(asked=asked))
    program.chmod(0o755)
    script = node.root / "etc" / SCRIPT
    environment = {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    done = subprocess.run([script, *arguments], env=environment, capture_output=True, text=True, check=False, cwd="/")
    if arguments == ("--dry-run",):
        assert (done.returncode, done.stdout.splitlines()) == (3, commands_of(script.read_text())), done.stderr
        assert all("--readonly" in line for line in asked.read_text().splitlines())
    else:
        assert (done.returncode, "--no-such-option" in done.stderr) == (2, True)
        assert not asked.exists()


@pytest.mark.parametrize("lacks", ["slurmdbd", "QoS", "slurm.conf"])
def test_without_slurmdbd_or_qos_there_is_no_script(node: Node, lacks: str) -> None:
    """Where slurm.conf is elsewhere, slurmdbd may be there."""
    slurm_conf = node.root / "etc/slurm.conf"
    if lacks == "slurmdbd":
        slurm_conf.write_text("ClusterName=small\n")
    elif lacks == "QoS":
        node.config.write_text(node.config.read_text().replace(FULL, ""))
    else:
        slurm_conf.unlink()
    assert (SCRIPT in render(node).output) == (lacks == "slurm.conf")
    assert (node.root / "etc" / SCRIPT).exists() == (lacks == "slurm.conf")


def test_a_diff_shows_the_script_and_writes_none(node: Node) -> None:
    done = render(node, "--diff")
    assert done.exit_code == 3
    assert f"+++ {node.root}/etc/{SCRIPT}" in done.output
    assert not (node.root / "etc" / SCRIPT).exists()
    render(node)
    node.config.write_text(node.config.read_text().replace("priority = 1000", "priority = 999"))
    changed = [line for line in render(node, "--diff").output.splitlines() if "Priority=999" in line]
    assert len(changed) == 1
    assert changed[0].startswith("+#   sacctmgr --immediate add qos name=lc Priority=999 ")


def test_a_sites_own_template_comes_before_the_installed_one(node: Node) -> None:
    own = node.root / "gres-conf"
    own.mkdir(mode=0o755)
    text = (ROOT / f"gres-conf/{SCRIPT}.j2").read_text()
    (own / f"{SCRIPT}.j2").write_text(text.replace("set -eu\n", "set -eu\n. /etc/profile.d/slurm.sh\n"))
    assert f"note: {own}/{SCRIPT}.j2 is used instead of {ROOT}/gres-conf/" in render(node).output
    assert "\n. /etc/profile.d/slurm.sh\nexec " in (node.root / "etc" / SCRIPT).read_text()
