# SPDX-License-Identifier: Apache-2.0
"""Reconcile: ledger, run directory, Slurm's jobs and the GPUs tell one story again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from node_testbed import GPU_MIB, ROOT, UUIDS, Node

from hami_hpc.cli import main
from hami_hpc.core.gpu_jobs import GpuJob
from hami_hpc.core.grant import Grant
from hami_hpc.core.inventory import Device
from hami_hpc.core.reconcile_plan import Action, Directory, Kind, NodeState, make_plan
from hami_hpc.core.records import pack_limits
from hami_hpc.errors import NodeError
from hami_hpc.node import events, gpu_jobs, job_dirs, nvml, usage_spool
from hami_hpc.node.event_reader import EventReader
from hami_hpc.slurm import commands
from hami_hpc.stages import common
from hami_hpc.stages import gpu_jobs as gpu_job_stages
from hami_hpc.stages.epilog import end_directory
from hami_hpc.stages.reconcile import Result, reconcile

GRANT = Grant(7, 65534, UUIDS[0], 0, GPU_MIB, "h200", 8192, 50, "std", "cap", "share", 10**18)
CAPACITY = dict.fromkeys(UUIDS, GPU_MIB)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    devices = tuple(Device(minor, uuid, "NVIDIA H200", GPU_MIB) for minor, uuid in enumerate(UUIDS))
    monkeypatch.setattr(nvml, "read_devices", lambda: devices)
    return Node.make(tmp_path / "node")


def run(node: Node, *running: int, dry_run: bool = False) -> list[Kind]:
    """Reconciles with `running` as Slurm's jobs; returns what was done, which must not have failed."""
    results = reconcile(node.settings, lambda: frozenset(running), dry_run)
    assert [result.error for result in results if result.error] == []
    return [result.action.kind for result in results]


def test_nothing_is_done_when_all_agree(node: Node) -> None:
    node.prolog(7)
    assert run(node, 7) == []
    node.assert_job_is_ready(7)


def test_a_grant_whose_job_is_gone_is_ended_with_its_usage(node: Node) -> None:
    node.prolog(7)
    node.prolog(8, gpu="1")
    node.write_usage(7, peak_bytes=55)
    assert run(node, 8) == [Kind.END]
    assert sorted(node.grants()) == [8]
    assert node.names() == ["8"]
    assert json.loads((node.root / "state" / "usage" / "7.json").read_text())["peak_bytes"] == 55


def test_a_running_jobs_lost_directory_is_made_again(node: Node) -> None:
    node.prolog(7)
    job_dirs.remove(str(node.root / "run"), str(node.jobs / "7"))
    assert run(node, 7) == [Kind.RESTORE_DIRECTORY]
    node.assert_job_is_ready(7)


def test_a_running_jobs_lost_row_is_entered_again(node: Node) -> None:
    node.prolog(7)
    row = node.grants()[7]
    ledger = common.open_ledger(node.settings)
    ledger.remove(row)
    ledger.close()
    assert run(node, 7) == [Kind.RESTORE_ROW]
    assert node.grants()[7] == row


def test_the_directory_of_a_job_that_nobody_knows_is_spooled_and_removed(node: Node) -> None:
    node.prolog(7)
    node.write_usage(7, peak_bytes=66)
    ledger = common.open_ledger(node.settings)
    ledger.remove(node.grants()[7])
    ledger.close()
    assert run(node) == [Kind.SPOOL]
    assert node.names() == []
    spooled = json.loads((node.root / "state" / "usage" / "7.json").read_text())
    assert (spooled["peak_bytes"], spooled["model"]) == (66, "h200")


def test_grants_of_an_earlier_boot_are_dropped(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.prolog(7)
    job_dirs.remove(str(node.root / "run"), str(node.jobs / "7"))
    monkeypatch.setattr("hami_hpc.node.boot.boot_id", lambda: "the next boot")
    assert run(node) == [Kind.DROP_VOID]
    node.assert_nothing_is_held()


def test_a_dry_run_says_the_same_and_changes_nothing(node: Node) -> None:
    node.prolog(7)
    assert run(node, dry_run=True) == [Kind.END]
    node.assert_job_is_ready(7)
    assert run(node) == [Kind.END]
    node.assert_nothing_is_held()


def test_a_second_run_finds_nothing_to_do(node: Node) -> None:
    node.prolog(7)
    (node.jobs / ".new-9-1-1").mkdir()
    run(node)
    assert [kind for kind in run(node) if kind is not Kind.REMOVE_DIRECTORY] == []


def test_a_half_written_usage_record_is_removed_when_no_epilog_can_be_at_it(node: Node) -> None:
    usage = node.root / "state" / "usage"
    usage.mkdir(parents=True)
    for name, age_s in (("7.json", 9999), (".7-1", 9999), (".8-1", 1)):
        (usage / name).write_text("{}")
        os.utime(usage / name, (time.time() - age_s,) * 2)
    assert run(node, dry_run=True) == [Kind.REMOVE_FILE]
    assert run(node) == [Kind.REMOVE_FILE]
    assert node.spooled() == [".8-1", "7.json"]


def test_when_slurm_does_not_answer_no_grant_is_ended(node: Node) -> None:
    def silent() -> frozenset[int]:
        raise NodeError("slurmctld is down")

    node.prolog(7)
    results = reconcile(node.settings, silent, dry_run=False)
    assert [result.action.kind for result in results] == [Kind.PROBLEM]
    assert "Slurm did not list the jobs" in results[0].action.text
    assert results[0].action.text.endswith("(slurmctld is down)")
    node.assert_job_is_ready(7)


def test_a_job_that_starts_while_slurm_is_asked_is_left_alone(node: Node) -> None:
    def starts_one() -> frozenset[int]:
        listed: frozenset[int] = frozenset()
        assert node.prolog(9) == 0
        return listed

    assert reconcile(node.settings, starts_one, dry_run=False) == ()
    node.assert_job_is_ready(9)


@pytest.mark.parametrize("was", ["slice", "gpus", "refused"])
@pytest.mark.parametrize("becomes", ["slice", "gpus"])
def test_a_job_that_runs_again_while_reconcile_works_keeps_its_directory(
    node: Node, monkeypatch: pytest.MonkeyPatch, was: str, becomes: str
) -> None:
    """Its epilog was killed, and the job's next run begins after squeue has answered."""
    run_dir = node.settings.run_dir

    def begin(kind: str, start_unix_ns: int) -> str:
        job_dirs.prepare(run_dir)
        job_dirs.remove(run_dir, str(node.jobs / "7"))
        if kind == "slice":
            grant = GRANT._replace(created_unix_ns=start_unix_ns)
            job_dirs.place(run_dir, (grant,), (pack_limits(grant),))
        elif kind == "gpus":
            gpu_jobs.place(run_dir, GpuJob(7, 65534, (0,), start_unix_ns))
        else:
            job_dirs.place_refusal(run_dir, 7, "no")
        return kind

    begin(was, 10**18)

    def planned(state: NodeState) -> tuple[Action, ...]:
        actions = make_plan(state)
        begin(becomes, 2 * 10**18)
        return actions

    monkeypatch.setattr("hami_hpc.stages.reconcile.make_plan", planned)
    (result,) = reconcile(node.settings, lambda: frozenset(), dry_run=False)
    assert (result.action.job_id, result.error) == (7, None)
    assert node.names() == ["7"]
    assert node.spooled() == []


def test_what_was_set_aside_may_be_finished_by_another_process_meanwhile(node: Node) -> None:
    """An epilog has listed the directories and read this one's run; another epilog removes it then."""
    ended = str(node.jobs / f"{job_dirs.ENDED}7-{GRANT.created_unix_ns}")
    gpu_job_stages.end_set_aside(node.settings, ended)
    node.prolog(8)
    ledger = common.open_ledger(node.settings)
    end_directory(node.settings, ledger, (GRANT,), ended)
    ledger.close()
    assert node.spooled() == []


def test_a_damaged_ledger_is_replaced(node: Node) -> None:
    node.prolog(7)
    path = node.root / "run" / "ledger.db"
    data = bytearray(path.read_bytes())
    data[4096 + 100 : 4096 + 200] = bytes(range(100))  # inside a page: opening does not notice
    path.write_bytes(data)
    results = reconcile(node.settings, lambda: frozenset({7}), dry_run=False)
    assert [result.error for result in results if result.error] == []
    ledger = common.open_ledger(node.settings)
    assert ledger.damage() is None
    ledger.close()
    node.assert_job_is_ready(7)


def plan(
    rows: tuple[Grant, ...] = (),
    directories: tuple[Directory, ...] = (),
    running: frozenset[int] | None = frozenset(),
    capacity_mib: Mapping[str, int] | None = CAPACITY,
) -> tuple[Action, ...]:
    return make_plan(NodeState(rows, (), directories, running, capacity_mib))


def directory(grant: Grant) -> Directory:
    return Directory(str(grant.job_id), grant.job_id, (grant,), False, 0.0)


def test_a_gpu_that_is_gone_is_a_problem_for_a_person() -> None:
    (action,) = plan((GRANT,), (directory(GRANT),), frozenset({7}), {UUIDS[1]: GPU_MIB})
    assert action.kind is Kind.PROBLEM
    assert UUIDS[0] in action.text


def test_a_gpu_that_is_given_twice_is_a_problem_for_a_person() -> None:
    rows = (GRANT._replace(mem_mib=GPU_MIB), GRANT._replace(job_id=8, mem_mib=1))
    (action,) = plan(rows, tuple(directory(grant) for grant in rows), frozenset({7, 8}))
    assert action.kind is Kind.PROBLEM
    assert "jobs 7, 8" in action.text


@pytest.mark.parametrize(("age_s", "kinds"), [(5.0, []), (600.0, [Kind.REMOVE_DIRECTORY])])
def test_half_made_directories_are_removed_when_no_prolog_can_be_at_them(age_s: float, kinds: list[Kind]) -> None:
    for name in (".new-7-1-1", ".gone-1-1"):
        assert [action.kind for action in plan((), (Directory(name, None, (), False, age_s),))] == kinds


JOBS = st.frozensets(st.integers(1, 6))


@given(rows=JOBS, directories=JOBS, running=JOBS)
def test_whatever_is_there_only_running_jobs_keep_anything(
    rows: frozenset[int], directories: frozenset[int], running: frozenset[int]
) -> None:
    grants = tuple(GRANT._replace(job_id=job, mem_mib=1) for job in sorted(rows))
    found = tuple(directory(GRANT._replace(job_id=job, mem_mib=1)) for job in sorted(directories))
    has_row, has_directory = set(rows), set(directories)
    for action in plan(grants, found, running):
        assert action.job_id is not None
        if action.kind is Kind.END:
            has_row.discard(action.job_id)
            has_directory.discard(action.job_id)
        elif action.kind in (Kind.SPOOL, Kind.REMOVE_DIRECTORY):
            has_directory.discard(action.job_id)
        elif action.kind is Kind.RESTORE_DIRECTORY:
            has_directory.add(action.job_id)
        elif action.kind is Kind.RESTORE_ROW:
            has_row.add(action.job_id)
    assert has_row == has_directory == (rows | directories) & running


def test_the_command_prints_a_line_for_each_deed_and_fails_when_a_person_is_needed(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "running_jobs", lambda name: frozenset({8}) if name == "node1" else frozenset())
    node.prolog(7)
    node.prolog(8)
    environment = {"HAMI_HPC_CONFIG": str(node.config)}
    dry = CliRunner().invoke(main, ["reconcile", "--node", "node1", "--dry-run"], env=environment)
    assert dry.output == "would do: job 7: is no longer on this node; its 8192 MiB of GPU 0 are free again\n"
    done = CliRunner().invoke(main, ["reconcile", "--node", "node1", "--format", "json"], env=environment)
    assert (done.exit_code, [row["action"] for row in json.loads(done.output)]) == (0, ["end"])
    monkeypatch.setattr(nvml, "read_devices", lambda: ())
    broken = CliRunner().invoke(main, ["reconcile", "--node", "node1"], env=environment)
    assert broken.exit_code == 3
    assert broken.output.startswith("PROBLEM: job 8: its GPU 0")


def test_squeue_is_asked_for_every_job_that_holds_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "squeue"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@" >"$0.asked"\nprintf "12\\n7\\n"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert commands.running_jobs("node1") == {7, 12}
    asked = (tmp_path / "squeue.asked").read_text().split()
    assert "--nodelist=node1" in asked
    assert "--all" in asked, "jobs of hidden partitions hold GPUs too"
    fake.write_text("#!/bin/sh\necho 'squeue: error: Invalid node name specified' >&2; exit 1\n")
    with pytest.raises(NodeError, match="Invalid node name"):
        commands.running_jobs("nowhere")


def test_reconcile_is_the_same_command_under_python_m(node: Node) -> None:
    command = [str(ROOT / ".venv" / "bin" / "python"), "-m", "hami_hpc.cli", "reconcile", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert "Make the ledger" in done.stdout


def test_results_say_what_stood_in_the_way_and_the_rest_is_done(node: Node) -> None:
    node.prolog(7)
    node.prolog(8, gpu="1")
    obstacles = node.root / "state", node.root / "run" / usage_spool.WAITING
    shutil.rmtree(node.root / "state")
    for obstacle in obstacles:
        obstacle.write_text("in the way")
    results: tuple[Result, ...] = reconcile(node.settings, lambda: frozenset(), dry_run=False)
    assert [result.action.job_id for result in results] == [7, 8]
    assert all(result.error and "cannot be kept" in result.error for result in results)
    assert node.grants() == {}
    assert [name.startswith(job_dirs.ENDED) for name in node.names()] == [True, True]
    for obstacle in obstacles:
        obstacle.unlink()
    assert run(node) == [Kind.SPOOL, Kind.SPOOL]
    node.assert_nothing_is_held()
    assert node.spooled() == ["7.json", "8.json"]


def test_records_that_wait_for_the_spool_are_a_problem_until_they_get_there(node: Node) -> None:
    for job in (7, 8):
        node.prolog(job)
    shutil.rmtree(node.root / "state")
    (node.root / "state").write_text("in the way")
    assert run(node) == [Kind.END, Kind.END, Kind.PROBLEM]
    (problem,) = reconcile(node.settings, lambda: frozenset(), dry_run=False)
    assert "2 usage record(s) wait" in problem.action.text
    (node.root / "state").unlink()
    assert run(node, dry_run=True) == run(node) == [Kind.DELIVER]
    assert run(node) == []
    assert node.spooled() == ["7.json", "8.json"]


def fails(*_arguments: object) -> str:
    raise OverflowError("Python int too large to convert to SQLite INTEGER")


@pytest.mark.parametrize("has_row", [True, False])
def test_what_cannot_be_handled_is_set_aside_and_the_rest_is_done(
    node: Node, monkeypatch: pytest.MonkeyPatch, has_row: bool
) -> None:
    node.prolog(7)
    node.prolog(8, gpu="1")
    if not has_row:
        ledger = common.open_ledger(node.settings)
        for grant in ledger.grants():
            ledger.remove(grant)
        ledger.close()
    to_json = usage_spool.to_json
    monkeypatch.setattr(usage_spool, "to_json", lambda record: fails() if record["job_id"] == 7 else to_json(record))
    first, second = reconcile(node.settings, lambda: frozenset(), dry_run=False)
    assert "unexpected OverflowError" in (first.error or "")
    assert second.error is None
    told = [line.event for line in EventReader(node.settings.state_dir).read() if line.event is not None]
    done = [event["action"] for event in told if event["kind"] == "reconciled"]
    assert done == [f"failed: {first.error}", second.action.kind.value]
    assert node.spooled() == ["8.json"]
    assert [name.startswith(f"{job_dirs.BAD}7-") for name in node.names()] == [True]
    assert node.grants() == {}
    (problem,) = reconcile(node.settings, lambda: frozenset(), dry_run=False)
    assert problem.action.kind is Kind.PROBLEM
    assert problem.action.text.startswith(f"{job_dirs.BAD}7-")


def test_reconcile_never_ends_with_a_traceback(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.prolog(7)
    environment = {"HAMI_HPC_CONFIG": str(node.config)}
    monkeypatch.setattr(commands, "running_jobs", lambda _name: frozenset())
    monkeypatch.setattr(usage_spool, "to_json", fails)
    done = CliRunner().invoke(main, ["reconcile", "--node", "node1"], env=environment)
    assert done.exit_code == 3
    assert "FAILED: unexpected OverflowError" in done.output
    assert "Traceback" not in done.output


def test_directories_left_half_made_are_unmounted_and_removed(node: Node) -> None:
    """A prolog killed between mount and rename, and an epilog killed between rename and umount."""
    for name in (".new-7-1-1", ".gone-7-1"):
        node.prolog(7)
        (node.jobs / "7").rename(node.jobs / name)
        os.utime(node.jobs / name, (1, 1))
        assert node.epilog(7) == 0
    assert run(node) == [Kind.REMOVE_DIRECTORY, Kind.REMOVE_DIRECTORY]
    assert node.names() == []
    assert f"{node.jobs}/" not in Path("/proc/self/mountinfo").read_text()


def test_the_ledger_of_an_older_hami_hpc_is_removed(node: Node) -> None:
    state = node.root / "state"
    state.mkdir()
    for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm", "ledger.db.lock"):
        (state / name).write_text("")
    assert run(node, dry_run=True) == [Kind.REMOVE_FILE] * 4
    assert run(node) == [Kind.REMOVE_FILE] * 4
    assert [path.name for path in state.iterdir()] == [events.NAME]
