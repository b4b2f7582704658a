# SPDX-License-Identifier: Apache-2.0
"""Expands Slurm host lists such as ``gpu[01-16,20],login1`` to at most 65,536 names. Pure."""

from __future__ import annotations

import re

_MOST_HOSTS = 65536
_PART = re.compile(r"([A-Za-z0-9._-]*)(?:\[([0-9,-]+)\]([A-Za-z0-9._-]*))?")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


class HostlistError(ValueError):
    """A text that is not a host list. The message names the wrong part."""


def expand(text: str) -> list[str]:
    """Returns the names in order. Raises HostlistError."""
    hosts: list[str] = []
    for part in re.split(r",(?![^\[]*\])", text):
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
