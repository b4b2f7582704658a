# SPDX-License-Identifier: Apache-2.0
"""Reads the accounts' tree of slurmdbd: from sacctmgr, or from a file with what this command prints:

sacctmgr -nP show associations format=Cluster,Account,ParentName,User
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from hami_hpc.accounting.errors import AccountingError, command_failed, printable

COMMAND = ("sacctmgr", "-nP", "show", "associations", "format=Cluster,Account,ParentName,User")
ASK = "sacctmgr"  # in place of a file: run the command
MOST_DEEP = 64
_MOST_BYTES = 256 << 20
# An account of a cluster.
Key = tuple[str, str]
# Each account's parent, empty text for none.
Tree = Mapping[Key, str]


def read(source: str) -> Tree:
    """Returns the tree of a file, or of slurmdbd if ``source`` is ASK. Raises AccountingError."""
    return parse(_asked() if source == ASK else _text(Path(source)), source)


def parse(text: str, name: str) -> Tree:
    """Returns the tree. name: what messages call the text. Raises AccountingError for what is no tree."""
    parents: dict[Key, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        cells = line.split("|")
        if not line.strip() or (number == 1 and cells[0].lower() == "cluster"):
            continue
        if len(cells) != 4 or not cells[0] or not cells[1]:
            raise AccountingError(
                f"{name}, line {number}: '{printable(line[:60])}' is not Cluster|Account|ParentName|User; make the "
                f"file with {' '.join(COMMAND)}"
            )
        cluster, account, parent, user = cells
        if user:
            continue
        known = parents.setdefault((cluster, account), parent)
        if known != parent:
            raise AccountingError(
                f"{name}, line {number}: account {_short(account)} of {_short(cluster)} has two parents, "
                f"{_short(known)} and {_short(parent)}"
            )
    if not parents:
        raise AccountingError(f"{name} has no account; make it with {' '.join(COMMAND)}")
    for cluster, parent in {(cluster, parent) for (cluster, _), parent in parents.items() if parent}:
        parents.setdefault((cluster, parent), "")
    _refuse_loops(parents, name)
    return parents


def _refuse_loops(parents: Tree, name: str) -> None:
    """Raises AccountingError for an account that is above itself, or is too deep for a page."""
    depths: dict[Key, int] = {}
    for key in parents:
        path: list[Key] = []
        seen: set[Key] = set()
        at: Key | None = key
        while at is not None and at not in depths:
            if at in seen:
                loop = " > ".join(_short(account) for _, account in path[path.index(at) :][:5])
                raise AccountingError(f"{name}: accounts of {_short(at[0])} are above themselves: {loop} > ...")
            path.append(at)
            seen.add(at)
            at = (at[0], parents[at]) if parents[at] else None
        depth = depths[at] if at is not None else 0
        for passed in reversed(path):
            depth += 1
            depths[passed] = depth
        if depth > MOST_DEEP:
            raise AccountingError(f"{name}: account {_short(key[1])} is {depth} levels deep; at most {MOST_DEEP} are")


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise AccountingError(f"{path} is longer than {_MOST_BYTES >> 20} MiB; is it what {COMMAND[0]} printed?")
        return content.decode("utf-8-sig")
    except OSError as error:
        raise AccountingError(f"{path} cannot be read ({error.strerror}); --tree takes a file, or {ASK}") from error
    except UnicodeDecodeError as error:
        raise AccountingError(f"{path} is no text in UTF-8; make it with {' '.join(COMMAND)}") from error


def _asked() -> str:
    try:
        done = subprocess.run(
            COMMAND, capture_output=True, check=False, text=True, errors="replace", env={**os.environ, "LC_ALL": "C"}
        )
    except OSError as error:
        raise AccountingError(f"cannot run {COMMAND[0]}: {error.strerror}; give --tree a file") from error
    if done.returncode:
        raise command_failed(COMMAND[0], done.returncode, done.stderr)
    return done.stdout


def _short(name: str) -> str:
    return printable(name[:40] + ("…" if len(name) > 40 else "")) or "(none)"
