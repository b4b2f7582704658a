# SPDX-License-Identifier: Apache-2.0
"""Writes the files of accounting commands to the path in --output."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from hami_hpc.accounting.errors import AccountingError


def make_directory(path: Path) -> None:
    """Creates a directory and checks that it can be written. Raises AccountingError when it cannot."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise AccountingError(f"{path} cannot be written to: {error.strerror}; see --output") from error


def write_file(path: Path, content: bytes) -> None:
    """Writes a file and prints its path on standard error."""
    try:
        path.write_bytes(content)
    except OSError as error:
        raise AccountingError(f"{path} cannot be written: {error.strerror}; see --output") from error
    click.echo(str(path), err=True)
