# SPDX-License-Identifier: Apache-2.0
"""Temporary directories: one that a killed process has left is removed, one in use or of somebody else's is not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hami_hpc.accounting.store.temporary import temporary_directory

HOLD = """
import sys, time
from pathlib import Path
from hami_hpc.accounting.store.temporary import temporary_directory
with temporary_directory(Path(sys.argv[1]), ".x-") as made:
    (made / "file").write_text("half")
    print(made, flush=True)
    time.sleep(60)
"""


def _older(path: Path) -> None:
    then = time.time() - 3600
    os.utime(path, (then, then))


@contextmanager
def _held(parent: Path) -> Iterator[Path]:
    """A directory that another process holds, and that is an hour old. The process is killed at the end."""
    command = [sys.executable, "-c", HOLD, str(parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        path = Path(process.stdout.readline().strip())
        _older(path)
        yield path
        process.kill()


def test_what_a_killed_process_left_is_removed_and_what_is_in_use_is_not(tmp_path: Path) -> None:
    with _held(tmp_path) as left:
        pass
    _older(left)
    with _held(tmp_path) as used:
        assert not left.exists()
        with temporary_directory(tmp_path, ".x-") as made:
            assert sorted(tmp_path.iterdir()) == sorted([made, used])
        assert (used / "file").read_text() == "half"
    with temporary_directory(tmp_path, ".x-") as made:
        assert list(tmp_path.iterdir()) == [made]
    assert list(tmp_path.iterdir()) == []


def test_new_ones_and_other_things_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / ".x-new").mkdir()  # its maker may be about to lock it
    target = tmp_path / "target"
    target.mkdir()
    (target / "kept").touch()
    (tmp_path / ".x-link").symlink_to(target)
    (tmp_path / ".x-file").touch()
    (tmp_path / "x-other").mkdir()
    for name in ("target", ".x-file", "x-other"):
        _older(tmp_path / name)
    with temporary_directory(tmp_path, ".x-"):
        pass
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [".x-file", ".x-link", ".x-new", "target", "x-other"]
    assert (target / "kept").exists()


def test_another_users_directory_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".x-theirs").mkdir()
    _older(tmp_path / ".x-theirs")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with temporary_directory(tmp_path, ".x-"):
        pass
    assert (tmp_path / ".x-theirs").exists()
