# SPDX-License-Identifier: Apache-2.0
"""`make mutate`: what it does with a test that fails although nothing was changed (tests/mutation/stats_run.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[1] / "mutation"
TESTS = """\
def test_first():
    assert "who" == "nobody"

def test_second():
    pass
"""


def run_tests(folder: Path, mutant: str, tests: str = TESTS) -> tuple[int, str]:
    """Exit status and last line of pytest, run as mutmut runs it."""
    (folder / "test_it.py").write_text(tests)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "--rootdir=.", "-p", "stats_run", "-p", "no:cacheprovider"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(TOOLS), "MUTANT_UNDER_TEST": mutant},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout.strip().rpartition("\n")[2]


@pytest.fixture
def stats_run(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.syspath_prepend(str(TOOLS))
    import stats_run

    return stats_run


@pytest.mark.parametrize("mutant", ["stats", ""])
def test_a_test_that_fails_without_a_change_stops_no_run_and_is_named(
    tmp_path: Path, mutant: str, stats_run: object
) -> None:
    status, last = run_tests(tmp_path, mutant)
    assert (status, last.partition(" in ")[0]) == (0, "1 passed, 1 skipped")
    failing = stats_run.failing(tmp_path)  # type: ignore[attr-defined]
    assert list(failing) == ["test_it.py::test_first"]
    assert "AssertionError" in failing["test_it.py::test_first"]


def test_it_notices_no_change_afterwards(tmp_path: Path) -> None:
    assert run_tests(tmp_path, "module.x_function__mutmut_1")[0] == 1
    run_tests(tmp_path, "stats")
    status, last = run_tests(tmp_path, "module.x_function__mutmut_1")
    assert (status, last.partition(" in ")[0]) == (0, "1 passed")


def test_a_file_of_tests_that_cannot_be_read_stops_no_run_and_is_named(tmp_path: Path, stats_run: object) -> None:
    (tmp_path / "test_bad.py").write_text("import nothing_of_that_name\n")
    (tmp_path / "test_good.py").write_text("def test_good():\n    pass\n")
    assert run_tests(tmp_path, "stats")[0] == 0
    failing = stats_run.failing(tmp_path)  # type: ignore[attr-defined]
    assert sorted(failing) == ["test_bad.py", "test_it.py::test_first"]
    assert "nothing_of_that_name" in failing["test_bad.py"]


LEAVES_A_FILE_OPEN = """\
def test_that_leaves_a_file_open():
    class Holder:
        pass
    holder = Holder()
    holder.itself = holder  # until Python looks for cycles
    holder.file = open(__file__)
"""


def test_what_is_found_open_after_the_last_test_stops_no_run_and_is_named(tmp_path: Path, stats_run: object) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    assert run_tests(tmp_path, "stats", LEAVES_A_FILE_OPEN)[0] == 0
    ((where, what),) = stats_run.failing(tmp_path).items()  # type: ignore[attr-defined]
    assert where == "after the last test"
    assert f"name='{tmp_path}/test_it.py'" in what
    assert run_tests(tmp_path, "fail", LEAVES_A_FILE_OPEN)[0] == 0
    assert run_tests(tmp_path, "module.x_function__mutmut_1", LEAVES_A_FILE_OPEN)[0] == 1


def test_what_mutmut_says_is_shown_without_its_progress(stats_run: object) -> None:
    log = "\r⠋ Running stats\r⠙ Running stats\n\nFAILED: Unable to force test failures\n"
    assert stats_run.readable(log) == "FAILED: Unable to force test failures"  # type: ignore[attr-defined]
