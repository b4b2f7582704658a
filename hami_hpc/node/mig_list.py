# SPDX-License-Identifier: Apache-2.0
"""What `hami-hpc mig list` shows: each GPU's MIG mode, its instances, and whose they are."""

from __future__ import annotations

import time
from types import ModuleType
from typing import NamedTuple

from hami_hpc.core.inventory import match_model
from hami_hpc.core.mig_layout import Instance, Profile
from hami_hpc.errors import NodeError
from hami_hpc.node import boot, mig, mig_holds, mig_notes
from hami_hpc.node import nvml as nvml_door
from hami_hpc.node.config import Settings
from hami_hpc.node.mig_holds import Kept

FOREIGN, OURS, STATIC, UNKNOWN = "not hami_hpc", "hami_hpc", "static layout", "?"


class Listed(NamedTuple):
    """One instance. `owner` is OURS, with the job that it was made for, STATIC, FOREIGN, or UNKNOWN to who may not read
    the notes."""

    instance: Instance
    profile: str
    mem_mib: int
    owner: str
    job_id: int | None


class ListedGpu(NamedTuple):
    """One GPU. `model` is its name in the settings, or "". `mode`: on, off, on after a reset, off after a reset, or
    none where the GPU has no MIG."""

    minor: int
    uuid: str
    name: str
    model: str  # of the settings, "" for none
    mode: str
    profiles: tuple[Profile, ...]
    instances: tuple[Listed, ...]
    holds: tuple[Kept, ...] = ()  # places that are kept; none to who may not read them


def read(settings: Settings) -> tuple[ListedGpu, ...]:
    """Returns the GPUs by minor number. Takes no lock, so an instance that is just being made may lack its owner.

    Raises NodeError.
    """
    nvml = nvml_door.open_nvml()
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        return tuple(sorted(_listed_gpu(settings, nvml, handle) for handle in handles))
    except nvml.NVMLError as error:
        raise NodeError(f"NVML failed while listing GPUs ({error}). Check with nvidia-smi and dmesg (Xid)") from error
    finally:
        nvml.nvmlShutdown()


def _listed_gpu(settings: Settings, nvml: ModuleType, handle: object) -> ListedGpu:
    device = nvml_door.device_of(nvml, handle)
    state = mig.mode(nvml, handle)
    profiles = mig.profiles(nvml, handle) if state else ()
    instances = mig.instances(nvml, handle) if state and state[0] else ()
    names = {profile.profile_id: profile for profile in profiles}
    try:
        notes = mig_notes.read(settings.run_dir, device.uuid)
        owner = FOREIGN
    except NodeError:  # of root only
        notes, owner = (), UNKNOWN
    listed = []
    for one in instances:
        note = next((note for note in notes if note.boot_id == boot.boot_id() and note.matches(one)), None)
        profile = names[one.profile_id]
        whose, job_id = (OURS, note.job_id) if note else (owner, None)
        if note and note.is_static:
            whose, job_id = STATIC, None
        listed.append(Listed(one, profile.name, profile.mem_mib, whose, job_id))
    model = match_model(device, settings.gpu_models) or ""
    holds = mig_holds.read(settings.run_dir, time.time(), device.uuid)
    return ListedGpu(device.minor, device.uuid, device.name, model, _mode(state), profiles, tuple(listed), holds)


def _mode(state: tuple[bool, bool] | None) -> str:
    if state is None:
        return "none"
    now, pending = state
    if now == pending:
        return "on" if now else "off"
    return "on after a reset" if pending else "off after a reset"
