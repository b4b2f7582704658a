# SPDX-License-Identifier: Apache-2.0
"""hami-hpc gpu: what it says and writes, with a Slurm that starts placeholders or does not."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from agent_states import make_state
from click.testing import CliRunner, Result
from node_testbed import ROOT, UUIDS, Node, job_environment
from test_out_of_service import OUT, FakeNode

from hami_hpc.cli import main
from hami_hpc.cli.exit_codes import ExitCode
from hami_hpc.core.finding import Level
from hami_hpc.core.out_of_service import PLACEHOLDER_NAME, Holding
from hami_hpc.doctor import node_checks
from hami_hpc.doctor.facts import Facts
from hami_hpc.node import admin_log, agent_file, drain, drained_gpus
from hami_hpc.node.event_reader import EventReader
from hami_hpc.slurm import placeholders
from hami_hpc.stages import gpu_service, occupy, out_of_service

REASON = "fan is loud"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node.make(tmp_path / "node")


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> FakeNode:
    fake = FakeNode(Holding(7, 1, 159, False, False))
    monkeypatch.setattr(placeholders, "Node", lambda _name, _environment: fake)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return fake


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(admin_log, "to_syslog", lambda _level, message: lines.append(message))
    return lines


def run(node: Node, *words: str) -> Result:
    environment = {"HAMI_HPC_CONFIG": str(node.config), "HAMI_HPC_NODE": "node1"}
    return CliRunner().invoke(main, ["gpu", *words], env=environment)


@pytest.mark.parametrize("word", [UUIDS[1], "1"])
def test_drain_and_resume_say_what_they_did_and_can_be_repeated(
    node: Node, slurm: FakeNode, logged: list[str], word: str
) -> None:
    name = f"GPU 1 ({UUIDS[1]})"
    for _ in range(2):
        result = run(node, "drain", word, "--reason", f" {REASON}\n")
        assert (result.exit_code, result.output) == (
            0,
            f"{name} is out of service: {REASON}. 1 running job(s) go on: 7\n",
        )
        assert [h.shards for h in slurm.held if h.is_placeholder] == [400]
    (entry,) = drained_gpus.read(node.settings.state_dir)
    assert (entry.uuid, entry.minor, entry.slurm_index, entry.reason) == (UUIDS[1], 1, 1, REASON)
    assert run(node, "resume", word).output == f"{name} is in service again\n"
    assert run(node, "resume", word).output == f"{name} is in service, as before\n"
    assert [h.job_id for h in slurm.held] == [7]
    assert logged == [f"{name} is out of service: {REASON}", f"{name} is in service again"]


def test_drain_fails_where_slurm_can_still_use_the_gpu_and_the_prolog_refuses_all_the_same(
    node: Node, slurm: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.looks = -1000
    monkeypatch.setattr(gpu_service, "WAIT_S", 0.3)
    result = run(node, "drain", "0", "--reason", REASON)
    assert result.exit_code == ExitCode.FAILED
    assert "is out of service, but 559 shards of it are still free for Slurm" in result.output
    assert [gpu.minor for gpu in drained_gpus.read(node.settings.state_dir)] == [0]
    listed = run(node, "list")
    assert listed.exit_code == ExitCode.FOUND
    assert [line.split()[:2] for line in listed.output.splitlines()[1:]] == [["0", "OUT"], ["1", "in"]]


def test_list_has_jobs_placeholders_and_what_is_free(node: Node, slurm: FakeNode) -> None:
    assert run(node, "drain", "1", "--reason", REASON).exit_code == 0
    result = run(node, "list", "--format", "json")
    assert result.exit_code == 0
    first, second = json.loads(result.output)
    assert (first["in_service"], first["jobs"], first["free_shards"], first["since_unix_s"]) == (True, [], 559, None)
    assert (second["in_service"], second["jobs"], second["free_shards"]) == (False, [7], 0)
    assert second["placeholder_jobs"] == [h.job_id for h in slurm.held if h.is_placeholder]
    assert REASON in run(node, "list").output


def test_a_gpu_that_the_driver_has_lost_is_still_known_by_its_entry(node: Node, slurm: FakeNode) -> None:
    lost = OUT._replace(uuid="GPU-lost", minor=2, slurm_index=2)
    drained_gpus.write(node.settings.state_dir, (lost,))
    assert "GPU-lost" in run(node, "list").output
    assert run(node, "resume", "2").output == "GPU 2 (GPU-lost) is in service again\n"


def test_a_gpu_that_replaced_one_out_of_service_is_listed_as_itself(node: Node, slurm: FakeNode) -> None:
    gone = OUT._replace(uuid="GPU-gone", minor=1, slurm_index=1)
    drained_gpus.write(node.settings.state_dir, (gone,))
    result = run(node, "list", "--format", "json")
    assert result.exit_code == 0  # nothing of a GPU out of service is free
    rows = {row["uuid"]: (row["minor"], row["in_service"], row["jobs"]) for row in json.loads(result.output)}
    assert rows == {UUIDS[0]: (0, True, []), UUIDS[1]: (1, True, [7]), "GPU-gone": (1, False, [])}
    (finding,) = node_checks.check_drained(Facts(node.settings, "node1"))
    assert (finding.what, finding.level) == ("GPU 1 out of service", Level.WARN)
    assert finding.detail == f"{gone.reason} (GPU-gone): it is not here any more, and another GPU has its number"
    assert finding.advice == "hami-hpc gpu resume GPU-gone takes it off the list"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("drain", "0"), "--reason"),
        (("drain", "0", "--reason", " "), "--reason"),
        (("drain", "0", "--reason", "x" * 201), "--reason"),
        (("drain", "0", "--reason", "a\x1b[2J"), "--reason"),
        (("drain", "--reason", "x"), "drain needs the UUID or minor number"),
        (("list", "0"), "list takes no GPU"),
        (("resume", "0", "--reason", "x"), "--reason is for drain"),
        (("resume", "0", "--format", "json"), "--format is for list"),
    ],
)
def test_a_wrong_command_line_changes_nothing(node: Node, words: tuple[str, ...], said: str) -> None:
    result = run(node, *words)
    assert result.exit_code == ExitCode.USAGE
    assert said in result.output
    assert drained_gpus.read(node.settings.state_dir) == ()


def test_an_unknown_gpu_and_a_user_who_is_not_root_are_refused(
    node: Node, slurm: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run(node, "drain", "7", "--reason", REASON)
    assert result.exit_code == ExitCode.FAILED
    assert f"no GPU 7. Its GPUs by minor number: 0 ({UUIDS[0]}), 1 ({UUIDS[1]})" in result.output
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    result = run(node, "drain", "0", "--reason", REASON)
    assert (result.exit_code, "only root can drain a GPU" in result.output) == (ExitCode.FAILED, True)
    assert drained_gpus.read(node.settings.state_dir) == ()


@pytest.mark.parametrize("status", [0, 1])
def test_a_refused_job_is_requeued_if_slurm_does_that(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    started: list[float] = []
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f'#!/bin/sh\necho "$@" >"$0.called"\nexit {status}\n')
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\necho 7 7 N/A\n")
    for program in (scontrol, squeue):
        program.chmod(0o755)
    monkeypatch.setattr(drain, "find_scontrol", lambda: str(scontrol))
    monkeypatch.setattr(occupy, "start_detached", lambda _settings, _environment, wait_s: started.append(wait_s))
    environment = job_environment(7, SLURMD_NODENAME="node1")
    assert out_of_service.send_back(node.settings, environment, 7) == (status == 0)
    assert (tmp_path / "scontrol.called").read_text() == "requeue incomplete 7\n"
    assert started == [0.0]


def test_job_submit_and_the_placeholders_have_the_same_name() -> None:
    lua = (ROOT / "slurm-plugins" / "lua" / "hami_hpc_jobs.lua").read_text()
    assert f'PLACEHOLDER_NAME = "{PLACEHOLDER_NAME}"' in lua


def test_list_has_each_gpus_last_error_where_an_agent_saw_one(node: Node, slurm: FakeNode) -> None:
    assert [row["last_fault"] for row in json.loads(run(node, "list", "--format", "json").output)] == ["", ""]
    title = "Xid 79: GPU has fallen off the bus"
    state = make_state(2, 0)
    gpus = (state.gpus[0]._replace(uuid=UUIDS[0]), state.gpus[1]._replace(uuid=UUIDS[1], last_fault=title))
    agent_file.make_folder(node.settings.run_dir)
    agent_file.write(node.settings.run_dir, state._replace(gpus=gpus))
    assert [row["last_fault"] for row in json.loads(run(node, "list", "--format", "json").output)] == ["", title]
    assert title in run(node, "list").output.splitlines()[2]


def test_what_is_drained_and_resumed_is_an_event_once(node: Node, slurm: FakeNode) -> None:
    for words in (("drain", "1", "--reason", REASON), ("drain", "1", "--reason", REASON), ("resume", "1")):
        assert run(node, *words).exit_code == 0
    run(node, "resume", "1")
    found = [line.event for line in EventReader(node.settings.state_dir).read() if line.event is not None]
    assert [(one["kind"], one["source"], one["gpu_uuid"]) for one in found] == [
        ("gpu_drain", "gpu", UUIDS[1]),
        ("gpu_resume", "gpu", UUIDS[1]),
    ]
    assert all(REASON in one["text"] for one in found)
