# SPDX-License-Identifier: Apache-2.0
"""The files of the store: Parquet files by month of end, and a manifest that lists the valid ones.

    STORE/manifest.json                        the valid files, up to when sacct was read; replaced atomically
    STORE/jobs/month=2026-11/g000012-0.parquet ended runs; a file is never changed, only replaced
    STORE/open/g000012.parquet                 runs that had not ended when they were last read
    STORE/rejects/…, STORE/used/…              rejected lines, and the usage records
    STORE/invoices/…                           issued invoices (invoice_files.py)

A writer holds STORE/.lock, writes new files, and renames the manifest last. A crash leaves only files that nobody reads
and that the next writer removes. Files that an ingest replaced stay as long as it can be taken back (undo.py).
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.store.database import literal
from hami_hpc.accounting.store.export_reader import JOB_COLUMNS
from hami_hpc.accounting.store.synced_files import sync, write_new
from hami_hpc.accounting.times import Period

# Version 3 has what an older hami_hpc must not read again (anonymous.py). A store without that is of version 2.
VERSION, VERSION_ANONYMOUS = 2, 3
# The versions that this hami_hpc reads; in version 1 all job files have columns of version 1.
VERSIONS = (1, 2, 3)
# The version of the columns of job files. Older files are not rewritten but read with their own column names
# (version -> {present name: name in that version}).
COLUMNS_VERSION = 3
_OLD_COLUMNS: Mapping[int, Mapping[str, str]] = {1: {"display_id": "job_name"}}
# Columns that older files do not have -> the version that has them first. They are NULL there.
_ADDED: Mapping[str, int] = {"energy_j": 3, "cpus": 3, "mem_mib": 3, "licenses": 3}
_ANONYMOUS = ("pruned_before_s", "pseudonyms_before_s", "key_mark")
OPEN = "open"
JOBS = "jobs"
REJECTS = "rejects"
USED = "used"


@dataclass(frozen=True, slots=True)
class DataFile:
    """One Parquet file.

    kind: jobs, open, rejects or used. first_start_s, last_end_s: of its runs (jobs only). columns: the version of its
    columns (jobs and open only).
    """

    kind: str
    name: str
    month: str
    rows: int
    first_start_s: int = 0
    last_end_s: int = 0
    columns: int = COLUMNS_VERSION


@dataclass(frozen=True, slots=True)
class Ingest:
    """One call of hami-hpc ingest, and what the store had before it: names of files (no usage records), read_until_s,
    timezone. what: where it read. at_s: when. added, changed: runs. rejected: lines."""

    what: str
    at_s: int
    names: tuple[str, ...]
    read_until_s: Mapping[str, int]
    timezone: str
    added: int = 0
    changed: int = 0
    rejected: int = 0


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of the store.

    read_until_s: source -> up to when it was read, seconds since 1970. timezone: of the local times that were read;
    empty if there were none. ingests: those that can be taken back, the last one last. kept: files that only they name.
    pruned_before_s, pseudonyms_before_s: runs that ended before have no names, or pseudonyms; 0 for never. key_mark: by
    which the key of the pseudonyms is known.
    """

    generation: int = 0
    files: tuple[DataFile, ...] = ()
    read_until_s: Mapping[str, int] = field(default_factory=dict)
    timezone: str = ""
    ingests: tuple[Ingest, ...] = ()
    kept: tuple[DataFile, ...] = ()
    pruned_before_s: int = 0
    pseudonyms_before_s: int = 0
    key_mark: str = ""

    @property
    def anonymous_before_s(self) -> int:
        """What ended before this instant is not read again."""
        return max(self.pruned_before_s, self.pseudonyms_before_s)

    def of(self, kind: str) -> tuple[DataFile, ...]:
        """Returns the files of one kind."""
        return tuple(file for file in self.files if file.kind == kind)

    def by_name(self) -> dict[str, DataFile]:
        """Returns all files that must exist, by name."""
        return {file.name: file for file in (*self.files, *self.kept)}


def read_manifest(root: Path) -> Manifest:
    """Reads the store's manifest. Returns an empty one if there is no store. Raises AccountingError on failure."""
    path = root / "manifest.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        version = document["version"]
        if version in VERSIONS:
            return _parsed(document)
    except FileNotFoundError:
        return Manifest()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise AccountingError(
            f"{path} cannot be read ({type(error).__name__}: {error}); restore it, or ingest into an empty store"
        ) from error
    known = " and ".join(map(str, VERSIONS))
    raise AccountingError(
        f"{path} has version {version}; this hami_hpc reads version {known}: use the release that wrote it, or a later "
        "one"
    )


def _parsed(document: Mapping[str, Any]) -> Manifest:
    """Returns a manifest. Raises ValueError, KeyError, TypeError or AttributeError for what is none."""
    files, kept = (
        tuple(DataFile(**{"columns": 1, **entry}) for entry in document.get(key, ())) for key in ("files", "kept")
    )
    ingests = tuple(Ingest(**{**entry, "names": tuple(entry["names"])}) for entry in document.get("ingests", ()))
    zone_name = document.get("timezone", "")
    anonymous = {name: document[name] for name in _ANONYMOUS if name in document}
    generation, read_until_s = document["generation"], dict(document["read_until_s"])
    if not all(type(number) is int for number in (generation, *read_until_s.values())):
        raise ValueError("a number is none")
    return Manifest(generation, files, read_until_s, zone_name, ingests, kept, **anonymous)


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Locks the store for one writer, and creates it if needed. Raises AccountingError when another holds the lock.

    When the writer fails, its files that no manifest has are removed.
    """
    try:
        for kind in (JOBS, OPEN, REJECTS, USED):
            (root / kind).mkdir(parents=True, exist_ok=True)
        lock = os.open(root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    except OSError as error:
        raise AccountingError(f"the store {root} cannot be written ({error.strerror}); see --store") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise AccountingError(
                f"another hami-hpc ingest, invoice or the like is writing to {root}; try again when it has ended"
            ) from error
        try:
            yield
        except Exception:
            _remove_unfinished(root)
            raise
    finally:
        os.close(lock)


def _remove_unfinished(root: Path) -> None:
    """Removes the data files of a writer that failed: on a full disk nobody else could write until they are gone.

    Nothing, if there is no manifest: then nobody knows which files are valid.
    """
    with suppress(OSError, AccountingError):
        manifest = read_manifest(root)
        if manifest.generation:
            sweep(root, manifest)


def commit(root: Path, manifest: Manifest) -> Manifest:
    """Writes ``manifest`` as the store's next generation and removes the files that are not in it."""
    needed = {name for ingest in manifest.ingests for name in ingest.names} - {file.name for file in manifest.files}
    kept = tuple(file for name, file in manifest.by_name().items() if name in needed)
    manifest = replace(manifest, generation=manifest.generation + 1, kept=kept)
    for file in manifest.files:
        if file.name.rpartition("/")[2].startswith(f"g{manifest.generation:06d}"):
            sync(root / file.name)
    document = {
        "version": VERSION_ANONYMOUS if manifest.anonymous_before_s else VERSION,
        "generation": manifest.generation,
        "files": [asdict(file) for file in manifest.files],
        "read_until_s": dict(manifest.read_until_s),
        "timezone": manifest.timezone,
        "ingests": [asdict(ingest) for ingest in manifest.ingests],
        "kept": [asdict(file) for file in manifest.kept],
        **({name: getattr(manifest, name) for name in _ANONYMOUS} if manifest.anonymous_before_s else {}),
    }
    temporary = root / ".manifest.json"
    write_new(temporary, json.dumps(document, indent=1) + "\n", synced=True, mode=0o644)
    temporary.rename(root / "manifest.json")
    sync(root)
    sweep(root, manifest)
    return manifest


def sweep(root: Path, manifest: Manifest) -> None:
    """Removes data files that are not in ``manifest``."""
    valid_names = manifest.by_name().keys()
    for kind in (JOBS, OPEN, REJECTS, USED):
        for path in (root / kind).rglob("*.parquet"):
            if str(path.relative_to(root)) not in valid_names:
                path.unlink()


def scan(root: Path, files: tuple[DataFile, ...], empty: str) -> str:
    """Returns SQL for the rows of files other than job files. empty: the SELECT to use if there are no files."""
    if not files:
        return f"({empty})"
    names = ", ".join(literal(str(root / file.name)) for file in files)
    return f"read_parquet([{names}], hive_partitioning = false)"


def job_rows(root: Path, files: Sequence[DataFile], with_origin: bool = False) -> str:
    """Returns SQL for the job records in the files, with the present columns. with_origin: adds the file's path as
    ``origin``."""
    origin = ", filename AS origin" if with_origin else ""
    selects = []
    for version in sorted({file.columns for file in files}):
        old_names = _OLD_COLUMNS.get(version, {})
        added = {name: f"NULL::{kind}" for name, kind in JOB_COLUMNS.items() if version < _ADDED.get(name, 0)}
        columns = ", ".join(
            f"{source} AS {name}" if (source := old_names.get(name) or added.get(name)) else name
            for name in JOB_COLUMNS
        )
        names = ", ".join(literal(str(root / file.name)) for file in files if file.columns == version)
        option = ", filename = true" if with_origin else ""
        selects.append(f"SELECT {columns}{origin} FROM read_parquet([{names}]{option}, hive_partitioning = false)")
    if not selects:
        columns = ", ".join(f"NULL::{kind} AS {name}" for name, kind in JOB_COLUMNS.items())
        selects.append(f"SELECT {columns}{', NULL::VARCHAR AS origin' if with_origin else ''} WHERE false")
    return f"({' UNION ALL '.join(selects)})"


def records(root: Path, manifest: Manifest, period: Period | None = None) -> str:
    """Returns SQL for all job records, or for at least those that overlap ``period``."""
    files = [
        file
        for file in manifest.of(JOBS)
        if period is None or (file.first_start_s < period.end_s and file.last_end_s >= period.start_s)
    ]
    return job_rows(root, (*files, *manifest.of(OPEN)))


def rejects(root: Path, manifest: Manifest) -> str:
    """Returns SQL for the rejected lines."""
    return scan(
        root,
        manifest.of(REJECTS),
        "SELECT NULL::VARCHAR AS reason, NULL::VARCHAR AS cluster, NULL::VARCHAR AS account, "
        "NULL::VARCHAR AS username, NULL::BIGINT AS job_id, NULL::BIGINT AS submit_s, "
        "NULL::BIGINT AS start_s, NULL::BIGINT AS end_s, NULL::VARCHAR AS detail WHERE false",
    )
