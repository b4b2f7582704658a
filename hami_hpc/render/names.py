# SPDX-License-Identifier: Apache-2.0
"""What may go into Slurm's files as it is: names of nodes and paths, which nothing there can quote. Pure."""

from __future__ import annotations

import re

from hami_hpc.errors import NodeError, shorten
from hami_hpc.slurm.lines import PAIR, parse_line

NODE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}", re.ASCII)
PAIRS = re.compile(rf"(?:{PAIR.pattern})*\s*", re.ASCII)
WRITTEN = ("NodeName", "Gres", "Feature", "Features")
UNQUOTABLE = frozenset("\"'#,=\\;%*?[]{}$`|&<>()~")


def check_node(what: str, name: str) -> None:
    """NodeError for a name that no single node has: host lists such as `gpu[1-8]`, DEFAULT, other characters."""
    if name.upper() == "DEFAULT":
        raise NodeError(f"{what} DEFAULT is not a node: what it sets holds for all nodes that follow in slurm.conf")
    if NODE_NAME.fullmatch(name) is None:
        raise NodeError(
            f"{what} '{shorten(name)}' is not the name of one node: letters, digits, '.', '-' and '_' only. For "
            "several nodes, run render once for each"
        )


def check_path(what: str, path: str) -> None:
    """NodeError for a path that Slurm's files, unit files and shell scripts could not hold without quotes."""
    if any(character.isspace() or not character.isprintable() or character in UNQUOTABLE for character in path):
        raise NodeError(
            f"{what} '{shorten(path)}' has a blank, or a character that Slurm's files cannot quote. Use another path"
        )


def check_parameters(what: str, text: str) -> None:
    """NodeError for what is not part of one NodeName line, KEY=VALUE and so on, or has a key that render writes."""
    if not text.isprintable():
        raise NodeError(f"{what} '{shorten(text)}' has a line end or a character that cannot be printed")
    line = parse_line("", 0, text)
    wrong = "#" in text or "\\" in text or PAIRS.fullmatch(text) is None
    if wrong:
        raise NodeError(f"{what} '{shorten(text)}' is no list of KEY=VALUE, such as 'CPUs=64 RealMemory=512000'")
    for key in WRITTEN:
        if line.get(key):
            raise NodeError(
                f"{what} has {key}=, which render writes itself. For values of your own write the NodeName line into "
                "slurm.conf: render then keeps them and says what to add"
            )
