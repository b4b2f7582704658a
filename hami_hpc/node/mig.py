# SPDX-License-Identifier: Apache-2.0
"""The only door to NVML's calls about MIG: profiles, GPU instances, the mode.

An instance is a GPU instance with one compute instance that fills it, which programs see as one MIG device. What NVML
says is turned into NodeErrors that name the call; `nvml` is a module that node/nvml.py opens, `handle` a GPU of it.
No hardware has seen this: docs/status.md.
"""

from __future__ import annotations

import time

from hami_hpc.core.contexts import contextmanager, suppress
from hami_hpc.core.mig_layout import Instance, Profile
from hami_hpc.errors import NodeError

TYPE_CHECKING = False  # the prolog imports this, and not typing: docs/adr/021
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType
    from typing import Any

ON, OFF = 1, 0  # NVML_DEVICE_MIG_ENABLE, NVML_DEVICE_MIG_DISABLE
NUMBERS_MAX = 64  # NVML numbers profiles from 0; driver 580 has 17 for GPU instances, 8 for compute instances
INSTANCES_MAX = 64  # room for a list of instances, of which a GPU has 7
IN_USE_WAIT_S, IN_USE_PAUSE_S = 10.0, 0.05
UUID_MAX = 47  # bytes of a MIG device's UUID


class NoRoomError(NodeError):
    """The GPU has no place for the instance, as its instances lie now."""

    code = "E_MIG_NO_ROOM"


class InUseError(NodeError):
    """A process uses the instance."""

    code = "E_MIG_IN_USE"


@contextmanager
def _explained(nvml: ModuleType, what: str) -> Iterator[None]:
    """Turns NVML's errors into NodeErrors. `what` says what failed, on which GPU."""
    try:
        yield
    except nvml.NVMLError as error:
        value = getattr(error, "value", None)
        if value == nvml.NVML_ERROR_INSUFFICIENT_RESOURCES:
            raise NoRoomError(f"{what}: NVML has no room for it ({error})") from error
        if value == nvml.NVML_ERROR_IN_USE:
            raise InUseError(f"{what}: in use. See nvidia-smi and fuser -v /dev/nvidia*") from error
        advice = {
            nvml.NVML_ERROR_NO_PERMISSION: "run this as root, outside of containers",
            nvml.NVML_ERROR_NOT_SUPPORTED: "the GPU has no MIG, or it is off: see hami-hpc mig list",
            nvml.NVML_ERROR_FUNCTION_NOT_FOUND: "the driver is too old: 550 or later is needed",
        }.get(value, "see nvidia-smi and dmesg")
        raise NodeError(f"{what} failed in NVML ({error}): {advice}") from error


def mode(nvml: ModuleType, handle: object) -> tuple[bool, bool] | None:
    """Returns whether MIG is on, and whether it will be after the next reset; None for a GPU without MIG."""
    try:
        with _explained(nvml, "reading the MIG mode"):
            current, pending = nvml.nvmlDeviceGetMigMode(handle)
            return current == ON, pending == ON
    except NodeError as error:
        cause = error.__cause__
        if getattr(cause, "value", None) in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND):
            return None
        raise


def set_mode(nvml: ModuleType, handle: object, on: bool) -> str:
    """Switches MIG. Returns "" when that has taken effect, else what it waits for. Raises NodeError."""
    with _explained(nvml, f"switching MIG {'on' if on else 'off'}"):
        status = int(nvml.nvmlDeviceSetMigMode(handle, ON if on else OFF))
    if status == nvml.NVML_SUCCESS:
        return ""
    if status == nvml.NVML_ERROR_IN_USE:
        programs = "fuser -v /dev/nvidia* names them; DCGM, monitoring and hami-hpc-agent are among them"
        return f"the GPU is in use: end the programs that use it ({programs}), then try again"
    if status == nvml.NVML_ERROR_RESET_REQUIRED:
        return "it takes effect after a reset of the GPU (nvidia-smi --gpu-reset) or a restart of the node"
    return f"NVML could not activate it ({nvml.NVMLError(status)}): see dmesg"


def profiles(nvml: ModuleType, handle: object) -> tuple[Profile, ...]:
    """Returns all profiles of GPU instances that NVML lists for the GPU, in NVML's order. Raises NodeError."""
    found = []
    for info in _listed_profiles(nvml, handle):
        starts, size = _placements(nvml, handle, int(info.id))
        if starts:
            name = info.name.decode() if isinstance(info.name, bytes) else str(info.name)
            found.append(
                Profile(
                    profile_id=int(info.id),
                    name=name.removeprefix("MIG ").strip(),
                    compute_slices=int(info.sliceCount),
                    memory_slices=size,
                    mem_mib=int(info.memorySizeMB),
                    starts=starts,
                    size=size,
                    instances_max=int(info.instanceCount),
                )
            )
    return tuple(found)


def _listed_profiles(nvml: ModuleType, handle: object) -> Iterator[Any]:
    """Yields what NVML tells of each profile of GPU instances. Raises NodeError."""
    for number in range(NUMBERS_MAX):
        try:
            yield nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, number)
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_NOT_SUPPORTED:
                continue
            if error.value == nvml.NVML_ERROR_INVALID_ARGUMENT:  # nvml.h: there are no further numbers
                return
            with _explained(nvml, f"reading MIG profile {number}"):
                raise


def _placements(nvml: ModuleType, handle: object, profile_id: int) -> tuple[tuple[int, ...], int]:
    """Returns where an instance of a profile may begin, and how many memory slices it takes."""
    count = nvml.c_uint(0)
    with _explained(nvml, f"reading the placements of MIG profile {profile_id}"):
        nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, None, nvml.byref(count))
        room = (nvml.c_nvmlGpuInstancePlacement_t * max(count.value, 1))()
        nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, room, nvml.byref(count))
    rows = list(room)[: count.value]
    return tuple(sorted(int(row.start) for row in rows)), int(rows[0].size) if rows else 0


def instances(nvml: ModuleType, handle: object) -> tuple[Instance, ...]:
    """Returns all GPU instances of a GPU with MIG on, whoever made them, by id. Raises NodeError."""
    uuids = device_uuids(nvml, handle)
    found = []
    for profile in _listed_profiles(nvml, handle):
        with _explained(nvml, f"listing the instances of MIG profile {int(profile.id)}"):
            for one in _listed(nvml, nvml.nvmlDeviceGetGpuInstances, handle, int(profile.id)):
                info = nvml.nvmlGpuInstanceGetInfo(one)
                gi_id, place = int(info.id), info.placement
                found.append(
                    Instance(gi_id, int(info.profileId), int(place.start), int(place.size), uuids.get(gi_id, ""))
                )
    return tuple(sorted(found))


def _listed(nvml: ModuleType, function: Callable[..., object], of: object, profile_id: int) -> list[Any]:
    """Returns the handles of the GPU instances or compute instances of one profile."""
    is_compute = function is nvml.nvmlGpuInstanceGetComputeInstances
    kind = nvml.c_nvmlComputeInstance_t if is_compute else nvml.c_nvmlGpuInstance_t
    room, count = (kind * INSTANCES_MAX)(), nvml.c_uint(INSTANCES_MAX)
    function(of, profile_id, room, nvml.byref(count))
    return list(room)[: count.value]


def device_uuids(nvml: ModuleType, handle: object) -> dict[int, str]:
    """Returns the UUID of the first MIG device of each GPU instance that has one, by the GPU instance's id."""
    found: dict[int, tuple[int, str]] = {}
    with _explained(nvml, "listing MIG devices"):
        for index in range(int(nvml.nvmlDeviceGetMaxMigDeviceCount(handle))):
            try:
                device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
                gi_id = int(nvml.nvmlDeviceGetGpuInstanceId(device))
                ci_id = int(nvml.nvmlDeviceGetComputeInstanceId(device))
                uuid = nvml.nvmlDeviceGetUUID(device)
            except nvml.NVMLError as error:
                if error.value == nvml.NVML_ERROR_NOT_FOUND:  # no device has this number, or it went meanwhile
                    continue
                raise
            text = uuid.decode() if isinstance(uuid, bytes) else str(uuid)
            found[gi_id] = min(found.get(gi_id, (ci_id, text)), (ci_id, text))
    return {gi_id: uuid for gi_id, (_, uuid) in found.items()}


def create(
    nvml: ModuleType,
    handle: object,
    profile: Profile,
    start: int,
    made: Callable[[int, int | None], None] = lambda gi_id, ci_id: None,
) -> Instance:
    """Makes an instance of `profile` at `start` and returns it; leaves nothing behind when it fails.

    Calls `made` with the ids as soon as the GPU instance exists (None for the second), and the compute instance.
    Raises NoRoomError when the driver has no room there, NodeError for any other failure.
    """
    what = f"making a MIG instance {profile.name} at {start}"
    with _explained(nvml, what):
        place = nvml.c_nvmlGpuInstancePlacement_t(start, profile.size)
        gpu_instance = nvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, profile.profile_id, nvml.byref(place))
    try:
        with _explained(nvml, what):
            gi_id = int(nvml.nvmlGpuInstanceGetInfo(gpu_instance).id)
            made(gi_id, None)
            compute = nvml.nvmlGpuInstanceCreateComputeInstance(
                gpu_instance, _filling_profile(nvml, gpu_instance, profile.compute_slices)
            )
            made(gi_id, int(nvml.nvmlComputeInstanceGetInfo(compute).id))
        uuid = device_uuids(nvml, handle).get(gi_id, "")
        if not (uuid.startswith("MIG-") and len(uuid) <= UUID_MAX and uuid.isascii() and uuid.isprintable()):
            raise NodeError(f"{what}: NVML shows no MIG device for it ('{uuid[:UUID_MAX]}'): see nvidia-smi -L")
        return Instance(gi_id, profile.profile_id, start, profile.size, uuid)
    except BaseException:
        with suppress(NodeError):  # the caller has noted that it may be there
            _destroy(nvml, gpu_instance)
        raise


def _compute_profiles(nvml: ModuleType, gpu_instance: object) -> Iterator[Any]:
    """Yields what NVML tells of each profile of compute instances. Raises NVMLError."""
    for number in range(NUMBERS_MAX):
        try:
            yield nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(gpu_instance, number, 0)
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_INVALID_ARGUMENT:
                return
            if error.value != nvml.NVML_ERROR_NOT_SUPPORTED:
                raise


def _filling_profile(nvml: ModuleType, gpu_instance: object, slices: int) -> int:
    """Returns the id of the compute profile that takes all of a GPU instance."""
    for info in _compute_profiles(nvml, gpu_instance):
        if int(info.sliceCount) == slices:
            return int(info.id)
    raise NodeError(
        f"NVML lists no compute profile with all {slices} slices of a MIG instance: see nvidia-smi mig -lcip"
    )


def destroy(nvml: ModuleType, handle: object, instance: Instance, wait_s: float) -> None:
    """Destroys an instance that instances() has returned, unless another has its id since.

    Waits while a process that is ending uses it. Raises InUseError after `wait_s`, NodeError for other failures.
    """
    with _explained(nvml, f"destroying MIG instance {instance.uuid or instance.gi_id}"):
        gpu_instance = nvml.nvmlDeviceGetGpuInstanceById(handle, instance.gi_id)
        info = nvml.nvmlGpuInstanceGetInfo(gpu_instance)
    if (info.profileId, info.placement.start, info.placement.size) != instance[1:4]:
        return
    end = time.monotonic() + wait_s
    while True:
        try:
            _destroy(nvml, gpu_instance)
            return
        except InUseError:
            if time.monotonic() >= end:
                raise
            time.sleep(IN_USE_PAUSE_S)


def _destroy(nvml: ModuleType, gpu_instance: object) -> None:
    with _explained(nvml, "destroying a MIG instance"):
        for info in _compute_profiles(nvml, gpu_instance):
            for one in _listed(nvml, nvml.nvmlGpuInstanceGetComputeInstances, gpu_instance, int(info.id)):
                nvml.nvmlComputeInstanceDestroy(one)
        nvml.nvmlGpuInstanceDestroy(gpu_instance)
