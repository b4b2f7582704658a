# SPDX-License-Identifier: Apache-2.0
"""Makes the instances of a static MIG layout stand, for `hami-hpc mig apply` (docs/adr/059).

Everything is checked first; a refusal leaves the node as it was. Then: what is to stand is written down (from now on no
slice is made on these GPUs), instances that are not of the layout are ended, missing ones made, their devices placed,
and GPUs that have left the layout are taken out of the file. Killed at any line, the next apply does the rest.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from hami_hpc.core.inventory import Gpu
from hami_hpc.core.mig_static import Slot, arrange, ordered, read_layout
from hami_hpc.errors import NodeError
from hami_hpc.node import admin_log, events, locks, mig, mig_caps, mig_gpu, mig_notes, mig_static
from hami_hpc.node.config import Settings
from hami_hpc.node.mig_gpu import MigGpu
from hami_hpc.node.mig_notes import Note
from hami_hpc.node.settings_text import read_text
from hami_hpc.slurm.lines import names_node
from hami_hpc.stages import mig_mode, occupy
from hami_hpc.stages.gpu_service import find, jobs_on

LOCK = "mig-layout.lock"
LOCK_S = 10.0
NOTHING = "no GPU of this node has a static layout"


@dataclass(slots=True)
class _Work:
    """What there is to do on one GPU. `slots` are those that are to stand; `keep` has the notes of those that do."""

    gpu: Gpu
    slots: tuple[Slot, ...]
    was_static: bool
    is_off: bool = False
    keep: dict[int, Note] = field(default_factory=dict)
    end: list[Note] = field(default_factory=list)
    make: list[Slot] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"GPU {self.gpu.minor} ({self.gpu.uuid})"


def layout_of_file(path: str, node: str) -> dict[str, tuple[str, ...]]:
    """Returns the profiles by GPU (UUID or minor number) that a layout file has for a node. Raises NodeError."""
    import tomllib

    try:
        tables = read_layout(tomllib.loads(read_text(path)))
    except OSError as error:
        raise NodeError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise NodeError(f"{path} is no layout: {error}") from error
    mine = [hosts for hosts in tables if names_node(hosts, node)]
    if len(mine) > 1:
        raise NodeError(f"{path} has two tables for {node}: {' and '.join(mine)}. Leave one")
    return tables[mine[0]] if mine else {}


def apply(
    settings: Settings, node: mig_mode.Holder, layout: dict[str, tuple[str, ...]] | None, dry_run: bool
) -> list[str]:
    """Makes the layout stand, or with None the one that was applied last, and returns lines about it.

    Raises NodeError, with nothing changed, for a layout that the GPUs cannot hold, and while a job or a process uses a
    GPU whose instances have to change.
    """
    with _one_at_a_time(settings):
        before = mig_static.read(settings.state_dir)
        if layout is None and not before:  # as on nodes without a GPU, whose boot unit asks, too
            return [NOTHING]
        gpus = tuple(sorted(occupy.inventory(settings), key=lambda gpu: gpu.minor))
        if layout is None:
            _check_here(gpus, before)
        wanted = _by_gpu(gpus, _names_of(before) if layout is None else layout)
        _check_order(gpus, wanted)
        with ExitStack() as stack:
            works = []
            for gpu in gpus:
                if gpu.uuid in wanted or any(one.gpu_uuid == gpu.uuid for one in before) or _has_static(settings, gpu):
                    opened = stack.enter_context(mig_gpu.locked(settings, gpu.uuid, settle=not dry_run))
                    works.append((opened, _planned(opened, gpu, wanted.get(gpu.uuid, ()), before)))
            _refuse_used(settings, node, gpus, before, works)
            slots = ordered(slot for _, work in works for slot in work.slots)
            lines = [line for _, work in works for line in _describe(work)]
            if dry_run:
                return lines or [NOTHING]
            _do(settings, works, before, slots)
    return lines or [NOTHING]


@contextmanager
def _one_at_a_time(settings: Settings) -> Iterator[None]:
    try:
        os.makedirs(settings.run_dir, 0o755, exist_ok=True)
        lock = locks.acquire(f"{settings.run_dir}/{LOCK}", True, LOCK_S)
    except OSError as error:
        raise NodeError(f"{settings.run_dir}/{LOCK} cannot be opened: {error.strerror}") from error
    try:
        yield
    finally:
        os.close(lock)


def _names_of(slots: Sequence[Slot]) -> dict[str, tuple[str, ...]]:
    names: dict[str, tuple[str, ...]] = {}
    for slot in slots:
        names[slot.gpu_uuid] = (*names.get(slot.gpu_uuid, ()), slot.profile)
    return names


def _check_here(gpus: tuple[Gpu, ...], slots: Sequence[Slot]) -> None:
    """Raises NodeError where a GPU of the layout that was applied last is not here any more."""
    here = {gpu.uuid for gpu in gpus}
    gone = {slot.gpu_uuid: slot.minor for slot in slots if slot.gpu_uuid not in here}
    if gone:
        names = ", ".join(f"GPU {minor} ({uuid})" for uuid, minor in gone.items())
        raise NodeError(
            f"the static layout that was applied last has {names}, which the driver does not show. After a repair "
            "apply a layout for the GPUs that are here: hami-hpc mig apply FILE"
        )


def _by_gpu(gpus: tuple[Gpu, ...], layout: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Returns the profiles by UUID, of the GPUs that are to have any. Raises NodeError for an unknown GPU, and one that
    is named twice."""
    found: dict[str, tuple[str, ...]] = {}
    for word, names in layout.items():
        uuid = find(gpus, (), word).uuid
        if uuid in found:
            raise NodeError(f"the layout names GPU {uuid} twice, by UUID and by minor number. Leave one")
        found[uuid] = names
    return {uuid: names for uuid, names in found.items() if names}


def _check_order(gpus: tuple[Gpu, ...], wanted: dict[str, tuple[str, ...]]) -> None:
    """Raises NodeError unless the GPUs with a static layout are the last ones: Slurm numbers the devices in the order
    of their names, and slices are found by the numbers of the GPUs before."""
    static = [gpu.uuid in wanted for gpu in gpus]
    if static != sorted(static):
        last = ", ".join(str(gpu.minor) for gpu in gpus[len(gpus) - len(wanted) :])
        raise NodeError(
            f"GPUs with a static layout have to be the last ones of the node, by minor number: {last} for this one. "
            "Slurm numbers their instances after the GPUs"
        )


def _has_static(settings: Settings, gpu: Gpu) -> bool:
    """Returns whether a note of a static instance is there, as after a kill of an apply that removes a layout."""
    return any(note.is_static for note in mig_notes.read(settings.run_dir, gpu.uuid))


def _planned(opened: MigGpu, gpu: Gpu, names: tuple[str, ...], before: tuple[Slot, ...]) -> _Work:
    """Returns what there is to do on a GPU. Raises NodeError where the GPU cannot hold that."""
    old = tuple(slot for slot in before if slot.gpu_uuid == gpu.uuid)
    state = mig.mode(opened.nvml, opened.handle)
    if state is None and names:
        raise NodeError(f"GPU {gpu.minor} ({gpu.uuid}) has no MIG, and the layout has instances there")
    work = _Work(gpu, (), bool(old), is_off=bool(names) and not (state and state[0]))
    if names:
        work.slots = _slots(opened, gpu, names, old)
    notes = {note.instance.start: note for note in opened.notes() if note.is_static and opened.find(note) is not None}
    for slot in work.slots:
        note = notes.get(slot.start)
        if note is not None and note.instance.profile_id == slot.profile_id and note.state == mig_notes.LIVE:
            work.keep[slot.start] = notes.pop(slot.start)
        else:
            work.make.append(slot)
    work.end = list(notes.values())
    static = {note.instance.gi_id for note in (*work.keep.values(), *work.end)}
    others = [one for one in opened.instances() if one.gi_id not in static]
    if others and work.slots:
        listed = ", ".join(one.uuid or str(one.gi_id) for one in others[:8])
        raise NodeError(
            f"{work.name} has {len(others)} instance(s) that are not of a static layout: {listed}. Take the GPU out of "
            "service and wait for its jobs (hami-hpc gpu drain); nvidia-smi mig -dci, then -dgi, removes what is not "
            "hami_hpc's. See hami-hpc mig list"
        )
    return work


def _slots(opened: MigGpu, gpu: Gpu, names: tuple[str, ...], old: tuple[Slot, ...]) -> tuple[Slot, ...]:
    """Returns the places of the profiles: those of before where they are the same. Raises NodeError."""
    profiles = mig.profiles(opened.nvml, opened.handle)
    now = {(one.profile_id, one.name, one.size, start) for one in profiles for start in one.starts}
    if sorted(slot.profile for slot in old) == sorted(names) and all(
        (slot.profile_id, slot.profile, slot.size, slot.start) in now for slot in old
    ):
        return old
    try:
        placed = arrange(profiles, names)
    except ValueError as error:
        raise NodeError(f"GPU {gpu.minor} ({gpu.uuid}): {error}") from error
    if placed is None:
        raise NodeError(
            f"GPU {gpu.minor} ({gpu.uuid}) cannot hold {', '.join(names)} at once: see nvidia-smi mig -lgipp"
        )
    return tuple(Slot(gpu.uuid, gpu.minor, one.profile_id, start, one.size, one.name) for one, start in placed)


def _refuse_used(
    settings: Settings,
    node: mig_mode.Holder,
    gpus: tuple[Gpu, ...],
    before: tuple[Slot, ...],
    works: Sequence[tuple[MigGpu, _Work]],
) -> None:
    """Raises NodeError while a job or a process uses a GPU of which something goes, or that was not static before.

    What is only missing on a GPU of the layout, as after a restart, is made without asking slurmctld.
    """
    first = len(gpus) - len({slot.gpu_uuid for slot in before})
    for opened, work in works:
        if not (work.end or work.make):
            continue
        if work.end or not work.was_static:
            mig_mode.refuse_jobs(settings, node, work.gpu.uuid, work.gpu.slurm_index, work.name)
            own = [first + at for at, slot in enumerate(ordered(before)) if slot.gpu_uuid == work.gpu.uuid]
            held = node.holdings() if own else ()
            jobs = sorted({job for index in own for job in jobs_on(held, index)})
            if jobs:
                raise NodeError(
                    f"{work.name} has instances that running jobs hold: {', '.join(map(str, jobs[:8]))}. Drain the "
                    "node and wait for them"
                )
        mig_mode.refuse_processes(opened, work.name)


def _describe(work: _Work) -> list[str]:
    """Returns lines about what is done on a GPU, which is nothing where all stands."""
    lines = [f"{work.name}: MIG is switched on"] if work.is_off else []
    lines += [
        f"{work.name}: static instance {one.instance.uuid} at {one.instance.start} is removed" for one in work.end
    ]
    lines += [f"{work.name}: {slot.profile} at {slot.start} is made" for slot in work.make]
    if not lines and work.slots:
        lines = [f"{work.name}: {', '.join(slot.profile for slot in work.slots)} stand already"]
    return lines


def _do(
    settings: Settings, works: Sequence[tuple[MigGpu, _Work]], before: tuple[Slot, ...], slots: tuple[Slot, ...]
) -> None:
    here = {slot.gpu_uuid for slot in slots}
    leaving = tuple(slot for slot in before if slot.gpu_uuid not in here)
    if (*leaving, *slots) != before:
        mig_static.write(settings.state_dir, ordered((*leaving, *slots)))
    standing: dict[tuple[str, int], Note] = {}
    for opened, work in works:
        if work.is_off:
            waits_for = mig.set_mode(opened.nvml, opened.handle, True)
            if waits_for:
                raise NodeError(f"{work.name}: MIG is not on yet: {waits_for}")
        for note in work.end:
            opened.end(note)
        profiles = {one.profile_id: one for one in mig.profiles(opened.nvml, opened.handle)} if work.make else {}
        for slot in work.make:
            work.keep[slot.start] = opened.make_static(work.gpu.minor, profiles[slot.profile_id], slot.start)
        standing.update({(work.gpu.uuid, start): note for start, note in work.keep.items()})
        if work.make or work.end:
            text = f"{work.name}: static layout {', '.join(one.profile for one in work.slots) or 'removed'}"
            admin_log.to_syslog(admin_log.WARNING, text)
            events.write(settings.state_dir, "mig", "mig_layout", text=text, gpu_uuid=work.gpu.uuid)
    place_devices(settings, slots, standing)
    first = len(occupy.inventory(settings)) - len(here)
    uuids = {
        first + number: standing[slot.gpu_uuid, slot.start].instance.uuid for number, slot in enumerate(ordered(slots))
    }
    mig_static.write_devices(settings.run_dir, uuids)
    if leaving:
        mig_static.write(settings.state_dir, slots)


def place_devices(settings: Settings, slots: tuple[Slot, ...], standing: dict[tuple[str, int], Note]) -> None:
    """Makes the device of each instance for Slurm, and removes those of a layout before. Raises NodeError."""
    folder = os.path.dirname(mig_static.device_of(settings, 0))
    for number, slot in enumerate(ordered(slots)):
        note = standing[slot.gpu_uuid, slot.start]
        path = mig_static.device_of(settings, number)
        if not mig_caps.is_alias(settings.driver_root, path, note.gpu_minor, note.instance.gi_id):
            mig_caps.place_alias(settings.driver_root, path, note.gpu_minor, note.instance.gi_id)
    try:
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            if not name.isdigit() or int(name) >= len(slots):
                os.unlink(f"{folder}/{name}")
    except OSError as error:
        raise NodeError(f"{folder}: {error.strerror}. See ls -l there") from error
