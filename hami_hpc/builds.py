# SPDX-License-Identifier: Apache-2.0
"""Which build of hami_hpc runs here: stamped by `make install`, and into each library by the linker."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from hami_hpc import installed
from hami_hpc.errors import NodeError
from hami_hpc.places import ROOT

STAMP = re.compile(rb"hami-hpc build: ([ -~]{1,200})\0")  # scripts/build-info writes it
UNKNOWN = "unknown"
TIMEOUT_S = 20


def build_text() -> str:
    """`0.1.0 (02843cc1a2b3)` of the installation; in a checkout what git says. For commands, not for stages."""
    if installed.BUILD:
        return installed.BUILD
    try:
        done = subprocess.run(
            [ROOT / "scripts" / "build-info"], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return UNKNOWN
    return done.stdout.strip()


def stamp_of(path: Path) -> str:
    """The build that a library was linked in, read without loading it. NodeError when it carries none."""
    try:
        match = STAMP.search(path.read_bytes())
    except OSError as error:
        raise NodeError(f"{path} cannot be read ({error.strerror})") from error
    if match is None:
        raise NodeError(f"{path} does not say of which build it is: it is older than the rest, or not hami_hpc's")
    return match[1].decode("ascii")
