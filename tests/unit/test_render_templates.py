# SPDX-License-Identifier: Apache-2.0
"""render: a site's own templates come before the installed ones, and outlive an upgrade."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from node_testbed import ROOT, UID, Node

from hami_hpc.cli import main
from hami_hpc.render.templates import Templates


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node.make(tmp_path / "node", with_gpus=False)


@pytest.fixture
def own(node: Node) -> Path:
    """The site's own templates: one, with a line more than the installed."""
    folder = node.root / "gres-conf"
    folder.mkdir(mode=0o755)
    text = (ROOT / "gres-conf/hami-hpc-agent.service.j2").read_text()
    (folder / "hami-hpc-agent.service.j2").write_text(text.replace("[Service]\n", "[Service]\nNice=-5\n"))
    return folder


def render(node: Node) -> Result:
    given = ["render", "--config", str(node.config), "--gpus", "h200:2", "--node", "node1"]
    return CliRunner().invoke(main, [*given, "--output", str(node.root / "etc")], catch_exceptions=False)


def test_a_sites_own_template_is_used_and_named(node: Node, own: Path) -> None:
    done = render(node)
    assert done.exit_code == 0
    agent = (node.root / "etc/hami-hpc-agent.service").read_text()
    assert "Nice=-5\n" in agent
    assert f"HAMI_HPC_CONFIG={node.config}" in agent
    assert f"note: {own}/hami-hpc-agent.service.j2 is used instead of {ROOT}/gres-conf/" in done.output
    assert "Nice=-5" not in (node.root / "etc/hami-hpc-reconcile.service").read_text()


def test_without_the_directory_the_installed_ones_are_used_and_nothing_is_said(node: Node) -> None:
    assert "is used instead" not in render(node).output
    (node.root / "gres-conf").mkdir()
    assert "is used instead" not in render(node).output


def test_a_name_that_is_no_templates_is_pointed_out(node: Node, own: Path) -> None:
    (own / "hami-hpc-agnet.service.j2").write_text("")
    (own / "notes.txt").write_text("")
    said = render(node).output
    assert f"{own}/hami-hpc-agnet.service.j2 has the name of no template" in said
    assert "notes.txt" not in said


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("one\n{{ settings.path", r"hami-hpc-agent\.service\.j2 line 2: "),
        ("{{ no_such_value }}", r"'no_such_value' is undefined"),
        ("{{ settings.no_such_key }}", "no_such_key"),
    ],
)
def test_a_template_with_a_mistake_is_named_and_nothing_is_written(
    node: Node, own: Path, text: str, message: str
) -> None:
    (own / "hami-hpc-agent.service.j2").write_text(text)
    done = render(node)
    assert done.exit_code == 1
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(done.output)
    assert "move it away" in done.output
    assert list((node.root / "etc").glob("*")) == []


@pytest.mark.parametrize("case", ["writable file", "writable folder", "a user's file", "a user's folder", "a pipe"])
def test_what_another_user_can_write_is_not_run(node: Node, own: Path, case: str) -> None:
    template = own / "hami-hpc-agent.service.j2"
    template.write_text("{{ ''.__class__.__mro__[1].__subclasses__() }}")
    if case == "writable file":
        template.chmod(0o664)
    elif case == "writable folder":
        own.chmod(0o777)
    elif case == "a pipe":
        template.unlink()
        os.mkfifo(template)
    else:
        os.chown(template if "file" in case else own, UID, UID)
    done = render(node)
    assert done.exit_code == 1
    assert "is not a file that only root can write" in done.output
    assert "chmod go-w" in done.output
    assert list((node.root / "etc").glob("*")) == []


def test_a_folder_above_that_another_user_can_write_is_named(node: Node, own: Path) -> None:
    """Its owner could put another directory in the place of the one that was looked at."""
    os.chown(node.root, UID, UID)
    done = render(node)
    assert done.exit_code == 1
    assert f"{node.root} can be written by others than root, and render runs the templates in {own}" in done.output
    assert list((node.root / "etc").glob("*")) == []


def test_a_folder_that_is_none_is_named(node: Node) -> None:
    (node.root / "gres-conf").write_text("")
    done = render(node)
    assert done.exit_code == 1
    assert f"{node.root}/gres-conf cannot be read" in done.output
    assert Templates("/nonexistent/hami-hpc.toml").used == set()
