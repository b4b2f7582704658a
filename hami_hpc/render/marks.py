# SPDX-License-Identifier: Apache-2.0
"""The files that `hami-hpc render` owns: a mark with a digest of the content, and a block of lines for each node. Pure.

The mark tells a file that render wrote and nobody edited from everything else. It is one comment line; the digest is
over the rest of the file.
"""

from __future__ import annotations

import hashlib
import re

MARK = "hami-hpc render wrote this file, sha256 {digest}: change the settings and render again, do not edit it."
MARK_LINE = re.compile(r"(?:#|--) hami-hpc render wrote this file, sha256 ([0-9a-f]{64}):[^\n]*\n")
MARK_WITHIN = 2  # the mark is the first line, or the second where the first is #!
BLOCK = "# --- node {node}"
BLOCK_LINE = re.compile(r"# --- node (\S+)$", re.MULTILINE)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def marked(content: str, comment: str = "#") -> str:
    """The content with its mark; `comment` begins a comment of the file's language."""
    line = f"{comment} {MARK.format(digest=_digest(content))}\n"
    if content.startswith("#!"):
        shebang, _, rest = content.partition("\n")
        return f"{shebang}\n{line}{rest}"
    return line + content


def is_ours(text: str) -> bool:
    """Whether render wrote exactly this text."""
    lines = text.split("\n", MARK_WITHIN)[:MARK_WITHIN]
    for index, line in enumerate(lines):
        match = MARK_LINE.fullmatch(line + "\n")
        if match is not None and (index == 0 or lines[0].startswith("#!")):
            rest = text.replace(line + "\n", "", 1)
            return _digest(rest) == match[1]
    return False


def has_mark(text: str) -> bool:
    """Whether render wrote the file once, edited or not."""
    return MARK_LINE.search("\n".join(text.split("\n", MARK_WITHIN)[:MARK_WITHIN]) + "\n") is not None


def block(node: str, lines: str) -> str:
    """The lines of one node under their heading."""
    return f"{BLOCK.format(node=node)}\n{lines.rstrip()}\n"


def blocks(text: str) -> dict[str, str]:
    """Node -> block, heading included, of a file's text."""
    heads = list(BLOCK_LINE.finditer(text))
    ends = [*(head.start() for head in heads[1:]), len(text)][: len(heads)]
    return {head[1]: text[head.start() : end].rstrip() + "\n" for head, end in zip(heads, ends, strict=True)}


def with_block(head: str, old: str, node: str, new: str) -> str:
    """`head`, then the blocks of `old` with the one of `node` replaced by `new`; no block for it when that is empty."""
    kept = blocks(old)
    kept.pop(node, None)
    if new:
        kept[node] = new
    return head.rstrip() + "\n" + "".join(f"\n{kept[name]}" for name in sorted(kept))
