# SPDX-License-Identifier: Apache-2.0
"""Writes the files of accounting commands to the path in --output."""

from __future__ import annotations

import os
import shutil
import tempfile
from hashlib import sha256
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


def file_name(account: str) -> str:
    """Returns an account's name for a file's name, with each unsuitable character replaced by its code."""
    name = "".join(letter if letter.isalnum() or letter in "-_" else f"%{ord(letter):02X}" for letter in account)
    if len(name.encode()) <= 200:
        return name
    return f"{name.encode()[:100].decode(errors='ignore')}-{sha256(account.encode()).hexdigest()[:16]}"


def write_file(path: Path, content: bytes) -> None:
    """Writes a file and prints its path on standard error. A write that fails leaves the old file as it was."""
    try:
        if path.exists() and not path.is_file():  # a pipe or a device
            path.write_bytes(content)
        else:
            _replace(Path(os.path.realpath(path)), content)
    except OSError as error:
        raise AccountingError(f"{path} cannot be written: {error.strerror}; see --output") from error
    click.echo(str(path), err=True)


def _replace(path: Path, content: bytes) -> None:
    """Writes a file by a rename, with the permissions of the file that it replaces."""
    new = path.with_name(f".{path.name}.new.{os.getpid()}")
    try:
        new.write_bytes(content)
        if path.exists():
            shutil.copymode(path, new)
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise
