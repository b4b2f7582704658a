# SPDX-License-Identifier: Apache-2.0
"""Reads the usage spool: what ended vGPU jobs used, as the epilog of each node wrote it.

A spool is a directory tree of JSON files, such as copies of /var/lib/hami-hpc/usage of all nodes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hami_hpc.contract import constants as c

_MOST_BYTES = 65536
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
    if not isinstance(record, dict) or record.get("version") != c.SPOOL_VERSION:
        raise UsageRecordError(f"is not a usage record of version {c.SPOOL_VERSION}")
    values: list[int | str] = []
    for name, kind in FIELDS.items():
        value = record.get(name, DEFAULTS.get(name))
        if kind == "BIGINT" and (type(value) is not int or not 0 <= value <= _INT64_MAX):
            raise UsageRecordError(f"{name} is not a whole number from 0 to {_INT64_MAX}")
        if kind == "VARCHAR" and not isinstance(value, str):
            raise UsageRecordError(f"{name} is not text")
        values.append(value)  # type: ignore[arg-type]
    if record["end_unix_ns"] < record["start_unix_ns"]:
        raise UsageRecordError("it ends before it starts")
    return tuple(values)


def read_spool(directory: Path) -> tuple[list[Path], list[tuple[int | str, ...]], tuple[str, ...]]:
    """Reads every .json file below ``directory``. Returns (files read, their records, faults)."""
    paths, rows, faults = [], [], []
    for path in sorted(directory.rglob("*.json")):
        try:
            if path.stat().st_size > _MOST_BYTES:
                raise UsageRecordError(f"is larger than {_MOST_BYTES} bytes")
            rows.append(parse_record(path.read_text(encoding="utf-8")))
            paths.append(path)
        except (OSError, UnicodeDecodeError, UsageRecordError) as error:
            faults.append(f"{path}: {error}")
    return paths, rows, tuple(faults)
