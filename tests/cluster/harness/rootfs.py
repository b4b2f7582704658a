# SPDX-License-Identifier: Apache-2.0
"""Makes a container's image from the machine's own files: a shell, a few commands, and the libraries that they need."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

COMMANDS = ("sh", "cat", "env", "grep", "sleep")
EMPTY = ("dev", "etc", "proc", "run", "sys", "tmp", "var/tmp")
_LIBRARY = re.compile(r"(/\S+) \(0x")
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}


def make(target: Path) -> Path:
    """Writes the image's files below target, as root, and returns it. It has no file of hami_hpc's."""
    for name in (*EMPTY, "usr/bin"):
        (target / name).mkdir(parents=True)
    (target / "tmp").chmod(0o1777)
    (target / "bin").symlink_to("usr/bin")
    programs = [Path(shutil.which(name, path=_ENVIRONMENT["PATH"]) or f"{name} is missing") for name in COMMANDS]
    for program in programs:
        shutil.copy(program, target / "usr/bin")
    for library in sorted({library for program in programs for library in _libraries(program)}):
        (target / library[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, target / library[1:])
    for name in ("passwd", "group"):
        shutil.copy(f"/etc/{name}", target / "etc")
    for path in target.rglob("*"):
        if not path.is_symlink() and path.is_dir() and path != target / "tmp":
            path.chmod(0o755)
    return target


def _libraries(program: Path) -> Iterator[str]:
    """Yields the libraries that a program needs, and those that every glibc has beside it (include/old_glibc.h)."""
    done = subprocess.run(("ldd", program), env=_ENVIRONMENT, capture_output=True, text=True, check=True)
    for library in _LIBRARY.findall(done.stdout):
        yield library
        if library.endswith("/libc.so.6"):
            yield from (library.replace("libc.so.6", name) for name in ("libpthread.so.0", "libdl.so.2"))
