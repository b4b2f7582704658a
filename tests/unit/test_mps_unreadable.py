# SPDX-License-Identifier: Apache-2.0
"""Processes of MPS whose arguments and environment their user hides from every reader: nobody waits for them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from hami_hpc.node import mps_processes, programs

SERVER, CONTROL = mps_processes.SERVER_NAME, mps_processes.CONTROL_NAME


def hide(root: Path, pid: int, name: str, uid: int, parent: int = 1) -> None:
    """Makes /proc/PID of a process as a user can have it: by a thread that changes the memory map and waits, behind one
    that reads a page of a FUSE file, both are never shown. A FIFO without a writer does the same to its reader."""
    (folder := root / str(pid)).mkdir(parents=True)
    (folder / "exe").symlink_to(f"/usr/bin/{name}")
    (folder / "status").write_text(f"Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
    (folder / "stat").write_text(f"{pid} (x) S {parent} " + " ".join(["0"] * 17) + f" {1000 + pid} 0\n")
    for one in ("cmdline", "environ"):
        os.mkfifo(folder / one)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notes what the processes of users are read by, and shortens the time for it."""
    started: list[str] = []
    genuine = programs.run

    def run(command: list[str], environment: Mapping[str, str], text: str, timeout_s: float) -> tuple[int | None, str]:
        started.append(command[1])
        return genuine(command, environment, text, timeout_s)

    monkeypatch.setattr(programs, "run", run)
    monkeypatch.setattr(mps_processes, "OTHERS_S", 0.1)
    return started


def test_a_process_that_nobody_can_read_is_told_as_unknown_and_its_user_is_not_tried_again(
    tmp_path: Path, reads: list[str]
) -> None:
    hide(tmp_path, 10, CONTROL, 1000)
    hide(tmp_path, 11, SERVER, 1000)
    hide(tmp_path, 12, SERVER, 2000)
    found = mps_processes.processes(str(tmp_path))
    assert [(one.pid, one.uid, one.is_server, one.pipe) for one in found] == [
        (10, 1000, False, "?"),
        (11, 1000, True, "?"),
        (12, 2000, True, "?"),
    ]
    assert reads == [f"{tmp_path}/{pid}/cmdline" for pid in (10, 12)]
    assert [one.pid for one in mps_processes.foreign("/run/hami-hpc/mps", found)] == [10]


def test_many_users_together_hold_up_a_stage_no_longer_than_a_few(tmp_path: Path, reads: list[str]) -> None:
    for pid in range(10, 40):
        hide(tmp_path, pid, SERVER, 1000 + pid)
    assert len(mps_processes.processes(str(tmp_path))) == 30
    assert len(reads) == mps_processes.STUCK_MAX


def test_by_its_number_only_a_process_of_roots_is_read(tmp_path: Path, reads: list[str]) -> None:
    """The daemon lets everybody write the file with its number."""
    hide(tmp_path, 10, CONTROL, 1000)
    assert mps_processes.read(10, str(tmp_path)) is None
    assert reads == []


def test_whose_server_a_process_is_takes_nothing_that_its_user_can_hide(tmp_path: Path, reads: list[str]) -> None:
    folder = "/run/hami-hpc/mps"
    hide(tmp_path, 10, CONTROL, os.geteuid())
    for name, text in (("cmdline", f"{CONTROL}\0-d\0"), ("environ", f"A=1\0CUDA_MPS_PIPE_DIRECTORY={folder}/0-1000\0")):
        (tmp_path / "10" / name).unlink()
        (tmp_path / "10" / name).write_text(text)
    hide(tmp_path, 11, CONTROL, 1000)
    hide(tmp_path, 20, SERVER, 1000, parent=10)
    hide(tmp_path, 21, SERVER, 1000, parent=11)
    hide(tmp_path, 22, "python3", 1000, parent=10)
    found = [pid for pid in range(30) if mps_processes.is_jobs_server(pid, folder, str(tmp_path))]
    assert found == [20]
    assert not mps_processes.is_jobs_server(20, "/run/other", str(tmp_path))
    assert reads == []


def test_a_process_that_becomes_another_program_before_it_is_killed_is_killed() -> None:
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        started = mps_processes._state(f"/proc/{sleeper.pid}")[1]
        server = mps_processes.Process(sleeper.pid, started, 0, True, f"/usr/bin/{SERVER}", "/x")
        assert mps_processes.kill((server,), 5) == ()
        assert sleeper.wait(5) == -9
