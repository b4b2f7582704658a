# SPDX-License-Identifier: Apache-2.0
"""Reads slurm.conf and gres.conf on this machine, with their includes. For commands, not for prolog and epilog."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from glob import glob
from pathlib import Path

from hami_hpc.errors import NodeError
from hami_hpc.slurm.lines import ConfLine, logical_lines, parse_line
from hami_hpc.slurm.plugstack import check_depth, included_path, read_text

INCLUDE = re.compile(r"include\s+(\S+)\s*$", re.IGNORECASE)
# slurmd links its copies to /run/slurm/conf on a node without configuration files of its own (configless).
PLACES = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf")


def find_slurm_conf(environment: Mapping[str, str]) -> str:
    """Returns the path of the slurm.conf that Slurm's commands use here. Raises NodeError when there is none."""
    from_environment = environment.get("SLURM_CONF")
    places = (from_environment,) if from_environment else PLACES
    for path in places:
        if os.path.exists(path):
            return path
    raise NodeError(f"there is no slurm.conf at {' or '.join(places)}: set SLURM_CONF to its path")


class ConfFile:
    """A configuration file with the files that it includes, in Slurm's order.

    Files in `own` (hami_hpc's) are not read, so that `lines` are the site's only. `included` has the paths of all
    included files, those in `own` too. Raises NodeError when a file cannot be read.
    """

    def __init__(self, path: str, own: Collection[str] = ()) -> None:
        self.path = path
        self.lines: list[ConfLine] = []
        self.included: set[str] = set()
        self._own = {os.path.realpath(name) for name in own}
        self._cluster = ""
        text = read_text(path)
        self.exists = text is not None
        self._add_lines(path, text or "", 0)

    def _add_lines(self, path: str, text: str, depth: int) -> None:
        if text.startswith("\ufeff"):
            raise NodeError(
                f"{path} begins with a byte order mark, for which Slurm would not start. Save it without one"
            )
        for number, line in logical_lines(text):
            include = INCLUDE.match(line)
            if include is None:
                parsed = parse_line(path, number, line)
                self._cluster = parsed.get("ClusterName") or self._cluster
                self.lines.append(parsed)
                continue
            name = included_path(include[1], path, os.path.dirname(self.path), self._cluster)
            self.included.add(os.path.realpath(name))
            if os.path.realpath(name) in self._own:
                continue
            check_depth(path, depth)
            included_text = read_text(name)
            if included_text is None:
                raise NodeError(f"{path}, line {number} includes {name}, which does not exist: Slurm would not start")
            self._add_lines(name, included_text, depth + 1)

    @property
    def cluster(self) -> str:
        """ClusterName, or an empty text."""
        return self._cluster

    def includes(self, path: str) -> bool:
        """Returns whether the file, or one that it includes, includes `path`."""
        return os.path.realpath(path) in self.included


def scripts_of(value: str, conf_dir: str) -> list[str]:
    """Returns the files of a Prolog= or Epilog= value: a path or glob pattern, relative to slurm.conf's directory."""
    pattern = value if value.startswith("/") else f"{conf_dir}/{value}"
    return sorted(glob(pattern))


def calls_one_of(script: str, programs: Collection[str]) -> bool:
    """Returns whether a script is one of these programs or names one outside of a comment. Reads at most 1 MiB."""
    if os.path.realpath(script) in {os.path.realpath(program) for program in programs}:
        return True
    try:
        with Path(script).open("rb") as file:
            text = file.read(1 << 20).decode("utf-8", "replace")
    except OSError:
        return False
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    return any(program in code for program in programs)
