# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a node, and which of the site's models each is. Pure."""

from __future__ import annotations

from hami_hpc.core.values import NamedTuple
from hami_hpc.errors import NodeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAX_INDEX = 1023  # Slurm's own limit is MAX_GRES_BITMAP, 1024


class Gpu(NamedTuple):
    """One GPU of this node.

    `slurm_index` is Slurm's number of the GPU (SLURM_JOB_GPUS), its rank by minor number: slurmd sorts the File= lines
    of gres.conf by name. `total_mib` is what CUDA programs can use: NVML's total less what the driver reserves.
    """

    slurm_index: int
    minor: int
    uuid: str
    name: str
    model: str
    total_mib: int


class Device(NamedTuple):
    """One GPU as NVML reports it, without Slurm's index and the site's model. `total_mib` is usable by CUDA."""

    minor: int
    uuid: str
    name: str
    total_mib: int


def match_model(device: Device, models_mib: Mapping[str, int]) -> str | None:
    """Returns the site's model that the device's product name contains, or None.

    Of several such models it returns the one of the nearest size. `models_mib` maps the site's model names (`h200`) to
    their usable MiB.
    """
    words = device.name.lower().replace("-", " ").replace("_", " ").split()
    candidates = [model for model in models_mib if model.lower().replace("_", "-").split("-")[0] in words]
    if not candidates:
        return None
    return min(candidates, key=lambda model: (abs(models_mib[model] - device.total_mib), model))


def make_inventory(devices: Iterable[Device], models_mib: Mapping[str, int]) -> tuple[Gpu, ...]:
    """Returns the devices with Slurm's indices and the site's models; an unknown model is the product name."""
    ordered = sorted(devices, key=lambda device: device.minor)
    return tuple(
        Gpu(
            slurm_index=index,
            minor=device.minor,
            uuid=device.uuid,
            name=device.name,
            model=match_model(device, models_mib) or device.name,
            total_mib=device.total_mib,
        )
        for index, device in enumerate(ordered)
    )


def gpu_of_job(gpus: Iterable[Gpu], slurm_index: int, job_id: int) -> Gpu:
    """Returns the GPU with Slurm's device index. Raises NodeError when the node has no such GPU."""
    known_gpus = tuple(gpus)
    for gpu in known_gpus:
        if gpu.slurm_index == slurm_index:
            return gpu
    raise NodeError(
        f"job {job_id} was given GPU {slurm_index}, but the driver shows {len(known_gpus)} GPU(s) here. "
        "Compare gres.conf (hami-hpc render) with nvidia-smi -L; a GPU may have fallen off the bus",
    )


def indices(text: str) -> tuple[int, ...]:
    """Returns the numbers of a list as Slurm prints it: `0-1,3`. Raises ValueError for any other text."""
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if int(last or first) > MAX_INDEX:
            raise ValueError(f"{text} is no list of GPUs")
        numbers.extend(range(int(first), int(last or first) + 1))
    return tuple(numbers)
