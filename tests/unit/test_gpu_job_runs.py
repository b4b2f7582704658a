# SPDX-License-Identifier: Apache-2.0
"""Jobs with whole GPUs: which prologs are of one run, which record an epilog writes, what is said when it cannot."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.mounting import unmount_below
from node_testbed import Node, names_in
from test_gpu_jobs import JOB, noted, seen, watch
from test_whole_node import whole_job

from hami_hpc.contract import constants as c
from hami_hpc.core.history import Minute, pack_minute, place_of
from hami_hpc.errors import NodeError
from hami_hpc.node import agent_file, ended_dirs, usage_spool
from hami_hpc.stages import common, gpu_jobs
from hami_hpc.stages.epilog import epilog

START = 1_790_000_000 * gpu_jobs.NS
MINUTE_NS = gpu_jobs.TWICE_NS
NO_SPACE = "job 7: no space. hami-hpc reconcile will finish this\n"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node.make(tmp_path / "node")
    node.config.write_text(node.config.read_text() + "[agent]\n")
    yield node
    unmount_below(tmp_path)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object) -> None:
        raise NodeError("no space")

    monkeypatch.setattr(usage_spool, "write", fail)
    monkeypatch.setattr(usage_spool, "keep", fail)


def note_at(node: Node, monkeypatch: pytest.MonkeyPatch, time_unix_ns: int, whole: str = "") -> bool:
    monkeypatch.setattr(common, "now_unix_ns", lambda: time_unix_ns)
    return gpu_jobs.note(node.settings, JOB, whole)


@pytest.mark.parametrize(("later_ns", "is_same"), [(0, True), (MINUTE_NS - 1, True), (MINUTE_NS, False)])
def test_a_second_prolog_is_of_the_same_run_for_one_minute(
    node: Node, monkeypatch: pytest.MonkeyPatch, later_ns: int, is_same: bool
) -> None:
    assert note_at(node, monkeypatch, START)
    (node.jobs / "7" / "mark").touch()
    assert note_at(node, monkeypatch, START + later_ns)
    assert (node.jobs / "7" / "mark").exists() == is_same
    assert noted(node).created_unix_ns == START + (0 if is_same else later_ns)


@pytest.mark.parametrize("used", [{"busy_ns": 1, "peak_bytes": 0}, {"busy_ns": 0, "peak_bytes": 1}])
def test_a_run_whose_programs_used_a_gpu_and_have_ended_is_over(
    node: Node, monkeypatch: pytest.MonkeyPatch, used: dict[str, int]
) -> None:
    note_at(node, monkeypatch, START)
    watch(node, seen(noted(node), **used))
    note_at(node, monkeypatch, START + gpu_jobs.NS)
    assert noted(node).created_unix_ns == START + gpu_jobs.NS
    assert node.record()["start_unix_ns"] == START


def test_a_prolog_that_runs_twice_says_nothing_and_keeps_the_directory(node: Node) -> None:
    for environment in (JOB, whole_job(8)):
        directory = node.jobs / environment["SLURM_JOB_ID"]
        assert node.run("prolog", environment) == (0, "")
        (directory / "mark").touch()
        assert node.run("prolog", environment) == (0, "")
        assert (directory / "mark").exists()


def test_a_job_that_holds_the_whole_node_now_gets_its_mark(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    note_at(node, monkeypatch, START)
    assert note_at(node, monkeypatch, START + 1, "no limits")
    assert (node.jobs / "7" / c.FILE_WHOLE).read_text() == "no limits\n"
    assert note_at(node, monkeypatch, START + 2)
    assert names_in(node.jobs / "7") == [c.FILE_GPUS, c.FILE_HISTORY]


def test_a_whole_node_whose_gpus_cannot_be_noted_is_marked_all_the_same(node: Node) -> None:
    assert node.run("prolog", whole_job(7, SLURM_JOB_GPUS="0-1023") | {c.ENV_CORES: "100"}) == (0, "")
    assert names_in(node.jobs / "7") == [c.FILE_WHOLE]


def test_the_record_names_the_cluster(node: Node) -> None:
    node.run("prolog", JOB)
    watch(node, seen(noted(node)))
    assert node.run("epilog", JOB | {"SLURM_CLUSTER_NAME": "Alpha"}) == (0, "")
    assert node.record()["cluster"] == "alpha"


@pytest.mark.parametrize("is_full", [False, True])
def test_an_epilog_that_runs_again_after_its_record_was_written_writes_no_second_one(node: Node, is_full: bool) -> None:
    node.run("prolog", JOB)
    job = noted(node)
    watch(node, seen(job, energy_mj=1))
    if is_full:
        Path(node.settings.state_dir).write_text("")  # the record waits in the run directory
    shutil.copytree(node.jobs / "7", node.root / "copy")
    node.epilog(7)
    shutil.copytree(node.root / "copy", node.jobs / "7")  # killed before it removed the directory
    watch(node, seen(job, energy_mj=2))
    node.run("epilog", JOB)
    if is_full:
        Path(node.settings.state_dir).unlink()
    node.run("epilog", JOB | {"SLURM_JOB_ID": "8"})
    assert node.spooled() == ["7.json"]
    assert node.record()["observed_energy_mj"] == 1
    assert node.names() == []


def test_the_record_has_the_history_of_its_own_run(node: Node) -> None:
    node.run("prolog", JOB)
    watch(node, seen(noted(node)))
    with (node.jobs / "7" / c.FILE_HISTORY).open("r+b") as file:
        file.seek(place_of(0))
        file.write(pack_minute(Minute(0, 5, 6)))
    node.run("epilog", JOB)
    assert node.record()["history"] == "0:5,6"


def test_an_epilog_that_can_write_its_record_nowhere_says_who_will(
    node: Node, full_disk: None, capsys: pytest.CaptureFixture[str]
) -> None:
    node.run("prolog", JOB)
    watch(node, seen(noted(node)))
    epilog(node.settings, 7, had_vgpu=False)
    assert capsys.readouterr().err == f"{c.ERROR_PREFIX}epilog: {NO_SPACE}"


def test_a_prolog_that_can_write_the_record_of_the_run_before_nowhere_says_who_will(
    node: Node, full_disk: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    note_at(node, monkeypatch, START)
    watch(node, seen(noted(node)))
    note_at(node, monkeypatch, START + MINUTE_NS)
    assert capsys.readouterr().err == f"{c.ERROR_PREFIX}prolog: {NO_SPACE}"


@pytest.mark.parametrize("can_rename", [True, False])
def test_a_bug_in_the_end_of_a_run_is_reported_with_the_directory_that_waits(
    node: Node, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], can_rename: bool
) -> None:
    node.run("prolog", JOB)

    def fail(*_arguments: object) -> None:
        raise ZeroDivisionError("x")

    def read_only(*_arguments: object) -> str:
        raise NodeError("read-only")

    monkeypatch.setattr(agent_file, "read_gpu_job", fail)
    if not can_rename:
        monkeypatch.setattr(ended_dirs, "set_bad", read_only)
    epilog(node.settings, 7, had_vgpu=False)
    reported = capsys.readouterr().err
    if can_rename:
        assert reported.startswith(f"{c.ERROR_PREFIX}epilog: job 7: unexpected ZeroDivisionError: x (")
        assert reported.endswith(f"; its run directory is now {node.names()[0]}\n")
    else:
        assert reported == f"{c.ERROR_PREFIX}epilog: job 7: read-only\n"
