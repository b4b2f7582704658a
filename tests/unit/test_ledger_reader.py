# SPDX-License-Identifier: Apache-2.0
"""Commands that only look: they create, change and put aside nothing, and show what a new ledger would hold."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from node_testbed import GPU_MIB, ROOT, UUIDS, Node

from hami_hpc.cli import main
from hami_hpc.core.inventory import Device
from hami_hpc.node import ledger, nvml
from hami_hpc.slurm import commands

LOOKING = [("jobs",), ("jobs", "--format", "json"), ("reconcile", "--dry-run"), ("inventory",)]


@pytest.fixture(autouse=True)
def around_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = tuple(Device(minor, uuid, "NVIDIA H200", GPU_MIB) for minor, uuid in enumerate(UUIDS))
    monkeypatch.setattr(nvml, "read_devices", lambda: devices)
    monkeypatch.setattr(commands, "node_name", lambda: "node1")
    monkeypatch.setattr(commands, "running_jobs", lambda _name: frozenset({7}))


def run(node: Node, *words: str) -> Result:
    return CliRunner().invoke(main, list(words), env={"HAMI_HPC_CONFIG": str(node.config)})


def state(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything below: mode, time of change, content."""
    paths = [folder, *sorted(folder.rglob("*"))]
    return {
        str(path): (status.st_mode, status.st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in paths
        for status in [path.lstat()]
    }


@pytest.mark.parametrize("words", LOOKING)
def test_on_a_node_before_its_first_job_nothing_is_created(tmp_path: Path, words: tuple[str, ...]) -> None:
    node = Node.make(tmp_path, with_gpus=False)
    before = state(tmp_path)
    done = run(node, *words)
    assert done.exit_code == 0, done.output
    assert state(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["hami-hpc.toml"]


@pytest.mark.parametrize("words", LOOKING)
def test_on_a_node_with_a_job_nothing_is_changed(tmp_path: Path, words: tuple[str, ...]) -> None:
    node = Node.make(tmp_path)
    assert node.prolog(7) == 0
    before = state(tmp_path)
    done = run(node, *words)
    assert done.exit_code == 0, done.output
    assert state(tmp_path) == before


@pytest.mark.parametrize("gone", ["ledger.db", "ledger.lock"])
def test_without_a_ledger_the_run_directory_shows_what_is_held(tmp_path: Path, gone: str) -> None:
    node = Node.make(tmp_path)
    assert node.prolog(7) == 0
    (tmp_path / "run" / gone).unlink()
    before = state(tmp_path)
    assert run(node, "jobs").output.splitlines()[1].split()[:2] == ["7", "65534"]
    assert run(node, "reconcile", "--dry-run").output == "nothing to do: ledger, run directory, Slurm and GPUs agree\n"
    assert state(tmp_path) == before


def test_an_older_ledger_in_wal_mode_gets_no_files_beside_it(tmp_path: Path) -> None:
    node = Node.make(tmp_path, with_gpus=False)
    (tmp_path / "run").mkdir()
    connection = sqlite3.connect(tmp_path / "run/ledger.db")
    connection.executescript("PRAGMA journal_mode = WAL; CREATE TABLE x (y)")
    connection.close()
    before = state(tmp_path)
    assert run(node, "jobs").output.count("\n") == 1
    assert state(tmp_path) == before


def test_a_damaged_ledger_is_named_and_stays(tmp_path: Path) -> None:
    node = Node.make(tmp_path)
    path = tmp_path / "run/ledger.db"
    path.write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    before = state(tmp_path)
    for words in (("jobs",), ("reconcile", "--dry-run")):
        done = run(node, *words)
        assert (done.exit_code, done.output.count("\n")) == (1, 1), done.output
        assert f"ledger {path} is damaged" in done.output
        assert "hami-hpc reconcile" in done.output
    assert state(tmp_path) == before


# Writes more than the page cache holds, so that the file is changed while the journal is there, and is then killed.
KILLED = """
import os, sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA cache_size = 1")
connection.execute("BEGIN IMMEDIATE")
connection.execute("CREATE TABLE filler (text)")
connection.executemany("INSERT INTO filler VALUES (?)", [("x" * 4000,)] * 100)
print(flush=True)
time.sleep(60)
"""


def test_a_write_that_a_killed_process_left_is_told_and_left_to_those_who_write(tmp_path: Path) -> None:
    node = Node.make(tmp_path)
    assert node.prolog(7) == 0
    path = tmp_path / "run/ledger.db"
    with subprocess.Popen([sys.executable, "-c", KILLED, path], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
    before = state(tmp_path)
    assert f"{path}-journal" in before
    done = run(node, "jobs")
    assert (done.exit_code, done.output.count("\n")) == (1, 1), done.output
    assert "killed in the middle of a write" in done.output
    assert state(tmp_path) == before
    assert run(node, "reconcile").exit_code == 0
    assert run(node, "jobs").output.splitlines()[1].split()[0] == "7"


def test_a_writer_at_work_is_no_obstacle(tmp_path: Path) -> None:
    node = Node.make(tmp_path)
    assert node.prolog(7) == 0
    writer = sqlite3.connect(tmp_path / "run/ledger.db", isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    start = time.monotonic()
    assert run(node, "jobs").output.splitlines()[1].split()[0] == "7"
    assert time.monotonic() - start < ledger.BUSY_TIMEOUT_S / 2
    writer.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_user_is_told_that_the_ledger_is_roots(tmp_path: Path) -> None:
    node = Node.make(tmp_path)
    code = (
        "import os, sys; from hami_hpc.node import ledger_reader\n"
        "os.chdir(sys.argv[1]); os.setgid(65534); os.setuid(65534)\n"
        "try: ledger_reader.read_ledger('.', 'boot', tuple)\n"
        "except Exception as error: print(error)\n"
    )
    command = [sys.executable, "-c", code, node.settings.run_dir]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "ledger ./ledger.db belongs to root: run this as root\n"
