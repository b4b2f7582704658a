# SPDX-License-Identifier: Apache-2.0
"""slurm.conf and gres.conf as files on this machine, includes followed. For a person's commands, not for the stages."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from glob import glob
from pathlib import Path

from hami_hpc.errors import NodeError
from hami_hpc.slurm.lines import ConfLine, logical_lines, parse_line
from hami_hpc.slurm.plugstack import MAX_DEPTH, included_path, read_text

INCLUDE = re.compile(r"include\s+(\S+)\s*$", re.IGNORECASE)
# /run/slurm/conf is where slurmd links its copies to on a node without configuration files of its own.
PLACES = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf")


def find_slurm_conf(environment: Mapping[str, str]) -> str:
    """The slurm.conf that Slurm's commands use here. NodeError when there is none."""
    given = environment.get("SLURM_CONF")
    places = (given,) if given else PLACES
    for path in places:
        if os.path.exists(path):
            return path
    raise NodeError(f"slurm.conf is not in {' or '.join(places)}: set SLURM_CONF to where it is")


class ConfFile:
    """A configuration file with all that it includes, in Slurm's order.

    `own` are files that are not followed: `lines` are the site's alone. `included` holds what was named, own ones too.
    NodeError when a file cannot be read.
    """

    def __init__(self, path: str, own: Collection[str] = ()) -> None:
        self.path = path
        self.lines: list[ConfLine] = []
        self.included: set[str] = set()
        self._own = {os.path.realpath(name) for name in own}
        text = read_text(path)
        self.exists = text is not None
        self._take(path, text or "", 0)

    def _take(self, path: str, text: str, depth: int) -> None:
        for number, line in logical_lines(text):
            include = INCLUDE.match(line)
            if include is None:
                self.lines.append(parse_line(path, number, line))
                continue
            name = included_path(include[1], path, os.path.dirname(self.path))
            self.included.add(os.path.realpath(name))
            if os.path.realpath(name) in self._own or depth >= MAX_DEPTH:
                continue
            inner = read_text(name)
            if inner is None:
                raise NodeError(f"{path}, line {number} includes {name}, which is not there: Slurm would not start")
            self._take(name, inner, depth + 1)

    def includes(self, path: str) -> bool:
        """Whether the file, or one that it includes, includes `path`."""
        return os.path.realpath(path) in self.included


def scripts_of(value: str, conf_dir: str) -> list[str]:
    """The files that a Prolog= or Epilog= value names, a path or a glob pattern, relative to slurm.conf's directory."""
    pattern = value if value.startswith("/") else f"{conf_dir}/{value}"
    return sorted(glob(pattern))


def calls_one_of(script: str, programs: Collection[str]) -> bool:
    """Whether a script is one of these programs or names one of them outside of a comment. Bounded reading."""
    if os.path.realpath(script) in {os.path.realpath(program) for program in programs}:
        return True
    try:
        with Path(script).open("rb") as file:
            text = file.read(1 << 20).decode("utf-8", "replace")
    except OSError:
        return False
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    return any(program in code for program in programs)
