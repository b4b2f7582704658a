# SPDX-License-Identifier: Apache-2.0
"""Reads the usage spool: what ended vGPU jobs used, as the epilog of each node wrote it.

A spool is a directory tree of JSON files, such as copies of /var/lib/hami-hpc/usage of all nodes.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hami_hpc.accounting.errors import printable
from hami_hpc.contract import constants as c

_MOST_BYTES = 65536
_MOST_FOLDERS_DEEP = 8
_INT64_MAX = 2**63 - 1
_TYPES = {"int": "BIGINT", "text": "VARCHAR"}
_NOT_STORED = ("version", "mode", "start", "end", "history")  # history: up to 17 KB, which no document uses
# Field of the record (contract.toml, [spool]) -> its type in the store.
FIELDS = {name: _TYPES[kind] for name, kind in c.SPOOL_FIELDS.items() if name not in _NOT_STORED}
# For fields that older records, and stores with such records, do not have.
DEFAULTS = {name: value for name, value in c.SPOOL_DEFAULTS.items() if name in FIELDS}


class UsageRecordError(ValueError):
    """A file of the spool that is not a usage record. The message says why."""


def parse_record(text: str) -> tuple[int | str, ...]:
    """Parses one record. Returns its values in the order of FIELDS. Raises UsageRecordError."""
    try:
        record: Any = json.loads(text)
    except ValueError as error:
        raise UsageRecordError(f"is not JSON: {error}") from error
    except RecursionError:
        raise UsageRecordError("is JSON of too many levels") from None
    if not isinstance(record, dict) or record.get("version") != c.SPOOL_VERSION:
        raise UsageRecordError(f"is not a usage record of version {c.SPOOL_VERSION}")
    values: list[int | str] = []
    for name, kind in FIELDS.items():
        value = record.get(name, DEFAULTS.get(name))
        if kind == "BIGINT" and (type(value) is not int or not 0 <= value <= _INT64_MAX):
            raise UsageRecordError(f"{name} is not a whole number from 0 to {_INT64_MAX}")
        if kind == "VARCHAR" and (not isinstance(value, str) or not value.isprintable()):
            raise UsageRecordError(f"{name} is not printable text")
        values.append(value)  # type: ignore[arg-type]
    if record["end_unix_ns"] < record["start_unix_ns"]:
        raise UsageRecordError("it ends before it starts")
    return tuple(values)


@dataclass(frozen=True, slots=True)
class SpoolFile:
    """A file of a spool as it was read. identity: what changes when another one takes its place or it is written."""

    path: Path
    identity: tuple[int, ...]


def read_spool(directory: Path) -> tuple[list[SpoolFile], list[tuple[int | str, ...]], tuple[str, ...]]:
    """Reads every .json file below ``directory``. Returns (files read, their records, faults).

    Whoever writes a record writes what others pay. So only regular files in directories count that nobody but root and
    the caller can write; links are not followed, and nothing else is opened.
    """
    files: list[SpoolFile] = []
    rows: list[tuple[int | str, ...]] = []
    faults: list[str] = []

    def fault(path: Path, text: object) -> None:
        faults.append(printable(f"{path}: {text}"))

    top = directory.resolve()
    for folder, subfolders, names, handle in os.fwalk(top, onerror=lambda error: fault(top, error)):
        subfolders.sort()
        if text := _ownership_fault(os.fstat(handle)):
            fault(Path(folder), f"{text}; nothing below it was read")
            subfolders.clear()
            continue
        for name in subfolders:
            if Path(folder, name).is_symlink():  # os.fwalk does not follow it
                fault(Path(folder, name), "is a link, and not followed")
        if len(Path(folder).parts) - len(top.parts) >= _MOST_FOLDERS_DEEP and subfolders:
            fault(Path(folder), f"is {_MOST_FOLDERS_DEEP} folders deep; the folders in it were not read")
            subfolders.clear()
        for name in sorted(names):
            if not name.endswith(".json"):
                continue
            path = Path(folder, name)
            try:
                text, identity = _read(name, handle)
                rows.append(parse_record(text))
                files.append(SpoolFile(path, identity))
            except OSError as error:
                fault(path, error.strerror)
            except (UnicodeDecodeError, UsageRecordError) as error:
                fault(path, error)
    return files, rows, tuple(faults)


def remove(files: Iterable[SpoolFile]) -> None:
    """Deletes files of a spool, except those that are no longer what was read."""
    for file in files:
        try:
            folder = os.open(file.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            if _identity(os.stat(file.path.name, dir_fd=folder, follow_symlinks=False)) == file.identity:
                os.unlink(file.path.name, dir_fd=folder)
        except FileNotFoundError:
            continue
        finally:
            os.close(folder)


def _read(name: str, folder: int) -> tuple[str, tuple[int, ...]]:
    """Returns a file's text and identity. Raises OSError and UsageRecordError."""
    _refuse_kind(os.stat(name, dir_fd=folder, follow_symlinks=False))  # opening a device may already do something
    handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        _refuse_kind(status)
        if text := _ownership_fault(status):
            raise UsageRecordError(text)
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise UsageRecordError(f"is larger than {_MOST_BYTES} bytes")
    return content.decode("utf-8"), _identity(status)


def _refuse_kind(status: os.stat_result) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise UsageRecordError("is a link, and not followed")
    if not stat.S_ISREG(status.st_mode):
        raise UsageRecordError("is no regular file")
    if status.st_nlink > 1:
        raise UsageRecordError("has another name (a hard link); copy it")


def _ownership_fault(status: os.stat_result) -> str:
    """Returns why others than root and the caller may have written it, or an empty text."""
    if status.st_uid not in (0, os.geteuid()):
        return f"belongs to user {status.st_uid}, who may have forged it; fetch it again as root"
    if status.st_mode & stat.S_IWOTH:
        return f"can be written by every user (mode {stat.S_IMODE(status.st_mode):04o}); fetch it again"
    return ""


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
