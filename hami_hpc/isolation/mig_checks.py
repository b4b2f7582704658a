# SPDX-License-Identifier: Apache-2.0
"""The checks of `hami-hpc doctor` for mode=mig: the GPUs' mode, the profiles, others' instances, and the fence."""

from __future__ import annotations

from collections.abc import Iterator

from hami_hpc.core.finding import Finding, Level, finding
from hami_hpc.core.mig_layout import Profile, whole
from hami_hpc.core.mig_static import Slot, ordered
from hami_hpc.isolation import share_checks
from hami_hpc.node import mig_caps, mig_list, mig_static
from hami_hpc.node.config import Settings
from hami_hpc.node.mig_list import Listed, ListedGpu
from hami_hpc.node.mig_settings import profiles_of


def check(settings: Settings) -> Iterator[Finding]:
    """Yields the findings of all checks. Raises NodeError when a check cannot be made."""
    if not {"share", "mps"} & set(settings.modes):  # the interposer limits steps with a part of an instance
        yield from share_checks.check(settings)
    static = mig_static.gpus(settings.state_dir)
    gpus = tuple(gpu for gpu in mig_list.read(settings) if gpu.uuid not in static)
    if settings.mig_nodes:  # whole nodes are divided or not, and no job of another mode is sent there
        detail = ", ".join(f"GPU {gpu.minor}: {gpu.mode}" for gpu in gpus)
        advice = "hami-hpc mig enable or disable: mig_nodes names whole nodes"
        yield finding("MIG mode", len({gpu.mode for gpu in gpus}) == 1, f"MIG by GPU: {detail}", advice)
    else:
        yield from _modes(settings, gpus)
    for gpu in gpus:
        foreign = [one for one in gpu.instances if one.owner == mig_list.FOREIGN]
        if foreign:
            detail = f"GPU {gpu.minor}: {len(foreign)} instance(s) that hami_hpc did not make take places from jobs"
            advice = "see hami-hpc mig list; nvidia-smi mig -dci, then -dgi, removes them"
            yield Finding("MIG instances", Level.WARN, detail, advice)
        if gpu.profiles:
            yield _profiles(settings, gpu)
    may_open = mig_caps.modprobe_may_open(settings.driver_root)
    detail = "nvidia-modprobe makes the devices of new instances readable by all, until the prolog has them"
    yield finding(
        "MIG devices",
        not may_open,
        detail if may_open else "only the prolog makes the devices of instances",
        "options nvidia NVreg_ModifyDeviceFiles=0 in /etc/modprobe.d, then load the driver again (docs/security.md)",
        Level.WARN,
    )


def _profiles(settings: Settings, gpu: ListedGpu) -> Finding:
    """Compares the profiles that the settings offer on a GPU with those that NVML lists."""
    advice = f"write into [gpu_models.{gpu.model or 'NAME'}.mig_profiles] what `hami-hpc mig profiles` prints"
    if not settings.mig_profiles.get(gpu.model):
        detail = f"GPU {gpu.minor}: the settings offer no profile of it, so each request for MIG is refused"
        return Finding("MIG profiles", Level.WARN, detail, advice)
    offered = profiles_of(settings, gpu.model)
    known = {profile.name: _numbers(profile, gpu.profiles) for profile in gpu.profiles}
    wrong = [each.name for each in offered if each.name and _numbers(each, offered) != known.get(each.name)]
    detail = f"not as the driver lists them: {', '.join(wrong)}" if wrong else "as the driver lists them"
    return finding("MIG profiles", not wrong, f"GPU {gpu.minor}: {detail}", advice)


def _numbers(profile: Profile, profiles: tuple[Profile, ...]) -> tuple[object, ...]:
    """Returns what the settings say of a profile."""
    full = whole(profiles)
    totals = (full.compute_slices, full.size) if full else ()
    starts = tuple(sorted(profile.starts))
    return profile.compute_slices, profile.size, profile.mem_mib, profile.instances_max, starts, totals


def _modes(settings: Settings, gpus: tuple[ListedGpu, ...]) -> Iterator[Finding]:
    """Checks that each GPU can serve each mode that the node offers."""
    for gpu in gpus:
        advice = f"hami-hpc mig enable {gpu.minor}, or take mig out of modes in [vgpu]"
        detail = f"GPU {gpu.minor}: MIG is {gpu.mode}"
        yield finding("MIG mode", gpu.mode == "on", detail, advice)
        others = [mode for mode in settings.modes if mode != "mig"]
        for mode in others if gpu.mode == "on" else ():
            detail = (
                f"GPU {gpu.minor}: MIG is on, and modes offers {mode}, too: Slurm may give it to a job of that mode"
            )
            yield Finding(f"MIG and {mode}", Level.FAIL, detail, f"hami-hpc mig disable {gpu.minor}, or correct modes")


def check_undivided(settings: Settings) -> Iterator[Finding]:
    """Yields a finding for each GPU in MIG mode of a node that `mig_nodes` does not name. Raises NodeError."""
    static = mig_static.gpus(settings.state_dir)
    for gpu in mig_list.read(settings):
        if gpu.mode == "on" and gpu.uuid not in static:
            detail = f"GPU {gpu.minor}: MIG is on, and mig_nodes does not name this node: its jobs cannot use the GPU"
            advice = f"hami-hpc mig disable {gpu.minor}, or add the node to mig_nodes, then hami-hpc render"
            yield Finding("MIG mode", Level.FAIL, detail, advice)


def check_static(settings: Settings) -> Iterator[Finding]:
    """Checks that the instances of the static layout stand, nothing else is on their GPUs, and Slurm's devices are
    theirs. Raises NodeError."""
    slots = mig_static.read(settings.state_dir)
    if not slots:
        return
    gpus = {gpu.uuid: gpu for gpu in mig_list.read(settings)}
    wrong = [f"GPU {slot.minor} ({slot.gpu_uuid}) is not there" for slot in slots if slot.gpu_uuid not in gpus]
    for number, slot in enumerate(ordered(slots)):
        rows = gpus[slot.gpu_uuid].instances if slot.gpu_uuid in gpus else ()
        row = next((one for one in rows if _is_slot(slot, one)), None)
        path = mig_static.device_of(settings, number)
        if row is None:
            wrong.append(f"{slot.profile} at {slot.start} of GPU {slot.minor} does not stand")
        elif not mig_caps.is_alias(settings.driver_root, path, gpus[slot.gpu_uuid].minor, row.instance.gi_id):
            wrong.append(f"{path} is not the device of {slot.profile} at {slot.start} of GPU {slot.minor}")
    for uuid in {slot.gpu_uuid for slot in slots} & gpus.keys():
        others = [one for one in gpus[uuid].instances if not any(_is_slot(s, one) for s in slots if s.gpu_uuid == uuid)]
        wrong += [f"instance {one.instance.gi_id} of GPU {gpus[uuid].minor} is not of the layout" for one in others]
    detail = "; ".join(wrong) or f"{len(slots)} instance(s) stand"
    yield finding("static MIG layout", not wrong, detail, "run hami-hpc mig apply, and see hami-hpc mig list")


def _is_slot(slot: Slot, row: Listed) -> bool:
    one = row.instance
    return row.owner == mig_list.STATIC and (one.profile_id, one.start) == (slot.profile_id, slot.start)
