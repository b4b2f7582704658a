# SPDX-License-Identifier: Apache-2.0
"""Does by the letter what `hami-hpc render` prints as left to merge."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path


def merge(root: Path, printed: str, check: Callable[..., object]) -> None:
    """`root` is the machine's, `check` runs a command there."""
    for what, body in re.findall(r"^ +\d+\. (.*)\n((?: {9}.*\n)+)", printed, re.MULTILINE):
        lines = [line[9:] for line in body.splitlines()]
        if added := re.match(r"(\S+): add the line", what):
            path = root / added[1].lstrip("/")
            path.write_text(path.read_text() + lines[0] + "\n")
        elif place := re.match(r"(\S+), line (\d+)", what):
            path, number = root / place[1].lstrip("/"), int(place[2]) - 1
            text = path.read_text().splitlines()
            if "in NodeName=" in what:
                kept = [word for word in text[number].split() if not word.startswith(("Gres=", "Feature="))]
                text[number] = " ".join([*kept, *lines])
            else:
                text[number] = lines[0]
            path.write_text("\n".join(text) + "\n")
        else:
            for line in lines:
                check("sh", "-c", line)
