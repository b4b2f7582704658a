# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc top` on a terminal, which is as it was before when it ends, and elsewhere. Frames: test_top_frame.py."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import node_testbed
import pytest
from agent_states import make_state
from click.testing import CliRunner

from hami_hpc.cli import gpu_view, main, top_command
from hami_hpc.core import gpu_rows
from hami_hpc.node import agent_file


def test_the_first_line_counts_jobs_and_says_how_old_the_look_is() -> None:
    state = make_state()
    view = gpu_view.View(state, 0.44, tuple(gpu_rows.of_state(state, str)), "")
    words = top_command.head_of(view, "node1", True).split("  ")
    assert words[:4] == ["node1", "2 GPUs", "4 jobs", "agent 0.4 s ago"]
    assert words[-1] == "q: quit"


def test_text_of_others_is_no_markup_and_no_escape_code() -> None:
    text = top_command._text([[("[red]job[/red] \x1b[2J山", "bold")]])
    assert text.plain == "[red]job[/red] ?[2J山"


def start(tmp_path: Path, *words: str, **more: str) -> tuple[subprocess.Popen[bytes], int, node_testbed.Node]:
    """Starts top on a terminal of 60 x 24; returns the process and the terminal's other end."""
    node = node_testbed.Node.make(tmp_path / "node")
    Path(agent_file.folder(node.settings.run_dir)).mkdir(parents=True)
    agent_file.write(node.settings.run_dir, make_state())
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    environment = {"HAMI_HPC_CONFIG": str(node.config), "PYTHONPATH": str(node_testbed.ROOT), "LC_ALL": "C.UTF-8"}
    environment |= {"TERM": "xterm", "PATH": "/nowhere"} | more
    command = [sys.executable, "-m", "hami_hpc.cli", "top", *words]
    process = subprocess.Popen(
        ["/usr/bin/env", "--default-signal=INT", *command],  # it is ignored where the tests run in a shell's background
        env=environment,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    return process, master, node


def read(master: int, until: bytes = b"", timeout_s: float = 20) -> bytes:
    """Returns what the terminal got, until it has `until`, or until the process has closed it."""
    end, text = time.monotonic() + timeout_s, b""
    while time.monotonic() < end and not (until and until in text):
        if select.select([master], [], [], 0.1)[0]:
            try:
                part = os.read(master, 65536)
            except OSError:  # the process has closed the terminal
                break
            text += part
    return text


@pytest.mark.parametrize("end", ["q", "ctrl-c", "SIGTERM"])
def test_it_shows_frames_until_it_is_told_to_end_and_restores_the_terminal(tmp_path: Path, end: str) -> None:
    process, master, _node = start(tmp_path)
    before = termios.tcgetattr(master)
    text = read(master, b"USED")
    if end == "q":
        os.write(master, b"q")
    else:
        process.send_signal(signal.SIGINT if end == "ctrl-c" else signal.SIGTERM)
    text += read(master, b"\x1b[?1049l")
    assert process.wait(timeout=20) == 0
    assert (text.count(b"\x1b[?1049h"), text.count(b"\x1b[?1049l")) == (1, 1)
    assert (text.count(b"\x1b[?25l"), text.count(b"\x1b[?25h")) == (1, 1)
    assert termios.tcgetattr(master) == before
    os.close(master)


@pytest.mark.parametrize("none", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_one_frame_has_no_escape_code_where_nobody_wants_one(tmp_path: Path, none: dict[str, str]) -> None:
    process, master, _node = start(tmp_path, "--once", **none)
    text = read(master)
    assert process.wait(timeout=20) == 0
    assert "█" in text.decode()
    assert b"\x1b" not in text
    os.close(master)


def test_one_frame_is_printed_where_standard_output_is_no_terminal(tmp_path: Path) -> None:
    node = node_testbed.Node.make(tmp_path)
    node.prolog(7)
    result = CliRunner().invoke(main, ["top"], env={"HAMI_HPC_CONFIG": str(node.config)})
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0].split()[1:3] == ["1", "job"]
    assert "does not run on this node" in " ".join(result.stdout.split())
    assert "q: quit" not in result.stdout
