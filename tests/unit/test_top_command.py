# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc top`: frames of every size, and a terminal that is as it was before when it ends."""

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
from agent_states import make_event, make_job, make_state
from click.testing import CliRunner

from hami_hpc.cli import gpu_view, main, top_command
from hami_hpc.core import gpu_rows, top_frame
from hami_hpc.core.agent_state import AgentState
from hami_hpc.core.tables import columns_of
from hami_hpc.core.top_frame import ASCII, BLOCKS, Screen, bar
from hami_hpc.node import agent_file

NAMES = {5: "games", 9: "山田太郎花子研究室"}


def frame(state: AgentState, screen: Screen, note: str = "") -> list[str]:
    rows = tuple(gpu_rows.of_state(state, lambda uid: NAMES.get(uid, f"user{uid}")))
    view = gpu_view.View(state, 0.4, rows, note)
    lines = ["".join(text for text, _ in line) for line in top_command.lines_of(view, screen, True)]
    assert max(columns_of(line) for line in lines) <= screen.columns, "no line is wider than the terminal"
    if screen.rows:
        assert len(lines) <= screen.rows, "nor are there more than it has"
    return lines


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 100, 160, 300])
@pytest.mark.parametrize("rows", [0, 4, 10, 24, 60])
@pytest.mark.parametrize(("gpus", "jobs"), [(1, 0), (2, 3), (8, 80)])
def test_a_frame_fits_every_terminal(columns: int, rows: int, gpus: int, jobs: int) -> None:
    event = make_event("memory_above_grant", 100, "kill", "job 100 used more than its grant " * 9)
    state = make_state(gpus, jobs, events=(event,) * 5)
    note = "the agent last looked 12 s ago: it is stopped or stuck, and this is what it saw then"
    lines = frame(state, Screen(columns, rows, BLOCKS), note)
    if not rows:
        assert sum(line.lstrip().startswith(tuple(f"{i} " for i in range(8))) for line in lines) >= gpus + jobs


def test_on_a_narrow_terminal_users_findings_and_use_are_shown() -> None:
    state = make_state()
    state = state._replace(jobs=(*state.jobs, make_job(103, 1, findings=("memory_above_grant",))))
    lines = frame(state, Screen(60, 24, ASCII))
    assert lines[0].split()[1:9] == ["2", "GPUs", "4", "jobs", "agent", "0.4", "s", "ago"]
    assert lines[2].split() == ["0", "#...........", "7.0/16.0/139.8", "==" + "." * 10, "0/20"]
    head = next(index for index, line in enumerate(lines) if line.startswith("GPU") and "JOB" in line)
    assert lines[head].split() == ["GPU", "JOB", "USER", "ASK%", "GOT%", "GRANT", "USED", "FINDINGS"]
    assert lines[head + 1].split()[:2] == ["1", "103"], "a job with findings comes first"
    assert lines[head + 1].split()[-1].startswith("memory_above_g")
    assert any("山田太郎花~" in line for line in lines)


def test_a_lost_gpu_is_said_to_be() -> None:
    lines = frame(make_state(8, 80), Screen(80, 24, BLOCKS))
    assert "  3 LOST: GPU is lost" in lines
    assert any(line.startswith("and ") and line.endswith("more: hami-hpc ps") for line in lines)


def test_events_are_shown_newest_first() -> None:
    state = make_state(events=(make_event("started", 0, "", "2 GPUs"), make_event("no_interposer", 7, "kill", "pid 9")))
    lines = frame(state, Screen(80, 24, BLOCKS))
    assert [line[9:] for line in lines[-2:]] == ["no_interposer job 7 [kill]: pid 9", "started: 2 GPUs"]


def test_a_bar_shows_what_is_used_then_granted_then_neither() -> None:
    assert bar(0.25, 0.5, 8, BLOCKS) == "██▒▒····"
    assert bar(0.75, 0.5, 8, ASCII) == "######.."
    assert bar(2, 3, 4, ASCII) == "####"
    assert bar(-1, 0, 4, ASCII) == "...."


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
        command, env=environment, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
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


def test_a_terminal_without_these_letters_gets_ascii() -> None:
    assert top_frame.ASCII.isascii()
    assert bar(0.5, 1, 4, ASCII) == "##=="
