# SPDX-License-Identifier: Apache-2.0
"""Lines of slurm.conf and gres.conf, as Slurm's parser takes them apart. Pure.

Read in Slurm's parse_config.c: `#` begins a comment unless a backslash is before it, a backslash at the end goes on in
the next line, keys are compared without case, a key that is there twice has its latest value (Prolog and Epilog from
24.05 on: both), and a line that begins with NodeName= is one record.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

PAIR = re.compile(r'([A-Za-z0-9_.]+)\s*=\s*("[^"]*"|\S*)')
RECORDS = frozenset({"nodename", "partitionname", "nodeset", "downnodes", "frontendname", "slurmctldhost", "name"})


@dataclass(frozen=True, slots=True)
class ConfLine:
    """One logical line: where it is, its text without comment, and its keys with their values in order."""

    path: str
    number: int
    text: str
    pairs: tuple[tuple[str, str], ...]

    @property
    def where(self) -> str:
        return f"{self.path}, line {self.number}"

    @property
    def kind(self) -> str:
        """The first key in lower case: `nodename` for a node's record."""
        return self.pairs[0][0].lower() if self.pairs else ""

    def get(self, key: str) -> str:
        """The value of a key of this line; empty when it is not there."""
        return next((value for name, value in self.pairs if name.lower() == key.lower()), "")


@dataclass(frozen=True, slots=True)
class Given:
    """A setting of the site: its value and where it stands."""

    value: str
    where: str


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """(number of its first line, text) of each line with something in it; comments dropped, continuations joined."""
    begun, parts = 0, ""
    for number, raw in enumerate(text.split("\n"), 1):
        line = re.sub(r"(?<!\\)((?:\\\\)*)#.*", r"\1", raw).rstrip()
        begun = begun or number
        ends_open = len(line) - len(line.rstrip("\\"))
        if ends_open % 2 == 1:
            parts += line[:-1] + " "
            continue
        whole = (parts + line).strip()
        if whole:
            yield begun, whole
        begun, parts = 0, ""
    if parts.strip():
        yield begun, parts.strip()


def parse_line(path: str, number: int, text: str) -> ConfLine:
    """The line with its keys; one that Slurm would not understand has none."""
    return ConfLine(path, number, text, tuple((key, value.strip('"')) for key, value in PAIR.findall(text)))


def settings_of(lines: Iterable[ConfLine]) -> dict[str, list[Given]]:
    """Key in lower case -> what the site gives it, in order. Records of nodes and partitions are left out."""
    found: dict[str, list[Given]] = {}
    for line in lines:
        if line.kind in RECORDS:
            continue
        for key, value in line.pairs:
            found.setdefault(key.lower(), []).append(Given(value, line.where))
    return found


def split_list(text: str) -> list[str]:
    """The items of `gpu:h200:2(S:0,1),shard:8`: commas in parentheses and brackets separate nothing."""
    return [item for item in re.split(r",(?![^(\[]*[)\]])", text) if item]


def names_node(expression: str, node: str) -> bool:
    """Whether a NodeName= value such as `gpu[01-16],rack[1-2]node[1-4]` names `node`. Nothing is expanded."""
    return any(_part_names(part, node) for part in split_list(expression))


def _part_names(part: str, node: str) -> bool:
    texts_and_ranges = re.split(r"\[([^\]]*)\]", part)
    form = "".join(r"(\d+)" if index % 2 else re.escape(text) for index, text in enumerate(texts_and_ranges))
    match = re.fullmatch(form, node)
    return match is not None and all(map(_in_ranges, match.groups(), texts_and_ranges[1::2]))


def _in_ranges(number: str, ranges: str) -> bool:
    """Whether `7` is in `1-8,12`; `07` is another name than `7`."""
    for piece in ranges.split(","):
        first, _, last = piece.partition("-")
        ends = (first, last or first)
        if all(end.isascii() and end.isdigit() for end in ends) and int(ends[0]) <= int(number) <= int(ends[1]):
            return str(int(number)).zfill(len(first)) == number
    return False
