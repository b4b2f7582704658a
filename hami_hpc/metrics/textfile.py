# SPDX-License-Identifier: Apache-2.0
"""Writes the metrics for node_exporter's textfile collector, which reads *.prom in one directory."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

MODE = 0o644  # node_exporter runs as another user


def write(path: Path, text: bytes) -> None:
    """Replaces the file: a reader sees the old or the new one, whole. Raises OSError, with its path, when that fails.

    The temporary file is in the same directory, under a name that the collector does not read.
    """
    try:
        _write(path, text)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _write(path: Path, text: bytes) -> None:
    fd, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".new", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(text)
            os.fchmod(fd, MODE & ~_umask())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
