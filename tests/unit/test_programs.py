# SPDX-License-Identifier: Apache-2.0
"""Programs that prolog and epilog start: what they are given, what they inherit, and how long they may take."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from node_testbed import ROOT

from hami_hpc.node import programs


def sh(script: str, text: str = "", timeout_s: float = 10.0) -> tuple[int | None, str]:
    return programs.run(["/bin/sh", "-c", script], {"PATH": "/usr/bin:/bin", "NAME": "value"}, text, timeout_s)


def test_a_program_has_its_input_and_environment_and_nothing_else() -> None:
    assert sh("cat; echo; echo $NAME; env | grep -c HOME", "a\nb") == (1, "a\nb\nvalue\n0\n")
    assert sh("echo out; echo err >&2; exit 7") == (7, "out\nerr\n")
    assert sh("cat") == (0, "")
    assert sh("kill -9 $$") == (-9, "")


def test_it_runs_in_the_root_directory_and_the_caller_stays_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert sh("pwd") == (0, "/\n")
    assert Path.cwd() == tmp_path
    with pytest.raises(FileNotFoundError):
        programs.run(["/nonexistent/program"], {}, "", 1.0)
    assert Path.cwd() == tmp_path


def test_it_runs_where_the_callers_directory_is_gone(tmp_path: Path) -> None:
    code = "import os, sys; os.rmdir(os.getcwd()); sys.path.append(sys.argv[1])\n"
    code += "from hami_hpc.node import programs; print(programs.run(['/bin/pwd'], {}, '', 5.0))"
    (tmp_path / "gone").mkdir()
    command = [sys.executable, "-I", "-S", "-c", code, str(ROOT)]
    done = subprocess.run(command, cwd=tmp_path / "gone", capture_output=True, text=True, check=True)
    assert done.stdout == "(0, '/\\n')\n"


def test_it_inherits_no_file_of_the_callers() -> None:
    """slurmd reads a prolog's output until all have closed it: a daemon that keeps a file would delay the job."""
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    try:
        status, printed = sh("ls /proc/self/fd")
    finally:
        os.close(reading)
        os.close(writing)
    assert status == 0
    assert set(printed.split()) <= {"0", "1", "2", "3"}, "3 is that of ls"


def test_signals_that_python_ignores_are_not_ignored_in_it() -> None:
    status, printed = sh("grep SigIgn /proc/self/status")
    assert status == 0
    ignored = int(printed.split()[1], 16)
    assert not ignored >> (signal.SIGPIPE - 1) & 1
    assert not ignored >> (signal.SIGXFSZ - 1) & 1


@pytest.mark.parametrize("has_pidfd", [True, False])
def test_one_that_takes_too_long_is_killed(has_pidfd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_pidfd:
        _without_pidfd(monkeypatch)
    begin = time.monotonic()
    assert sh("echo $$; trap '' TERM; while :; do sleep 0.1; done", timeout_s=0.3)[0] is None
    assert 0.3 <= time.monotonic() - begin < 3.0
    assert sh("exit 3") == (3, "")
    assert sh("sleep 0.1; exit 4") == (4, "")


def test_a_daemon_that_stays_is_not_waited_for() -> None:
    begin = time.monotonic()
    status, printed = sh("sleep 30 & echo $!")
    assert time.monotonic() - begin < 5.0
    assert status == 0
    os.kill(int(printed), signal.SIGKILL)


def test_a_caller_that_ignores_its_children_gets_an_answer() -> None:
    old = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert sh("echo a; exit 5") == (0, "a\n")  # the kernel keeps no status
    finally:
        signal.signal(signal.SIGCHLD, old)


def test_a_program_that_prints_without_end_fills_no_memory(tmp_path: Path) -> None:
    """Its output is a file in memory, which would be slurmd's."""
    kept = tmp_path / "kept"
    status, printed = sh(f"yes; echo $? > {kept}; stat -Lc %s /proc/$$/fd/2 >> {kept}")
    assert (status, printed) == (0, "y\n" * (programs.OUTPUT_MAX // 2))
    assert kept.read_text().split() == ["1", str(programs.PRINTED_MAX)], "yes is told that there is no more room"


def test_long_output_is_cut_and_bytes_that_are_no_text_are_shown() -> None:
    status, printed = sh("head -c 200000 /dev/zero | tr '\\0' x")
    assert (status, len(printed)) == (0, programs.OUTPUT_MAX)
    assert sh("printf '\\377'") == (0, "�")


def test_no_descriptor_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = count()
    cases: list[Callable[[], object]] = [lambda: sh("true"), lambda: sh("sleep 9", timeout_s=0.05)]
    for case in cases:
        case()
    with pytest.raises(OSError, match="No such file"):
        programs.run(["/nonexistent/program"], {}, "", 1.0)
    _without_pidfd(monkeypatch)
    sh("true")
    assert count() == before


def _without_pidfd(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a kernel before 5.3."""

    def missing(_pid: int, _flags: int = 0) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", missing)
