# SPDX-License-Identifier: Apache-2.0
"""A stage that fails for the node's fault tells Slurm why, safely and for a few seconds at most."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from node_testbed import Node

from hami_hpc.contract import constants as c
from hami_hpc.node import drain

SLURM = {"SLURMD_NODENAME": "node-1.x", "SLURM_CONF": "/etc/slurm/slurm.conf"}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node.make(tmp_path / "node")


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that writes down how it was called. No slurmd is above these tests."""
    folder = tmp_path / "bin"
    folder.mkdir()
    path = folder / "scontrol"
    path.write_text('#!/bin/sh\n{ printf "%s\\n" "$@"; env; } >"$0.called"\n')
    path.chmod(0o755)
    monkeypatch.setattr(drain, "USUAL_FOLDERS", (str(folder),))
    monkeypatch.setattr(drain, "_folders_of_slurmd", lambda: iter(()))
    return path


def called(scontrol: Path) -> list[str]:
    path = scontrol.with_name("scontrol.called")
    return path.read_text().splitlines() if path.exists() else []


def test_a_prolog_that_fails_for_the_nodes_fault_gives_slurm_the_reason(node: Node, scontrol: Path) -> None:
    assert node.prolog(7, **SLURM, SLURM_JOB_GPUS="", EVIL="1", LD_PRELOAD="/evil") == 1
    lines = called(scontrol)
    assert lines[:3] == ["update", "nodename=node-1.x", "state=drain"]
    assert lines[3].startswith("reason=hami_hpc: prolog: job 7 has a vgpu but no GPU")
    environment = dict(line.split("=", 1) for line in lines[4:])
    assert environment.keys() <= {"PATH", "SLURM_CONF", "PWD", "_", "SHLVL", "OLDPWD"}
    assert (environment["PATH"], environment["SLURM_CONF"]) == ("/usr/bin:/bin", "/etc/slurm/slurm.conf")


def test_an_epilog_that_fails_gives_slurm_the_reason(node: Node, scontrol: Path) -> None:
    node.config.write_text("version = 2\n")
    assert node.epilog(7, **SLURM) == 1
    assert "reason=hami_hpc: epilog: " in called(scontrol)[3]


def test_nothing_is_called_when_all_is_well_or_the_job_is_at_fault(node: Node, scontrol: Path) -> None:
    assert node.prolog(7, **SLURM) == 0
    assert node.prolog(8, **SLURM, **{c.ENV_CORES: "101"}) == 0
    assert node.epilog(7, **SLURM) == 0
    assert node.epilog(8, **SLURM) == 0
    assert called(scontrol) == []


@pytest.mark.parametrize("name", ["", "a b", "n,m", "n[1-2]", "x\ny", "ALL!"])
def test_without_a_node_name_from_slurmd_nothing_is_called(node: Node, scontrol: Path, name: str) -> None:
    assert node.prolog(7, SLURM_JOB_GPUS="", SLURMD_NODENAME=name) == 1
    assert called(scontrol) == []


def test_a_scontrol_that_others_can_write_is_not_run(node: Node, scontrol: Path) -> None:
    scontrol.chmod(0o775)
    assert node.prolog(7, **SLURM, SLURM_JOB_GPUS="") == 1
    assert called(scontrol) == []
    scontrol.chmod(0o755)
    os.chown(scontrol, 65534, -1)
    assert node.prolog(7, **SLURM, SLURM_JOB_GPUS="") == 1
    assert called(scontrol) == []


def test_a_controller_that_does_not_answer_holds_the_prolog_up_for_a_few_seconds_only(
    node: Node, scontrol: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain, "TIMEOUT_S", 0.2)
    scontrol.write_text("#!/bin/sh\nexec sleep 60\n")
    begin = time.monotonic()
    assert node.prolog(7, **SLURM, SLURM_JOB_GPUS="") == 1
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize("content", ["#!/nonexistent\n", "#!/bin/sh\nexit 1\n"])
def test_a_scontrol_that_fails_changes_nothing(node: Node, scontrol: Path, content: str) -> None:
    scontrol.write_text(content)
    assert node.prolog(7, **SLURM, SLURM_JOB_GPUS="") == 1
    scontrol.unlink()
    assert node.prolog(7, **SLURM, SLURM_JOB_GPUS="") == 1


def test_a_reason_is_one_line_that_scontrol_takes_as_it_is() -> None:
    assert drain.plain('a "b"\nc\u00e9') == "a 'b'?c?"
    assert len(drain.plain("x" * 1000)) == drain.REASON_MAX


def test_the_reason_for_missing_variables_names_both_causes(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    assert node.prolog(7, **{c.ENV_CORES: ""}) == 1
    said = capsys.readouterr().err
    assert f"{c.ENV_CORES} did not reach its prolog" in said
    assert "a gres plugin of hami_hpc is missing" in said
    assert "job_submit.lua did not translate the request" in said
