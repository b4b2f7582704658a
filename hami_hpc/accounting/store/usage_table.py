# SPDX-License-Identifier: Apache-2.0
"""The stored usage records: what ended vGPU jobs used, read from copies of the nodes' usage spools.

A record is known by job, GPU and start, so reading it again changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.sources.usage_spool import DEFAULTS, FIELDS, read_spool
from hami_hpc.accounting.store import store_files
from hami_hpc.accounting.store.database import connect, literal
from hami_hpc.accounting.store.store_files import DataFile

USED_COLUMNS = {"cluster": "VARCHAR", **FIELDS}


@dataclass(frozen=True, slots=True)
class Collected:
    """added: new records. known: read before. faults: what is wrong, by file."""

    added: int
    known: int
    faults: tuple[str, ...]


def collect(root: Path, directory: Path, cluster: str, remove: bool) -> Collected:
    """Read a spool into the store. remove: delete the files that are stored, after they are."""
    if not directory.is_dir():
        raise AccountingError(f"{directory} is no directory; --input names a copy of the nodes' usage directories")
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
    """A table of all stored usage records."""
    columns = ", ".join(f'NULL::{kind} AS "{name}"' for name, kind in USED_COLUMNS.items())
    return store_files.scan(root, manifest.of(store_files.USED), f"SELECT {columns} WHERE false")


def _merge(
    root: Path, files: Sequence[DataFile], cluster: str, rows: Sequence[tuple[int | str, ...]], target: Path
) -> tuple[int, int]:
    """Write the old and new records, each once, to ``target``; how many there were and are."""
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
