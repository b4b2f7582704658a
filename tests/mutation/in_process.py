# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin for `make mutate`: prolog and epilog run inside of pytest, where mutmut can change them.

A test that needs several of them at once, or another library path, is skipped: it would run the program unchanged.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final
from unittest import mock

import pytest
from hypothesis import settings
from mutmut.mutation import trampoline
from mutmut.state import state
from mutmut.workers.isolation import ForkRunner, MutantResult


class _CallStack(threading.local):
    """Stands for mutmut's ContextVar of who calls whom, whose values Python 3.11 frees too early beside threads."""

    here: tuple[str | None, int] = (None, 0)

    def get(self) -> tuple[str | None, int]:
        return self.here

    def set(self, value: tuple[str | None, int]) -> tuple[str | None, int]:
        before, self.here = self.here, value
        return before

    def reset(self, before: tuple[str | None, int]) -> None:
        self.here = before


def wait_for_result(runner: ForkRunner, timeout: float | None = None) -> MutantResult:
    """As mutmut's, which takes any child that ends for one of its workers: a test may leave others behind."""
    wait = os.wait

    def wait_for_worker() -> tuple[int, int]:
        while True:
            pid, status = wait()
            if pid in runner._running:
                return pid, status

    with mock.patch.object(os, "wait", wait_for_worker):
        return WAIT_FOR_RESULT(runner, timeout)


vars(trampoline)["MutmutCallStack"] = _CallStack()
WAIT_FOR_RESULT: Final = ForkRunner.wait_for_result
mock.patch.object(ForkRunner, "wait_for_result", wait_for_result).start()
settings.register_profile("mutation", derandomize=True, database=None, deadline=None, max_examples=30)
settings.load_profile("mutation")
sys.path[:0] = [str(Path(__file__).resolve().parents[1] / folder) for folder in ("unit", "cluster")]

import mig_testbed  # noqa: E402  these lie in tests/unit
import node_testbed  # noqa: E402

from hami_hpc.stages import epilog, prolog  # noqa: E402  after the profile

# They read the program's text or a document, start it unchanged, or need what `make build` makes.
NOT_HERE: Final = (
    "test_vectors_hold_every_error_that_the_grammar_can_raise",
    "test_gpus_come_from_nvml_once_and_then_from_the_ledger",
    "test_reconcile_is_the_same_command_under_python_m",
    "test_many_who_prepare_at_once_mount_once",
    "test_a_process_that_may_not_mount_knows_it",
    "test_a_whole_run_has_all_of_roots_times_in_order",  # a stage begins when its process does
    "test_a_core_module_imports_nothing_that_reads_the_world",
    "test_the_program_is_a_stage",
    # They stop a stage at each of its lines, which takes minutes, or start it as a program.
    "test_a_prolog_killed_between_any_two_writes_is_made_good",
    "test_after_a_prolog_killed_at_any_line_the_neighbours_are_told",
    "test_after_an_epilog_killed_at_any_line_the_neighbours_are_told",
    "test_a_prolog_killed_at_any_line_leaves_nothing_behind",
    "test_an_epilog_killed_at_any_line_leaves_nothing_behind",
)
# Files whose tests start programs, which run unchanged here, judge what mutmut does not change, or stop a process at
# each of its lines: they take minutes.
FILES_NOT_HERE: Final = (
    *("test_baseline_command.py", "test_cli_*.py", "test_crash.py", "test_doctor.py", "test_fault_points.py"),
    *("test_gpu_jobs_crash.py",),
    *("test_install.py", "test_ledger_crowd.py", "test_lua_f*.py", "test_metrics*.py", "test_mutation_runs.py"),
    *("test_packages.py", "test_uninstall.py"),
    *("test_mps_crash.py", "test_native_layers.py", "test_qos_command.py", "test_render*.py"),
    *("test_rm_drivers.py", "test_rooms.py", "test_run_directory.py", "test_sim_*.py", "test_slurm_lines.py"),
    *("test_stage_imports.py",),
    # of tests/unit/test_accounting: sources, store, documents and forms; pricing has tests of its own
    *("test_clusters.py", "test_correct.py", "test_documented_commands.py", "test_export_reader.py", "test_inputs.py"),
    *("test_layers.py", "test_oracle.py", "test_pages.py", "test_pdf.py", "test_progress.py", "test_pyslurm.py"),
    *("test_register.py", "test_store.py", "test_undo.py"),
)
MAINS: Final = {"prolog": prolog.main, "epilog": epilog.main}
RUN_CHILD: Final = mig_testbed.MigNode.run


def run(node: node_testbed.Node, stage: str, environment: Mapping[str, str]) -> tuple[int, str]:
    """Exit status and standard error of a stage, as Node.run gives them."""
    if "LD_LIBRARY_PATH" in environment:
        pytest.skip("needs a program of its own")
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), mock.patch.dict(os.environ, environment):
        status = MAINS[stage](node.arguments, environment)
    return status, errors.getvalue()


def start(node: node_testbed.Node, stage: str, environment: Mapping[str, str]) -> None:
    pytest.skip("needs a program of its own")


def run_child(
    bed: mig_testbed.MigNode,
    body: Callable[[], object],
    faults: str = "",
    at_line: int = 0,
    traced: Callable[..., bool] = bool,
) -> object:
    """As MigNode.run. mutmut asks this process which functions a test calls, and the child alone knows those of MIG."""

    def with_calls() -> tuple[object, Exception | None, set[str]]:
        try:
            return body(), None, state()._stats
        except Exception as error:
            error.__cause__ = error.__context__ = None
            return None, error, state()._stats

    answer = RUN_CHILD(bed, with_calls, faults, at_line, traced)
    if isinstance(answer, str):  # KILLED
        return answer
    value, error, called = answer
    state()._stats.update(called)
    if error is not None:
        raise error
    return value


def pytest_configure(config: pytest.Config) -> None:
    """What a stage leaves running when it ends goes on here, where it does not end."""
    config.addinivalue_line("filterwarnings", "ignore:subprocess .* is still running:ResourceWarning")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    return True if any(map(collection_path.match, FILES_NOT_HERE)) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves out the tests that would judge another program, and puts the quick ones first: those without files."""
    kept = [item for item in items if item.name.partition("[")[0] not in NOT_HERE]

    def cost(item: pytest.Item) -> int:
        names = getattr(item, "fixturenames", ())
        return ("tmp_path" in names) + ("node" in names)

    items[:] = sorted(kept, key=cost)


@pytest.fixture(autouse=True)
def stages_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces what starts a program."""
    monkeypatch.setattr(node_testbed.Node, "run", run)
    monkeypatch.setattr(node_testbed.Node, "start", start)
    monkeypatch.setattr(mig_testbed.MigNode, "run", run_child)
