# SPDX-License-Identifier: Apache-2.0
"""Takes back the last ingest: the store has again the job records and rejects that it had before.

Each ingest leaves in the manifest the names of the files before it, and these files stay. So taking it back is one new
manifest: a process that dies leaves it done or not done. Usage records stay, because collect-usage --remove has
deleted their files. What was read from slurmdbd is read again by the next ingest.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.store import store_files
from hami_hpc.accounting.store.store_files import Ingest, Manifest

# How many ingests can be taken back. A timer may have run some since the one that is regretted.
DEPTH = 24
_KINDS = (store_files.JOBS, store_files.OPEN, store_files.REJECTS)


def begun(manifest: Manifest, what: str, at_s: int) -> Ingest:
    """Returns the entry of an ingest that begins now."""
    names = tuple(file.name for kind in _KINDS for file in manifest.of(kind))
    return Ingest(what, at_s, names, dict(manifest.read_until_s), manifest.timezone)


def noted(before: Manifest, after: Manifest, entry: Ingest) -> Manifest:
    """Returns ``after`` with the entry of the ingest that made it from ``before``; each step of one ingest notes it."""
    others = before.ingests
    if others and (others[-1].at_s, others[-1].names) == (entry.at_s, entry.names):
        others = others[:-1]
    return replace(after, ingests=(*others, entry)[-DEPTH:], kept=(*before.kept, *before.files))


def last(root: Path) -> Ingest:
    """Returns the last ingest. Raises AccountingError when there is none that can be taken back."""
    manifest = store_files.read_manifest(root)
    if not manifest.ingests:
        raise AccountingError(
            f"the store {root} has no ingest to take back: it was made by an older hami_hpc, all that can be are taken "
            "back, or --store names another store"
        )
    return manifest.ingests[-1]


def undo(root: Path) -> Ingest:
    """Takes back the last ingest and returns it. Raises AccountingError."""
    last(root)  # before the lock, which makes the folders of a store
    with store_files.locked(root):
        entry = last(root)
        manifest = store_files.read_manifest(root)
        files = manifest.by_name()
        missing = [name for name in entry.names if name not in files or not (root / name).is_file()]
        if missing:
            raise AccountingError(f"{root / missing[0]} is missing: restore it from a backup; nothing was taken back")
        before = tuple(files[name] for name in entry.names)
        store_files.commit(
            root,
            replace(
                manifest,
                files=(*before, *manifest.of(store_files.USED)),
                read_until_s=entry.read_until_s,
                timezone=entry.timezone,
                ingests=manifest.ingests[:-1],
                kept=tuple(files.values()),
            ),
        )
    return entry
