# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a node, and which of the site's models each is. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hami_hpc.core.values import NamedTuple
from hami_hpc.errors import NodeError


class Gpu(NamedTuple):
    """One GPU of this node.

    `slurm_index` is Slurm's number of it (SLURM_JOB_GPUS): slurmd sorts the File= lines of gres.conf by name, so it is
    the rank by minor number. `total_mib` is what CUDA programs can use: NVML's total less what the driver reserves.
    """

    slurm_index: int
    minor: int
    uuid: str
    name: str
    model: str
    total_mib: int


class Device(NamedTuple):
    """What NVML says of one GPU, before it is given an index and a model. Memory in MiB, usable by CUDA."""

    minor: int
    uuid: str
    name: str
    total_mib: int


def match_model(device: Device, models_mib: Mapping[str, int]) -> str | None:
    """The site's model of a device: named in the product name, and of the nearest size when several are.

    `models_mib` maps the site's model names (`h200`) to their usable MiB. None when no model fits.
    """
    words = device.name.lower().replace("-", " ").replace("_", " ").split()
    named = [model for model in models_mib if model.lower().replace("_", "-").split("-")[0] in words]
    if not named:
        return None
    return min(named, key=lambda model: (abs(models_mib[model] - device.total_mib), model))


def make_inventory(devices: Iterable[Device], models_mib: Mapping[str, int]) -> tuple[Gpu, ...]:
    """Gives devices Slurm's indices and the site's models; a GPU of no known model keeps its product name."""
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
    """The GPU with Slurm's device index. NodeError when the node has no such GPU."""
    known = tuple(gpus)
    for gpu in known:
        if gpu.slurm_index == slurm_index:
            return gpu
    raise NodeError(
        f"job {job_id} was given GPU {slurm_index}, but the driver shows {len(known)} GPU(s) here. "
        "Compare gres.conf (hami-hpc render) with nvidia-smi -L; a GPU may have fallen off the bus",
    )
