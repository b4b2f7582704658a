# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin for `make test` (-p all_tiers): a skipped test, or a tier of which nothing ran, fails the run.

It also says how tests are divided between workers (-n 4): two have a private Slurm each and run half of its tests,
which wait most of the time, and two run all others meanwhile, file by file. --no-loadscope-reorder lets the
first two begin with the cluster's.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

REQUIRED = ("unit", "docs", "cluster")  # folders of tests/; the C parts' own tests are run by make before
HERE = Path(__file__).resolve().parent

CLUSTER = "tests/cluster/"
# Files that take half of the cluster tier's time.
FIRST_HALF = frozenset({"test_agent.py", "test_gpu_drain.py", "test_qos.py"})

_passed: Counter[str] = Counter()
_skipped: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        _skipped.append(report.nodeid)
    elif report.when == "call" and report.passed:
        path = (HERE.parent / report.nodeid.partition("::")[0]).resolve()
        _passed[path.relative_to(HERE).parts[0]] += 1


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


class TwoClusters(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives each half of the cluster's tests to one worker, and the others file by file to whichever is free."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        if not path.startswith(CLUSTER):
            return path
        return f"{CLUSTER} {path.rpartition('/')[2] in FIRST_HALF}"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return TwoClusters(config, log)
