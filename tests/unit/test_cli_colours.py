# SPDX-License-Identifier: Apache-2.0
"""Colour: on a terminal, and nowhere else."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from node_testbed import ROOT, Node

ESCAPE = "\x1b["
RED_BOLD, GREEN, BOLD, RESET = "\x1b[31m\x1b[1m", "\x1b[32m", "\x1b[1m", "\x1b[0m"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    node = Node.make(tmp_path / "node")
    assert node.prolog(7) == 0
    return {
        "HAMI_HPC_CONFIG": str(node.config),
        "PATH": "/nowhere",
        "PYTHONPATH": str(ROOT),
        "TERM": "xterm",
        "LC_ALL": "C.UTF-8",
    }


def on_a_terminal(environment: dict[str, str], *words: str, stdout: int | None = None) -> str:
    """What a terminal of 80 columns gets of hami-hpc; standard output goes elsewhere when `stdout` says so."""
    master, slave = pty.openpty()
    os.set_inheritable(slave, True)

    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-m", "hami_hpc.cli", *words]
    process = subprocess.Popen(
        command, env=environment, stdin=slave, stdout=slave if stdout is None else stdout, stderr=slave
    )
    os.close(slave)
    read = b""
    while True:
        try:
            part = os.read(master, 4096)
        except OSError:  # EIO: nobody has the terminal open any more
            break
        if not part:
            break
        read += part
    os.close(master)
    process.wait(timeout=60)
    return read.decode().replace("\r\n", "\n")


def piped(environment: dict[str, str], *words: str) -> str:
    command = [sys.executable, "-m", "hami_hpc.cli", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr


def test_levels_errors_and_heads_are_coloured_on_a_terminal(environment: dict[str, str]) -> None:
    report = on_a_terminal(environment, "doctor")
    assert f"{GREEN}OK  {RESET}  settings: " in report
    assert f"{RED_BOLD}FAIL{RESET}  driver" in report
    assert on_a_terminal(environment, "jobs").startswith(f"{BOLD}JOB ")
    assert on_a_terminal(environment, "usage", "8").startswith(f"{RED_BOLD}Error:{RESET} job 8 holds no vGPU")
    wrong = on_a_terminal(environment, "usage", "x")
    assert wrong.startswith("Usage: hami-hpc usage [OPTIONS] JOB\nTry 'hami-hpc usage --help' for help.\n\n")
    assert f"\n{RED_BOLD}Error:{RESET} Invalid value for 'JOB'" in wrong
    assert f"{RED_BOLD}PROBLEM:{RESET} " in on_a_terminal(environment, "reconcile", "--dry-run")


COMMANDS = [
    ("doctor",),
    ("jobs",),
    ("usage", "8"),
    ("usage", "x"),
    ("reconcile", "--dry-run"),
    ("render", "--diff", "--gpus", "h200:2"),
    ("bill", "--month", "2026-09", "--input", "export"),
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("none", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_there_is_none_on_a_terminal_whose_user_wants_none(
    environment: dict[str, str], words: tuple[str, ...], none: dict[str, str]
) -> None:
    assert ESCAPE not in on_a_terminal(environment | none, *words)


def test_an_empty_no_color_is_none(environment: dict[str, str]) -> None:
    assert ESCAPE in on_a_terminal(environment | {"NO_COLOR": ""}, "jobs")


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_there_is_none_in_a_pipe(environment: dict[str, str], words: tuple[str, ...]) -> None:
    text = piped(environment, *words)
    assert text
    assert ESCAPE not in text


def test_each_stream_is_judged_by_itself(environment: dict[str, str], tmp_path: Path) -> None:
    with (tmp_path / "out").open("w+b") as file:
        on_screen = on_a_terminal(environment, "jobs", "--json", stdout=file.fileno())
        assert on_screen == "note: jobs --json is now called jobs --format json\n"
        assert ESCAPE in on_a_terminal(environment, "usage", "8", stdout=file.fileno())
        on_a_terminal(environment, "doctor", stdout=file.fileno())
    assert ESCAPE not in (tmp_path / "out").read_text()


@pytest.mark.parametrize("words", [("doctor",), ("jobs",), ("reconcile", "--dry-run")], ids=" ".join)
def test_there_is_none_in_json_not_even_on_a_terminal(environment: dict[str, str], words: tuple[str, ...]) -> None:
    text = on_a_terminal(environment, *words, "--format", "json")
    assert text.startswith("[")
    assert ESCAPE not in text


def test_render_writes_none_into_files_and_shows_differences_in_colour(
    environment: dict[str, str], tmp_path: Path
) -> None:
    words = ("render", "--gpus", "h200:2", "--output", str(tmp_path / "etc"))
    assert f"{GREEN}+" in on_a_terminal(environment, *words, "--diff")
    on_a_terminal(environment, *words)
    written = [path for path in (tmp_path / "etc").rglob("*") if path.is_file()]
    assert len(written) > 5
    assert not [path for path in written if ESCAPE in path.read_text()]
