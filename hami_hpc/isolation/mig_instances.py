# SPDX-License-Identifier: Apache-2.0
"""What mode=mig does on a GPU: a job's instance, its profile and its place. Imported only for such a job."""

from __future__ import annotations

import os
import time

from hami_hpc.contract import constants as c
from hami_hpc.core import mig_layout
from hami_hpc.core.grant import Grant
from hami_hpc.errors import JobError, NodeError
from hami_hpc.node import job_dirs, mig, mig_gpu, mig_notes, nvml

TYPE_CHECKING = False  # prolog and epilog import this, and not typing: docs/adr/021
if TYPE_CHECKING:
    from hami_hpc.core.mig_layout import Profile
    from hami_hpc.node.config import Settings
    from hami_hpc.node.mig_gpu import MigGpu
    from hami_hpc.node.mig_notes import Note

NO_ROOM = "E_MIG_NO_ROOM"
LAST_PAUSE_S = 1.0
UNITS_MIN_PERCENT = 90  # the settings may say a little less of a profile than NVML


def offered(settings: Settings, model: str) -> frozenset[str]:
    """Returns the names of the profiles that the site offers on a model: those that have units, and no other.

    For a model that was renamed in the settings since the GPUs were entered in the ledger it returns those of all.
    """
    models = settings.mig_profiles if model not in settings.gpu_models else (model,)
    return frozenset(name for each in models for name in settings.mig_profiles.get(each, ()))


def serves_mig_alone(settings: Settings) -> bool:
    """Returns whether no job but one of mode=mig can be sent here: users cannot choose the mode of a node then."""
    return tuple(settings.modes) == ("mig",) or bool(settings.mig_nodes)


def prepare(settings: Settings, grant: Grant, limits_record: bytes) -> None:
    """Makes the job's instance and its directory. Keeps both when they exist.

    Raises JobError with the code NO_ROOM when the GPU's instances leave no place, JobError when no profile covers the
    grant, NodeError when the node cannot make one.
    """
    with mig_gpu.locked(settings, grant.gpu_uuid, open_nvml=nvml.open_for_mig) as gpu:
        note = _kept(gpu, grant) or _made(settings, gpu, grant)
        content = {c.FILE_MIG: mig_notes.to_bytes(note)}
        job_dirs.place(settings.run_dir, (grant,), (limits_record,), content)


def _kept(gpu: MigGpu, grant: Grant) -> Note | None:
    """Returns the note of the instance that this run of the job has. Ends those of its earlier runs, but for one that
    a process still uses: it stays noted, and takes its place."""
    kept = None
    for note in gpu.notes():
        if note.job_id != grant.job_id:
            continue
        if note.is_of(grant) and note.state == mig_notes.LIVE and gpu.find(note) is not None:
            kept = note
            continue
        try:
            gpu.end(note)
        except mig.InUseError as error:
            if note.is_of(grant):  # its epilog was killed; a new note would replace this one
                raise JobError(
                    f"job {grant.job_id} cannot start before its last run's MIG instance is free: {error}. "
                    "A batch job is requeued if it may be; submit any other again",
                    NO_ROOM,
                ) from error
    return kept


def _made(settings: Settings, gpu: MigGpu, grant: Grant) -> Note:
    from hami_hpc.node import mig_holds, mig_static  # here: the epilog needs neither

    state = mig.mode(gpu.nvml, gpu.handle)
    if state is None or not state[0]:
        text = (
            f"job {grant.job_id} is to have a MIG instance of GPU {grant.gpu_minor} ({gpu.uuid}), where MIG is "
            f"{'off. Switch it on: hami-hpc mig enable ' + gpu.uuid if state else 'not to be had'}, or remove mig "
            f"from modes in {settings.path} of this node, then run hami-hpc render"
        )
        if serves_mig_alone(settings):  # the node can serve nobody: it would fail job after job
            raise NodeError(text)
        raise JobError(f"{text}. A batch job is requeued if it may be", NO_ROOM)  # a user chose this mode
    if gpu.uuid in mig_static.gpus(settings.state_dir):  # since the prolog looked
        raise JobError(f"job {grant.job_id}: GPU {grant.gpu_minor} ({gpu.uuid}) has a static MIG layout", NO_ROOM)
    all_profiles, names = mig.profiles(gpu.nvml, gpu.handle), offered(settings, grant.model)
    profile = _profile(settings, grant, all_profiles)
    if profile is None:
        known = ", ".join(f"{each.name} ({each.mem_mib} MiB)" for each in all_profiles if each.name in names)
        raise JobError(
            f"job {grant.job_id} was given {grant.mem_mib} MiB and {grant.cores_percent} %, but no MIG profile covers "
            f"that of those that the site offers on GPU {grant.gpu_minor}: {known or 'none'}. Submit it again with less"
            + ("" if known else f", or offer profiles of {grant.model} in {settings.path} (mig_profiles)")
        )
    _check_units(grant, profile, all_profiles)
    taken = gpu.instances()
    held = tuple(kept.hold for kept in mig_holds.read(settings.run_dir, time.time(), gpu.uuid))
    start = mig_layout.choose_start(profile, all_profiles, taken, names, held)
    try:
        if start is not None:
            note = gpu.make(grant, grant.gpu_minor, profile, start)
            mig_holds.used(settings.run_dir, gpu.uuid, profile.name, start)
            return note
        cause = f"its {len(taken)} instances leave no place for it"
        if held and mig_layout.legal_starts(profile, all_profiles, taken):
            kept_for = ", ".join(sorted({hold.profile for hold in held}))
            cause = f"the place there is held for {kept_for} by the administrator (hami-hpc mig list)"
    except mig.NoRoomError as error:
        cause = str(error)
    raise JobError(
        f"job {grant.job_id} needs a MIG instance {profile.name} on GPU {grant.gpu_minor}, but {cause}. "
        "A batch job is requeued if it may be; submit any other again",
        NO_ROOM,
    )


def _profile(settings: Settings, grant: Grant, profiles: tuple[Profile, ...]) -> Profile | None:
    """Returns the profile that the job's units are those of, by the settings: the job's shards follow from them, and a
    driver that gives the profile a little less memory must not make it a larger one.

    For units that the settings do not have (any more) it returns the smallest offered profile that covers them.
    """
    from hami_hpc.node import mig_settings

    name = mig_settings.profile_name(settings, grant.model, grant.mem_mib, grant.cores_percent)
    if name is not None:
        return next((profile for profile in profiles if profile.name == name), None)
    return mig_layout.covering(profiles, grant.mem_mib, grant.cores_percent, offered(settings, grant.model))


def _check_units(grant: Grant, profile: Profile, profiles: tuple[Profile, ...]) -> None:
    """Raises JobError when the grant's larger share is much less than the instance's. job_submit makes them equal, but
    users can write the feature of a mode into --constraint, and would pay for a small slice."""
    whole = max(each.compute_slices for each in profiles)
    of_memory = 100 * grant.mem_mib // profile.mem_mib
    of_compute = grant.cores_percent * whole // profile.compute_slices
    if max(of_memory, of_compute) < UNITS_MIN_PERCENT:
        raise JobError(
            f"job {grant.job_id} holds {grant.mem_mib} MiB and {grant.cores_percent} %, and the smallest MIG instance "
            f"for that, {profile.name}, has {profile.mem_mib} MiB and {100 * profile.compute_slices // whole} %. "
            "Ask for mode=mig instead of the node's feature, or for as much as the instance has"
        )


def release(settings: Settings, directory: str, grant: Grant) -> None:
    """Destroys the job's instance, if it has one. Waits while a process that is ending uses it, without the GPU's lock:
    a user can have such processes in several instances, and nobody else shall wait for them."""
    path = f"{directory}/{c.FILE_MIG}"
    notes = mig_notes.read(settings.run_dir, grant.gpu_uuid)
    if not notes and not os.path.lexists(path):
        return
    states = {note.state for note in notes if note.is_of(grant)}
    wait_s = mig.IN_USE_WAIT_S if states <= {mig_notes.LIVE} else 0.0  # else an earlier call has waited
    end, pause_s = time.monotonic() + wait_s, mig.IN_USE_PAUSE_S
    while True:
        try:
            _end_own(settings, grant, "" if states else path)
            return
        except mig.InUseError:
            if time.monotonic() >= end:
                raise
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LAST_PAUSE_S)


def _end_own(settings: Settings, grant: Grant, copy_path: str) -> None:
    """Destroys the job's instance by its note, or where that was lost by the copy in the job's directory. A note is
    also gone when another has ended the instance, and a later one may have its id, place and UUID."""
    with mig_gpu.locked(settings, grant.gpu_uuid, open_nvml=nvml.open_for_mig) as gpu:
        copy = mig_notes.parse(job_dirs.read_bounded(copy_path, mig_notes.SIZE, os.geteuid())) if copy_path else None
        notes = gpu.notes()
        own = [note for note in notes if note.is_of(grant)]
        taken = {note.instance.gi_id for note in notes}
        if not own and copy is not None and copy.is_of(grant) and copy.instance.gi_id not in taken:
            own = [copy]
            mig_notes.write(settings.run_dir, grant.gpu_uuid, copy)
        for note in own:
            gpu.end(note, wait_s=0.0)
