# SPDX-License-Identifier: Apache-2.0
"""The store: Parquet files by month of end, and a manifest that says which of them are the truth.

    STORE/manifest.json                        the files that count, how far sacct was read; replaced atomically
    STORE/jobs/month=2026-11/g000012-0.parquet ended runs; a file is never changed, only replaced
    STORE/open/g000012.parquet                 runs that had not ended when they were last read
    STORE/rejects/…, STORE/used/…              lines left out, and the usage spool
    STORE/invoices/…                           issued invoices (invoice_files.py)

A writer holds STORE/.lock, writes new files, and renames the manifest last: a crash leaves files that nobody
reads and the next writer removes.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.store.database import literal
from hami_hpc.accounting.store.export_reader import JOB_COLUMNS
from hami_hpc.accounting.times import Period

VERSION = 2
# What this hami_hpc reads; in version 1 all job files have columns of version 1.
VERSIONS = (1, 2)
# The columns of job files. They are never rewritten for their columns' sake: a file of an older version is read with
# the names that its columns had (column today -> column then).
COLUMNS_VERSION = 2
_COLUMNS_THEN: Mapping[int, Mapping[str, str]] = {1: {"display_id": "job_name"}}
OPEN = "open"
JOBS = "jobs"
REJECTS = "rejects"
USED = "used"


@dataclass(frozen=True, slots=True)
class DataFile:
    """One Parquet file. kind: jobs, open, rejects or used. first_start_s, last_end_s: of its runs (jobs only).
    columns: the version of its columns (jobs and open only)."""

    kind: str
    name: str
    month: str
    rows: int
    first_start_s: int = 0
    last_end_s: int = 0
    columns: int = COLUMNS_VERSION


@dataclass(frozen=True, slots=True)
class Manifest:
    """What the store holds. read_until_s: by source, up to when sacct was read, seconds since 1970."""

    generation: int = 0
    files: tuple[DataFile, ...] = ()
    read_until_s: Mapping[str, int] = field(default_factory=dict)

    def of(self, kind: str) -> tuple[DataFile, ...]:
        """The files of one kind."""
        return tuple(file for file in self.files if file.kind == kind)


def read_manifest(root: Path) -> Manifest:
    """The store's manifest; an empty one where there is no store yet. AccountingError when it cannot be read."""
    path = root / "manifest.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Manifest()
    except (OSError, ValueError) as error:
        raise AccountingError(f"{path} cannot be read ({error}); restore it, or ingest into an empty store") from error
    if document.get("version") not in VERSIONS:
        known = " and ".join(map(str, VERSIONS))
        raise AccountingError(f"{path} has version {document.get('version')}; this hami_hpc reads version {known}")
    files = tuple(DataFile(**{"columns": 1, **entry}) for entry in document["files"])
    return Manifest(document["generation"], files, document["read_until_s"])


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """The store for one writer. AccountingError when another has it, or when it cannot be made."""
    try:
        for kind in (JOBS, OPEN, REJECTS, USED):
            (root / kind).mkdir(parents=True, exist_ok=True)
        lock = os.open(root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    except OSError as error:
        raise AccountingError(f"the store {root} cannot be written ({error.strerror}); see --store") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise AccountingError(f"another hami-hpc ingest is writing to {root}; try again when it is done") from error
    finally:
        os.close(lock)


def commit(root: Path, manifest: Manifest) -> Manifest:
    """Make ``manifest`` the truth, as the next generation, and remove the files that no longer count."""
    manifest = replace(manifest, generation=manifest.generation + 1)
    for file in manifest.files:
        if file.name.rpartition("/")[2].startswith(f"g{manifest.generation:06d}"):
            _sync(root / file.name)
    document = {
        "version": VERSION,
        "generation": manifest.generation,
        "files": [asdict(file) for file in manifest.files],
        "read_until_s": dict(manifest.read_until_s),
    }
    temporary = root / ".manifest.json"
    temporary.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    _sync(temporary)
    temporary.rename(root / "manifest.json")
    _sync(root)
    sweep(root, manifest)
    return manifest


def sweep(root: Path, manifest: Manifest) -> None:
    """Remove data files that ``manifest`` does not name."""
    named = {file.name for file in manifest.files}
    for kind in (JOBS, OPEN, REJECTS, USED):
        for path in (root / kind).rglob("*.parquet"):
            if str(path.relative_to(root)) not in named:
                path.unlink()


def scan(root: Path, files: tuple[DataFile, ...], empty: str) -> str:
    """A table of the rows of files other than job files; ``empty`` is the SELECT of no rows for when there is none."""
    if not files:
        return f"({empty})"
    names = ", ".join(literal(str(root / file.name)) for file in files)
    return f"read_parquet([{names}], hive_partitioning = false)"


def job_rows(root: Path, files: Sequence[DataFile], with_origin: bool = False) -> str:
    """A table of the job records in the files, in today's columns. with_origin: and in ``origin`` the path of the file
    that each is in."""
    origin = ", filename AS origin" if with_origin else ""
    selects = []
    for version in sorted({file.columns for file in files}):
        then = _COLUMNS_THEN.get(version, {})
        columns = ", ".join(f"{then[name]} AS {name}" if name in then else name for name in JOB_COLUMNS)
        names = ", ".join(literal(str(root / file.name)) for file in files if file.columns == version)
        option = ", filename = true" if with_origin else ""
        selects.append(f"SELECT {columns}{origin} FROM read_parquet([{names}]{option}, hive_partitioning = false)")
    if not selects:
        columns = ", ".join(f"NULL::{kind} AS {name}" for name, kind in JOB_COLUMNS.items())
        selects.append(f"SELECT {columns}{', NULL::VARCHAR AS origin' if with_origin else ''} WHERE false")
    return f"({' UNION ALL '.join(selects)})"


def records(root: Path, manifest: Manifest, period: Period | None = None) -> str:
    """A table of all job records, or of at least those that touch ``period``."""
    files = [
        file
        for file in manifest.of(JOBS)
        if period is None or (file.first_start_s < period.end_s and file.last_end_s >= period.start_s)
    ]
    return job_rows(root, (*files, *manifest.of(OPEN)))


def rejects(root: Path, manifest: Manifest) -> str:
    """A table of the lines that were left out."""
    return scan(
        root,
        manifest.of(REJECTS),
        "SELECT NULL::VARCHAR AS reason, NULL::VARCHAR AS cluster, NULL::VARCHAR AS account, "
        "NULL::VARCHAR AS username, NULL::BIGINT AS job_id, NULL::BIGINT AS submit_s, "
        "NULL::BIGINT AS start_s, NULL::BIGINT AS end_s, NULL::VARCHAR AS detail WHERE false",
    )


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
