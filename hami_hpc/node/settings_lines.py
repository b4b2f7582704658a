# SPDX-License-Identifier: Apache-2.0
"""Messages about settings that cannot be, with their line. Imported only where there is something wrong with a file."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from hami_hpc.contract import constants as c
from hami_hpc.errors import NodeError
from hami_hpc.node.settings_text import read_text

NAME = r"""(?:"[^"\n]*"|'[^'\n]*'|[A-Za-z0-9_-]+)"""
NAMES = rf"{NAME}(?:[ \t]*\.[ \t]*{NAME})*"
HEADER = re.compile(rf"[ \t]*\[\[?[ \t]*({NAMES})[ \t]*\]\]?[ \t]*(?:#.*)?\r?$")
KEY = re.compile(rf"[ \t]*({NAMES})[ \t]*=")


def refused(path: str, table: str, key: str, value: object, allowed: str) -> NodeError:
    given = str(value)[: c.GIVEN_MAX]
    return NodeError(f"{where(path, table, key)}: {key} = {given!r} is not understood; allowed is {allowed}")


def unknown(path: str, table: str, key: str, known: Sequence[str]) -> NodeError:
    """Returns the error for a key that nothing reads, with the nearest one that is read."""
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
    return NodeError(f"{where(path, table, key)}: unknown key {key[: c.GIVEN_MAX]!r}; {hint}")


def where(path: str, table: str, key: str = "") -> str:
    """Returns `FILE, line 12, table [vgpu]`, for a table or one of its keys; no line where the file does not show it.

    table: "" for keys above all tables. A key that the file sets in another way is looked for as the table around it.
    """
    text = f", table [{table}]" if table else ""
    number = _line(path, ".".join(part for part in (table, key) if part))
    return f"{path}{f', line {number}' if number else ''}{text}"


def _line(path: str, name: str) -> int:
    try:
        lines = lines_of(read_text(path))
    except (OSError, ValueError, NodeError):
        return 0
    while name and name not in lines:
        name = name.rpartition(".")[0]
    return lines.get(name, 0)


def lines_of(text: str) -> dict[str, int]:
    """Returns the line of each table and key, `vgpu.shard_mib`, of TOML text; the first, where there are several."""
    found: dict[str, int] = {}
    table, is_in_text = "", False
    for number, line in enumerate(text.split("\n"), 1):
        quotes = line.count('"""') + line.count("'''")
        if is_in_text:
            is_in_text = quotes % 2 == 0
            continue
        is_in_text = quotes % 2 == 1
        if header := HEADER.match(line):
            table = _plain(header[1])
            found.setdefault(table, number)
        elif key := KEY.match(line):
            found.setdefault(f"{table}.{_plain(key[1])}" if table else _plain(key[1]), number)
    return found


def _plain(names: str) -> str:
    return ".".join(name.strip("\"'") for name in re.findall(NAME, names))
