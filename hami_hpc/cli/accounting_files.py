# SPDX-License-Identifier: Apache-2.0
"""Writes the files of accounting commands to the path in --output."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
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
    """Writes a file and prints its path on standard error. A write that fails leaves the old file as it was.

    A link of another user's, as in a directory that others can write, is replaced and not followed. Raises
    AccountingError when the file cannot be written.
    """
    try:
        if path.is_symlink() and not _is_ours(path.lstat()):
            _replace(path, content)
        elif path.exists() and not path.is_file():  # a pipe or a device
            path.write_bytes(content)
        else:
            _replace(Path(os.path.realpath(path)), content)
    except OSError as error:
        raise AccountingError(f"{path} cannot be written: {error.strerror}; see --output") from error
    click.echo(str(path), err=True)


def _replace(path: Path, content: bytes) -> None:
    """Writes a file by a rename, with the permissions of the file that it replaces.

    The new file has a name that nobody can foresee, and is made by this process: in a directory that others can write,
    a link of theirs in its place would have root write where it leads.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".hami-hpc.new.")
    new = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            os.fchmod(handle, _mode(path))
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise


def _mode(path: Path) -> int:
    """Returns the permissions of a file of the caller's, else those that a new file has."""
    with suppress(FileNotFoundError):
        status = path.lstat()
        if stat.S_ISREG(status.st_mode) and _is_ours(status):
            return stat.S_IMODE(status.st_mode)
    mask = os.umask(0o077)
    os.umask(mask)
    return 0o666 & ~mask


def _is_ours(status: os.stat_result) -> bool:
    return status.st_uid in (0, os.geteuid())
