# SPDX-License-Identifier: Apache-2.0
"""The format of render's own files: a mark with a digest of the content, and a block of lines for each node. Pure.

The mark is one comment line with the digest of the rest of the file. It shows that render wrote the file and that
nobody edited it.
"""

from __future__ import annotations

import hashlib
import re

MARK = "hami-hpc render wrote this file, sha256 {digest}: change the settings and render again, do not edit it."
MARK_LINE = re.compile(r"(?:#|--) hami-hpc render wrote this file, sha256 ([0-9a-f]{64}):[^\n]*\n")
MARK_WITHIN = 2  # the mark is the first line, or the second after a #! line
BLOCK = "# --- node {node}"
BLOCK_LINE = re.compile(r"# --- node (\S+)$", re.MULTILINE)


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


def block(node: str, lines: str) -> str:
    """Returns the lines of one node under their heading."""
    return f"{BLOCK.format(node=node)}\n{lines.rstrip()}\n"


def blocks(text: str) -> dict[str, str]:
    """Returns node -> block, heading included, of a file's text."""
    heads = list(BLOCK_LINE.finditer(text))
    ends = [*(head.start() for head in heads[1:]), len(text)][: len(heads)]
    return {head[1]: text[head.start() : end].rstrip() + "\n" for head, end in zip(heads, ends, strict=True)}


def with_block(head: str, old: str, node: str, new: str) -> str:
    """Returns `head` and the blocks of `old`, with `node`'s block replaced by `new`, or removed if `new` is empty."""
    by_node = blocks(old)
    by_node.pop(node, None)
    if new:
        by_node[node] = new
    return head.rstrip() + "\n" + "".join(f"\n{by_node[name]}" for name in sorted(by_node))


def without_block(text: str, node: str) -> str | None:
    """Returns the content of a file of ours without mark and `node`'s block; None where it has no such block."""
    if node not in blocks(text):
        return None
    content = MARK_LINE.sub("", text, count=1) if has_mark(text) else text
    head = content[: next(BLOCK_LINE.finditer(content)).start()]
    return with_block(head, content, node, "")
