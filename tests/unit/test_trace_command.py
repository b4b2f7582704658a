# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc trace`: the steps and their differences, Slurm's runs, and what it says where something is not known."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from node_testbed import UID, Node, job_environment

from hami_hpc.cli import main, trace_command
from hami_hpc.contract import constants as c
from hami_hpc.core.start_trace import KINDS, OF_SLURM, difference_text, make_steps
from hami_hpc.errors import NodeError
from hami_hpc.node.job_times import NodeRun
from hami_hpc.slurm import commands, job_runs
from hami_hpc.slurm.job_runs import Run, merged, parse_sacct

S, MS = 1_000_000_000, 1_000_000
RUN = Run(7, "7", "alice", UID, "RUNNING", 1000, 1000, 1001, "node1", True)


# ------------------------------------------------------------------------------------------------- steps


def test_each_step_is_compared_to_the_last_known_one() -> None:
    steps = make_steps(
        {"submitted": 10 * S, "allocated": 12 * S, "prolog_done": 12 * S + 345 * MS}, {"eligible": "why"}
    )
    by_key = {step.kind.key: step for step in steps}
    assert [step.kind for step in steps] == list(KINDS)
    assert (by_key["eligible"].unix_ns, by_key["eligible"].reason) == (None, "why")
    assert by_key["first_step"].reason == "no step of the job was attached to its slice here"
    assert by_key["submitted"].after_ns is None
    assert by_key["allocated"].after_ns == 2 * S
    assert by_key["prolog_done"].after_ns == 345 * MS
    assert [difference_text(by_key[key]) for key in ("submitted", "allocated", "prolog_done")] == ["", "~2,000", "~345"]


def test_differences_have_no_more_digits_than_their_clocks() -> None:
    at = {"prolog_began": 5 * S, "prolog_done": 5 * S + 81_234_567, "first_step": 5 * S + 90_000_000}
    texts = {step.kind.key: difference_text(step) for step in make_steps(at, {})}
    assert (texts["prolog_done"], texts["first_step"], texts["epilog_done"]) == ("81", "8.77", "")


@pytest.mark.parametrize(
    ("earlier", "later", "by_ns", "note"),
    [
        ("allocated", "prolog_done", -400 * MS, "at the same time, as far as these clocks tell"),
        ("allocated", "prolog_done", -3 * S, "the clocks of slurmctld's host and of the node differ"),
        ("prolog_began", "prolog_done", -3 * S, "the node's clock was set"),
        ("first_step", "first_context", -1, "the job's own processes say one of the two"),
        ("last_use", "epilog_began", -3 * S, "the job's own processes say one of the two"),
        ("first_step", "first_context", 0, ""),
    ],
)
def test_a_difference_below_zero_is_shown_with_a_note(earlier: str, later: str, by_ns: int, note: str) -> None:
    steps = {step.kind.key: step for step in make_steps({earlier: 100 * S, later: 100 * S + by_ns}, {})}
    assert steps[later].after_ns == by_ns
    assert note in steps[later].note
    assert bool(steps[later].note) == bool(note)


# ----------------------------------------------------------------------------------------------- Slurm


def test_sacct_lines_become_runs_and_others_are_left_out() -> None:
    text = (
        "7|7|alice|1000|REQUEUED|1000|1000|1001|node1|cpu=1,gres/vgpu:std=1|x\n"
        "7|7|alice|1000|PENDING|1010|Unknown|1130|None assigned||cpu=1,gres/vgpu=1\n"
        "7.batch|7.batch||||||||\n"
        "8|8|bob|1001|CANCELLED by 0|1|1|None|None assigned|cpu=1|cpu=1\n"
        "nonsense\n\n"
    )
    first, second, other = parse_sacct(text)
    assert (first.state, first.started_s, first.nodes, first.has_vgpu) == ("REQUEUED", 1001, "node1", True)
    assert (second.state, second.eligible_s, second.started_s, second.nodes) == ("PENDING", None, None, "")
    assert second.has_vgpu
    assert (other.state, other.started_s, other.has_vgpu) == ("CANCELLED", None, False)


def test_the_rows_of_a_run_that_gave_up_nodes_are_one_run() -> None:
    row = "7|7|alice|1000|{}|{}|{}|1001|{}|gres/vgpu=1|"
    rows = [
        row.format("REQUEUED", 900, 900, "node9"),
        row.format("RESIZING", 1000, 1000, "node[1-3]"),
        row.format("RESIZING", 1020, 1020, "node[1-2]"),
        row.format("RUNNING", 1030, 1030, "node1"),
        row.format("RESIZING", 1000, 1000, "node8").replace("7|7|", "8|8|"),
    ]
    runs = parse_sacct("\n".join(rows))
    shown = [(run.job_id, run.state, run.submitted_s, run.eligible_s, run.started_s, run.nodes) for run in runs]
    assert shown == [
        (7, "REQUEUED", 900, 900, 1001, "node9"),
        (7, "RUNNING", 1000, 1000, 1001, "node1"),
        (8, "RESIZING", 1000, 1000, 1001, "node8"),
    ]
    assert len(merged(runs, [replace(RUN, nodes="node1")])) == 3, "slurmctld has the submission of the whole run"


def test_slurmctld_has_the_last_word_on_a_run_that_it_knows() -> None:
    """slurmdbd hears of a job seconds later; its first row has no user."""
    old, late = replace(RUN, state="REQUEUED", submitted_s=900), replace(RUN, eligible_s=None)
    assert merged([old, late], [RUN]) == [old, RUN]
    assert merged([replace(RUN, uid=-1, user="", submitted_s=None)], [RUN]) == [RUN]
    assert merged([old], []) == [old]


def test_one_of_sacct_and_slurmctld_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> str:
        raise NodeError("it is down")

    line = "7|7|alice|1000|RUNNING|1000|1000|1001|node1|gres/vgpu=1|\n"
    monkeypatch.setattr(job_runs, "_sacct", lambda job: line)
    monkeypatch.setattr(commands, "queue_rows", fail)
    assert [run.user for run in job_runs.read_runs("7")] == ["alice"]
    monkeypatch.setattr(job_runs, "_sacct", fail)
    with pytest.raises(NodeError, match="it is down"):
        job_runs.read_runs("7")
    row = "7|7|7|N/A|1000|alice|RUNNING|gpu|std|0:01|1:00|x|x|node1|None"
    record = "JobId=7 JobName=x\n   SubmitTime=1000 EligibleTime=1000\n   StartTime=1001\n   TRES=gres/vgpu=1\n"
    monkeypatch.setattr(commands, "queue_rows", lambda job, form: row)
    monkeypatch.setattr(commands, "show_jobs", lambda job, time_format: record)
    assert job_runs.read_runs("7") == [replace(RUN, uid=1000)]
    # squeue lists all components of a heterogeneous job also for one.
    parts = "\n".join(row.replace("7|7|", part, 1) for part in ("6|6+0|", "7|6+1|"))
    monkeypatch.setattr(commands, "queue_rows", lambda job, form: parts)
    assert [run.shown for run in job_runs.read_runs("6+1")] == ["6+1"]


# --------------------------------------------------------------------------------------------- command


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node.make(tmp_path / "node")


def trace(node: Node, *words: str) -> Result:
    return CliRunner().invoke(main, ["trace", *words], env={"HAMI_HPC_CONFIG": str(node.config)})


def slurm_says(monkeypatch: pytest.MonkeyPatch, *runs: Run) -> None:
    monkeypatch.setattr(trace_command, "read_runs", lambda job: list(runs))


def now_run(**more: object) -> Run:
    return replace(RUN, started_s=int(time.time()), **more)  # type: ignore[arg-type]


def test_a_running_and_an_ended_job_are_told_as_text_and_json(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm_says(monkeypatch, now_run())
    node.run("prolog", job_environment(7))
    text = trace(node, "7").stdout
    assert text.startswith("Job 7 of alice on node1: running\n")
    assert "prolog done" in text
    assert "the job has not ended" in text
    node.run("epilog", job_environment(7))
    answer = json.loads(trace(node, "7", "--json").stdout)
    steps = {step["step"]: step for step in answer["steps"]}
    assert (answer["run"], answer["runs"], answer["node_part_unknown"]) == (1, 1, None)
    assert steps["epilog_done"]["unix_ns"] >= steps["epilog_began"]["unix_ns"]
    assert steps["submitted"] == {
        "step": "submitted", "unix_ns": 1000 * S, "precision_ms": 1000.0, "after_previous_ms": None,
        "told_by": "Slurm", "unknown": None, "note": None,
    }  # fmt: skip
    assert (steps["first_launch"]["unix_ns"], steps["first_launch"]["after_previous_ms"]) == (None, None)
    assert "launched a kernel" in steps["first_launch"]["unknown"]


def test_the_last_run_is_shown_unless_another_is_named(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.run("prolog", job_environment(7))
    node.run("epilog", job_environment(7))
    slurm_says(monkeypatch, now_run(state="REQUEUED"), replace(RUN, state="PENDING", submitted_s=2000, started_s=None))
    assert "pending, run 2 of 2" in trace(node, "7").stdout
    assert "the job has not been started" in trace(node, "7").stdout
    assert "epilog done" in trace(node, "7", "--run", "1").stdout
    failed = trace(node, "7", "--run", "3")
    assert (failed.exit_code, failed.stderr) == (1, "Error: job 7 had 2 runs so far, so there is no run 3\n")
    assert trace(node, "7", "--run", "0").exit_code == 2


def test_a_grant_belongs_to_the_run_in_which_it_was_made() -> None:
    runs = [replace(RUN, started_s=100), replace(RUN, started_s=200), replace(RUN, started_s=None)]
    grants = [NodeRun(at * S, UID, False, {}, {}) for at in (101, 199, 250)]
    assert [trace_command.of_run(grants, runs, number) for number in (1, 2, 3)] == [grants[0], grants[2], None]
    assert trace_command.of_run(grants[:1], runs, 2) is None


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (replace(RUN, has_vgpu=False), "the job has no vgpu"),
        (replace(RUN, started_s=None, state="PENDING"), "the job has not been started"),
        (RUN, "run this on the job's node (node1), or give --node NAME"),
        (replace(RUN, state="COMPLETED"), "run this on the job's node (node1), before accounting collects it"),
    ],
)
def test_a_host_that_knows_nothing_says_why(node: Node, monkeypatch: pytest.MonkeyPatch, run: Run, reason: str) -> None:
    slurm_says(monkeypatch, run)
    result = trace(node, "7")
    assert result.exit_code == 0
    assert reason in result.stdout
    assert "prolog" not in result.stdout
    answer = json.loads(trace(node, "7", "--format", "json").stdout)
    assert reason in answer["node_part_unknown"]
    assert next(step["step"] for step in answer["steps"] if step["unknown"] is None) == OF_SLURM[0]


def test_others_jobs_are_shown_as_slurm_shows_them(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.run("prolog", job_environment(7))
    slurm_says(monkeypatch, now_run())
    monkeypatch.setattr(os, "geteuid", lambda: UID + 1)
    text = trace(node, "7").stdout
    assert "the job belongs to alice: only they and root see more than Slurm shows" in text
    assert "prolog" not in text


def test_a_refused_job_says_what_the_prolog_said(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = node.jobs / "7"
    folder.mkdir(parents=True)
    slurm_says(monkeypatch, now_run())
    for name, text in ((c.FILE_REFUSED, "no GPU for it"), (c.FILE_WHOLE, "it holds the whole node")):
        (folder / name).write_text(f"{text}\n")
        assert f"the job has no slice on this node: {text}" in trace(node, "7").stdout
        (folder / name).unlink()


def test_several_tasks_and_unknown_jobs_and_wrong_ids_are_refused(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm_says(monkeypatch, *(replace(RUN, job_id=70 + at, shown=f"7_{at}") for at in range(1, 12)))
    refused = trace(node, "7")
    assert refused.exit_code == 1
    assert "name one of 7_1, 7_2, 7_3, 7_4, 7_5, 7_6, 7_7, 7_8, ..." in refused.stderr
    slurm_says(monkeypatch)
    unknown = trace(node, "7")
    assert unknown.exit_code == 1
    assert (
        "nothing is known of job 7: this host has no record of it, and Slurm shows no such job to this user"
        in unknown.stderr
    )
    for wrong in ("x", "7;ls", "-1", "7_", ""):
        assert trace(node, "--", wrong).exit_code == 2


def test_without_slurm_the_nodes_part_is_told(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(job: str) -> list[Run]:
        raise NodeError("sacct cannot be run")

    node.run("prolog", job_environment(7))
    monkeypatch.setattr(trace_command, "read_runs", fail)
    answer = json.loads(trace(node, "7", "--json").stdout)
    steps = {step["step"]: step for step in answer["steps"]}
    assert steps["submitted"]["unknown"] == "sacct cannot be run"
    assert steps["prolog_done"]["unix_ns"] > 0
    assert trace(node, "7").stdout.startswith("Job 7\n")


@pytest.mark.parametrize(
    ("run", "at", "message"),
    [
        (RUN, "no such;node", "is no name of a node"),
        (replace(RUN, state="COMPLETED"), "node1", "job 7 is completed, so no step of it can run on node1"),
    ],
)
def test_a_node_is_asked_only_of_a_running_job(
    node: Node, monkeypatch: pytest.MonkeyPatch, run: Run, at: str, message: str
) -> None:
    slurm_says(monkeypatch, run)
    result = trace(node, "7", f"--node={at}")
    assert result.exit_code in (1, 2)
    assert message in result.stderr


def test_a_node_of_a_component_is_asked_by_the_number_of_the_first_one(
    node: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    srun = tmp_path / "bin" / "srun"
    srun.parent.mkdir()
    srun.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/words\n')
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{srun.parent}:/usr/bin:/bin")
    slurm_says(monkeypatch, replace(RUN, job_id=8, shown="7+1"))
    assert trace(node, "7+1", "--node=node1").exit_code == 0
    assert (tmp_path / "words").read_text().split()[:3] == ["--quiet", "--jobid=7", "--het-group=1"]
