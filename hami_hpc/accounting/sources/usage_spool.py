# SPDX-License-Identifier: Apache-2.0
"""The usage spool into the store: what ended vGPU jobs used, as the epilog of each node wrote it.

A spool is a directory tree of JSON files, such as /var/lib/hami-hpc/usage of each node copied to one place. A file
is known by job, GPU and start, so reading it again changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.store import export_reader as intake
from hami_hpc.accounting.store import store_files as store
from hami_hpc.accounting.store.export_sql import literal
from hami_hpc.accounting.store.store_files import DataFile

RECORD_VERSION = 1
_MOST_BYTES = 65536
_INT64_MAX = 2**63 - 1
# Field of the epilog's record, and its type in the store. Times: ns since 1970.
_FIELDS = {
    "job_id": "BIGINT",
    "uid": "BIGINT",
    "class": "VARCHAR",
    "gpu_uuid": "VARCHAR",
    "model": "VARCHAR",
    "mem_mib": "BIGINT",
    "cores": "BIGINT",
    "start_unix_ns": "BIGINT",
    "end_unix_ns": "BIGINT",
    "usage": "VARCHAR",
    "peak_bytes": "BIGINT",
    "oom_count": "BIGINT",
    "gpu_busy_ns": "BIGINT",
    "throttled_ns": "BIGINT",
}
USED_COLUMNS = {"cluster": "VARCHAR", **_FIELDS}


@dataclass(frozen=True, slots=True)
class Collected:
    """added: new records. known: read before. faults: what is wrong, by file."""

    added: int
    known: int
    faults: tuple[str, ...]


class SpoolError(ValueError):
    """A file of the spool that is no usage record; the message says why."""


def parse_record(text: str) -> tuple[int | str, ...]:
    """One record, in the order of _FIELDS. Raises SpoolError."""
    try:
        record: Any = json.loads(text)
    except ValueError as error:
        raise SpoolError(f"is no JSON: {error}") from error
    if not isinstance(record, dict) or record.get("version") != RECORD_VERSION:
        raise SpoolError(f"is no usage record of version {RECORD_VERSION}")
    values: list[int | str] = []
    for name, kind in _FIELDS.items():
        value = record.get(name)
        if kind == "BIGINT" and (type(value) is not int or not 0 <= value <= _INT64_MAX):
            raise SpoolError(f"{name} is no whole number from 0 to {_INT64_MAX}")
        if kind == "VARCHAR" and not isinstance(value, str):
            raise SpoolError(f"{name} is no text")
        values.append(value)  # type: ignore[arg-type]
    if record["end_unix_ns"] < record["start_unix_ns"]:
        raise SpoolError("it ends before it starts")
    return tuple(values)


def read_spool(directory: Path) -> tuple[list[Path], list[tuple[int | str, ...]], tuple[str, ...]]:
    """(files read, their records, faults) of every .json file below ``directory``."""
    paths, rows, faults = [], [], []
    for path in sorted(directory.rglob("*.json")):
        try:
            if path.stat().st_size > _MOST_BYTES:
                raise SpoolError(f"is larger than {_MOST_BYTES} bytes")
            rows.append(parse_record(path.read_text(encoding="utf-8")))
            paths.append(path)
        except (OSError, UnicodeDecodeError, SpoolError) as error:
            faults.append(f"{path}: {error}")
    return paths, rows, tuple(faults)


def collect(root: Path, directory: Path, cluster: str, remove: bool) -> Collected:
    """Read a spool into the store. remove: delete the files that are stored, after they are."""
    if not directory.is_dir():
        raise AccountingError(f"{directory} is no directory; --usage names a copy of the nodes' usage directories")
    with store.locked(root):
        paths, rows, faults = read_spool(directory)
        manifest = store.read_manifest(root)
        name = f"{store.USED}/g{manifest.generation + 1:06d}.parquet"
        before, after = _merge(root, manifest.of(store.USED), cluster, rows, root / name)
        others = tuple(file for file in manifest.files if file.kind != store.USED)
        if after != before:
            store.commit(root, replace(manifest, files=(*others, DataFile(store.USED, name, "", after))))
        if remove:
            for path in paths:
                path.unlink()
    return Collected(after - before, len(rows) - (after - before), faults)


def used(root: Path, manifest: store.Manifest) -> str:
    """A table of all stored usage records."""
    columns = ", ".join(f'NULL::{kind} AS "{name}"' for name, kind in USED_COLUMNS.items())
    return store.scan(root, manifest.of(store.USED), f"SELECT {columns} WHERE false")


def _merge(
    root: Path, files: Sequence[DataFile], cluster: str, rows: Sequence[tuple[int | str, ...]], target: Path
) -> tuple[int, int]:
    """Write the old and new records, each once, to ``target``; how many there were and are."""
    con = intake.connect()
    selected = ", ".join(
        f'unnest(${index}::{kind}[]) AS "{name}"' for index, (name, kind) in enumerate(_FIELDS.items(), 1)
    )
    columns = [[row[index] for row in rows] for index in range(len(_FIELDS))]
    con.execute(f"CREATE TEMP TABLE new AS SELECT {literal(cluster)} AS cluster, * FROM (SELECT {selected})", columns)
    known = used(root, store.Manifest(files=tuple(files)))
    key = "cluster, job_id, gpu_uuid, start_unix_ns"
    con.execute(
        f"CREATE TEMP TABLE merged AS FROM (SELECT * FROM {known} UNION ALL SELECT * FROM new) "
        f"QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY end_unix_ns DESC, gpu_busy_ns DESC) = 1"
    )
    counts = con.execute(f"SELECT (SELECT count(*) FROM {known}), (SELECT count(*) FROM merged)").fetchone()
    con.execute(f"COPY merged TO {literal(str(target))} (FORMAT parquet, COMPRESSION zstd)")
    con.close()
    assert counts is not None
    return counts[0], counts[1]
