# SPDX-License-Identifier: Apache-2.0
"""Colour, on a terminal only: click.echo takes it away from whatever is written to a pipe or a file.

$NO_COLOR (https://no-color.org), when it is not empty, and TERM=dumb mean none on a terminal either.
"""

from __future__ import annotations

import os
import re

import click

_RULE = re.compile(r"-+(?:  -+)*")  # the line below a table's head
LEVELS = {"OK": "green", "WARN": "yellow", "FAIL": "red"}


def coloured(text: str, colour: str | None = None, bold: bool = False) -> str:
    """The text with the codes for a terminal, unless its user wants none. For click.echo only."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return click.style(text, fg=colour, bold=bold or None)


def level(name: str) -> str:
    """OK, WARN or FAIL, four columns wide."""
    return coloured(f"{name:4}", LEVELS[name], bold=name != "OK")


def table_head(text: str) -> str:
    """A table of text with its first line in bold: that above a rule of dashes, where there is one."""
    lines = text.split("\n")
    head = next((index - 1 for index, line in enumerate(lines) if index and _RULE.fullmatch(line)), 0)
    lines[head] = coloured(lines[head], bold=True)
    return "\n".join(lines)


def diff_line(line: str) -> str:
    """A line of a unified diff, without its newline."""
    if line.startswith(("+++", "---")):
        return coloured(line, bold=True)
    return coloured(line, {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])) if line[:1] in "+-@" else line


def show_error(message: str) -> None:
    """The one line on standard error with which a command ends."""
    click.echo(f"{coloured('Error:', 'red', bold=True)} {message}", err=True)
