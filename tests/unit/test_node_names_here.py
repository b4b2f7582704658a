# SPDX-License-Identifier: Apache-2.0
"""Which node of slurm.conf this host is, as Slurm's own scontrol finds it: short names, domains, several nodes."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner
from node_testbed import Node

from hami_hpc.cli import main
from hami_hpc.errors import NodeError
from hami_hpc.node import nvml, nvml_places
from hami_hpc.slurm import commands

SLURM_CONF = """\
ClusterName=x
SlurmctldHost=ctl
NodeName=gpu001.example.org,gpu[2-3] CPUs=1
NodeName=a NodeHostname=GPU9 CPUs=1
NodeName=b,c NodeHostname=two CPUs=1
"""


@pytest.fixture
def slurm_conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "slurm.conf"
    path.write_text(SLURM_CONF)
    monkeypatch.setenv("SLURM_CONF", str(path))
    monkeypatch.delenv("HAMI_HPC_NODE", raising=False)
    return path


@pytest.mark.usefixtures("slurm_conf")
@pytest.mark.parametrize(
    ("host", "node"),
    [
        ("gpu001.example.org", "gpu001.example.org"),
        ("gpu2", "gpu2"),
        ("gpu2.example.org", "gpu2"),
        ("GPU9.example.org", "a"),
    ],
)
def test_a_host_is_found_by_its_whole_name_and_by_the_short_one(
    monkeypatch: pytest.MonkeyPatch, host: str, node: str
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    assert commands.node_name() == node
    assert commands.node_name_or_host() == node


@pytest.mark.usefixtures("slurm_conf")
@pytest.mark.parametrize(
    ("host", "said"), [("two", "has b, c for host two"), ("login.org", "has no NodeName for host")]
)
def test_a_host_of_no_or_several_nodes_has_to_be_named(monkeypatch: pytest.MonkeyPatch, host: str, said: str) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    with pytest.raises(NodeError, match=said):
        commands.node_name()
    assert commands.node_name_or_host() == host.partition(".")[0]


@pytest.mark.usefixtures("slurm_conf")
@pytest.mark.parametrize(
    "words",
    [
        ("reconcile",),
        ("agent",),
        ("gpu", "drain", "0", "--reason", "fan"),
        ("mode", "resume", "share"),
        ("mig", "defragment"),
        ("mig", "enable", "0"),
        ("mig", "apply", "layout.toml"),
    ],
)
def test_a_command_that_changes_this_node_refuses_the_name_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """reconcile would take no job here for running, and end the slices of all."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu2.example.org")
    node = Node.make(tmp_path / "node")
    assert node.prolog(7) == 0
    done = CliRunner().invoke(main, [*words, "--node", "gpu3", "--config", str(node.config)])
    assert done.exit_code in (1, 3)
    assert "slurm.conf has gpu2 for this host, and gpu3 is another node: run this on gpu3, or" in done.output
    assert list(node.grants()) == [7]


@pytest.mark.usefixtures("slurm_conf")
@pytest.mark.parametrize(("host", "given"), [("gpu2", "gpu2"), ("two", "c"), ("login.org", "gpu3"), ("gpu2", "")])
def test_a_name_of_this_host_is_taken_and_any_where_slurm_conf_has_none(
    slurm_conf: Path, monkeypatch: pytest.MonkeyPatch, host: str, given: str
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    assert commands.this_node(given) == (given or "gpu2")
    slurm_conf.unlink()
    assert commands.this_node("other") == "other"


@pytest.mark.usefixtures("slurm_conf")
def test_render_writes_the_lines_of_the_node_that_slurm_conf_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu001.example.org")
    settings = str(Node.make(tmp_path / "node", with_gpus=False).config)
    words = ["render", "--gpus", "h200:2", "--dry-run", "--config", settings, "--output", str(tmp_path / "etc")]
    assert "\nNodeName=gpu001.example.org Gres=" in CliRunner().invoke(main, words).stdout


def test_an_inventory_has_the_name_of_slurm_conf_and_without_one_the_hosts(
    tmp_path: Path, slurm_conf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu001.example.org")
    monkeypatch.setattr(nvml, "read_devices", list)
    monkeypatch.setattr(nvml_places, "read_surroundings", dict)
    words = ["inventory", "--format", "json", "--config", str(Node.make(tmp_path / "node", with_gpus=False).config)]

    def name() -> object:
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)["node"]

    assert name() == "gpu001.example.org"
    slurm_conf.unlink()
    assert name() == "gpu001"
    monkeypatch.setenv("HAMI_HPC_NODE", "other")
    assert name() == "other"
