# SPDX-License-Identifier: Apache-2.0
"""Slurm's lists: of nodes, as in NodeName= and Nodes=, and of gres. Pure."""

from __future__ import annotations

import re

MAX_DIGITS = 18


def split_list(text: str) -> list[str]:
    """Splits `gpu:h200:2(S:0,1),shard:8` at the commas outside of parentheses and brackets; drops empty items."""
    return [item for item in items_of(text) if item]


def items_of(text: str) -> list[str]:
    """As split_list, with the empty items. In time linear in the text: a host list can have thousands of names."""
    items = [""]
    for piece in re.split(r"(?=[(\[])", text):
        end = max(piece.rfind(")"), piece.rfind("]")) + 1
        first, *others = piece[end:].split(",")
        items[-1] += piece[:end] + first
        items += others
    return items


def names_node(expression: str, node: str) -> bool:
    """Returns whether a NodeName= value such as `gpu[01-16],rack[1-2]node[1-4]` names `node`, without expanding it."""
    return any(_part_names(part, node) for part in split_list(expression))


def _part_names(part: str, node: str) -> bool:
    prefix, bracket, _ = part.partition("[")
    if not bracket:
        return part == node
    if not node.startswith(prefix):
        return False
    ends = {0}  # up to where the node's name is that of the list
    for index, text in enumerate(re.split(r"\[([^\]]*)\]", part)):
        if index % 2:  # ranges: the next group may follow after any of the digits, as in n[1-3][10-20]
            tries = [(begin, end) for begin in ends for end in range(begin + 1, len(node) + 1)]
            ends = {end for begin, end in tries if _in_ranges(node[begin:end], text)}
        else:
            ends = {begin + len(text) for begin in ends if node.startswith(text, begin)}
    return len(node) in ends


def _in_ranges(number: str, ranges: str) -> bool:
    """Returns whether a number such as `7` is in `1-8,12`. `07` is not: it names another node."""
    if not _is_number(number):
        return False
    for piece in ranges.split(","):
        first, _, last = piece.partition("-")
        if not _is_number(first) or not _is_number(last or first):
            continue
        if int(first) <= int(number) <= int(last or first) and str(int(number)).zfill(len(first)) == number:
            return True
    return False


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS
