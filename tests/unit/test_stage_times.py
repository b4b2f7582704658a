# SPDX-License-Identifier: Apache-2.0
"""When a job's stages were: notes of prolog, SPANK and the job's processes, and the record that the epilog makes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from forked import fork
from node_testbed import ROOT, UID, Node, job_environment, names_in

from hami_hpc.contract import constants as c
from hami_hpc.node import job_times, stage_times, usage_spool

S = 1_000_000_000
JOBS = ("first_context_unix_ns", "first_launch_unix_ns", "last_use_unix_ns")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node.make(tmp_path / "node")


def times_of(node: Node) -> dict[str, int]:
    record: dict[str, Any] = node.record()
    return {name: value for name, value in record.items() if name.endswith("_unix_ns")}


def test_a_whole_run_has_all_of_roots_times_in_order(node: Node) -> None:
    begun = time.time_ns()
    assert node.run("prolog", job_environment(7)) == (0, "")
    (node.jobs / "7" / c.FILE_FIRST_STEP).write_text(f"{time.time_ns()}\n")
    node.write_usage(7, **dict.fromkeys(JOBS, time.time_ns()))
    time.sleep(0.05)
    assert node.run("epilog", job_environment(7)) == (0, "")
    at = times_of(node)
    done = (node.root / "state" / "usage" / "7.json").stat().st_mtime_ns
    order = [at["prolog_began_unix_ns"], at["start_unix_ns"], at["prolog_done_unix_ns"], at["first_step_unix_ns"]]
    order += [*(at[name] for name in JOBS), at["epilog_began_unix_ns"], at["end_unix_ns"], done]
    assert order == sorted(order)
    assert begun - 200_000_000 < order[0]  # the kernel's ticks and its clock that is slewed
    assert done < time.time_ns()


def test_a_record_says_when_its_epilog_began(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.prolog(7)
    began = time.time_ns() - S
    monkeypatch.setattr(stage_times, "began_unix_ns", lambda: began)
    assert node.epilog(7) == 0
    assert times_of(node)["epilog_began_unix_ns"] == began


@pytest.mark.parametrize("shift", [-(2**62), -60 * S, 3600 * S, 2**63])
def test_what_the_job_says_counts_within_its_run_only(node: Node, shift: int) -> None:
    """A user can write any number there; so can a clock that is set. Neither makes the record damaged."""
    node.prolog(7)
    values = dict.fromkeys(JOBS, max(0, time.time_ns() + shift))
    node.write_usage(7, **values)
    assert node.epilog(7) == 0
    assert {name: times_of(node)[name] for name in JOBS} == dict.fromkeys(JOBS, 0)
    assert node.record()["usage"] == "ok"


@pytest.mark.parametrize(
    "content", [b"", b"12", b"12 13", b"12 x\n", b"-1 5\n", b"1 2 3\n", b"9" * 60 + b" 1\n", b"\xff\n"]
)
def test_a_note_that_is_not_whole_is_none_and_the_next_prolog_writes_it(node: Node, content: bytes) -> None:
    node.prolog(7)
    directory = node.jobs / "7"
    (directory / c.FILE_TIMES).write_bytes(content)
    (directory / c.FILE_FIRST_STEP).write_bytes(content)
    assert tuple(stage_times.read_times(str(directory))) == (0, 0, 0, 0)
    node.prolog(7)
    times = stage_times.read_times(str(directory))
    assert 0 < times.prolog_began_unix_ns <= times.prolog_done_unix_ns
    node.prolog(7)
    assert stage_times.read_times(str(directory)) == times, "the first whole note stays"
    assert (directory / c.FILE_TIMES).stat().st_mode & 0o777 == 0o644


def test_nothing_fails_where_the_notes_cannot_be_written_or_read(node: Node) -> None:
    node.prolog(7)
    directory = node.jobs / "7"
    (directory / c.FILE_TIMES).unlink()
    (directory / c.FILE_TIMES).mkdir()  # as a disk that is full: it cannot be opened
    (directory / c.FILE_FIRST_STEP).symlink_to("/etc/hostname")
    assert node.prolog(7) == 0
    (directory / c.FILE_TIMES).rmdir()
    (directory / c.FILE_TIMES).write_text("1 2\n")
    os.chown(directory / c.FILE_TIMES, UID, -1)  # nobody but root can make one; if somebody did, it is not believed
    assert node.epilog(7) == 0
    at = times_of(node)
    assert (at["prolog_began_unix_ns"], at["prolog_done_unix_ns"], at["first_step_unix_ns"]) == (0, 0, 0)


def test_a_process_began_when_the_kernel_started_it() -> None:
    code = "import sys, time; sys.path.append(sys.argv[1]); time.sleep(0.3)\n"
    code += "from hami_hpc.node import stage_times; print(stage_times.began_unix_ns(), time.time_ns())"
    before = time.time_ns()
    done = subprocess.run([sys.executable, "-c", code, str(ROOT)], capture_output=True, text=True, check=True)
    began, later = map(int, done.stdout.split())
    assert before - 60_000_000 <= began <= later - 290_000_000


def test_without_proc_a_stage_began_now(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr("builtins.open", refuse)
    before = time.time_ns()
    assert before <= stage_times.began_unix_ns() <= time.time_ns()


def read_as(uid: int, path: Path) -> bool:
    child = fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            os._exit(0 if path.read_text() else 1)
        except OSError:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_record_can_be_read_by_its_user_and_by_no_other(tmp_path: Path) -> None:
    state = tmp_path / "state"
    for folder in (tmp_path, *tmp_path.parents):
        if folder == Path(tempfile.gettempdir()):
            break
        folder.chmod(0o755)
    path = Path(usage_spool.write(str(state), 7, 1, f'{{"job_id":7,"uid":{UID},"start_unix_ns":1}}'))
    status = path.stat()
    assert (status.st_uid, status.st_mode & 0o777) == (0, 0o640)
    if "system.posix_acl_access" in os.listxattr(path):
        assert read_as(UID, path)
    assert not read_as(UID - 1, path)
    assert not os.access(path, os.X_OK)
    for odd in ("{}", '{"uid":-1}', '{"uid":99999999999}', '{"uid":"x"}', "no JSON"):
        usage_spool.write(str(state), 8, len(odd), odd)
    assert not [name for name in names_in(state / "usage") if name.startswith(".")]


def test_a_record_is_traced_from_the_spool_and_where_it_waits(node: Node) -> None:
    settings = node.settings
    node.run("prolog", job_environment(7))
    runs, hidden = job_times.read_node_runs(settings.run_dir, settings.state_dir, 7, time.time_ns())
    assert [(run.is_running, run.uid) for run in runs] == [(True, UID)]
    assert (hidden, set(runs[0].unix_ns)) == ("", {"prolog_began", "prolog_done"})
    assert runs[0].reasons["epilog_done"] == "the job has not ended"
    node.run("epilog", job_environment(7))
    runs, _ = job_times.read_node_runs(settings.run_dir, settings.state_dir, 7, time.time_ns())
    assert [run.is_running for run in runs] == [False]
    assert set(runs[0].unix_ns) == {"prolog_began", "prolog_done", "epilog_began", "epilog_done"}
    node.run("prolog", job_environment(7))  # requeued
    spool = node.root / "state" / "usage"
    spool.rename(node.root / "kept")
    spool.write_text("no directory")
    node.run("epilog", job_environment(7))
    spool.unlink()
    (node.root / "kept").rename(spool)
    (waiting,) = (node.root / "run" / "spool").iterdir()
    written_ns = waiting.stat().st_mtime_ns
    time.sleep(0.02)
    assert usage_spool.deliver(settings.run_dir, settings.state_dir) == 1
    assert (spool / waiting.name).stat().st_mtime_ns == written_ns, "when its epilog was, not when it was moved"
    runs, _ = job_times.read_node_runs(settings.run_dir, settings.state_dir, 7, time.time_ns())
    assert [run.is_running for run in runs] == [False, False]
    assert runs[0].start_unix_ns < runs[1].start_unix_ns


def test_a_record_that_is_none_is_no_run(node: Node) -> None:
    settings = node.settings
    spool = node.root / "state" / "usage"
    spool.mkdir(parents=True)
    for name, text in (("7.json", "{"), ("7-1.json", '{"job_id": 8}'), ("7-2.json", "[" * 9000), ("77.json", "{}")):
        (spool / name).write_text(text)
    runs, hidden = job_times.read_node_runs(settings.run_dir, settings.state_dir, 7, time.time_ns())
    assert runs == []
    assert hidden.endswith("is no usage record")
    good = f'{{"job_id": 7, "uid": {UID}, "start_unix_ns": 5, "end_unix_ns": 9, "first_step_unix_ns": "x"}}'
    (spool / "7-5.json").write_text(good)
    (run,), _ = job_times.read_node_runs(settings.run_dir, settings.state_dir, 7, time.time_ns())
    assert (run.start_unix_ns, dict(run.unix_ns)) == (5, {})
