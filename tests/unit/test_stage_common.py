# SPDX-License-Identifier: Apache-2.0
"""What prolog and epilog share: their arguments, and how a failure reaches the administrator."""

from __future__ import annotations

import time

import pytest

from hami_hpc.contract import constants as c
from hami_hpc.errors import JobError, NodeError
from hami_hpc.node import admin_log, drain
from hami_hpc.stages import common


@pytest.fixture
def syslog(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """The lines that reach syslog, with their levels."""
    lines: list[tuple[int, str]] = []
    monkeypatch.setattr(admin_log, "to_syslog", lambda level, line: lines.append((level, line)))
    return lines


def test_the_only_option_is_an_absolute_path_of_the_settings() -> None:
    assert common.parse_arguments([]) == c.FILE_CONFIG
    assert common.parse_arguments(["--config", "/a"]) == "/a"
    for wrong in (["--config"], ["--config", "a"], ["--other", "/a"], ["--config", "/a", "b"], ["/a"], ["a", "/b"]):
        with pytest.raises(NodeError) as caught:
            common.parse_arguments(wrong)
        assert str(caught.value) == f"arguments {wrong!r} are not valid; allowed is --config /absolute/path"


def test_a_line_for_the_administrator_goes_to_standard_error_and_to_syslog(
    syslog: list[tuple[int, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    line = f"{c.ERROR_PREFIX}epilog: no"
    assert common.report("epilog", "no") == line
    assert tuple(capsys.readouterr()) == ("", f"{line}\n")
    assert syslog == [(admin_log.ERROR, "epilog: no")]


@pytest.mark.parametrize(
    ("error", "job", "text"),
    [
        (NodeError("no"), {"SLURM_JOB_ID": "7"}, "no"),
        (JobError("no"), {"SLURM_JOB_ID": "7"}, "job 7: unexpected JobError: no ("),
        (OverflowError("no"), {}, "job ?: unexpected OverflowError: no ("),
    ],
)
def test_a_stage_that_fails_drains_the_node_with_the_line_that_it_reports(
    error: Exception,
    job: dict[str, str],
    text: str,
    syslog: list[tuple[int, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drained: list[tuple[object, str]] = []
    monkeypatch.setattr(drain, "drain_node", lambda environment, line: drained.append((environment, line)))

    def fails() -> None:
        raise error

    assert common.run("prolog", (), job, fails) == 1
    ((environment, line),) = drained
    assert environment == job
    assert line.startswith(f"{c.ERROR_PREFIX}prolog: {text}")
    assert [told for _, told in syslog] == [line.removeprefix(c.ERROR_PREFIX)]
    assert common.run("prolog", (), job, lambda: None) == 0
    assert len(drained) == 1


def test_a_fault_of_our_own_comes_with_its_place() -> None:
    def inner() -> None:
        raise KeyError("x")

    def outer() -> None:
        inner()

    with pytest.raises(KeyError) as caught:
        outer()
    line = inner.__code__.co_firstlineno + 1
    assert common.error_text(caught.value) == (
        f"unexpected KeyError: 'x' ({__file__}:{line}). This is a bug in hami_hpc: please report it. "
        "Then run hami-hpc doctor and hami-hpc reconcile"
    )


def test_now_is_in_nanoseconds() -> None:
    before = time.time_ns()
    assert before <= common.now_unix_ns() <= time.time_ns()
