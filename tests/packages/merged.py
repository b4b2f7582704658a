# SPDX-License-Identifier: Apache-2.0
"""Does by the letter what `hami-hpc render` prints as left to merge."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path


def merge(root: Path, printed: str, check: Callable[..., object]) -> None:
    """`root` is the machine's, `check` runs a command there."""
    merge_by(lambda name: (root / name).read_text(), lambda name, text: (root / name).write_text(text), printed, check)


def merge_by(
    read: Callable[[str], str],
    write: Callable[[str, str], object],
    printed: str,
    check: Callable[..., object],
) -> None:
    """`read` and `write` take a file's path without the first slash."""
    for what, body in re.findall(r"^ +\d+\. (.*)\n((?: {9}.*\n)+)", printed, re.MULTILINE):
        lines = [line[9:] for line in body.splitlines()]
        if added := re.match(r"(\S+): add the line", what):
            name = added[1].lstrip("/")
            write(name, read(name) + lines[0] + "\n")
        elif place := re.match(r"(\S+), line (\d+)", what):
            name, number = place[1].lstrip("/"), int(place[2]) - 1
            text = read(name).splitlines()
            if "in NodeName=" in what:
                kept = [word for word in text[number].split() if not word.startswith(("Gres=", "Feature="))]
                text[number] = " ".join([*kept, *lines])
            else:
                text[number] = lines[0]
            write(name, "\n".join(text) + "\n")
        else:
            for line in lines:
                check("sh", "-c", line)
