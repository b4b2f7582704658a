# SPDX-License-Identifier: Apache-2.0
"""Reads records into the store: from slurmdbd, window by window, or from a file.

Each window is committed separately, so an interrupted ingest continues where it stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TextIO
from zoneinfo import ZoneInfo

import duckdb

from hami_hpc.accounting.errors import AccountingError, printable
from hami_hpc.accounting.sources import input_files, pyslurm_source, sacct
from hami_hpc.accounting.sources.sacct import Export
from hami_hpc.accounting.sources.sacct_json import open_input
from hami_hpc.accounting.store import clusters, export_reader, progress, store_files, undo
from hami_hpc.accounting.store.database import connect
from hami_hpc.accounting.store.export_reader import Counts
from hami_hpc.accounting.store.merge import Merged, merge
from hami_hpc.accounting.store.store_files import Ingest
from hami_hpc.accounting.store.temporary import temporary_directory
from hami_hpc.accounting.times import Period, iso_utc

# slurmctld queues records while slurmdbd is down. Reading this much time again finds records that came late.
OVERLAP_S = 2 * 86400
_IDS_PER_CALL = 500
_MOST_NAMES = 5
_STALE = "runs open before"


@dataclass(frozen=True, slots=True)
class Step:
    """One committed part of an ingest. what: the file or the time that it covers. gaps: notes on what it lacks."""

    what: str
    counts: Counts
    merged: Merged
    gaps: tuple[str, ...] = ()


class Reader(StrEnum):
    """The program that reads slurmdbd."""

    SACCT = "sacct"
    PYSLURM = "pyslurm"


@dataclass(frozen=True, slots=True)
class Source:
    """Where records come from and how to read them.

    cluster: the name for records without one. is_new_cluster: files may be of clusters that the store has no job of.
    """

    tz: ZoneInfo
    cluster: str = ""
    is_new_cluster: bool = False
    clusters: str = ""  # sacct -M
    reader: Reader = Reader.SACCT
    sacct: str = "sacct"
    memory_mib: int = 1024
    progress: TextIO | None = None  # where to write the progress of a long ingest

    @property
    def name(self) -> str:
        """The key in the manifest's read_until_s. It is the same for both readers, because both give the same records,
        so one continues where the other stopped."""
        return f"sacct:{self.clusters}"

    def fetch(self, period: Period, target: Path) -> Export:
        """Writes every run active in the period to ``target``. Raises AccountingError when that fails."""
        if self.reader is Reader.PYSLURM:
            return pyslurm_source.fetch(period, target, self.clusters)
        return sacct.fetch(period, target, self.clusters, self.sacct)

    def fetch_jobs(self, jobs: Sequence[int], target: Path) -> Export:
        """Writes all runs of these jobs to ``target``. Raises AccountingError when that fails."""
        if self.reader is Reader.PYSLURM:
            return pyslurm_source.fetch_jobs(jobs, target, self.clusters)
        return sacct.fetch_jobs(jobs, target, self.clusters, self.sacct)


def ingest_files(root: Path, paths: Sequence[Path], source: Source, tell: Callable[[Step], None]) -> None:
    """Reads exports into the store and calls ``tell`` after each. All are opened before the first is stored.

    Raises AccountingError when that fails.
    """
    with store_files.locked(root), temporary_directory(root, ".ingest-") as scratch:
        exports = []
        for number, path in enumerate(paths):
            folder = scratch / f"input-{number}"
            folder.mkdir()
            exports.append((input_files.shown(path), input_files.made_s(path), open_input(path, folder)))
        for name, _, export in exports:
            if "Cluster" not in export.columns and not source.cluster:
                raise AccountingError(f"{name} has no column Cluster; give sacct's name of the cluster with --clusters")
        manifest = store_files.read_manifest(root)
        has_local_times = any(export.has_local_times for _, _, export in exports)
        if has_local_times and manifest.timezone not in ("", source.tz.key):
            raise AccountingError(
                f"the store {root} has local times of {manifest.timezone}, and these would be read in {source.tz.key}: "
                f"give --timezone {manifest.timezone}, or export with SLURM_TIME_FORMAT=%s or as JSON"
            )
        first, *others = (name for name, _, _ in exports)
        what = ", ".join([first, *others] if len(others) < _MOST_NAMES else [first, f"{len(others)} more files"])
        entry = undo.begun(manifest, what, int(time.time()))
        for name, made_s, export in exports:
            step, entry = _ingest(root, export, source, made_s, scratch, name, entry)
            tell(replace(step, gaps=(*export.gaps(name), *step.gaps)))


def ingest_slurmdbd(
    root: Path, source: Source, since_s: int | None, now_s: int, window_s: int, tell: Callable[[Step], None]
) -> int:
    """Reads from slurmdbd what is new up to ``now_s`` and calls ``tell`` after each window.

    Returns the number of lost runs: they had not ended when last read, and slurmdbd no longer has them.
    since_s: where to begin if the store was never read from slurmdbd. Raises AccountingError when reading fails.
    """
    with store_files.locked(root), temporary_directory(root, ".ingest-") as scratch:
        until_s = store_files.read_manifest(root).read_until_s.get(source.name)
        start_s = since_s if until_s is None else until_s - OVERLAP_S
        if start_s is None:
            raise AccountingError(f"the store {root} was never read from slurmdbd; give the first day with --since")
        start_s = min(start_s, now_s - 1)
        entry = undo.begun(store_files.read_manifest(root), "slurmdbd", now_s)
        while start_s < now_s:
            period = Period(start_s, min(start_s + window_s, now_s))
            export = source.fetch(period, scratch / "slurmdbd")
            step, entry = _ingest(root, export, source, now_s, scratch, _days(period), entry, period.end_s)
            tell(step)
            start_s = period.end_s
        return _ask_for_stale(root, source, now_s, scratch, entry, tell)


def _ask_for_stale(
    root: Path, source: Source, now_s: int, scratch: Path, entry: Ingest, tell: Callable[[Step], None]
) -> int:
    """Reads runs by number that had not ended and that no window returned. Returns how many are still not returned."""
    stale = _stale(root, now_s, source)
    for index in range(0, len(stale), _IDS_PER_CALL):
        export = source.fetch_jobs(stale[index : index + _IDS_PER_CALL], scratch / "slurmdbd")
        step, entry = _ingest(root, export, source, now_s, scratch, _STALE, entry)
        tell(step)
    return len(_stale(root, now_s, source)) if stale else 0


def _stale(root: Path, now_s: int, source: Source) -> list[int]:
    manifest = store_files.read_manifest(root)
    if not manifest.of(store_files.OPEN):
        return []
    con = connect(source.memory_mib)
    table = store_files.job_rows(root, manifest.of(store_files.OPEN))
    rows = con.execute(f"SELECT DISTINCT job_id FROM {table} WHERE observed_s < $1 ORDER BY 1", [now_s - OVERLAP_S])
    return [row[0] for row in rows.fetchall()]


def _ingest(
    root: Path,
    export: Export,
    source: Source,
    made_s: int,
    scratch: Path,
    what: str,
    entry: Ingest,
    until_s: int | None = None,
) -> tuple[Step, Ingest]:
    """Stores one export. entry: of the ingest that this is a part of. Returns it with this part's counts."""
    before = store_files.read_manifest(root)
    con = connect(source.memory_mib, spill=scratch)
    try:
        with progress.shown(con, f"{what}: reading", source.progress):
            counts = export_reader.load(con, export, source.tz, source.cluster, made_s, scratch)
        left_out = _leave_out(con, before.anonymous_before_s)
        if until_s is None and what != _STALE:
            _check_clusters(con, root, before, source, what)
        with progress.shown(con, f"{what}: {counts.records} records into the store", source.progress):
            manifest, merged = merge(con, root, before)
    finally:
        con.close()
    if until_s is not None:
        manifest = replace(manifest, read_until_s={**manifest.read_until_s, source.name: until_s})
    if export.has_local_times:
        manifest = replace(manifest, timezone=source.tz.key)
    entry = replace(
        entry,
        added=entry.added + merged.added,
        changed=entry.changed + merged.changed,
        rejected=entry.rejected + counts.rejected,
    )
    store_files.commit(root, undo.noted(before, manifest, entry))
    return Step(what, counts, merged, left_out), entry


def _leave_out(con: duckdb.DuckDBPyConnection, before_s: int) -> tuple[str, ...]:
    """Leaves out what ended before the store's names were taken out: it is there already, under other numbers."""
    if not before_s:
        return ()
    kept = f"coalesce(end_s, start_s) >= {before_s}"
    row = con.execute(f"SELECT count(*) FROM records WHERE NOT {kept}").fetchone()
    con.execute("ALTER VIEW records RENAME TO all_records")
    con.execute(f"CREATE TEMP VIEW records AS FROM all_records WHERE {kept}")
    con.execute(f"DELETE FROM rejects WHERE greatest(end_s, start_s, submit_s) < {before_s}")
    if not row or not row[0]:
        return ()
    runs = "1 run" if row[0] == 1 else f"{row[0]:,} runs"
    return (f"left out: {runs} of before {iso_utc(before_s)}, up to when the store has no users' names",)


def _check_clusters(
    con: duckdb.DuckDBPyConnection, root: Path, manifest: store_files.Manifest, source: Source, what: str
) -> None:
    """Raises AccountingError if ``records``, read from a file, are of a cluster that nobody meant."""
    names = {row[0] for row in con.execute("SELECT DISTINCT cluster FROM records").fetchall()}
    if source.cluster and (others := sorted(names - {source.cluster})):
        raise AccountingError(
            f"{what} has jobs of cluster {printable(others[0])}, and --clusters says {source.cluster}; "
            "leave --clusters out"
        )
    if not source.is_new_cluster:
        clusters.refuse_unknown(root, manifest, names, "give --new-cluster with it")


def _days(period: Period) -> str:
    return f"{iso_utc(period.start_s)[:16]} to {iso_utc(period.end_s)[:16]}"
