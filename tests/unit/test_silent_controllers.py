# SPDX-License-Identifier: Apache-2.0
"""The prolog of a job with two slices while no slurmctld answers, as until a second one has taken over."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from node_testbed import Node
from slices_testbed import Controller, prolog, refusal, replace_controller, rows

from hami_hpc.slurm import job_shards
from hami_hpc.stages import send_back, several_gpus

STANDBY = "echo 'slurm_load_jobs error: Slurm backup controller in standby mode' >&2; exit 1"
BOUND_S, SILENT_S = 0.4, 30.0


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node.make(tmp_path / "node")


@pytest.fixture
def controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Controller:
    monkeypatch.setattr(send_back, "requeue", lambda *_: True)
    return replace_controller(monkeypatch, tmp_path / "slurm", BOUND_S, SILENT_S)


def slurm_conf(tmp_path: Path, text: str) -> str:
    (tmp_path / "plugstack.conf").write_text("required /usr/lib/spank_hami_hpc.so\n")
    path = tmp_path / "slurm.conf"
    path.write_text(text)
    return str(path)


def test_the_prolog_waits_for_longer_than_for_one_that_answers(
    node: Node, controller: Controller, tmp_path: Path
) -> None:
    asked = '$(wc -l <"${0%/*}/asked")'
    controller.write(f'[ {asked} -gt 30 ] && cat "${{0%/*}}/answer" || {{ {STANDBY}; }}')
    began = time.monotonic()
    assert prolog(node, SLURM_CONF=slurm_conf(tmp_path, "ClusterName=c\n")) == 0
    assert time.monotonic() - began > 2 * BOUND_S
    assert len(rows(node)) == 2


@pytest.mark.parametrize("key", ["PrologEpilogTimeout", "prologtimeout"])
def test_it_ends_before_slurm_would_end_it(node: Node, controller: Controller, tmp_path: Path, key: str) -> None:
    controller.write(STANDBY)
    began = time.monotonic()
    assert prolog(node, SLURM_CONF=slurm_conf(tmp_path, f"{key}={several_gpus.SPARE_S + 1:.0f}\n")) == 0
    assert 1 - job_shards.PAUSE_S < time.monotonic() - began < SILENT_S / 2
    assert "Slurm backup controller in standby mode" in refusal(node)
    assert rows(node) == ()


def test_without_slurm_conf_it_does_not_wait(node: Node, controller: Controller, tmp_path: Path) -> None:
    controller.write(STANDBY)
    began = time.monotonic()
    assert prolog(node, SLURM_CONF=str(tmp_path / "none")) == 0
    assert time.monotonic() - began < SILENT_S / 2
    assert refusal(node)


@pytest.mark.parametrize("body", ["echo Invalid job id specified >&2; exit 1", "echo other; exit 0"])
def test_one_that_has_taken_over_and_does_not_know_the_job_has_the_usual_time(
    node: Node, controller: Controller, tmp_path: Path, body: str
) -> None:
    asked = '$(wc -l <"${0%/*}/asked")'
    controller.write(f"[ {asked} -gt 20 ] && {{ {body}; }}; {STANDBY}")
    began = time.monotonic()
    assert prolog(node, SLURM_CONF=slurm_conf(tmp_path, "ClusterName=c\n")) == 0
    assert time.monotonic() - began < SILENT_S / 2
    assert "standby" not in refusal(node)
    assert refusal(node)
