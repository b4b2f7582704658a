# SPDX-License-Identifier: Apache-2.0
"""Takes users' names out of the store: prune leaves none, pseudonymise leaves names that only a key leads back to.

What a price depends on stays, run by run: times, account, partition, QoS, what was held and where. prune gives each run
a negative number, which Slurm has not, and makes its submit time the start; runs without a GPU and rejected lines go.

Both write new files, and then one manifest: a process that dies leaves it done or not done. The manifest keeps up to
which day this was done. What ended before is not read again, because it would be billed twice.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import stat
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import duckdb

from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.store import store_files, usage_table
from hami_hpc.accounting.store.database import connect, literal
from hami_hpc.accounting.store.export_reader import JOB_COLUMNS
from hami_hpc.accounting.store.merge import write_rows
from hami_hpc.accounting.store.store_files import DataFile, Manifest
from hami_hpc.accounting.store.temporary import temporary_directory

PRUNED = "(pruned)"
PREFIX = "p:"  # of pseudonyms; no system has a user with a colon
_KEY_BYTES = (32, 4096)
_NS = 1_000_000_000
# Checks a manifest before it is committed, and raises AccountingError if something would be lost: (old, new).
Check = Callable[[Manifest, Manifest], None]


@dataclass(frozen=True, slots=True)
class Done:
    """runs: changed. dropped: runs without a GPU. users: names that are gone. records: usage records that are without
    names. rejects: rejected lines that are gone; timeless: those that stay, because they have no time."""

    runs: int
    dropped: int
    users: int
    records: int
    rejects: int
    timeless: int


def read_key(path: Path) -> bytes:
    """Reads the key of pseudonyms. Raises AccountingError for one that others can read, or that is too short."""
    make = f"make one: (umask 077; head -c 32 /dev/urandom > {path})"
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise AccountingError(f"there is no key {path}; {make}") from error
    except OSError as error:
        raise AccountingError(f"the key {path} cannot be read ({error.strerror}); give a file, no link") from error
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise AccountingError(f"the key {path} is no regular file: --key takes one of {_KEY_BYTES[0]} random bytes")
        if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o077:
            mode = f"{stat.S_IMODE(status.st_mode):04o}"
            raise AccountingError(
                f"the key {path} is of user {status.st_uid} with mode {mode}: others may know it; take a new one that "
                "is yours, with mode 0600"
            )
        key = os.read(handle, _KEY_BYTES[1] + 1)
    finally:
        os.close(handle)
    if not _KEY_BYTES[0] <= len(key) <= _KEY_BYTES[1]:
        raise AccountingError(f"the key {path} has {len(key)} bytes; allowed are {_KEY_BYTES[0]} to {_KEY_BYTES[1]}")
    return key


def pseudonym(key: bytes, name: str) -> str:
    """Returns the name's pseudonym; the empty name, and one that is none any more, stay."""
    if not name or name == PRUNED or name.startswith(PREFIX):
        return name
    digest = hmac.new(key, b"hami-hpc user\0" + name.encode("utf-8", "surrogateescape"), hashlib.sha256).digest()
    return PREFIX + base64.b32encode(digest[:10]).decode().lower()


def prune(root: Path, before_s: int, check: Check, dry_run: bool) -> Done:
    """Removes the names of the runs that ended before an instant. The store must be locked. Raises AccountingError."""
    manifest = store_files.read_manifest(root)
    changed = replace(manifest, pruned_before_s=max(before_s, manifest.pruned_before_s))
    return _anonymise(root, manifest, changed, before_s, None, check, dry_run)


def pseudonymise(root: Path, before_s: int, key: bytes, check: Check, dry_run: bool) -> Done:
    """Replaces the names of the runs that ended before an instant. The store must be locked. Raises AccountingError."""
    manifest = store_files.read_manifest(root)
    mark = hmac.new(key, b"hami-hpc key", hashlib.sha256).hexdigest()[:16]
    if manifest.key_mark not in ("", mark):
        raise AccountingError(
            f"the store {root} has pseudonyms of another key: with this one, a user would be two; give that key"
        )
    changed = replace(manifest, pseudonyms_before_s=max(before_s, manifest.pseudonyms_before_s), key_mark=mark)
    return _anonymise(root, manifest, changed, before_s, key, check, dry_run)


def _anonymise(
    root: Path, manifest: Manifest, changed: Manifest, before_s: int, key: bytes | None, check: Check, dry_run: bool
) -> Done:
    # An ingest that was killed has left its input in such a directory, with names: it goes first.
    with temporary_directory(root, ".ingest-") as scratch, closing(connect(spill=scratch)) as con:
        rows = store_files.job_rows(root, manifest.of(store_files.JOBS))
        names = [row[0] for row in con.execute(
            f"SELECT DISTINCT username FROM {rows} WHERE end_s < {before_s}").fetchall()]  # fmt: skip
        new_names = {name: PRUNED if key is None else pseudonym(key, name) for name in names}
        changed_names = [(old, new) for old, new in new_names.items() if old != new]
        if key is not None and len({new for _, new in changed_names}) < len(changed_names):
            raise AccountingError("two users would have one pseudonym: take another key")
        _keep(con, new_names)
        _renumber(con, rows, before_s, key is None)
        files, runs, dropped = _jobs(con, root, manifest, before_s, key is None)
        records = _usage(con, root, manifest, before_s)
        rejects, gone, timeless = _rejects(con, root, manifest, before_s, key is None)
    others = manifest.of(store_files.OPEN)
    # Earlier ingests cannot be taken back: their files have the names.
    after = replace(changed, files=(*files, *others, *records[0], *rejects), ingests=(), kept=())
    try:
        check(manifest, after)
    except AccountingError:
        store_files.sweep(root, manifest)
        raise
    if dry_run:
        store_files.sweep(root, manifest)
    else:
        store_files.commit(root, after)
    return Done(runs, dropped, len(changed_names), records[1], gone, timeless)


def _keep(con: duckdb.DuckDBPyConnection, names: Mapping[str, str]) -> None:
    con.execute(
        "CREATE TEMP TABLE names AS SELECT unnest($1::VARCHAR[]) AS old, unnest($2::VARCHAR[]) AS new",
        [list(names), list(names.values())],
    )


def _renumber(con: duckdb.DuckDBPyConnection, rows: str, before_s: int, is_pruned: bool) -> None:
    """Creates the table ``numbers``: each run's new number and submit time; its own unless it is pruned."""
    row = con.execute(f"SELECT coalesce(min(job_id), 0) FROM {rows}").fetchone()
    floor = min(0, row[0] if row else 0)
    number = f"{floor} - row_number() OVER (ORDER BY end_s, start_s, job_id)" if is_pruned else "job_id"
    submit = "start_s" if is_pruned else "submit_s"
    con.execute(
        f"CREATE TEMP TABLE numbers AS SELECT cluster, job_id, submit_s, {number} AS new_id, {submit} AS new_submit_s "
        f"FROM {rows} WHERE end_s < {before_s} AND held <> '' AND job_id >= 0"
    )


def _jobs(
    con: duckdb.DuckDBPyConnection, root: Path, manifest: Manifest, before_s: int, is_pruned: bool
) -> tuple[list[DataFile], int, int]:
    """Writes the files of jobs that have such runs. Returns all files, and how many runs were changed and dropped."""
    files: list[DataFile] = []
    runs = dropped = 0
    changes = {"username": "coalesce(names.new, username)"}
    if is_pruned:
        changes |= {
            "job_id": "coalesce(new_id, job_id)",
            "submit_s": "coalesce(new_submit_s, submit_s)",
            "display_id": f"CASE WHEN new_id IS NULL THEN display_id ELSE {literal(PRUNED)} END",
        }
    chosen = ", ".join(f"{changes.get(name, 'r.' + name)} AS {name}" for name in JOB_COLUMNS)
    for index, file in enumerate(manifest.of(store_files.JOBS)):
        rows = store_files.job_rows(root, (file,))
        counts = con.execute(
            f"SELECT count(*) FILTER (held <> '' AND job_id >= 0), count(*) FILTER (held = '') "
            f"FROM {rows} WHERE end_s < {before_s}"
        ).fetchone()
        assert counts is not None
        if not sum(counts):
            files.append(file)
            continue
        kept = f"WHERE NOT (r.held = '' AND r.end_s < {before_s})" if is_pruned else ""
        query = (
            f"SELECT {chosen} FROM {rows} AS r LEFT JOIN numbers USING (cluster, job_id, submit_s) "
            f"LEFT JOIN names ON names.old = r.username AND r.end_s < {before_s} {kept}"
        )
        files += write_rows(con, root, query, file.month, f"g{manifest.generation + 1:06d}-a{index}")
        runs += counts[0] if is_pruned else sum(counts)
        dropped += counts[1] if is_pruned else 0
    return files, runs, dropped


def _usage(
    con: duckdb.DuckDBPyConnection, root: Path, manifest: Manifest, before_s: int
) -> tuple[tuple[DataFile, ...], int]:
    """Writes the usage records, those of changed runs with the runs' new numbers and no user. Those that ended before
    and belong to no run are left out."""
    files = manifest.of(store_files.USED)
    if not files:
        return (), 0
    used = usage_table.stored(root, manifest)
    runs = store_files.records(root, manifest)
    key = "u.job_id, u.gpu_uuid, u.start_unix_ns"
    con.execute(
        f"CREATE TEMP TABLE owners AS SELECT cluster, job_id, submit_s, gpu_uuid, start_unix_ns "
        f"FROM ({usage_table.assigned(runs, used)})"
    )
    columns = ", ".join(
        {
            "job_id": "coalesce(n.new_id, u.job_id) AS job_id",
            "uid": "if(n.new_id IS NULL, u.uid, 0) AS uid",
            "cluster": "coalesce(n.cluster, u.cluster) AS cluster",
        }.get(name, f'u."{name}"')
        for name in usage_table.USED_COLUMNS
    )
    name = f"{store_files.USED}/g{manifest.generation + 1:06d}.parquet"
    query = (
        f"SELECT {columns} FROM {used} AS u LEFT JOIN owners AS o "
        f"ON ({key}) = (o.job_id, o.gpu_uuid, o.start_unix_ns) AND (u.cluster = '' OR u.cluster = o.cluster) "
        "LEFT JOIN numbers AS n ON (n.cluster, n.job_id, n.submit_s) = (o.cluster, o.job_id, o.submit_s) "
        f"WHERE o.job_id IS NOT NULL OR u.end_unix_ns >= {before_s * _NS}"
    )
    con.execute(f"COPY ({query}) TO {literal(str(root / name))} (FORMAT parquet, COMPRESSION zstd)")
    row = con.execute(
        f"SELECT (SELECT count(*) FROM read_parquet({literal(str(root / name))})), "
        "(SELECT count(*) FROM owners SEMI JOIN numbers USING (cluster, job_id, submit_s))"
    ).fetchone()
    assert row is not None
    return (DataFile(store_files.USED, name, "", row[0]),), row[1]


def _rejects(
    con: duckdb.DuckDBPyConnection, root: Path, manifest: Manifest, before_s: int, is_pruned: bool
) -> tuple[tuple[DataFile, ...], int, int]:
    """Writes the rejected lines: without those before, or with these names and no text. Returns the file, how many
    were of before, and how many have no time."""
    if not manifest.of(store_files.REJECTS):
        return (), 0, 0
    known = store_files.rejects(root, manifest)
    last = "greatest(end_s, start_s, submit_s)"
    counts = con.execute(
        f"SELECT count(*) FILTER ({last} < {before_s}), count(*) FILTER ({last} IS NULL), count(*) FROM {known}"
    ).fetchone()
    assert counts is not None
    name = f"{store_files.REJECTS}/g{manifest.generation + 1:06d}.parquet"
    query = f"SELECT * FROM {known} WHERE coalesce({last} >= {before_s}, true)"
    if not is_pruned:
        query += f" UNION ALL SELECT * REPLACE (NULL AS username, '' AS detail) FROM {known} WHERE {last} < {before_s}"
    con.execute(f"COPY ({query}) TO {literal(str(root / name))} (FORMAT parquet, COMPRESSION zstd)")
    rows = counts[2] - (counts[0] if is_pruned else 0)
    return ((DataFile(store_files.REJECTS, name, "", rows),) if rows else ()), counts[0], counts[1]
