# SPDX-License-Identifier: Apache-2.0
"""The static MIG layout of this node: <state_dir>/mig-layout says which instances are to stand, and on which GPUs no
slice may be. Root writes it; it survives a reboot, which the instances do not. There is no file without a layout.

Slurm knows each instance by a device of its own, /dev/nvidia_mig/N: it has the numbers of the compute instance's
device, so that cgroups fence that, and a name that stays and sorts after those of the GPUs (docs/adr/059).
"""

from __future__ import annotations

import os

from hami_hpc.contract import constants as c
from hami_hpc.core.contexts import suppress
from hami_hpc.errors import JobError, NodeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hami_hpc.core.inventory import Gpu
    from hami_hpc.core.mig_static import Slot
    from hami_hpc.node.config import Settings

NAME = "mig-layout"
DEVICES = "/dev/nvidia_mig"


def path_of(state_dir: str) -> str:
    return f"{state_dir}/{NAME}"


def read(state_dir: str) -> tuple[Slot, ...]:
    """Returns the slots of the applied layout, none without one. Raises NodeError for a file that cannot be read or was
    not written by root: a GPU that may be Slurm's by another way must not be shared."""
    from hami_hpc.node import root_file

    path = path_of(state_dir)
    text = root_file.read(path, _advice(path))
    if text is None:  # as on most nodes: the prolog of each MIG job looks
        return ()
    from hami_hpc.core.mig_static import from_text

    try:
        return from_text(text)
    except ValueError as error:
        raise NodeError(f"{path} is damaged ({error}). {_advice(path)}") from error


def write(state_dir: str, slots: Sequence[Slot]) -> None:
    """Replaces the file, whole or not at all; removes it when there is no slot. Raises NodeError."""
    from hami_hpc.core.mig_static import to_text
    from hami_hpc.node import root_file

    root_file.write(path_of(state_dir), to_text(slots) if slots else "")


def device_of(settings: Settings, number: int) -> str:
    """Returns the device by which Slurm knows the instance of a number in the layout's order."""
    return f"{settings.driver_root.rstrip('/')}{DEVICES}/{number}"


def devices(settings: Settings, slots: Sequence[Slot]) -> tuple[tuple[str, str], ...]:
    """Returns type and device of each instance of a layout, in Slurm's order."""
    from hami_hpc.core.mig_static import ordered

    return tuple((slot.profile, device_of(settings, number)) for number, slot in enumerate(ordered(tuple(slots))))


def write_devices(run_dir: str, uuids: Mapping[int, str]) -> None:
    """Writes the file by which SPANK shows a task its instances: the UUID of each by Slurm's number of its device.
    Removes it when there is none. Raises NodeError."""
    path = f"{run_dir}/{c.FILE_MIG_STATIC}"
    try:
        if not uuids:
            with suppress(FileNotFoundError):
                os.unlink(path)
            return
        fd = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        with open(fd, "w", encoding="ascii") as file:
            os.fchmod(fd, 0o644)
            file.writelines(f"{number} {uuid}\n" for number, uuid in uuids.items())
        os.replace(f"{path}.new", path)
    except OSError as error:
        raise NodeError(f"{path} cannot be written: {error.strerror}") from error


def gpus(state_dir: str) -> frozenset[str]:
    """Returns the UUIDs of the GPUs with a static layout, on which there are no slices. Raises NodeError."""
    return frozenset(slot.gpu_uuid for slot in read(state_dir))


def by_index(state_dir: str, uuids: Mapping[int, str]) -> dict[int, str]:
    """Returns the GPU of each number that Slurm has for a device, from the GPUs by their rank. Slurm numbers the
    instances of the layout after the GPUs that have none. Never fails."""
    from hami_hpc.core.mig_static import ordered

    try:
        slots = ordered(read(state_dir))
    except NodeError:  # doctor and the prologs say so
        slots = ()
    static = {slot.gpu_uuid for slot in slots}
    found = {index: uuid for index, uuid in uuids.items() if uuid not in static}
    first = len(found)
    return found | {first + number: slot.gpu_uuid for number, slot in enumerate(slots)}


def check(settings: Settings, gpu: Gpu, job_id: int) -> None:
    """Raises JobError where the GPU of a slice has a static layout: Slurm's configuration is of before."""
    if gpu.uuid in gpus(settings.state_dir):
        raise JobError(
            f"job {job_id} was given a slice of GPU {gpu.minor} ({gpu.uuid}), which has a static MIG layout. "
            "Administrator: run hami-hpc render, then restart slurmctld and slurmd",
            "E_MIG_NO_ROOM",
        )


def _advice(path: str) -> str:
    return f"Run hami-hpc mig apply with the layout's file again, or delete {path} if no GPU has a static layout"
