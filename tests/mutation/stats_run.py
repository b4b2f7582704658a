# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin for `make mutate`: a test that fails although nothing was changed is left out, and named.

mutmut runs all tests before it changes anything: once to learn which functions each test calls ("stats"), and once more
as a check. It stops at the first failure of either. Here the test is noted in FAILING and takes part no more, so that a
run gets to its end; mutate.py then prints these tests, and fails. Noted too is what a test left open and Python finds
after the last one: pytest ends with an exception then, and mutmut with it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest

FAILING: Final = "failing.jsonl"  # in mutmut's copy of the tree, where the tests run
RUNS_WITHOUT_CHANGE: Final = ("stats", "")  # of MUTANT_UNDER_TEST, which mutmut sets
OF_A_CHANGE: Final = "__mutmut_"
AFTER_THE_LAST: Final = "after the last test"


def failing(tree: Path) -> dict[str, str]:
    """Returns the tests that failed without a change, each with the first line of why."""
    path = tree / FAILING
    return dict(map(json.loads, path.read_text().splitlines())) if path.exists() else {}


def readable(log: str) -> str:
    """Returns the log of mutmut without its progress, which it writes over one line hundreds of times a second."""
    lines = log.replace("\r", "\n").splitlines()
    return "\n".join(line for line in lines if line.strip() and not line.startswith(tuple("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")))


def is_without_change() -> bool:
    return os.environ.get("MUTANT_UNDER_TEST") in RUNS_WITHOUT_CHANGE


def note(tree: Path, test: str, reason: str) -> None:
    with (tree / FAILING).open("a") as file:
        file.write(json.dumps([test, reason.partition("\n")[0].strip()]) + "\n")


def note_failure(report: pytest.TestReport | pytest.CollectReport, node: pytest.Item | pytest.Collector) -> None:
    """Notes a failure of a run without a change, and has it count as a skip: pytest's -x goes on after that."""
    if report.failed and is_without_change():
        crash = getattr(report.longrepr, "reprcrash", None)
        reason = crash.message if crash else report.longreprtext.rstrip().rpartition("\n")[2]
        note(node.config.rootpath, node.nodeid, reason)
        report.outcome = "skipped"
        report.longrepr = (str(node.path), 0, "fails without a change")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    note_failure(report, item)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    note_failure(report, collector)
    return report


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what failed."""
    left_out = failing(config.rootpath)
    items[:] = [item for item in items if item.nodeid not in left_out]


@pytest.hookimpl(wrapper=True)
def pytest_unconfigure(config: pytest.Config) -> Generator[None, object, object]:
    """Keeps from mutmut what pytest finds at its very end: warnings of what tests left open, which are errors here."""
    try:
        return (yield)
    except Exception as error:
        if is_without_change():
            note(config.rootpath, AFTER_THE_LAST, str(error))
        elif OF_A_CHANGE in os.environ.get("MUTANT_UNDER_TEST", ""):
            os._exit(pytest.ExitCode.TESTS_FAILED)  # it is noticed; an exception would go on in code of mutmut
        return None
