# SPDX-License-Identifier: Apache-2.0
"""Slurm's host lists, such as ``gpu[01-16,20],login1``: expands them to at most 65,536 names, and makes them. Pure.

Slurm (hostlist.c of 22.05.8) takes at most 65,536 names in a range and 262,144 ranges between two brackets, and no
text after the last bracket. A range has the width of its first number: `[8-10]` is 8, 9, 10, and `[08-10]` 08, 09, 10.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hami_hpc.core.node_names import items_of

LONGEST = 120  # characters of a host list in a sentence
_MOST_HOSTS = 65536
_PART = re.compile(r"([A-Za-z0-9._-]*)(?:\[([0-9,-]+)\]([A-Za-z0-9._-]*))?")
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?", re.ASCII)
_NUMBERED = re.compile(r"([A-Za-z0-9._-]*?[A-Za-z._-])([0-9]{1,9})")


class HostlistError(ValueError):
    """A text that is not a host list. The message names the wrong part."""


def expand(text: str) -> list[str]:
    """Returns the names in order. Raises HostlistError."""
    hosts: list[str] = []
    for part in items_of(text):
        match = _PART.fullmatch(part)
        if match is None or not part:
            raise HostlistError(f"'{part[:40]}' is not a host name or range")
        prefix, ranges, suffix = match.groups()
        if ranges is None:
            hosts.append(prefix)
            continue
        for piece in ranges.split(","):
            hosts += [f"{prefix}{number}{suffix}" for number in _numbers(piece)]
            if len(hosts) > _MOST_HOSTS:
                raise HostlistError(f"more than {_MOST_HOSTS} hosts")
    return hosts


def _numbers(piece: str) -> list[str]:
    match = _RANGE.fullmatch(piece)
    if match is None:
        raise HostlistError(f"'{piece[:40]}' is not a range of numbers")
    first, last = match[1], match[2] or match[1]
    if not 0 <= int(last) - int(first) < _MOST_HOSTS:
        raise HostlistError(f"'{piece[:40]}' does not ascend, or is too long")
    return [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]


def fold(names: Iterable[str]) -> str:
    """Returns the names as one host list, the same for the same names in any order; `expand` returns them in the order
    of `in_order`. Only numbers at a name's end become ranges."""
    return ",".join(_part(prefix, digits) if all(digits) else prefix for prefix, digits in _by_prefix(names))


def in_order(names: Iterable[str]) -> list[str]:
    """Returns each name once, by prefix and number: node2 before node10."""
    return [prefix + number for prefix, digits in _by_prefix(names) for number in digits]


def named(names: Iterable[str]) -> str:
    """Returns names of nodes for a sentence: a host list, or the first of them and how many more there are."""
    ordered = in_order(names)
    text = fold(ordered)
    return text if len(text) <= LONGEST else f"{ordered[0]} and {len(ordered) - 1} other nodes"


def _by_prefix(names: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Returns (prefix, digits at the end of its names), in order; (NAME, [""]) where a range cannot stand for them.

    `01`, `1` and `10` may all be there: a number without leading zeros is put with the padded ones whose range could
    go on to it, so that 09 and 10 are neighbours, and 9 and 10 where nothing is padded.
    """
    found: dict[tuple[str, bool], set[str]] = {}
    for name in names:
        match = _NUMBERED.fullmatch(name)
        prefix, number = (match[1], match[2]) if match else (name, "")
        found.setdefault((prefix, bool(number)), set()).add(number)
    ordered = []
    for (prefix, has_number), digits in sorted(found.items()):
        widths = sorted({len(number) for number in digits if len(number) > 1 and number.startswith("0")})

        def key(number: str, widths: list[int] = widths) -> tuple[int, int]:
            return max((width for width in widths if width <= len(number)), default=0), int(number)

        ordered.append((prefix, sorted(digits, key=key) if has_number else [""]))
    return ordered


def _part(prefix: str, numbers: list[str]) -> str:
    """Returns `gpu[01-16,20]`. A number goes on with the range before it where Slurm would write it as it is."""
    ranges: list[list[str]] = []
    for number in numbers:
        if ranges and number == str(int(ranges[-1][1]) + 1).zfill(len(ranges[-1][0])):
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    if len(numbers) == 1:
        return prefix + numbers[0]
    return f"{prefix}[{','.join(first if first == last else f'{first}-{last}' for first, last in ranges)}]"
