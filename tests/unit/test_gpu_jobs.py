# SPDX-License-Identifier: Apache-2.0
"""Jobs with whole GPUs in prolog, epilog and reconcile: one usage record for each run, and no job stopped for it."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_states import make_job, make_state
from harness.mounting import unmount_below
from node_testbed import GPU_MIB, ROOT, UID, UUIDS, Node, names_in
from test_crash import age_leftovers
from test_whole_node import whole_job

from hami_hpc.accounting.sources import usage_records as spool_reader
from hami_hpc.contract import constants as c
from hami_hpc.core.agent_state import JobState
from hami_hpc.core.gpu_jobs import GpuJob, from_line, of_environment, to_line
from hami_hpc.core.history import Minute, pack_minute, place_of
from hami_hpc.core.reconcile_plan import Kind
from hami_hpc.errors import NodeError
from hami_hpc.node import agent_file, ended_dirs, gpu_jobs, job_dirs, usage_spool
from hami_hpc.stages.epilog import epilog
from hami_hpc.stages.prolog import main as prolog_main
from hami_hpc.stages.reconcile import Result, reconcile

JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_UID": str(UID), "SLURM_JOB_GPUS": "0,1"}
MIB = 1 << 20


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node.make(tmp_path / "node")
    node.config.write_text(node.config.read_text() + "[agent]\n")
    yield node
    unmount_below(tmp_path)


def noted(node: Node) -> GpuJob:
    job = gpu_jobs.read(str(node.jobs / "7"))
    assert job is not None
    return job


def seen(job: GpuJob, **more: object) -> JobState:
    """What the agent saw of a job: for an hour, with 30 minutes of the time of one of two GPUs."""
    state = make_job(7, 0, job.uid, created_unix_ns=job.created_unix_ns, mode="gpu", service_class="", policy="none")
    return state._replace(
        gpu_uuid=",".join(UUIDS),
        model="h200",
        mem_bytes=2 * GPU_MIB * MIB,
        cores_percent=200,
        watched_ns=3600 * 10**9,
        busy_ns=1800 * 10**9,
        peak_bytes=5000 * MIB,
        energy_mj=77,
        pcie_bytes=88,
        nvlink_bytes=99,
        processes=0,
    )._replace(**more)  # type: ignore[arg-type]


def watch(node: Node, *jobs: JobState) -> None:
    agent_file.make_folder(node.settings.run_dir)
    agent_file.write(node.settings.run_dir, make_state(gpu_jobs=jobs))


def prolog(node: Node, **more: str) -> int:
    return prolog_main(node.arguments, JOB | more)


def test_the_prolog_notes_the_start_and_the_epilog_writes_what_the_agent_saw(node: Node) -> None:
    begin = time.time_ns()
    assert node.run("prolog", JOB) == (0, "")
    assert names_in(node.jobs / "7") == [c.FILE_GPUS, c.FILE_HISTORY]
    job = noted(node)
    assert (job.job_id, job.uid, job.gpus) == (7, UID, (0, 1))
    assert begin <= job.created_unix_ns <= time.time_ns()
    watch(node, seen(job))
    with (node.jobs / "7" / c.FILE_HISTORY).open("r+b") as file:
        file.seek(place_of(0))
        file.write(pack_minute(Minute(0, 4321, 25)))
    assert node.run("epilog", JOB) == (0, "")
    node.assert_nothing_is_held()
    record = node.record()
    assert (record["mode"], record["usage"], record["class"], record["gpu_count"]) == ("gpu", "observed", "", 2)
    assert (record["gpu_uuid"], record["model"]) == (",".join(UUIDS), "h200")
    assert (record["mem_mib"], record["cores"], record["uid"]) == (2 * GPU_MIB, 200, UID)
    assert (record["start_unix_ns"], record["history"]) == (job.created_unix_ns, "0:4321,25")
    assert record["observed_busy_ns"] == 1800 * 10**9
    assert [record[f"observed_{name}"] for name in ("energy_mj", "pcie_bytes", "nvlink_bytes")] == [77, 88, 99]
    assert (record["gpu_busy_ns"], record["peak_bytes"]) == (0, 0), "what the job counted itself: nothing"
    spool_reader.parse_record(json.dumps(record))
    assert list(record) == list(c.SPOOL_FIELDS)


def test_a_job_that_nobody_watched_has_no_record(node: Node) -> None:
    assert prolog(node) == 0
    watch(node)
    assert node.run("epilog", JOB) == (0, "")
    node.assert_nothing_is_held()
    assert node.spooled() == []


def test_a_node_without_an_agent_notes_nothing(tmp_path: Path) -> None:
    node = Node.make(tmp_path / "node")
    assert node.run("prolog", JOB) == (0, "")
    assert node.names() == []
    assert node.run("epilog", JOB) == (0, "")
    assert node.spooled() == []


def test_a_job_with_the_whole_node_has_both_files_and_a_record(node: Node) -> None:
    assert node.run("prolog", whole_job(7)) == (0, "")
    assert names_in(node.jobs / "7") == [c.FILE_GPUS, c.FILE_HISTORY, c.FILE_WHOLE]
    assert (node.jobs / "7" / c.FILE_WHOLE).read_text() == "job 7 holds the whole node with GPU 0,1: no limits\n"
    watch(node, seen(noted(node)))
    assert node.run("epilog", whole_job(7)) == (0, "")
    node.assert_nothing_is_held()
    assert node.record()["gpu_count"] == 2


def test_a_prolog_that_runs_twice_keeps_the_start(node: Node) -> None:
    prolog(node)
    first = noted(node)
    watch(node, seen(first, busy_ns=0, peak_bytes=0, watched_ns=10**9))
    assert prolog(node) == 0
    assert noted(node) == first
    assert node.spooled() == []


def test_a_prolog_that_runs_again_beside_the_jobs_programs_keeps_the_run(node: Node) -> None:
    """slurmd may forget which jobs it has seen, and run the prolog again before a step."""
    prolog(node)
    first = noted(node)._replace(created_unix_ns=noted(node).created_unix_ns - 10**13)
    gpu_jobs.place(node.settings.run_dir, first)
    watch(node, seen(first, processes=1))
    assert prolog(node) == 0
    assert noted(node) == first
    watch(node, seen(first, processes=0))
    assert prolog(node) == 0
    assert noted(node) != first
    assert node.spooled() == ["7.json"]


def test_the_next_run_of_a_job_whose_epilog_was_killed_leaves_each_its_record(node: Node) -> None:
    prolog(node)
    first = noted(node)
    watch(node, seen(first))
    assert prolog(node) == 0
    second = noted(node)
    assert second.created_unix_ns > first.created_unix_ns
    assert node.record()["start_unix_ns"] == first.created_unix_ns
    watch(node, seen(second, busy_ns=5))
    assert node.run("epilog", JOB) == (0, "")
    assert node.spooled() == [f"7-{second.created_unix_ns}.json", "7.json"]
    assert node.record(f"7-{second.created_unix_ns}.json")["observed_busy_ns"] == 5


def test_a_requeued_job_that_got_other_gpus_is_another_run(node: Node) -> None:
    prolog(node)
    first = noted(node)
    assert prolog(node, SLURM_JOB_GPUS="1") == 0
    assert noted(node).gpus == (1,)
    assert noted(node).created_unix_ns > first.created_unix_ns


@pytest.mark.parametrize(
    "given",
    [
        {"SLURM_JOB_GPUS": "x"},
        {"SLURM_JOB_GPUS": "0,5000"},
        {"SLURM_JOB_GPUS": "0-1023"},
        {"SLURM_JOB_GPUS": ","},
        {"SLURM_JOB_UID": "root"},
        {"SLURM_JOB_ID": "../7"},
    ],
)
def test_what_slurmd_does_not_write_is_not_noted_and_stops_no_job(node: Node, given: dict[str, str]) -> None:
    assert node.run("prolog", JOB | given)[0] == 0
    assert node.names() == []


def test_settings_that_cannot_be_read_stop_no_job(node: Node) -> None:
    node.config.write_text("version = [")
    assert node.run("prolog", JOB) == (0, "")
    node.config.unlink()
    assert node.run("prolog", JOB) == (0, "")


def test_a_run_directory_that_cannot_be_used_stops_no_job(node: Node) -> None:
    node.clear()
    Path(node.settings.run_dir).write_text("")
    status, errors = node.run("prolog", JOB)
    assert status == 0
    assert "job 7 with whole GPUs will have no usage record" in errors
    assert node.run("epilog", JOB)[0] == 0


def test_an_installation_without_python_stops_no_job_with_whole_gpus(tmp_path: Path) -> None:
    script = tmp_path / "prolog"
    script.write_bytes((ROOT / "prolog" / "prolog").read_bytes())
    script.chmod(0o755)
    done = subprocess.run([script], env=JOB, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert subprocess.run([script], env={"SLURM_JOB_ID": "7"}, check=False).returncode == 0


def test_a_full_spool_makes_the_record_wait(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    prolog(node)
    watch(node, seen(noted(node)))
    folder = Path(node.settings.state_dir)
    folder.parent.mkdir(exist_ok=True)
    folder.write_text("")  # no directory
    assert node.epilog(7) == 0
    assert "the record waits in" in capsys.readouterr().err
    folder.unlink()
    assert usage_spool.waiting(node.settings.run_dir) != ()
    node.run("epilog", {"SLURM_JOB_ID": "8"})
    assert node.record()["usage"] == "observed"


def test_a_record_that_can_be_kept_nowhere_is_set_aside_and_reconcile_spools_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    prolog(node)
    job = noted(node)
    watch(node, seen(job))

    def fail(*_arguments: object) -> None:
        raise NodeError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(usage_spool, "write", fail)
        patch.setattr(usage_spool, "keep", fail)
        epilog(node.settings, 7, had_vgpu=False)
    assert node.names() == [f"{job_dirs.ENDED}7-{job.created_unix_ns}"]
    prolog(node)  # the next run is not in its way
    second = noted(node)
    watch(node, seen(job), seen(second))
    results = squared(node, 7)
    assert [(one.action.job_id, one.error) for one in results] == [(7, None)]
    assert node.names() == ["7"]
    assert node.record()["start_unix_ns"] == job.created_unix_ns


def test_a_run_before_that_can_be_written_nowhere_does_not_keep_the_next_from_its_note(
    node: Node, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prolog(node)
    first = noted(node)
    watch(node, seen(first))

    def fail(*_arguments: object) -> None:
        raise NodeError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(usage_spool, "write", fail)
        patch.setattr(usage_spool, "keep", fail)
        assert prolog(node) == 0
    assert noted(node).created_unix_ns > first.created_unix_ns
    assert sorted(node.names()) == [f"{job_dirs.ENDED}7-{first.created_unix_ns}", "7"]
    assert "no space. hami-hpc reconcile will finish this" in capsys.readouterr().err


def test_what_was_set_aside_is_finished_by_the_next_epilog_of_a_vgpu_job(node: Node) -> None:
    prolog(node)
    job = noted(node)
    watch(node, seen(job))
    ended_dirs.set_aside(node.settings.run_dir, job)
    assert node.prolog(8) == 0
    assert node.epilog(8) == 0
    assert node.record()["usage"] == "observed"
    node.assert_nothing_is_held()


def squared(node: Node, *running: int) -> tuple[Result, ...]:
    age_leftovers(node)
    results = reconcile(node.settings, lambda: frozenset(running), dry_run=False)
    return tuple(one for one in results if one.action.kind is not Kind.PROBLEM)  # no NVML here


def test_reconcile_leaves_a_running_job_alone_and_finishes_an_ended_one(node: Node) -> None:
    prolog(node)
    watch(node, seen(noted(node)))
    assert squared(node, 7) == ()
    assert node.spooled() == []
    planned = reconcile(node.settings, frozenset, dry_run=True)
    assert [one.action.text for one in planned if one.action.job_id == 7] == [
        "job 7: is no longer on this node; its usage is spooled and its run directory removed"
    ]
    assert node.names() == ["7"]
    assert [one.error for one in squared(node)] == [None]
    assert node.spooled() == ["7.json"]
    assert node.names() == []
    assert squared(node) == ()


def test_after_a_reboot_a_note_of_before_makes_no_record(node: Node) -> None:
    """Where the run directory outlives a boot: what the agent saw is of another boot."""
    prolog(node)
    agent_file.make_folder(node.settings.run_dir)
    agent_file.write(node.settings.run_dir, make_state(gpu_jobs=(seen(noted(node)),), boot_id="another"))
    squared(node)
    assert (node.spooled(), node.names()) == ([], [])


def test_a_directory_that_a_bug_makes_unusable_is_set_aside_for_an_administrator(
    node: Node, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prolog(node)
    watch(node, seen(noted(node)))

    def fail(*_arguments: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(agent_file, "read_gpu_job", fail)
    epilog(node.settings, 7, had_vgpu=False)
    (name,) = node.names()
    assert name.startswith(job_dirs.BAD)
    assert "unexpected ZeroDivisionError" in capsys.readouterr().err


WHOLE = to_line(GpuJob(7, 1, (0,), 5))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "job=7",
        WHOLE[:-1],
        WHOLE + "x",
        WHOLE.replace("gpus=0", "gpus=0,x"),
        WHOLE.replace("gpus=0", "gpus="),
        WHOLE.replace("uid=1", "uid=-1"),
        WHOLE.replace("unix_ns=5", f"unix_ns={2**63}"),
    ],
)
def test_a_note_that_is_not_whole_is_none(text: str) -> None:
    assert from_line(text) is None


def test_a_note_is_read_as_it_was_written() -> None:
    job = GpuJob(7, UID, (0, 1, 5), 10**18)
    assert from_line(to_line(job)) == job
    assert of_environment(JOB, 3) == GpuJob(7, UID, (0, 1), 3)
    assert of_environment({"SLURM_JOB_ID": "7"}, 3) is None
    for edge in (GpuJob(0, 0, (0,), 0), GpuJob(2**32 - 1, 2**32 - 1, (1023,), 2**63 - 1)):
        assert from_line(to_line(edge)) == edge


def test_a_note_that_root_did_not_write_is_none(node: Node) -> None:
    prolog(node)
    watch(node, seen(noted(node)))
    os.chown(node.jobs / "7" / c.FILE_GPUS, UID, -1)
    assert gpu_jobs.read(str(node.jobs / "7")) is None
    assert node.run("epilog", JOB) == (0, "")
    assert node.spooled() == []


@pytest.mark.parametrize("wrong", [{"mem_bytes": -5}, {"gpu_uuid": ""}, {"busy_ns": -1}, {"watched_ns": 2**70}])
def test_a_state_that_cannot_be_makes_no_record_that_accounting_refuses(node: Node, wrong: dict[str, object]) -> None:
    prolog(node)
    watch(node, seen(noted(node), **wrong))
    assert node.run("epilog", JOB)[0] == 0
    for name in node.spooled():
        spool_reader.parse_record(json.dumps(node.record(name)))
    assert "7" not in node.names()


def test_of_many_records_that_wait_the_later_ones_have_no_history(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_spool, "WAITING_WITH_HISTORY", 1)
    folder = Path(node.settings.state_dir)
    folder.write_text("")
    for job in (7, 8):
        assert node.prolog(job) == 0
        with (node.jobs / str(job) / c.FILE_HISTORY).open("r+b") as file:
            file.seek(place_of(0))
            file.write(pack_minute(Minute(0, 1, 1)))
        assert node.epilog(job) == 0
    waiting = [
        Path(usage_spool.waiting_dir(node.settings.run_dir)) / name
        for name in usage_spool.waiting(node.settings.run_dir)
    ]
    assert [json.loads(path.read_text())["history"] for path in waiting] == ["0:1,1", ""]
