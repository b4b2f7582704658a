# SPDX-License-Identifier: Apache-2.0
"""The format of render's own files: a mark with a digest of the content, and blocks of lines for nodes. Pure.

The mark is one comment line with the digest of the rest of the file. It shows that render wrote the file and that
nobody edited it.

A block has the lines of one node, or of several whose lines differ in NodeName= alone: its heading and its lines then
have a host list. `blocks` takes them apart again, so that render knows each node's lines, and a later run may put a
node into another block.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping

from hami_hpc.core.hostlist import HostlistError, expand, fold, in_order

MARK = "hami-hpc render wrote this file, sha256 {digest}: change the settings and render again, do not edit it."
MARK_LINE = re.compile(r"(?:#|--) hami-hpc render wrote this file, sha256 ([0-9a-f]{64}):[^\n]*\n")
MARK_WITHIN = 2  # the mark is the first line, or the second after a #! line
BLOCK = "# --- node {node}"
BLOCK_LINE = re.compile(r"# --- node (\S+)$", re.MULTILINE)
# Slurm wants as many of these as names in NodeName=; all nodes of one line would have the address of one.
OF_ONE_NODE = re.compile(r"^NodeName=.*[ \t](?:NodeAddr|NodeHostname|BcastAddr|Port)=", re.MULTILINE | re.IGNORECASE)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def marked(content: str, comment: str = "#") -> str:
    """Returns the content with its mark. `comment` begins a comment in the file's language."""
    line = f"{comment} {MARK.format(digest=_digest(content))}\n"
    if content.startswith("#!"):
        shebang, _, rest = content.partition("\n")
        return f"{shebang}\n{line}{rest}"
    return line + content


def is_ours(text: str) -> bool:
    """Returns whether render wrote exactly this text."""
    lines = text.split("\n", MARK_WITHIN)[:MARK_WITHIN]
    for index, line in enumerate(lines):
        match = MARK_LINE.fullmatch(line + "\n")
        if match is not None and (index == 0 or lines[0].startswith("#!")):
            rest = text.replace(line + "\n", "", 1)
            return _digest(rest) == match[1]
    return False


def has_mark(text: str) -> bool:
    """Returns whether render wrote the file, even if it was edited since."""
    return MARK_LINE.search("\n".join(text.split("\n", MARK_WITHIN)[:MARK_WITHIN]) + "\n") is not None


def without_mark(text: str) -> str:
    return MARK_LINE.sub("", text, count=1) if has_mark(text) else text


def block(node: str, lines: str) -> str:
    """Returns the lines of one node, or of the nodes of a host list, under their heading."""
    return f"{BLOCK.format(node=node)}\n{lines.rstrip()}\n"


def blocks(text: str) -> dict[str, str]:
    """Returns node -> block, heading included, of a file's text: each node of a host list has one of its own."""
    heads = list(BLOCK_LINE.finditer(text))
    ends = [*(head.start() for head in heads[1:]), len(text)][: len(heads)]
    by_node: dict[str, str] = {}
    for head, end in zip(heads, ends, strict=True):
        lines = text[head.end() : end].strip("\n")
        try:
            nodes = expand(head[1])
        except HostlistError:  # somebody edited the file: kept as it is
            nodes = [head[1]]
        by_node |= {node: block(node, _renamed(lines, head[1], node)) for node in nodes}
    return by_node


def _renamed(lines: str, old: str, new: str) -> str:
    """Returns the lines of a block with `new` for the name, or host list, `old` in their NodeName=."""
    if old == new:
        return lines
    return re.sub(rf"^NodeName={re.escape(old)}(?=\s|$)", lambda _match: f"NodeName={new}", lines, flags=re.MULTILINE)


def composed(head: str, by_node: Mapping[str, str]) -> str:
    """Returns `head` and the blocks of the nodes, those of like nodes as one."""
    alike: dict[str, list[str]] = {}
    for node in in_order(by_node):
        own = by_node[node]
        key = own if OF_ONE_NODE.search(own) else _renamed(own.partition("\n")[2], node, "")
        alike.setdefault(key, []).append(node)
    together = []
    for nodes in alike.values():
        lines = by_node[nodes[0]].partition("\n")[2]
        together.append(block(fold(nodes), _renamed(lines, nodes[0], fold(nodes))))
    return head.rstrip() + "\n" + "".join(f"\n{text}" for text in together)


def without_blocks(text: str, nodes: Iterable[str]) -> str | None:
    """Returns the content of a file of ours without mark and the lines of `nodes`; None where it has none of them."""
    by_node = blocks(text)
    if not [node for node in nodes if by_node.pop(node, None)]:
        return None
    content = without_mark(text)
    return composed(content[: next(BLOCK_LINE.finditer(content)).start()], by_node)
