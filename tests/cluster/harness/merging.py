# SPDX-License-Identifier: Apache-2.0
"""Writes into the private cluster's slurm.conf what hami-hpc's commands print for the administrator, by the letter."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from .files import write
from .layout import ClusterError, Layout


def merge(layout: Layout, printed: str) -> None:
    """Writes the lines that `hami-hpc qos render` or `quota render` prints for slurm.conf."""
    rows = layout.slurm_conf.read_text().splitlines()
    for number, old, new in re.findall(r"^# \S+, line (\d+): instead of (.*) write:\n(.*)$", printed, re.MULTILINE):
        assert rows[int(number) - 1] == old
        rows[int(number) - 1] = new
    for number, name, new in re.findall(r"^# \S+, line (\d+): in (.*) write:\n(.*)$", printed, re.MULTILINE):
        assert rows[int(number) - 1].split()[0] == name
        rows[int(number) - 1] += f" {new}"
    added = re.search(r"^# \S+: add:\n((?:\w+=.*\n)+)", printed, re.MULTILINE)
    write(layout.slurm_conf, "\n".join(rows) + "\n" + (added[1] if added else ""))


def follow(printed: str) -> None:
    """Does by the letter what `hami-hpc render` printed. Raises ClusterError for what nobody could follow."""
    for what, body in re.findall(r"^ +\d+\. (.*)\n((?: {9}.*\n)+)", printed, re.MULTILINE):
        lines = [line[9:] for line in body.splitlines()]
        commands = [line for line in lines if line.startswith(("mkdir ", "printf ", "chmod ", "ln "))]
        for command in commands:
            subprocess.run(["sh", "-c", command], check=True)
        rest = [line for line in lines if line not in commands]
        if added := re.match(r"(\S+): add the line", what):
            with Path(added[1]).open("a") as file:
                file.write(rest[0] + "\n")
        elif lua := re.match(r"(\S+\.lua) does not call", what):
            _add_to_filter(Path(lua[1]), rest)
        elif place := re.match(r"(\S+), line (\d+)", what):
            _replace_line(Path(place[1]), int(place[2]), what, rest)
        else:
            raise ClusterError(f"nobody could follow this: {what}\n{body}")


def _replace_line(path: Path, number: int, what: str, rest: list[str]) -> None:
    lines = path.read_text().splitlines()
    if "delete this line" in what:
        lines[number - 1] = ""
    elif "its nodes are not alike" in what:
        lines[number - 1] = "\n".join(rest)
    elif "in NodeName=" in what:
        kept = [word for word in lines[number - 1].split() if not word.startswith(("Gres=", "Feature="))]
        lines[number - 1] = " ".join([*kept, *rest])
    elif "in PartitionName=" in what:
        key = rest[0].partition("=")[0]
        kept = [word for word in lines[number - 1].split() if not word.startswith(f"{key}=")]
        lines[number - 1] = " ".join([*kept, *rest])
    else:
        lines[number - 1] = rest[0]
    path.write_text("\n".join(lines) + "\n")


def _add_to_filter(path: Path, lines: list[str]) -> None:
    text = path.read_text().replace("-- top", lines[0])
    for index, line in enumerate(lines):
        if call := re.match(r"local rc = hami\.(\w+)\(", line):
            text = text.replace(f"-- here: {call[1]}\n", f"{line}\n{lines[index + 1]}\n")
    path.write_text(text)
