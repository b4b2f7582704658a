# SPDX-License-Identifier: Apache-2.0
"""The functions that the interposer stands in for, by the rows of its tables hooks.def and held.def."""

from __future__ import annotations

import re
from pathlib import Path

INTERPOSER = Path(__file__).resolve().parents[1] / "native/interposer"
HELD = re.compile(r"^(?:HELD|SHARES|POOLED|ALLOCATED|MADE)(?:_BOTH\((\w+), (_pt[ds][sz])|\((\w+)),", re.MULTILINE)


def hook_names(library: str = "CUDA|NVML") -> list[str]:
    """Returns the exported names; `library`: CUDA, NVML, or both."""
    rows = (INTERPOSER / "hooks.def").read_text(encoding="utf-8")
    names = re.findall(rf"^(?:{library})\((\w+)\)$", rows, re.MULTILINE)
    if "CUDA" in library:
        for both, suffix, one in HELD.findall((INTERPOSER / "held.def").read_text(encoding="utf-8")):
            names += [both, both + suffix] if both else [one]
    return names
