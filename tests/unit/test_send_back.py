# SPDX-License-Identifier: Apache-2.0
"""A refused job is requeued by scontrol: what it is asked, with which environment, and what its faults do."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from node_testbed import Node, job_environment

from hami_hpc.node import drain, mig_notes
from hami_hpc.slurm import placeholders
from hami_hpc.stages import no_room, occupy, out_of_service

REASON = "job 7 needs a MIG instance, but\nthere is 'none'"
# Notes how it was started, then does what the file beside it says.
PROGRAM = """#!{python} -IS
import json, os, sys, time
with open("{folder}/calls", "a") as calls:
    calls.write(json.dumps([sys.argv[1:], dict(os.environ)]) + "\\n")
what = open("{folder}/what").read().split()
if sys.argv[1] in what:
    time.sleep(20 if "hangs" in what else 0)
    sys.exit("no such job")
"""
SendBack = Callable[[Node, Mapping[str, str]], bool]


def without_place(node: Node, environment: Mapping[str, str]) -> bool:
    return no_room.send_back(node.settings, environment, 7, REASON)


def without_gpu(node: Node, environment: Mapping[str, str]) -> bool:
    return out_of_service.send_back(node.settings, environment, 7)


BOTH = pytest.mark.parametrize("send_back", [without_place, without_gpu])


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node.make(tmp_path / "node")


@pytest.fixture
def filled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """With what the process that fills a GPU out of service was started."""
    started: list[tuple[object, ...]] = []
    monkeypatch.setattr(occupy, "start_detached", lambda *arguments: started.append(arguments))
    return started


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filled: object) -> Path:
    """The folder of a scontrol that fails at the words in its file `what`."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    (folder / "what").write_text("")
    scontrol = folder / "scontrol"
    scontrol.write_text(PROGRAM.format(python=os.path.realpath(sys.executable), folder=folder))
    squeue = folder / "squeue"
    squeue.write_text("#!/bin/sh\necho 7 7 N/A\n")
    for program in (scontrol, squeue):
        program.chmod(0o755)
    monkeypatch.setattr(drain, "find_scontrol", lambda: str(scontrol))
    monkeypatch.setattr(placeholders, "REQUEUE_TIMEOUT_S", 60)  # on a busy machine
    return folder


def calls(slurm: Path) -> list[tuple[list[str], dict[str, str]]]:
    return [json.loads(line) for line in (slurm / "calls").read_text().splitlines()]


@BOTH
def test_scontrol_is_asked_with_nothing_of_the_jobs_environment(node: Node, slurm: Path, send_back: SendBack) -> None:
    given = job_environment(7, SLURM_CONF="/c", SLURMD_NODENAME="node1", LD_PRELOAD="/evil", PATH="/a:/b")
    assert send_back(node, given) is True
    asked = calls(slurm)
    assert asked[-1][0] == ["requeue", "incomplete", "7"]
    for _, environment in asked:
        kept = {name: environment.get(name) for name in ("SLURM_CONF", "PATH", "LD_PRELOAD", "SLURM_JOB_ID")}
        assert kept == {"SLURM_CONF": "/c", "PATH": "/a:/b", "LD_PRELOAD": None, "SLURM_JOB_ID": None}


def test_a_job_without_a_place_is_told_why_and_counted_and_its_gpu_is_not_filled(
    node: Node, slurm: Path, filled: list[tuple[object, ...]], capfd: pytest.CaptureFixture[str]
) -> None:
    (slurm / "what").write_text("update")  # where it may not be told, it is requeued all the same
    assert without_place(node, {}) is True
    (update, _), (requeue, _) = calls(slurm)
    assert update[:2] == ["update", "JobId=7"]
    assert update[2] == f"AdminComment=hami_hpc: {drain.plain(REASON)}"
    assert requeue == ["requeue", "incomplete", "7"]
    assert mig_notes.no_room_count(node.settings.run_dir) == 1
    assert filled == []
    assert capfd.readouterr() == ("", ""), "what scontrol prints is no line of the prolog's"


def test_a_job_on_a_gpu_out_of_service_makes_it_be_filled_and_waits_for_nothing(
    node: Node, slurm: Path, filled: list[tuple[object, ...]]
) -> None:
    environment = job_environment(7)
    (slurm / "what").write_text("requeue")
    assert without_gpu(node, environment) is False
    assert filled == [(node.settings, environment, 0.0)]


@BOTH
def test_a_job_that_slurm_does_not_requeue_was_not_sent_back(node: Node, slurm: Path, send_back: SendBack) -> None:
    (slurm / "what").write_text("requeue")
    assert send_back(node, {}) is False


@BOTH
@pytest.mark.parametrize("squeue", ["exit 1", "echo 7 7 [1-3]", ""])
def test_a_job_that_squeue_does_not_name_is_not_sent_back(
    node: Node, slurm: Path, send_back: SendBack, squeue: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its id scontrol would requeue the running tasks of its array."""
    (slurm / "squeue").write_text(f"#!/bin/sh\n{squeue}\n")
    assert send_back(node, {}) is False
    assert not (slurm / "calls").exists()
    assert "prolog: job 7 is not requeued: " in capsys.readouterr().err


@BOTH
def test_a_scontrol_that_hangs_keeps_no_prolog(
    node: Node, slurm: Path, send_back: SendBack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placeholders, "REQUEUE_TIMEOUT_S", 0.5)
    (slurm / "what").write_text("update requeue hangs")
    begun = time.monotonic()
    assert send_back(node, {}) is False
    assert time.monotonic() - begun < 15


@BOTH
def test_a_scontrol_that_cannot_be_run_or_found_fails_no_prolog(
    node: Node, slurm: Path, send_back: SendBack, monkeypatch: pytest.MonkeyPatch
) -> None:
    (slurm / "scontrol").chmod(0o644)
    assert send_back(node, {}) is False
    monkeypatch.setattr(drain, "find_scontrol", lambda: None)
    assert send_back(node, {}) is False
    assert not (slurm / "calls").exists()
