# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc top`: a live view of this node's GPUs and jobs. Needs rich, of the extra hami-hpc[top]."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hami_hpc.cli.gpu_view import View, look
from hami_hpc.cli.options import command, config_option, settings_of
from hami_hpc.core import top_frame
from hami_hpc.core.top_frame import Line, Screen
from hami_hpc.node import agent_file, turn_notes
from hami_hpc.node.config import Settings
from hami_hpc.slurm import commands

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

PERIOD_S = 1.0
INSTALL = "pip install rich, or python3-rich from Debian"


def head_of(view: View, node: str, is_live: bool) -> str:
    """Returns the first line of a frame."""
    jobs = len({row.job_id for row in view.rows if row.job_id})
    parts = [node]
    if view.state is not None:
        count = len(view.state.gpus)
        parts.append(f"{count} GPU{'' if count == 1 else 's'}")
    parts.append(f"{jobs} job{'' if jobs == 1 else 's'}")
    if view.state is not None:
        parts.append(f"agent {view.seconds_old:.1f} s ago")
    parts += [time.strftime("%H:%M:%S")] + (["q: quit"] if is_live else [])
    return "  ".join(parts)


def lines_of(view: View, screen: Screen, is_live: bool) -> list[Line]:
    """Returns the lines of one frame."""
    return top_frame.frame(head_of(view, commands.shown_name(), is_live), view.state, view.rows, view.note, screen)


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)


def _text(lines: list[Line]) -> Text:
    """Returns the lines as rich's text; no part of them is read as markup."""
    from rich.text import Text

    text = Text(no_wrap=True, overflow="crop", end="")
    for number, line in enumerate(lines):
        text.append("\n" if number else "")
        for part, style in line:
            text.append(_printable(part), style=style or None)
    return text


def _console() -> Console:
    from rich.console import Console

    no_colour = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return Console(color_system=None if no_colour else "auto", highlight=False, emoji=False, markup=False)


def _screen(console: Console, is_live: bool) -> Screen:
    encoding = (getattr(sys.stdout, "encoding", "") or "ascii").lower().replace("-", "")
    characters = top_frame.BLOCKS if encoding.startswith("utf") else top_frame.ASCII
    return Screen(
        max(20, console.width),
        max(4, console.height) if is_live else 0,
        characters,
        time.localtime().tm_gmtoff,
        agent_file.now_boot_ns(),
    )


@contextmanager
def _keys() -> Iterator[bool]:
    """Makes single keys readable from standard input, and puts the terminal back; yields whether there are keys."""
    if sys.stdin is None or not sys.stdin.isatty():
        yield False
        return
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield True
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _wait(has_keys: bool, seconds: float) -> bool:
    """Waits until the next frame is due. Returns whether the user has pressed q, or closed the terminal."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if not has_keys:
            time.sleep(left)
        elif select.select([sys.stdin], [], [], left)[0]:
            key = os.read(sys.stdin.fileno(), 1)
            if key in (b"q", b"Q", b""):
                return True
    return False


def _look(settings: Settings) -> View:
    return look(settings.run_dir, turn_notes.are_taken(settings))


def _stop(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _live(console: Console, settings: Settings) -> None:
    """Shows a frame each second until q, Ctrl-C, SIGTERM or SIGHUP; then the terminal is as it was before."""
    from rich.live import Live

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    try:
        with _keys() as has_keys, Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(_text(lines_of(_look(settings), _screen(console, True), True)), refresh=True)
                if _wait(has_keys, PERIOD_S):
                    return
    except KeyboardInterrupt:
        return


@command("top")
@click.option("--once", is_flag=True, help="Print one frame and end, as when standard output is no terminal.")
@config_option
def top(once: bool, config: Path | None) -> None:
    """This node's GPUs, their jobs and the agent's findings, each second until q is pressed.

    Bars: used, then granted and not used, then neither. Asked is the job's share of the GPU's time, got what it had in
    the agent's last period. Who sees what is as in hami-hpc ps.
    """
    settings = settings_of(config)
    try:
        console = _console()
    except ModuleNotFoundError as error:
        raise click.UsageError(f"top needs {error.name}, which is missing: {INSTALL}; or run hami-hpc ps") from error
    if once or not console.is_terminal or console.is_dumb_terminal:
        console.print(_text(lines_of(_look(settings), _screen(console, False), False)), soft_wrap=True)
    else:
        _live(console, settings)
