# SPDX-License-Identifier: Apache-2.0
"""Opens job records: those of the store that overlap a period, or those of one export."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from zoneinfo import ZoneInfo

import duckdb

from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.sources import sacct
from hami_hpc.accounting.store import export_reader, store_files, usage_table
from hami_hpc.accounting.store.database import connect
from hami_hpc.accounting.times import Period, iso_local


@dataclass(frozen=True, slots=True)
class JobRecords:
    """A DuckDB connection, its table of records (``source``) and its table of rejected lines (``rejects``).

    read_until_s: up to when the store was read from Slurm; None if the records came from files. used: SQL for the usage
    records; empty if there are none. overlapping: returns SQL for at least the records that overlap another period;
    None if ``source`` has all records.
    """

    con: duckdb.DuckDBPyConnection
    source: str
    rejects: str
    read_until_s: int | None = None
    used: str = ""
    overlapping: Callable[[Period], str] | None = None


def from_store(root: Path, period: Period | None, memory_mib: int = 1024) -> JobRecords:
    """Returns the stored records that overlap ``period``; all for None. Raises AccountingError for no store."""
    manifest = store_files.read_manifest(root)
    if not manifest.generation:
        raise AccountingError(
            f"there is no accounting store in {root}; run hami-hpc ingest, or see --store and --input"
        )
    con = connect(memory_mib)
    until_s = min(manifest.read_until_s.values(), default=None)
    return JobRecords(
        con,
        store_files.records(root, manifest, period),
        store_files.rejects(root, manifest),
        until_s,
        _used(root, manifest),
        lambda other: store_files.records(root, manifest, other),
    )


def _used(root: Path, manifest: store_files.Manifest) -> str:
    return usage_table.stored(root, manifest) if manifest.of(store_files.USED) else ""


def read_until(root: Path, tz: ZoneInfo) -> str:
    """Returns a sentence that says up to when the store was read from Slurm."""
    until_s = min(store_files.read_manifest(root).read_until_s.values(), default=None)
    extent = "from files only" if until_s is None else f"up to {iso_local(until_s, tz)}"
    return f"the store {root} was read {extent}"


def gaps(records: JobRecords, period: Period, tz: ZoneInfo) -> list[str]:
    """Returns a note if the store was read from Slurm, but not up to the end of the period; else an empty list."""
    if records.read_until_s is None or records.read_until_s >= period.end_s:
        return []
    return [
        f"the store was read up to {iso_local(records.read_until_s, tz)}: later starts and ends of jobs are not in it"
    ]


def from_export(
    export: sacct.Export, tz: ZoneInfo, made_s: int, scratch: Path, usage_root: Path | None = None
) -> JobRecords:
    """Reads the records of one export. The directory ``scratch`` must exist while they are used.

    usage_root: the store that has the usage records, if one has.
    """
    con = connect(spill=scratch)
    export_reader.load(con, export, tz, "", made_s, scratch)
    con.execute(_ONCE)
    used = _used(usage_root, store_files.read_manifest(usage_root)) if usage_root else ""
    return JobRecords(con, "once", "rejects", used=used)


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
        "list(coalesce(job_id::VARCHAR, left(detail, 40)) ORDER BY job_id, detail)[:5] "
        f"FROM {records.rejects} WHERE coalesce(start_s, submit_s, $1) < $2 "
        "AND coalesce(greatest(end_s, start_s), $1) >= $1 GROUP BY 1, 2 ORDER BY 1, 2",
        [span.start_s, span.end_s],
    ).fetchall()
    notes: dict[str, tuple[str, ...]] = {}
    for name, reason, count, examples in rows:
        more = ", ..." if count > len(examples) else ""
        lines = f"{count:,} line{'' if count == 1 else 's'}"
        note = f"{lines}: {export_reader.REASONS[reason]} (job {', '.join(examples)}{more})"
        notes[name] = (*notes.get(name, ()), note)
    return notes


# One file may have a run twice (two exports joined). This is the store's rule for which version counts (merge.py).
_ONCE = """
CREATE TEMP VIEW once AS FROM records
QUALIFY row_number() OVER (PARTITION BY cluster, job_id, submit_s
  ORDER BY end_s IS NULL, observed_s DESC, end_s DESC, start_s DESC, suspended_s DESC, held, state, account,
    username) = 1
"""
