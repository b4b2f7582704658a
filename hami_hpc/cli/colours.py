# SPDX-License-Identifier: Apache-2.0
"""Colour, on a terminal only: click.echo removes it from output to a pipe or a file.

A $NO_COLOR (https://no-color.org) that is not empty, or TERM=dumb, turns it off on a terminal too.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress

import click

_RULE = re.compile(r"-+(?:  -+)*")  # the line below a table's head
LEVELS = {"OK": "green", "WARN": "yellow", "FAIL": "red"}


def coloured(text: str, colour: str | None = None, bold: bool = False) -> str:
    """Returns the text with a terminal's colour codes, unless the user turned them off. For click.echo only."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return click.style(text, fg=colour, bold=bold or None)


def level(name: str) -> str:
    """Returns OK, WARN or FAIL in colour, four columns wide."""
    return coloured(f"{name:4}", LEVELS[name], bold=name != "OK")


def table_head(text: str) -> str:
    """Returns a table of text with its heading in bold: the line above a rule of dashes, else the first line."""
    lines = text.split("\n")
    head = next((index - 1 for index, line in enumerate(lines) if index and _RULE.fullmatch(line)), 0)
    lines[head] = coloured(lines[head], bold=True)
    return "\n".join(lines)


def diff_line(line: str) -> str:
    """Returns a line of a unified diff in colour; it has no newline."""
    if line.startswith(("+++", "---")):
        return coloured(line, bold=True)
    return coloured(line, {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])) if line[:1] in "+-@" else line


def show_error(message: str) -> None:
    """Prints the one line on standard error with which a failed command ends, if that can take it."""
    with suppress(OSError):
        click.echo(f"{coloured('Error:', 'red', bold=True)} {message}", err=True)
