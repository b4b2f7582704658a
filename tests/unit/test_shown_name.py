# SPDX-License-Identifier: Apache-2.0
"""The node's name in what `usage`, `top` and `pool` print: what Slurm calls it, which need not be the host's name."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from node_testbed import Node

from hami_hpc.cli import main
from hami_hpc.slurm import commands


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A scontrol that knows this host as gpu07, and notes each call; nothing of Slurm's in the environment."""
    for name in ("SLURMD_NODENAME", "HAMI_HPC_NODE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "slurm.conf").write_text("NodeName=gpu07\n")
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/calls\necho gpu07\n')
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    commands._looked_up.cache_clear()
    yield tmp_path
    commands._looked_up.cache_clear()


def test_usage_names_the_node_as_slurm_does(tmp_path: Path, slurm: Path) -> None:
    node = Node.make(tmp_path / "node")
    assert node.prolog(7) == 0
    done = CliRunner().invoke(main, ["usage", "7", "--format", "json", "--config", str(node.config)])
    assert json.loads(done.output)["host"] == "gpu07", done.output


def test_top_names_the_node_as_slurm_does(tmp_path: Path, slurm: Path) -> None:
    node = Node.make(tmp_path / "node")
    done = CliRunner().invoke(main, ["top", "--config", str(node.config)])
    assert done.output.startswith("gpu07  "), done.output


def test_the_name_of_a_step_or_of_the_administrator_comes_first(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAMI_HPC_NODE", "gpu08")
    assert commands.shown_name() == "gpu08"
    monkeypatch.setenv("SLURMD_NODENAME", "gpu09")
    assert commands.shown_name() == "gpu09"
    assert not (slurm / "calls").exists()


def test_slurm_is_asked_once(slurm: Path) -> None:
    assert [commands.shown_name() for _ in range(3)] == ["gpu07"] * 3
    assert (slurm / "calls").read_text().count("show aliases") == 1


def test_without_slurm_it_is_the_short_host_name(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", str(slurm / "none.conf"))
    assert commands.shown_name() == socket.gethostname().partition(".")[0]
