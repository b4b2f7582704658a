# SPDX-License-Identifier: Apache-2.0
"""The interposer loads in images with an older glibc than the one it was built with (docs/containers.md)."""

from __future__ import annotations

import platform
import re
import subprocess

import pytest
from conformance import INTERPOSER, ROOT

OLDEST = (2, 17)
PAGE = ROOT / "docs/containers.md"


def objdump(option: str) -> str:
    return subprocess.run(["objdump", option, INTERPOSER], capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other machines have no older version of these functions")
def test_it_needs_no_newer_glibc_than_the_page_says() -> None:
    needed = {tuple(map(int, version.split("."))) for version in re.findall(r"GLIBC_([0-9.]+)", objdump("-T"))}
    assert max(needed) == OLDEST, sorted(needed)
    assert f"glibc {'.'.join(map(str, OLDEST))}" in PAGE.read_text()


def test_it_names_the_libraries_that_its_functions_were_in_before_glibc_2_34() -> None:
    """Else a program that has not loaded them ends at its start, on such a glibc: an undefined symbol."""
    assert {"libpthread.so.0", "libdl.so.2", "libc.so.6"} <= set(re.findall(r"NEEDED\s+(\S+)", objdump("-p")))
