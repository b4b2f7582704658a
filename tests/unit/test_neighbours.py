# SPDX-License-Identifier: Apache-2.0
"""Jobs are told who is on their GPU: in their records, in place, whatever else happens there."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
import test_crash
from node_testbed import GPU_MIB, UID, Node, job_environment
from test_crash import all_calls, all_lines

from hami_hpc.contract import constants as c
from hami_hpc.node import admin_log, neighbours
from hami_hpc.stages import common
from hami_hpc.stages.epilog import epilog
from hami_hpc.stages.prolog import prolog
from hami_hpc.stages.reconcile import reconcile

LC, FIRST, SECOND, ELSEWHERE = 7, 8, 9, 10
ALONE = (0, 0, 0, 0)
killer = test_crash.killer
BESIDE_LC = {LC: (0, 0, 0, 20), FIRST: (1, 0, 600, 20), SECOND: (1, 600, 400, 20), ELSEWHERE: ALONE}
WITHOUT_LC = {FIRST: (0, 0, 600, 20), SECOND: (0, 600, 400, 30), ELSEWHERE: ALONE}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node.make(tmp_path / "node")


UNBOUNDED = "usage files are not bounded"  # where nothing can be mounted; not of neighbours


@pytest.fixture
def syslog(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(
        admin_log, "to_syslog", lambda _level, line: lines.append(line) if UNBOUNDED not in line else None
    )
    monkeypatch.setattr("hami_hpc.node.job_dirs.mounts.obstacle", lambda: None)
    return lines


def environment(job_id: int) -> dict[str, str]:
    """Jobs FIRST and SECOND are best effort on the first GPU, LC is latency-critical there, ELSEWHERE on the other."""
    given = {
        LC: {c.ENV_CLASS: "lc", c.ENV_CORES: "20"},
        FIRST: {c.ENV_CLASS: "be", c.ENV_CORES: "30"},
        SECOND: {c.ENV_CLASS: "be", c.ENV_CORES: "20"},
        ELSEWHERE: {c.ENV_CLASS: "be", "gpu": "1"},
    }[job_id]
    return job_environment(job_id, 1024, **given)


def start(node: Node, *job_ids: int) -> None:
    for job_id in job_ids:
        prolog(node.settings, environment(job_id))


def path_of(node: Node, job_id: int) -> Path:
    return node.jobs / str(job_id) / c.FILE_JOB_LIMITS


def number(node: Node, job_id: int, name: str) -> int:
    offset, width, _ = c.LIMITS_FIELDS[name]
    return int.from_bytes(path_of(node, job_id).read_bytes()[offset : offset + width], "little")


def write_number(node: Node, job_id: int, name: str, value: int) -> None:
    offset, width, _ = c.LIMITS_FIELDS[name]
    data = bytearray(path_of(node, job_id).read_bytes())
    data[offset : offset + width] = value.to_bytes(width, "little")
    path_of(node, job_id).write_bytes(data)


def told(node: Node, *job_ids: int) -> dict[int, tuple[int, ...]]:
    """Returns what the records say, each stable; of all jobs that have one unless some are named."""
    fields = ("latency_others", "turn_begin_permille", "turn_length_permille", "others_least_cores")
    found = job_ids or tuple(int(name) for name in node.names() if name.isdigit() and path_of(node, int(name)).exists())
    assert [job_id for job_id in found if number(node, job_id, "sequence") % 2] == [], "changed and never finished"
    return {job_id: tuple(number(node, job_id, name) for name in fields) for job_id in found}


def test_best_effort_jobs_take_turns_while_a_latency_critical_one_is_on_their_gpu(node: Node) -> None:
    start(node, FIRST, SECOND, ELSEWHERE)
    assert told(node) == WITHOUT_LC
    inodes = [path_of(node, job_id).stat().st_ino for job_id in (FIRST, SECOND)]
    before = path_of(node, FIRST).read_bytes()
    start(node, LC)
    assert told(node) == BESIDE_LC
    assert (number(node, LC, "latency"), number(node, LC, "floor_percent")) == (1, 5)
    assert (number(node, FIRST, "latency"), number(node, FIRST, "floor_percent")) == (0, 0)
    assert node.epilog(LC) == 0
    assert told(node) == WITHOUT_LC
    assert inodes == [path_of(node, job_id).stat().st_ino for job_id in (FIRST, SECOND)], "changed in place"
    assert number(node, FIRST, "sequence") == 6, "three changes"
    write_number(node, FIRST, "sequence", 2)
    assert path_of(node, FIRST).read_bytes() == before, "and nothing else was changed"


def test_a_job_that_comes_beside_a_latency_critical_one_knows_it_when_its_prolog_ends(node: Node) -> None:
    start(node, LC, FIRST)
    assert told(node) == {LC: (0, 0, 0, 30), FIRST: (1, 0, 0, 20)}, "alone beside it, and always open"
    start(node, SECOND, ELSEWHERE)
    assert told(node) == BESIDE_LC
    assert node.epilog(FIRST) == 0
    assert told(node) == {LC: (0, 0, 0, 20), SECOND: (1, 0, 0, 20), ELSEWHERE: ALONE}


def test_a_prolog_that_runs_again_changes_no_record(node: Node) -> None:
    start(node, LC, FIRST, SECOND)
    before = {job_id: path_of(node, job_id).read_bytes() for job_id in (LC, FIRST, SECOND)}
    start(node, LC, FIRST, SECOND)
    assert before == {job_id: path_of(node, job_id).read_bytes() for job_id in (LC, FIRST, SECOND)}


def test_latency_critical_jobs_are_told_how_many_come_before_them_as_jobs_come_and_go(node: Node) -> None:
    node.config.write_text(node.config.read_text() + "[classes.urgent]\nlatency = true\npriority = 900\n")
    slow, fast, urgent, elsewhere = 21, 22, 23, 24
    given = {
        slow: {c.ENV_CLASS: "lc"},
        fast: {c.ENV_CLASS: "lc", c.ENV_SLO_US: "10000"},
        urgent: {c.ENV_CLASS: "urgent"},
        elsewhere: {c.ENV_CLASS: "lc", "gpu": "1"},
    }

    def above() -> dict[int, int]:
        live = [job_id for job_id in (FIRST, *given) if job_id in node.grants()]
        return {job_id: number(node, job_id, "latency_above") for job_id in live}

    def come(job_id: int) -> None:
        prolog(node.settings, job_environment(job_id, 1024, **{c.ENV_CORES: "10", **given[job_id]}))

    start(node, FIRST)
    come(slow)
    come(elsewhere)
    assert above() == {FIRST: 0, slow: 0, elsewhere: 0}
    come(fast)
    assert above() == {FIRST: 0, slow: 1, fast: 0, elsewhere: 0}
    come(urgent)
    assert above() == {FIRST: 0, slow: 2, fast: 1, urgent: 0, elsewhere: 0}
    assert number(node, slow, "latency_others") == number(node, urgent, "latency_others") == 2
    assert node.epilog(urgent) == 0
    assert above() == {FIRST: 0, slow: 1, fast: 0, elsewhere: 0}


def with_jobs(node: Node, *job_ids: int) -> Callable[[], None]:
    def before() -> None:
        node.clear()
        node.enter_gpus()
        start(node, *job_ids)

    return before


def run_another_prolog(node: Node) -> None:
    prolog(node.settings, environment(ELSEWHERE))


def run_reconcile(node: Node) -> None:
    reconcile(node.settings, lambda: frozenset(node.grants()), dry_run=False)


def run_the_epilog(node: Node) -> None:
    assert node.epilog(LC) == 0
    assert LC not in node.grants()


REPAIRS = (run_another_prolog, run_reconcile, run_the_epilog)


def assert_repaired(node: Node, kill: int, point: int) -> None:
    """After the kill-th of the kills, which was at this line or call."""
    repair = REPAIRS[kill % len(REPAIRS)]
    repair(node)
    wanted = BESIDE_LC if LC in node.grants() else WITHOUT_LC
    both = {job_id: wanted[job_id][:3] for job_id in (FIRST, SECOND)}  # job 7's cores are not the same in all tests
    found = {job_id: turn[:3] for job_id, turn in told(node, FIRST, SECOND).items()}
    assert found == both, f"killed at {point}, then {repair.__name__}"


@pytest.mark.own_process
def test_after_a_prolog_killed_at_any_line_the_neighbours_are_told(node: Node) -> None:
    for kill, line in enumerate(
        all_lines(lambda: prolog(node.settings, environment(LC)), with_jobs(node, FIRST, SECOND))
    ):
        assert_repaired(node, kill, line)


@pytest.mark.own_process
def test_after_an_epilog_killed_at_any_line_the_neighbours_are_told(node: Node) -> None:
    jobs = with_jobs(node, FIRST, SECOND, LC)
    for kill, line in enumerate(all_lines(lambda: epilog(node.settings, LC, had_vgpu=True), jobs)):
        assert_repaired(node, kill, line)


def test_a_prolog_killed_between_any_two_writes_is_made_good(node: Node, killer: Path) -> None:
    """Job 7 is the latency-critical one of test_crash's stage too, by the settings here."""
    node.config.write_text(node.config.read_text() + "[classes.std]\nlatency = true\n")
    for kill, call in enumerate(all_calls(node, killer, "prolog", with_jobs(node, FIRST, SECOND))):
        assert_repaired(node, kill, call)


def test_prologs_and_epilogs_at_once_leave_the_records_as_the_ledger_has_them(node: Node) -> None:
    for _round in range(5):
        starting = [node.start("prolog", environment(job_id)) for job_id in (FIRST, LC, SECOND, ELSEWHERE)]
        assert [process.communicate(timeout=60)[1] for process in starting] == [""] * 4
        assert told(node) == BESIDE_LC
        ending = [node.start("epilog", environment(job_id)) for job_id in (LC, ELSEWHERE)]
        assert [process.communicate(timeout=60)[1] for process in ending] == ["", ""]
        assert told(node) == {FIRST: WITHOUT_LC[FIRST], SECOND: WITHOUT_LC[SECOND]}
        for job_id in (FIRST, SECOND):
            assert node.epilog(job_id) == 0


def other_owner(path: Path) -> None:
    os.chown(path, UID, UID)


def link_to(path: Path) -> None:
    real = path.with_name("real")
    path.rename(real)
    path.symlink_to(real)


def linked_directory(path: Path) -> None:
    real = path.parents[1] / "moved"
    path.parent.rename(real)
    path.parent.symlink_to(real)


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


SPOILED: dict[str, Callable[[Path], object]] = {
    "of a user": other_owner,
    "that others can write": lambda path: path.chmod(0o666),
    "behind a link": link_to,
    "in a directory behind a link": linked_directory,
    "that is a FIFO": fifo,
    "too short": lambda path: os.truncate(path, 100),
    "too long": lambda path: os.truncate(path, c.LIMITS_SIZE + 1),
    "empty": lambda path: os.truncate(path, 0),
    "of zeros": lambda path: path.write_bytes(bytes(c.LIMITS_SIZE)),
    "of another job": lambda path: path.write_bytes(path.parents[1].joinpath(f"{SECOND}/job.limits").read_bytes()),
}


@pytest.mark.parametrize("how", SPOILED)
def test_a_record_that_root_did_not_write_is_left_alone_and_named(node: Node, syslog: list[str], how: str) -> None:
    start(node, FIRST, SECOND)
    path = path_of(node, FIRST)
    SPOILED[how](path)
    at_path = path.lstat()
    before = path.read_bytes() if path.is_file() else b""
    start(node, LC)
    assert told(node, LC, SECOND) == {LC: BESIDE_LC[LC], SECOND: BESIDE_LC[SECOND]}
    assert (path.lstat().st_ino, path.lstat().st_mode, path.lstat().st_size) == (
        at_path.st_ino,
        at_path.st_mode,
        at_path.st_size,
    )
    assert (path.read_bytes() if path.is_file() else b"") == before
    assert [line for line in syslog if f"job {FIRST} was left as it is" in line]


def test_a_record_that_is_not_there_is_not_made_and_named_once_it_should_be_there(
    node: Node, syslog: list[str]
) -> None:
    start(node, FIRST, SECOND)
    path_of(node, FIRST).unlink()
    start(node, LC)
    assert not path_of(node, FIRST).exists()
    assert syslog == [], "its prolog may be at work"
    ledger = common.open_ledger(node.settings)
    lines = neighbours.update(node.settings.run_dir, ledger, common.now_unix_ns() + 2 * neighbours.RECORD_DUE_NS)
    ledger.close()
    assert lines == (f"job {FIRST} has a grant and no job.limits: run hami-hpc reconcile",)


def test_a_ledger_that_cannot_be_locked_fails_neither_prolog_nor_epilog(
    node: Node, syslog: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object) -> tuple[str, ...]:
        raise sqlite3.OperationalError("database is locked")

    monkeypatch.setattr(neighbours, "update", fail)
    assert node.prolog(FIRST, mem_mib=GPU_MIB) == 0
    node.assert_job_is_ready(FIRST)
    assert node.epilog(FIRST) == 0
    node.assert_nothing_is_held()
    assert [line.split(":")[0] for line in syslog] == ["prolog", "epilog"]
    assert "database is locked" in syslog[0]
