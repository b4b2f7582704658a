# SPDX-License-Identifier: Apache-2.0
"""Parses lines of slurm.conf and gres.conf as Slurm does. Pure.

The rules are those of Slurm's parse_config.c: `#` begins a comment unless a backslash precedes it; a backslash at the
end, CR and blanks after it or not, joins the next line with nothing in between; other backslashes are dropped; keys
ignore case; of a key that is set twice the last value counts (Prolog and Epilog from 24.05 on: both); and a line that
begins with NodeName= describes one set of nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hami_hpc.core.node_names import names_node as names_node
from hami_hpc.core.node_names import split_list as split_list

BLANKS = " \t\n\v\f\r"  # isspace() in the C locale, in which the daemons read
# keyvalue_pattern of parse_config.c: an operator before `=` is read, and counts in other files than these.
PAIR = re.compile(
    r"""[ \t-\r]*([A-Za-z0-9_.]+)[ \t-\r]*[-*+/]?=[ \t-\r]*(?:"([^"]*)"|([^ \t-\r]+))(?=[ \t-\r]|$)""", re.ASCII
)
# First keys of lines that describe an object (nodes, a partition, a gres) and hold no settings.
OBJECT_KEYS = frozenset({"nodename", "partitionname", "nodeset", "downnodes", "frontendname", "slurmctldhost", "name"})


@dataclass(frozen=True, slots=True)
class ConfLine:
    """One logical line: its file and line number, its text without comment, and its (key, value) pairs in order."""

    path: str
    number: int
    text: str
    pairs: tuple[tuple[str, str], ...]

    @property
    def where(self) -> str:
        return f"{self.path}, line {self.number}"

    @property
    def kind(self) -> str:
        """The first key in lower case: `nodename` for a line that describes nodes."""
        return self.pairs[0][0].lower() if self.pairs else ""

    def get(self, key: str) -> str:
        """Returns the value of a key of this line; empty when the line does not have it."""
        return next((value for name, value in self.pairs if name.lower() == key.lower()), "")


@dataclass(frozen=True, slots=True)
class Setting:
    """A value that the site sets for a key, and where: file and line."""

    value: str
    where: str


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yields (number of its first line, text) of each line that is not empty; drops comments, joins continuations."""
    first_number, parts = 0, ""
    for number, raw in enumerate(text.split("\n"), 1):
        line = re.sub(r"(?<!\\)((?:\\\\)*)#.*", r"\1", raw, flags=re.DOTALL).rstrip(BLANKS)
        first_number = first_number or number
        if continues(line):
            parts += line[:-1]
            continue
        whole = _without_escapes(parts + line)
        if whole:
            yield first_number, whole
        first_number, parts = 0, ""
    if _without_escapes(parts):
        yield first_number, _without_escapes(parts)


def continues(line: str) -> bool:
    """Returns whether the next line continues this one, which has no comment and no trailing blanks."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _without_escapes(line: str) -> str:
    return re.sub(r"\\(.)", r"\1", line, flags=re.DOTALL).strip(BLANKS)


def parse_line(path: str, number: int, text: str) -> ConfLine:
    """Parses one logical line, up to the first word that is no key and value."""
    pairs = []
    at = 0
    while match := PAIR.match(text, at):
        pairs.append((match[1], match[3] if match[2] is None else match[2]))
        at = match.end()
    return ConfLine(path, number, text, tuple(pairs))


def pair_text(key: str, value: str) -> str:
    """Returns the pair as it is written in a line."""
    return f'{key}="{value}"' if not value or any(blank in value for blank in BLANKS) else f"{key}={value}"


def settings_of(lines: Iterable[ConfLine]) -> dict[str, list[Setting]]:
    """Returns key in lower case -> its settings in order. Leaves out lines that describe nodes, partitions or gres."""
    settings: dict[str, list[Setting]] = {}
    for line in lines:
        if line.kind in OBJECT_KEYS:
            continue
        for key, value in line.pairs:
            settings.setdefault(key.lower(), []).append(Setting(value, line.where))
    return settings
