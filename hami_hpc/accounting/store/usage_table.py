# SPDX-License-Identifier: Apache-2.0
"""Stores usage records: what ended vGPU jobs used, read from copies of the nodes' usage spools.

A record is identified by cluster, job, GPU and start, so reading it again changes nothing. Of two that differ the one
that ended later counts, then the one read later. Records of an older
hami_hpc do not say their cluster; then the caller may.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.sources.usage_records import DEFAULTS, FIELDS, SpoolFile, read_spool
from hami_hpc.accounting.sources.usage_records import remove as remove_files
from hami_hpc.accounting.store import clusters, store_files
from hami_hpc.accounting.store.database import connect, literal
from hami_hpc.accounting.store.store_files import DataFile

USED_COLUMNS = FIELDS
# A usage record is assigned to a run if it began during the run, or this close to it: clocks of nodes may differ.
SLACK_S = 60


@dataclass(frozen=True, slots=True)
class Collected:
    """Counts of records. added: new. known: read before. faults: one text per file that could not be read."""

    added: int
    known: int
    faults: tuple[str, ...]


def collect(root: Path, directory: Path, cluster: str, remove: bool) -> Collected:
    """Reads a spool into the store. remove: deletes the files after their records are stored. cluster: of the records
    that name none; a record that names another one is left out.

    Raises AccountingError when there is no such directory, the store has jobs but none of that cluster, or it cannot be
    written.
    """
    if not directory.is_dir():
        raise AccountingError(f"{directory} is not a directory; --input takes a copy of the nodes' usage directories")
    with store_files.locked(root):
        manifest = store_files.read_manifest(root)
        clusters.refuse_unknown(root, manifest, {cluster} - {""}, "run hami-hpc ingest for its jobs first")
        files, rows, faults = _of_cluster(cluster, *read_spool(directory))
        name = f"{store_files.USED}/g{manifest.generation + 1:06d}.parquet"
        # What ended before the store's names were taken out is there already, under other numbers.
        place, from_ns = list(FIELDS).index("end_unix_ns"), manifest.anonymous_before_s * 1_000_000_000
        new = [row for row in rows if int(row[place]) >= from_ns]
        before, after, changed = _merge(root, manifest.of(store_files.USED), cluster, new, root / name)
        others = tuple(file for file in manifest.files if file.kind != store_files.USED)
        if changed:
            store_files.commit(root, replace(manifest, files=(*others, DataFile(store_files.USED, name, "", after))))
        if remove:
            remove_files(files)
    return Collected(after - before, len(rows) - (after - before), faults)


def stored(root: Path, manifest: store_files.Manifest) -> str:
    """Returns SQL for all stored usage records. Fields that a file does not have yet get their defaults."""
    columns = ", ".join(f'NULL::{kind} AS "{name}"' for name, kind in USED_COLUMNS.items())
    empty = f"SELECT {columns} WHERE false"
    files = manifest.of(store_files.USED)
    if not files:
        return f"({empty})"
    values = {name: literal(value) if isinstance(value, str) else value for name, value in DEFAULTS.items()}
    filled = ", ".join(f"coalesce({name}, {value}) AS {name}" for name, value in values.items())
    return f"(SELECT * REPLACE ({filled}) FROM ({empty} UNION ALL BY NAME FROM {store_files.scan(root, files, empty)}))"


def assigned(runs: str, used: str) -> str:
    """Returns SQL that assigns usage records to runs: columns of the record, with the run's cluster, job_id, submit_s.

    runs: a table of job records, with all runs that could be meant. used: SQL for the usage records. Two runs of a
    requeued job may be close together, so a record is assigned to the run that began nearest to it.
    """
    return _ASSIGNED.format(runs=runs, used=used, slack=SLACK_S)


_ASSIGNED = """
SELECT r.cluster, r.job_id, r.submit_s, u.* EXCLUDE (cluster, job_id)
FROM {runs} AS r JOIN {used} AS u ON r.job_id = u.job_id AND (u.cluster = '' OR u.cluster = r.cluster)
  AND u.start_unix_ns // 1000000000
    BETWEEN r.start_s - {slack} AND coalesce(r.end_s, r.observed_s) + {slack}
WHERE r.held <> ''
QUALIFY row_number() OVER (PARTITION BY u.job_id, u.gpu_uuid, u.start_unix_ns
  ORDER BY abs(u.start_unix_ns // 1000000000 - r.start_s), r.start_s, r.cluster, r.submit_s) = 1
"""


def _of_cluster(
    cluster: str, files: Sequence[SpoolFile], rows: Sequence[tuple[int | str, ...]], faults: Sequence[str]
) -> tuple[list[SpoolFile], list[tuple[int | str, ...]], tuple[str, ...]]:
    """Returns what read_spool returned, without the records that name another cluster than the given one."""
    place = list(FIELDS).index("cluster")
    kept = [(file, row) for file, row in zip(files, rows, strict=True) if not cluster or row[place] in ("", cluster)]
    kept_paths = {file.path for file, _ in kept}
    others = [
        f"{file.path}: is of cluster {row[place]}, and --clusters says {cluster}"
        for file, row in zip(files, rows, strict=True)
        if file.path not in kept_paths
    ]
    return [file for file, _ in kept], [row for _, row in kept], (*faults, *others)


def _merge(
    root: Path, files: Sequence[DataFile], cluster: str, rows: Sequence[tuple[int | str, ...]], target: Path
) -> tuple[int, int, int]:
    """Writes the old and new records, each once, to ``target``. Returns how many there were, how many there are, and
    how many of these are new or differ from what there was."""
    con = connect()
    selected = ", ".join(
        f'unnest(${index}::{kind}[]) AS "{name}"' for index, (name, kind) in enumerate(FIELDS.items(), 1)
    )
    columns = [[row[index] for row in rows] for index in range(len(FIELDS))]
    named = f"coalesce(nullif(cluster, ''), {literal(cluster)}) AS cluster"
    con.execute(f"CREATE TEMP TABLE new AS SELECT * REPLACE ({named}) FROM (SELECT {selected})", columns)
    known = stored(root, store_files.Manifest(files=tuple(files)))
    key = "cluster, job_id, gpu_uuid, start_unix_ns"
    con.execute(
        f"CREATE TEMP TABLE merged AS SELECT * EXCLUDE is_new FROM (SELECT *, false AS is_new FROM {known} "
        f"UNION ALL BY NAME SELECT *, true AS is_new FROM new) QUALIFY row_number() OVER (PARTITION BY {key} "
        "ORDER BY end_unix_ns DESC, is_new DESC, gpu_busy_ns DESC) = 1"
    )
    counts = con.execute(
        f"SELECT (SELECT count(*) FROM {known}), (SELECT count(*) FROM merged), (SELECT count(*) FROM "
        f"(SELECT * FROM merged SEMI JOIN new USING ({key}) EXCEPT SELECT * FROM {known} SEMI JOIN new USING ({key})))"
    ).fetchone()
    con.execute(f"COPY merged TO {literal(str(target))} (FORMAT parquet, COMPRESSION zstd)")
    con.close()
    assert counts is not None
    return counts[0], counts[1], counts[2]
