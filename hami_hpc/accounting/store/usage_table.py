# SPDX-License-Identifier: Apache-2.0
"""Stores usage records: what ended vGPU jobs used, read from copies of the nodes' usage spools.

A record is identified by cluster, job, GPU and start, so reading it again changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.sources.usage_records import DEFAULTS, FIELDS, read_spool
from hami_hpc.accounting.store import store_files
from hami_hpc.accounting.store.database import connect, literal
from hami_hpc.accounting.store.store_files import DataFile

USED_COLUMNS = {"cluster": "VARCHAR", **FIELDS}


@dataclass(frozen=True, slots=True)
class Collected:
    """Counts of records. added: new. known: read before. faults: one text per file that could not be read."""

    added: int
    known: int
    faults: tuple[str, ...]


def collect(root: Path, directory: Path, cluster: str, remove: bool) -> Collected:
    """Reads a spool into the store. remove: deletes the files after their records are stored.

    Raises AccountingError when there is no such directory or the store cannot be written.
    """
    if not directory.is_dir():
        raise AccountingError(f"{directory} is not a directory; --input takes a copy of the nodes' usage directories")
    with store_files.locked(root):
        paths, rows, faults = read_spool(directory)
        manifest = store_files.read_manifest(root)
        name = f"{store_files.USED}/g{manifest.generation + 1:06d}.parquet"
        before, after = _merge(root, manifest.of(store_files.USED), cluster, rows, root / name)
        others = tuple(file for file in manifest.files if file.kind != store_files.USED)
        if after != before:
            store_files.commit(root, replace(manifest, files=(*others, DataFile(store_files.USED, name, "", after))))
        if remove:
            for path in paths:
                path.unlink()
    return Collected(after - before, len(rows) - (after - before), faults)


def stored(root: Path, manifest: store_files.Manifest) -> str:
    """Returns SQL for all stored usage records."""
    columns = ", ".join(f'NULL::{kind} AS "{name}"' for name, kind in USED_COLUMNS.items())
    return store_files.scan(root, manifest.of(store_files.USED), f"SELECT {columns} WHERE false")


def _merge(
    root: Path, files: Sequence[DataFile], cluster: str, rows: Sequence[tuple[int | str, ...]], target: Path
) -> tuple[int, int]:
    """Writes the old and new records, each once, to ``target``. Returns how many there were and how many there are."""
    con = connect()
    selected = ", ".join(
        f'unnest(${index}::{kind}[]) AS "{name}"' for index, (name, kind) in enumerate(FIELDS.items(), 1)
    )
    columns = [[row[index] for row in rows] for index in range(len(FIELDS))]
    con.execute(f"CREATE TEMP TABLE new AS SELECT {literal(cluster)} AS cluster, * FROM (SELECT {selected})", columns)
    known = stored(root, store_files.Manifest(files=tuple(files)))
    key = "cluster, job_id, gpu_uuid, start_unix_ns"
    filled = ", ".join(f"coalesce({name}, {value}) AS {name}" for name, value in DEFAULTS.items())
    both = f"SELECT * REPLACE ({filled}) FROM (SELECT * FROM {known} UNION ALL BY NAME SELECT * FROM new)"
    con.execute(
        f"CREATE TEMP TABLE merged AS FROM ({both}) "
        f"QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY end_unix_ns DESC, gpu_busy_ns DESC) = 1"
    )
    counts = con.execute(f"SELECT (SELECT count(*) FROM {known}), (SELECT count(*) FROM merged)").fetchone()
    con.execute(f"COPY merged TO {literal(str(target))} (FORMAT parquet, COMPRESSION zstd)")
    con.close()
    assert counts is not None
    return counts[0], counts[1]
