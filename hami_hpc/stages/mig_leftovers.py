# SPDX-License-Identifier: Apache-2.0
"""Reconcile's part for MIG: instances of ours that no grant has, and what a killed stage left half made."""

from __future__ import annotations

from collections.abc import Iterator

from hami_hpc.core.reconcile_plan import Action, Kind
from hami_hpc.errors import NodeError
from hami_hpc.node import boot, mig_gpu, mig_notes
from hami_hpc.node.config import Settings
from hami_hpc.node.ledger import Ledger
from hami_hpc.node.mig_notes import LIVE, Note
from hami_hpc.stages import common


def remove(settings: Settings, ledger: Ledger, dry_run: bool) -> Iterator[tuple[Action, str | None]]:
    """Removes these instances, without `dry_run`. Yields each action with its error, None when it is done.

    Notes are read before the ledger: a prolog enters its grant before it writes a note. A job whose row is lost, and
    could not be restored, keeps its instance as long as it has its directory.
    """
    try:
        uuids = mig_notes.gpus(settings.run_dir)
    except NodeError as error:
        yield Action(Kind.PROBLEM, str(error)), None
        return
    for uuid in uuids:
        try:
            if not dry_run:
                with mig_notes.locked(settings.run_dir, uuid):
                    mig_notes.sweep(settings.run_dir, uuid)
            notes = mig_notes.read(settings.run_dir, uuid)
        except NodeError as error:
            yield Action(Kind.PROBLEM, str(error)), None
            continue
        grants = (*ledger.grants(), *common.placed_grants(settings.run_dir))
        held = {(grant.job_id, grant.created_unix_ns) for grant in grants}
        for note in notes:
            if note.is_static and note.state == LIVE and not is_void(note):
                continue
            if note.state != LIVE or (note.job_id, note.created_unix_ns) not in held or is_void(note):
                error_text = None if dry_run else _end(settings, uuid, note)
                yield Action(Kind.REMOVE_INSTANCE, _text(uuid, note), note.job_id), error_text


def is_void(note: Note) -> bool:
    """Returns whether a note is of another boot, whose instances are gone."""
    return note.boot_id != boot.boot_id()


def _text(uuid: str, note: Note) -> str:
    one = note.instance
    what = one.uuid or f"of profile {one.profile_id} at {one.start}"
    why = "is of an earlier boot" if is_void(note) else "has no job" if note.state == LIVE else "was left half made"
    whose = "the static layout" if note.is_static else f"job {note.job_id}"
    return f"{whose}: its MIG instance {what} of GPU {note.gpu_minor} ({uuid}) {why} and is removed"


def _end(settings: Settings, uuid: str, note: Note) -> str | None:
    try:
        if is_void(note):  # nothing to ask NVML
            with mig_notes.locked(settings.run_dir, uuid):
                mig_notes.remove(settings.run_dir, uuid, note)
            return None
        with mig_gpu.locked(settings, uuid) as gpu:
            if note in gpu.notes():  # else a stage has ended it meanwhile
                gpu.end(note)
    except NodeError as error:
        return str(error)
    return None
