# SPDX-License-Identifier: Apache-2.0
"""Opens job records: those of the store that overlap a period, or those of one export."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from zoneinfo import ZoneInfo

import duckdb

from hami_hpc.accounting.errors import AccountingError, printable
from hami_hpc.accounting.sources import sacct
from hami_hpc.accounting.store import clusters, export_reader, store_files, usage_table
from hami_hpc.accounting.store.database import connect, literal
from hami_hpc.accounting.times import Period, iso_local


@dataclass(frozen=True, slots=True)
class JobRecords:
    """A DuckDB connection, its table of records (``source``) and its table of rejected lines (``rejects``).

    read_until_s: up to when the store was read from Slurm; None if the records came from files. used: SQL for the usage
    records; empty if there are none. overlapping: returns SQL for at least the records that overlap another period;
    None if ``source`` has all records. lacks: notes on what the records do not have that amounts depend on. timezone:
    of the local times in the store; empty if there are none.
    """

    con: duckdb.DuckDBPyConnection
    source: str
    rejects: str
    read_until_s: int | None = None
    used: str = ""
    overlapping: Callable[[Period], str] | None = None
    lacks: tuple[str, ...] = ()
    timezone: str = ""


def from_store(root: Path, period: Period | None, memory_mib: int = 1024) -> JobRecords:
    """Returns the stored records that overlap ``period``; all for None. Raises AccountingError for no store."""
    manifest = store_files.read_manifest(root)
    if not manifest.generation:
        raise AccountingError(
            f"there is no accounting store in {root}; run hami-hpc ingest, or see --store and --input"
        )
    return of_manifest(root, manifest, period, memory_mib)


def of_manifest(
    root: Path, manifest: store_files.Manifest, period: Period | None, memory_mib: int = 1024
) -> JobRecords:
    """Returns the records of a manifest that overlap ``period``; all for None."""
    con = connect(memory_mib)
    until_s = min(manifest.read_until_s.values(), default=None)
    return JobRecords(
        con,
        store_files.records(root, manifest, period),
        store_files.rejects(root, manifest),
        until_s,
        _used(root, manifest),
        lambda other: store_files.records(root, manifest, other),
        timezone=manifest.timezone,
    )


def _used(root: Path, manifest: store_files.Manifest) -> str:
    return usage_table.stored(root, manifest) if manifest.of(store_files.USED) else ""


def read_until(root: Path, tz: ZoneInfo) -> str:
    """Returns a sentence that says up to when the store was read from Slurm."""
    until_s = min(store_files.read_manifest(root).read_until_s.values(), default=None)
    extent = "from files only" if until_s is None else f"up to {iso_local(until_s, tz)}"
    return f"the store {root} was read {extent}"


def gaps(records: JobRecords, period: Period, tz: ZoneInfo) -> list[str]:
    """Returns notes: on what the records lack; if the days of the period are of another zone than the local times that
    were read; if the store was read from Slurm, but not up to the end of the period."""
    notes = [*records.lacks]
    if fault := zone_fault(records.timezone, tz):
        notes.append(fault)
    if records.read_until_s is not None and records.read_until_s < period.end_s:
        until = iso_local(records.read_until_s, tz)
        notes.append(f"the store was read up to {until}: later starts and ends of jobs are not in it")
    return notes


def zone_fault(timezone: str, tz: ZoneInfo) -> str:
    """Returns a text if the zone of the local times in a store is another one than ``tz``."""
    if timezone in ("", tz.key):
        return ""
    return f"the store has local times of {timezone}, and days and months begin here as in {tz.key}; see --timezone"


@dataclass(frozen=True, slots=True)
class Input:
    """An export that is billed without a store. name: what messages call it. made_s: when it was made."""

    export: sacct.Export
    name: str
    made_s: int


def from_exports(
    inputs: Sequence[Input], tz: ZoneInfo, scratch: Path, cluster: str = "", usage_root: Path | None = None
) -> JobRecords:
    """Reads the records of exports, each run once. The directory ``scratch`` must exist while they are used.

    cluster: the name for records without one. usage_root: the store that has the usage records, if one has.
    Raises AccountingError when only some exports name clusters: a run would be there under two names.
    """
    nameless = [entry.name for entry in inputs if "Cluster" not in entry.export.columns]
    if nameless and not cluster and len(nameless) < len(inputs):
        raise AccountingError(f"{nameless[0]} has no column Cluster, and others have; give its name with --clusters")
    con = connect(spill=scratch)
    for number, entry in enumerate(inputs):
        folder = scratch / f"export-{number}"
        folder.mkdir()
        export_reader.load(con, entry.export, tz, cluster, entry.made_s, folder)
        con.execute(f"ALTER VIEW records RENAME TO records_{number}")
        con.execute(f"ALTER TABLE rejects RENAME TO rejects_{number}")
    con.execute(_ONCE.format(records=_union("records", len(inputs))))
    con.execute(f"CREATE TEMP VIEW rejects AS {_union('rejects', len(inputs))}")
    used = _used(usage_root, store_files.read_manifest(usage_root)) if usage_root else ""
    lacks = tuple(gap for entry in inputs for gap in entry.export.gaps(entry.name))
    return JobRecords(con, "once", "rejects", used=used, lacks=lacks)


def _union(table: str, count: int) -> str:
    return " UNION ALL ".join(f"FROM {table}_{number}" for number in range(count))


def of_clusters(records: JobRecords, names: Collection[str], known: Collection[str] = ()) -> JobRecords:
    """Returns the records of these clusters only. known: all clusters, where ``records`` are those of a period.

    Raises AccountingError for a name that is not known.
    """
    if not names:
        return records
    found = known or [
        row[0] for row in records.con.execute(f"SELECT DISTINCT cluster FROM {records.source}").fetchall()
    ]
    if found:
        clusters.refuse(names, found, "what is billed", "see hami-hpc bill --by cluster")
    listed = ", ".join(map(literal, sorted(names)))
    return _only(records, f"cluster IN ({listed})", f"cluster IN ({listed}) OR coalesce(cluster, '') = ''")


def of_accounts(records: JobRecords, names: Collection[str]) -> JobRecords:
    """Returns the records of these accounts only, all for no names; and rejected lines of these or of no account."""
    if not names:
        return records
    listed = ", ".join(map(literal, sorted(names)))
    return _only(records, f"account IN ({listed})", f"account IN ({listed}) OR coalesce(account, '') = ''")


def _only(records: JobRecords, condition: str, of_rejects: str) -> JobRecords:
    def only(source: str) -> str:
        return f"(SELECT * FROM {source} WHERE {condition})"

    overlapping = records.overlapping
    return replace(
        records,
        source=only(records.source),
        rejects=f"(SELECT * FROM {records.rejects} WHERE {of_rejects})",
        overlapping=(lambda other: only(overlapping(other))) if overlapping else None,
    )


def rejected_lines(records: JobRecords, span: Period) -> tuple[str, ...]:
    """Returns a note for each reason for rejected lines, without lines that are known to be outside of the period."""
    return rejected_by_account(records, span, "''").get("", ())


def rejected_by_account(
    records: JobRecords, span: Period, account: str = "coalesce(account, '')"
) -> dict[str, tuple[str, ...]]:
    """Returns the notes of rejected_lines by the account that the lines name; empty text for none.

    account: SQL for it.
    """
    rows = records.con.execute(
        f"SELECT {account}, reason, count(*), "
        "list(coalesce(job_id::VARCHAR, left(detail, 40), 'without a number') ORDER BY job_id, detail)[:5] "
        f"FROM {records.rejects} WHERE coalesce(start_s, submit_s, $1) < $2 "
        "AND (end_s IS NULL OR greatest(end_s, start_s) >= $1) GROUP BY 1, 2 ORDER BY 1, 2",
        [span.start_s, span.end_s],
    ).fetchall()
    notes: dict[str, tuple[str, ...]] = {}
    for name, reason, count, examples in rows:
        more = ", ..." if count > len(examples) else ""
        lines = f"{count:,} line{'' if count == 1 else 's'}"
        note = f"{lines}: {export_reader.REASONS[reason]} (job {printable(', '.join(examples))}{more})"
        notes[name] = (*notes.get(name, ()), note)
    return notes


# Files may have a run twice (exports of two times). This is the store's rule for which version counts (merge.py).
_ONCE = """
CREATE TEMP VIEW once AS FROM ({records})
QUALIFY row_number() OVER (PARTITION BY cluster, job_id, submit_s
  ORDER BY end_s IS NULL, observed_s DESC, end_s DESC, start_s DESC, suspended_s DESC, held, state, account,
    username) = 1
"""
