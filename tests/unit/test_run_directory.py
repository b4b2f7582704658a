# SPDX-License-Identifier: Apache-2.0
"""A run of the tests that was killed does not disturb the next (tests/cluster/harness/run_directory.py)."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness.mounting import can_mount
from harness.run_directory import IN_MEMORY, remove_abandoned
from node_testbed import ROOT

RUN = """\
import os, pathlib, signal, subprocess, tempfile
def test_it(tmp_path):
    pathlib.Path(os.environ["SEEN"]).write_text(f"{tmp_path}\\n{tempfile.mkdtemp()}")
    if os.environ["HOW"] != "passes":
        (tmp_path / "mounted").mkdir()
        if os.environ["MOUNT"]:
            subprocess.run(["mount", "-t", "tmpfs", "none", str(tmp_path / "mounted")], check=True)
        assert os.environ["HOW"] == "is killed"
        os.kill(os.getpid(), signal.SIGKILL)
"""


TWICE = "import pytest, sys; sys.exit(pytest.main(sys.argv[1:]) or pytest.main(sys.argv[1:]))"


def run_pytest(temporary: Path, how: str, *program: str, in_memory: bool = False) -> tuple[int, list[Path]]:
    """Runs pytest with the tests' conftest.py; returns its status and the temporary directories that its test saw."""
    project = temporary / "project"
    project.mkdir(exist_ok=True)
    (project / "conftest.py").write_text((ROOT / "tests/conftest.py").read_text())
    (project / "test_it.py").write_text(RUN)
    (temporary / "tmp").mkdir(exist_ok=True)
    seen = temporary / "seen"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        "PYTHONPATH": f"{ROOT / 'tests/cluster'}:{ROOT / 'tests'}",
        "TMPDIR": str(temporary / "tmp"),
        "HOW": how,
        "SEEN": str(seen),
        "MOUNT": "yes" if can_mount() else "",
    }
    environment.pop(IN_MEMORY, None)
    environment |= {IN_MEMORY: "1"} if in_memory else {}
    program = program or ("-m", "pytest")
    command = [sys.executable, *program, "-q", "-p", "no:cacheprovider", "--rootdir", str(project), str(project)]
    ended = subprocess.run(command, env=environment, capture_output=True, check=False)
    return ended.returncode, [Path(line) for line in seen.read_text().splitlines()]


def test_two_runs_of_one_process_have_a_directory_each(tmp_path: Path) -> None:
    status, _ = run_pytest(tmp_path, "passes", "-c", TWICE)
    assert status == 0
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.parametrize("how", ["is killed", "fails"])
def test_what_a_run_leaves_is_removed_by_the_next(tmp_path: Path, how: str) -> None:
    status, left = run_pytest(tmp_path, how)
    assert status == (-signal.SIGKILL if how == "is killed" else 1)
    assert all(folder.is_dir() and folder.is_relative_to(tmp_path / "tmp") for folder in left)
    status, seen = run_pytest(tmp_path, "passes")
    assert status == 0
    assert not any(folder.exists() for folder in [*left, *seen])
    assert not list((tmp_path / "tmp").iterdir())


def test_a_running_one_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    holding = "import sys, harness.run_directory as r; r.make_locked(r.Path(sys.argv[1])); print(flush=True); input()"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests/cluster")}
    with subprocess.Popen(
        [sys.executable, "-c", holding, str(tmp_path / "tmp")],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert run_pytest(tmp_path, "passes")[0] == 0
        assert len(list((tmp_path / "tmp").iterdir())) == 1
        other.kill()
    assert run_pytest(tmp_path, "passes")[0] == 0
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.skipif(not can_mount(), reason="nothing can be mounted here")
@pytest.mark.parametrize("how", ["is killed", "fails", "passes"])
def test_in_memory_it_is_a_file_system_of_its_own(tmp_path: Path, how: str) -> None:
    run_pytest(tmp_path, how, in_memory=True)
    mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f" {tmp_path}/" in line]
    assert bool(mounts) == (how != "passes")
    assert run_pytest(tmp_path, "passes")[0] == 0
    assert not list((tmp_path / "tmp").iterdir())
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


# Begins a run that stops when its directory is there, and before it is locked, until a line comes.
HALF_BEGUN = """\
import sys, tempfile, harness.run_directory as r
made = tempfile.mkdtemp
def make(suffix=None, prefix=None, dir=None):
    folder = made(suffix, prefix, dir)
    if prefix == r.PREFIX:
        print(folder, flush=True)
        sys.stdin.readline()
    return folder
tempfile.mkdtemp = make
print(r.begin(r.Path(sys.argv[1]), sys.argv[2] == "in memory")[0].is_dir(), flush=True)
sys.stdin.readline()
"""
BEGUN = """\
import sys, harness.run_directory as r
print(flush=True)
print(r.begin(r.Path(sys.argv[1]))[0], flush=True)
input()
"""


@pytest.mark.parametrize("where", ["on disk", "in memory"])
def test_two_runs_that_begin_at_a_time_leave_each_others_directory_alone(tmp_path: Path, where: str) -> None:
    def started(program: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", program, str(tmp_path), where]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests/cluster")}
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    with started(HALF_BEGUN) as first:
        assert first.stdin is not None
        assert first.stdout is not None
        folder = Path(first.stdout.readline().strip())
        with started(BEGUN) as second:
            assert second.stdout is not None
            second.stdout.readline()
            # Either it waits, or it has taken the directory of the first for an abandoned one.
            ready, _, _ = select.select([second.stdout], [], [], 1)
            assert folder.is_dir()
            first.stdin.write("\n")
            assert first.stdout.readline() == "True\n"
            own = Path(second.stdout.readline().strip())
            assert not ready
            assert own != folder
            assert {path.name for path in tmp_path.iterdir()} == {own.name, folder.name}
            second.communicate("\n", timeout=30)
        first.communicate("\n", timeout=30)
    remove_abandoned(tmp_path)
    assert not list(tmp_path.iterdir())
