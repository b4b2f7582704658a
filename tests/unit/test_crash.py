# SPDX-License-Identifier: Apache-2.0
"""Prolog and epilog killed at every line and before every call that changes a file: what comes after finds its way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fault_beds import quick
from forked import TURNS, fork, killing, points
from node_testbed import GPU_MIB, ROOT, Node, job_environment

from hami_hpc.core.reconcile_plan import LEFTOVER_AGE_S
from hami_hpc.stages.epilog import epilog
from hami_hpc.stages.prolog import prolog
from hami_hpc.stages.reconcile import Result, reconcile

JOB = 7
TRACED = tuple(
    f"hami_hpc/{name}.py"
    for name in (
        "isolation/share",
        "node/ledger",
        "node/locks",
        "node/mounts",
        "node/job_dirs",
        "node/history_file",
        "node/gpu_jobs",
        "node/neighbours",
        "node/usage_spool",
        "stages/prolog",
        "stages/epilog",
        "stages/gpu_jobs",
    )
)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node.make(tmp_path / "node")


def start_over(node: Node) -> None:
    """The node as before any job, its GPUs known."""
    node.clear()
    with quick():
        node.enter_gpus()


def run_and_kill(body: Callable[[], None], at_line: int, turns: int = TURNS) -> bool:
    """Runs `body` in a child that is killed (SIGKILL) when it reaches its `at_line`-th line of the traced modules.

    Returns whether it was killed, False when it ended before. AssertionError when it failed otherwise.
    """
    child = fork()
    if child == 0:
        status = 1
        try:
            sys.settrace(killing(at_line, lambda code: code.co_filename.endswith(TRACED), turns))
            body()
            sys.settrace(None)
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), f"line {at_line}: status {status}"
    return status == signal.SIGKILL


def all_lines(body: Callable[[], None], before: Callable[[], None], turns: int = TURNS) -> Iterator[int]:
    """Kills `body` at the lines of points() until it ends by itself; yields after each kill. `before` precedes each."""
    for line in points():
        before()
        if not run_and_kill(body, line, turns):
            break
        yield line
    assert line > 50, "hardly any line was traced"


def age_leftovers(node: Node) -> None:
    """Makes half-made directories as old as a crash of the day before leaves them."""
    for name in node.names():
        if name.startswith("."):
            long_ago = (node.jobs / name).stat().st_mtime - 2 * LEFTOVER_AGE_S
            os.utime(node.jobs / name, (long_ago, long_ago))


def squared(node: Node, *running: int) -> tuple[Result, ...]:
    age_leftovers(node)
    return reconcile(node.settings, lambda: frozenset(running), dry_run=False)


def assert_prolog_recovers(node: Node) -> None:
    assert node.prolog(JOB) == 0
    node.assert_job_is_ready(JOB)
    assert node.prolog(JOB + 1, mem_mib=GPU_MIB - 8192) == 0, "the rest of the GPU is still to be had"


def assert_epilog_recovers(node: Node) -> None:
    assert node.epilog(JOB) == 0
    assert node.grants() == {}
    assert str(JOB) not in node.names()
    assert node.prolog(JOB + 1, mem_mib=GPU_MIB) == 0, "all of the GPU is to be had again"


def assert_reconcile_recovers(node: Node) -> None:
    assert [result.error for result in squared(node) if result.error] == []
    node.assert_nothing_is_held()
    assert node.prolog(JOB + 1, mem_mib=GPU_MIB) == 0, "all of the GPU is to be had again"


def assert_reconcile_keeps_a_running_job(node: Node) -> None:
    had_row = JOB in node.grants()
    squared(node, JOB)
    if had_row:
        node.assert_job_is_ready(JOB)


# One for each kill, in turn: lines outnumber states, and test_fault_points.py has all of them after each side effect.
AFTER_PROLOG = (
    assert_prolog_recovers,
    assert_epilog_recovers,
    assert_reconcile_recovers,
    assert_reconcile_keeps_a_running_job,
)
AFTER_EPILOG = (assert_epilog_recovers, assert_reconcile_recovers)


@pytest.mark.own_process
def test_a_prolog_killed_at_any_line_is_made_good(node: Node) -> None:
    settings = node.settings
    for kill, line in enumerate(all_lines(lambda: prolog(settings, job_environment(JOB)), lambda: start_over(node))):
        if str(JOB) in node.names():
            assert JOB in node.grants(), f"killed at line {line}: a directory whose memory others could be given"
            node.assert_job_is_ready(JOB)
        AFTER_PROLOG[kill % len(AFTER_PROLOG)](node)


def spooled_peak(node: Node) -> object:
    return json.loads((node.root / "state" / "usage" / f"{JOB}.json").read_text())["peak_bytes"]


def with_used_job(node: Node) -> Callable[[], None]:
    def before() -> None:
        start_over(node)
        assert node.prolog(JOB) == 0
        node.write_usage(JOB, peak_bytes=777)

    return before


@pytest.mark.own_process
def test_an_epilog_killed_at_any_line_is_made_good_and_loses_no_usage(node: Node) -> None:
    settings = node.settings
    for kill, line in enumerate(all_lines(lambda: epilog(settings, JOB, had_vgpu=True), with_used_job(node))):
        AFTER_EPILOG[kill % len(AFTER_EPILOG)](node)
        assert spooled_peak(node) == 777, f"killed at line {line}"
        assert [name for name in node.spooled() if not name.startswith(".")] == [f"{JOB}.json"]


@pytest.fixture(scope="module")
def killer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("killer") / "kill_at_call.so"
    source = Path(__file__).with_name("kill_at_call.c")
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", library, source, "-ldl"], check=True
    )
    return library


def run_stage(node: Node, killer: Path, stage: str, at_call: int) -> int:
    """Runs a stage killed before its `at_call`-th file-changing call; returns its exit status (-9 when killed)."""
    command = [sys.executable, "-I", "-S", str(ROOT / "prolog" / "stage.py"), stage, *node.arguments]
    given = {"LD_PRELOAD": str(killer), "KILL_AT": str(at_call), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, env=job_environment(JOB) | given, capture_output=True, text=True, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


def all_calls(node: Node, killer: Path, stage: str, before: Callable[[], None]) -> Iterator[int]:
    for call in points():
        before()
        if run_stage(node, killer, stage, call) == 0:
            break
        yield call
    assert call > 10, "hardly any call was counted"


def test_a_prolog_killed_before_any_file_changing_call_is_made_good(node: Node, killer: Path) -> None:
    recoveries = (assert_prolog_recovers, assert_epilog_recovers, assert_reconcile_recovers)
    for assert_recovers in recoveries:
        for _call in all_calls(node, killer, "prolog", lambda: start_over(node)):
            assert_recovers(node)


def test_an_epilog_killed_before_any_file_changing_call_is_made_good(node: Node, killer: Path) -> None:
    for assert_recovers in (assert_epilog_recovers, assert_reconcile_recovers):
        for _call in all_calls(node, killer, "epilog", with_used_job(node)):
            assert_recovers(node)
            assert spooled_peak(node) == 777


def test_a_first_prolog_killed_while_it_makes_the_ledger_is_made_good(node: Node, killer: Path) -> None:
    """The ledger's creation, too, may stop anywhere; the GPUs are entered after it, as the first prolog does."""

    before = node.clear
    before()
    call = 1
    while True:
        folders = (ROOT, ROOT / "tests/unit", ROOT / "tests/cluster")
        command = [sys.executable, "-I", "-S", "-c", ENTER_GPUS, str(node.root), *map(str, folders)]
        given = {"LD_PRELOAD": str(killer), "KILL_AT": str(call)}
        status = subprocess.run(command, env=given, check=False).returncode
        assert status in (0, -signal.SIGKILL)
        if status == 0:
            break
        node.enter_gpus()
        assert node.prolog(JOB) == 0
        node.assert_job_is_ready(JOB)
        before()
        call += 1
    assert call > 5, "hardly any call was counted"


ENTER_GPUS = """
import sys
sys.path[:0] = sys.argv[2:]
from pathlib import Path
from node_testbed import Node
Node(Path(sys.argv[1])).enter_gpus()
"""
