# SPDX-License-Identifier: Apache-2.0
"""The build of hami_hpc that is running: `make install` writes it, and the linker writes it into each library."""

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
    """Returns `0.1.0 (02843cc1a2b3)`: the installed build, in a checkout git's revision. Not for prolog and epilog."""
    if installed.BUILD:
        return installed.BUILD
    try:
        build_info = subprocess.run(
            [ROOT / "scripts" / "build-info"], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return UNKNOWN
    return build_info.stdout.strip()


def stamp_of(path: Path) -> str:
    """Reads the build from a library, without loading it. Raises NodeError when the library contains none."""
    try:
        match = STAMP.search(path.read_bytes())
    except OSError as error:
        raise NodeError(f"{path} cannot be read ({error.strerror})") from error
    if match is None:
        raise NodeError(f"{path} contains no build: it is older than the other libraries, or not hami_hpc's")
    return match[1].decode("ascii")
