# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin for `make test` (-p all_tiers): a skipped test, or a tier of which nothing ran, fails the run.

Of tests with many variants in SAMPLED each commit runs a third of the variants, another one maybe the others; `make
test-all-points` runs all.

It also says how tests are divided between workers (-n 7), file by file: CLUSTERS of them have a private Slurm each and
take the cluster's tests, which wait most of the time, and the rest all others meanwhile.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import commit
import pytest
from xdist.scheduler import LoadScopeScheduling

REQUIRED = ("unit", "docs", "cluster")  # folders of tests/; the C parts' own tests are run by make before
HERE = Path(__file__).resolve().parent

CLUSTERS = 4
CLUSTER = "tests/cluster/"
LONG = (  # a minute and more each, so they begin: a long file that begins last leaves the other workers idle
    *(f"{CLUSTER}{name}.py" for name in ("test_qos", "test_oversold", "test_several_slices", "test_several_nodes")),
    *(f"tests/unit/{name}.py" for name in ("test_fault_points", "test_neighbours", "test_crash")),
    *("tests/unit/test_accounting/test_oracle.py", "tests/native/test_time_model.py", "tests/unit/test_lua_fuzz.py"),
    *("tests/native/test_time_study.py", "tests/unit/test_gpu_jobs_crash.py", "tests/unit/test_install.py"),
    *("tests/unit/test_mig_crash.py", "tests/unit/test_accounting/test_privacy.py", "tests/unit/test_lua_filters.py"),
    *("tests/unit/test_turns_killed.py", "tests/unit/test_turns_interleaved.py", "tests/unit/test_mps_crash.py"),
    *(f"tests/unit/test_{name}.py" for name in ("uninstall", "packages", "wheel", "matrix")),
    *("tests/native/slurm/test_slurm_plugins.py", "tests/native/test_keeper.py", "tests/native/test_suspend_watch.py"),
)

SAMPLED = (  # by how much time they take; 4 variants of a test, and more, are many
    *(f"native/test_swap{name}.py" for name in ("", "_checked", "_disk", "_ends", "_fabric", "_file", "_host")),
    *(f"native/test_swap_{name}.py" for name in ("pools", "refused", "sizes")),
    *(f"native/test_{name}.py" for name in ("parts_forged", "shared_budget", "slice", "slice_latency")),
    *(f"native/test_{name}.py" for name in ("slices_in_step", "time_model")),
    *(f"unit/test_{name}.py" for name in ("doctor", "lua_filters", "mig_crash", "mig_static", "turns_interleaved")),
    *(f"unit/test_accounting/test_{name}.py" for name in ("distinct_tres", "hierarchy", "inputs", "many_accounts")),
    *(f"unit/test_accounting/test_{name}.py" for name in ("efficiency", "kept_labels", "off_gpu", "pages")),
    "unit/test_metrics_alerts.py",
)
MANY = 4
PARTS = 3

_passed: Counter[str] = Counter()
_skipped: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        _skipped.append(report.nodeid)
    elif report.when == "call" and report.passed:
        path = (HERE.parent / report.nodeid.partition("::")[0]).resolve()
        _passed[path.relative_to(HERE).parts[0]] += 1


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    files = {HERE / name for name in SAMPLED}
    variants: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.path in files:
            variants.setdefault(item.nodeid.partition("[")[0], []).append(item)
    many = [of_one for of_one in variants.values() if len(of_one) >= MANY]
    runs = commit.number() % PARTS
    left_out = {id(item) for of_one in many for i, item in enumerate(of_one) if i % PARTS != runs}
    config.hook.pytest_deselected(items=[item for item in items if id(item) in left_out])
    items[:] = [item for item in items if id(item) not in left_out]


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput"):
        return  # one of several workers, which has seen a part of the tests
    missing = [tier for tier in REQUIRED if not _passed[tier] and not session.config.option.collectonly]
    if (missing or _skipped) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for tier in REQUIRED:
        if not _passed[tier] and not config.option.collectonly:
            terminalreporter.write_line(f"FAILED: no test of tests/{tier} has passed, and make test needs that tier")
    for nodeid in _skipped:
        terminalreporter.write_line(f"FAILED: {nodeid} was skipped, and make test allows no skips")


class SomeClusters(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives each worker that is free the next file: the first CLUSTERS of them the cluster's as long as there are any,
    the others all but those."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.partition("::")[0]

    def _next_file(self, node: Any) -> str | None:
        has_cluster = self.nodes.index(node) < CLUSTERS
        ours = [path for path in self.workqueue if path.startswith(CLUSTER) == has_cluster]
        if not ours and has_cluster:
            return min(self.workqueue, key=_rank, default=None)
        return min(ours, key=_rank, default=None)

    def _assign_work_unit(self, node: Any) -> None:
        path = self._next_file(node)
        if path is not None:
            self.workqueue.move_to_end(path, last=False)
            super()._assign_work_unit(node)

    def _reschedule(self, node: Any) -> None:
        if not node.shutting_down and self._next_file(node) is None:
            node.shutdown()
        else:
            super()._reschedule(node)


def _rank(path: str) -> int:
    return LONG.index(path) if path in LONG else len(LONG)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return SomeClusters(config, log)
