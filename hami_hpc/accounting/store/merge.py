# SPDX-License-Identifier: Apache-2.0
"""Merges one export into the store, so that each run is there once, whatever is read again and in any order.

A run is identified by cluster, job id and submit time (slurmdbd's own unique key). Of two versions of a run the one
that has ended counts, then the one read later. Between equals the content decides, so the order of reading does not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import duckdb

from hami_hpc.accounting.store import store_files
from hami_hpc.accounting.store.database import literal
from hami_hpc.accounting.store.export_reader import JOB_COLUMNS
from hami_hpc.accounting.store.store_files import DataFile, Manifest

FILES_PER_MONTH = 8  # if a month has more files, they are joined into one
_KEY = "cluster, job_id, submit_s"
_COLUMNS = ", ".join(JOB_COLUMNS)
_NEWEST_FIRST = (
    "end_s IS NULL, observed_s DESC, end_s DESC, start_s DESC, suspended_s DESC, held, state, account, username, "
    "partition, qos, display_id, host, features, eligible_s, cpus, mem_mib, licenses"
)
# 202611, or 0 for a run that has not ended. A number, because comparing numbers is many times faster than text.
_MONTH = "coalesce(year(make_timestamp(end_s * 1000000)) * 100 + month(make_timestamp(end_s * 1000000)), 0)"


@dataclass(frozen=True, slots=True)
class Merged:
    """Counts of runs. added: new. changed: known with other content. unchanged: known with the same content."""

    added: int
    changed: int
    unchanged: int


def merge(con: duckdb.DuckDBPyConnection, root: Path, manifest: Manifest) -> tuple[Manifest, Merged]:
    """Writes ``records`` and ``rejects`` of ``con`` into the store. The caller must commit the manifest returned."""
    generation = manifest.generation + 1
    existing = (*manifest.of(store_files.JOBS), *manifest.of(store_files.OPEN))
    read = _count(con, "SELECT count(*) FROM records")
    _find_clashes(con, root, existing)
    known = _count(con, f"SELECT count(*) FROM (SELECT DISTINCT {_KEY} FROM clash WHERE origin <> '')")
    displaced = _count(con, "SELECT count(*) FROM losers")
    distinct = read - _count(con, "SELECT coalesce(sum(n - 1), 0)::BIGINT FROM twice")
    files = _rewrite_losers(con, root, existing, generation)
    files += _write_new(con, root, generation)
    files = _joined(con, root, files, generation)
    rejected = _merge_rejects(con, root, manifest, generation)
    other_files = tuple(
        file for file in manifest.files if file.kind not in (store_files.JOBS, store_files.OPEN, store_files.REJECTS)
    )
    merged = Merged(distinct - known, displaced, read - (distinct - known) - displaced)
    return replace(manifest, files=(*files, *rejected, *other_files)), merged


def _find_clashes(con: duckdb.DuckDBPyConnection, root: Path, existing: tuple[DataFile, ...]) -> None:
    """Creates the tables with which runs that exist in several versions are merged.

    ``twice``: keys that the export has more than once. ``clash``: all versions of each key that exists more than once,
    each with its file (origin). ``ranked``: the same with their order (place). ``losers``: stored versions to replace.
    """
    con.execute(
        f"CREATE OR REPLACE TEMP TABLE twice AS SELECT {_KEY}, count(*) AS n FROM records GROUP BY ALL HAVING n > 1"
    )
    stored = (
        f"(FROM {store_files.job_rows(root, existing, with_origin=True)} WHERE job_id BETWEEN "
        "(SELECT min(job_id) FROM records) AND (SELECT max(job_id) FROM records))"
    )
    con.execute(f"CREATE OR REPLACE TEMP TABLE clash AS FROM {stored} SEMI JOIN records USING ({_KEY})")
    same = " AND ".join(f"r.{name} IS NOT DISTINCT FROM c.{name}" for name in JOB_COLUMNS if name != "observed_s")
    con.execute(
        f"INSERT INTO clash SELECT {_COLUMNS}, '' FROM (FROM records SEMI JOIN "
        f"(SELECT {_KEY} FROM clash UNION SELECT {_KEY} FROM twice) USING ({_KEY})) AS r "
        f"ANTI JOIN clash AS c ON {same} AND c.end_s IS NOT NULL"
    )
    con.execute(
        f"CREATE OR REPLACE TEMP TABLE ranked AS SELECT *, row_number() OVER (PARTITION BY {_KEY} "
        f"ORDER BY {_NEWEST_FIRST}, origin DESC) AS place FROM clash"
    )
    con.execute("CREATE OR REPLACE TEMP TABLE losers AS FROM ranked WHERE place > 1 AND origin <> ''")


def _rewrite_losers(
    con: duckdb.DuckDBPyConnection, root: Path, existing: tuple[DataFile, ...], generation: int
) -> list[DataFile]:
    """Rewrites the stored files that have versions to replace, without these. Returns all files."""
    touched = {row[0] for row in con.execute("SELECT DISTINCT origin FROM losers").fetchall()}
    files = []
    for index, file in enumerate(existing):
        path = str(root / file.name)
        if path not in touched:
            files.append(file)
            continue
        query = (
            f"SELECT {_COLUMNS} FROM {store_files.job_rows(root, (file,))} "
            f"ANTI JOIN (FROM losers WHERE origin = {literal(path)}) USING ({_KEY})"
        )
        files += write_rows(con, root, query, file.month, f"g{generation:06d}-r{index}")
    return files


def _write_new(con: duckdb.DuckDBPyConnection, root: Path, generation: int) -> list[DataFile]:
    """Writes new runs and winning versions, one file per month.

    It goes month by month, because most exports are in the order of time: then each month needs only a few of the
    export's row groups.
    """
    months = con.execute(
        f"SELECT DISTINCT {_MONTH} FROM records UNION SELECT DISTINCT {_MONTH} FROM ranked ORDER BY 1"
    ).fetchall()
    files: list[DataFile] = []
    for (number,) in months:
        month = f"{number // 100:04d}-{number % 100:02d}" if number else store_files.OPEN
        chosen = (
            f"end_s >= {_month_start(number)} AND end_s < {_month_start(_following(number))}"
            if number
            else "end_s IS NULL"
        )
        query = (
            f"SELECT {_COLUMNS} FROM (FROM records WHERE {chosen}) ANTI JOIN "
            f"(SELECT {_KEY} FROM clash UNION SELECT {_KEY} FROM twice) USING ({_KEY}) "
            f"UNION ALL SELECT {_COLUMNS} FROM ranked WHERE place = 1 AND origin = '' AND {chosen}"
        )
        files += write_rows(con, root, query, month, f"g{generation:06d}")
    return files


def _following(number: int) -> int:
    return number + 89 if number % 100 == 12 else number + 1


def _month_start(number: int) -> int:
    """Returns the start of a month (202611) in UTC, seconds since 1970."""
    return int(datetime(number // 100, number % 100, 1, tzinfo=UTC).timestamp())


def _joined(con: duckdb.DuckDBPyConnection, root: Path, files: list[DataFile], generation: int) -> list[DataFile]:
    """Joins the files of each month that has too many into one. Returns all files."""
    result: list[DataFile] = []
    for month in sorted({file.month for file in files}):
        group = [file for file in files if file.month == month]
        if len(group) <= (1 if month == store_files.OPEN else FILES_PER_MONTH):
            result += group
            continue
        query = f"SELECT {_COLUMNS} FROM {store_files.job_rows(root, group)}"
        result += write_rows(con, root, query, month, f"g{generation:06d}-j")
    return result


def _merge_rejects(
    con: duckdb.DuckDBPyConnection, root: Path, manifest: Manifest, generation: int
) -> tuple[DataFile, ...]:
    """Writes old and new rejects, each once, without those whose run is now in ``records``."""
    known = store_files.rejects(root, manifest)
    con.execute(
        f"CREATE OR REPLACE TEMP TABLE all_rejects AS SELECT * FROM (FROM {known} UNION FROM rejects) AS r "
        "WHERE NOT EXISTS (FROM records AS a WHERE a.job_id = r.job_id AND a.submit_s = r.submit_s "
        "AND (a.cluster = r.cluster OR r.cluster = '')) QUALIFY row_number() OVER (PARTITION BY reason, cluster, "
        "job_id, submit_s, CASE WHEN job_id IS NULL THEN detail END ORDER BY detail DESC) = 1"
    )
    rows = _count(con, "SELECT count(*) FROM all_rejects")
    if not rows:
        return ()
    name = f"{store_files.REJECTS}/g{generation:06d}.parquet"
    con.execute(f"COPY all_rejects TO {literal(str(root / name))} (FORMAT parquet, COMPRESSION zstd)")
    return (DataFile(store_files.REJECTS, name, "", rows),)


def write_rows(con: duckdb.DuckDBPyConnection, root: Path, query: str, month: str, stem: str) -> list[DataFile]:
    """Writes the job records of a query to a file of the month. Returns the file, nothing if there are no records."""
    name = f"{_folder(month)}/{stem}.parquet"
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    con.execute(f"COPY ({query}) TO {literal(str(root / name))} (FORMAT parquet, COMPRESSION zstd)")
    described = _describe(con, root, name, month)
    return [described] if described.rows else []


def _describe(con: duckdb.DuckDBPyConnection, root: Path, name: str, month: str) -> DataFile:
    row = con.execute(
        "SELECT count(*), coalesce(min(start_s), 0), coalesce(max(end_s), 0) "
        f"FROM read_parquet({literal(str(root / name))}, hive_partitioning = false)"
    ).fetchone()
    assert row is not None
    return DataFile(store_files.OPEN if month == store_files.OPEN else store_files.JOBS, name, month, *row)


def _folder(month: str) -> str:
    return store_files.OPEN if month == store_files.OPEN else f"{store_files.JOBS}/month={month}"


def _count(con: duckdb.DuckDBPyConnection, query: str) -> int:
    row = con.execute(query).fetchone()
    assert row is not None
    return int(row[0])
