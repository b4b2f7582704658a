# SPDX-License-Identifier: Apache-2.0
"""Computes how much of a GPU a job run held, for whole GPUs, MIG instances, vGPU slices and shards alike.

Shares are in millionths of one GPU and are rounded half to even once per job run. So all later sums are of integers,
and the parts of a period always add up to the period.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from hami_hpc.accounting.pricing.cluster_gpus import ClusterGpus, GpuModel
from hami_hpc.accounting.sources.tres import AllocatedGpus, parse_mig
from hami_hpc.contract import constants as c
from hami_hpc.core.sizes import GpuSize

PPM = 1_000_000


class Mode(StrEnum):
    """How the GPU was held."""

    WHOLE = "gpu"
    MIG = "mig"
    VGPU = "vgpu"
    SHARD = "shard"


class ShareError(ValueError):
    """A record whose share cannot be computed from the site's settings. Records are grouped by ``reason``."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Part:
    """A part of what a run held that has one price. share_ppm: millionths of one GPU, summed over devices and nodes."""

    model: str
    mode: Mode
    service_class: str
    share_ppm: int


def shares_held(
    allocated: AllocatedGpus,
    partition: str,
    host: str,
    constraint: str,
    gpus: ClusterGpus,
    *,
    of_slice: bool = False,
) -> tuple[Part, ...]:
    """Returns the parts of a run, one per GPU model and mode.

    partition: in which it ran. host: its first node. constraint: the node features it asked for. of_slice: as in
    vgpu_share.
    Raises ShareError when the model, its size, or the partition is not in the site's settings.
    """
    shares: dict[tuple[str, Mode, str], Fraction] = {}

    def add(model: GpuModel, mode: Mode, service_class: str, share: Fraction) -> None:
        key = (model.name, mode, service_class)
        shares[key] = shares.get(key, Fraction(0)) + share

    for gres_type, count in allocated.gpus:
        mig = parse_mig(gres_type)
        model = _model(mig.model if mig else gres_type, partition, host, constraint, gpus)
        if mig is None:
            add(model, Mode.WHOLE, "", Fraction(count))
        else:
            add(model, Mode.MIG, "", count * mig_share(model, mig.slices, mig.memory_gb))
    if allocated.vgpu:
        model = _model("", partition, host, constraint, gpus)
        add(model, Mode.VGPU, allocated.vgpu_class, vgpu_share(allocated, gpus.size(model), of_slice=of_slice))
    elif allocated.shards:
        model = _model("", partition, host, constraint, gpus)
        add(model, Mode.SHARD, "", Fraction(allocated.shards, _shards(model, partition, gpus, of_slice)))
    return tuple(Part(*key, round(share * PPM)) for key, share in sorted(shares.items()))


def vgpu_share(allocated: AllocatedGpus, size: GpuSize, *, of_slice: bool = False) -> Fraction:
    """Returns the dominant share of a vGPU job: the larger of its shares of memory and of time, over all nodes.

    It is the share of what is sold of a GPU, so that all slices of a GPU hold no more than the GPU; with ``of_slice``
    that of a GPU's largest slice. Both are the same unless memory is oversold.
    """
    mem_mib, cores = allocated.vgpu_mem_mib, allocated.vgpu_cores_percent
    granted = max(Fraction(mem_mib, size.slice_mib), Fraction(cores, c.CORES_MAX))
    if granted > allocated.vgpu:
        raise ShareError(f"holds more of a GPU than {allocated.vgpu} vgpu can have; check total_mib")
    return granted if of_slice else max(Fraction(mem_mib, size.sold_mib), Fraction(cores, size.sold_cores))


def mig_share(model: GpuModel, slices: int, memory_gb: int) -> Fraction:
    """Returns the dominant share of one MIG instance, by its compute and memory slices.

    NVIDIA gives a profile's memory in rounded GB; it is converted to the nearest whole number of memory slices (H200:
    18gb 1, 35gb 2, 71gb 4, 141gb 8 of 8).
    """
    total_gb = Fraction(model.total_mib, 1024)
    memory_slices = round(memory_gb * model.mig_memory_slices / total_gb)
    share = max(Fraction(slices, model.mig_slices), Fraction(memory_slices, model.mig_memory_slices))
    if share > 1:
        raise ShareError(f"MIG profile {slices}g.{memory_gb}gb is larger than a {model.name}")
    return share


def _shards(model: GpuModel, partition: str, gpus: ClusterGpus, of_slice: bool) -> int:
    """Returns the shards of one GPU in the partition, or with ``of_slice`` of its largest slice."""
    if partition not in gpus.foreign:
        size = gpus.size(model)
        return size.slice_shards if of_slice else size.sold_shards
    if not gpus.foreign[partition]:
        raise ShareError(
            f"shards of GPUs that hami_hpc does not manage: [partitions.{partition}] of rates.toml has no "
            "shards_per_gpu"
        )
    return gpus.foreign[partition]


def _model(name: str, partition: str, host: str, constraint: str, gpus: ClusterGpus) -> GpuModel:
    """Returns the GPU model: the recorded one, else the node's, the constraint's, or the partition's only one."""
    if len(name) == 1 and name in c.PLACES and name not in gpus.models:
        name = ""  # the type says where on its node the GPU is: docs/adr/055
    model = gpus.aliases.get(name, name) or gpus.nodes.get(host, "") or _constrained(constraint)
    if not model:
        if partition not in gpus.partitions:
            raise ShareError(f"partition {partition or '(none)'} is not in the site's settings")
        models = gpus.partitions[partition]
        if len(models) != 1:
            choice = ", ".join(models) or "no GPU"
            raise ShareError(f"partition {partition} has {choice}: which one the job held is not recorded")
        model = models[0]
    if model not in gpus.models:
        raise ShareError(f"GPU model {model} is not in the site's settings")
    return gpus.models[model]


def required_features(constraint: str) -> frozenset[str]:
    """Returns the node features that a job requires, none where it has alternatives."""
    if any(character in constraint for character in "|[]!"):
        return frozenset()
    return frozenset(feature.strip("()*") for feature in constraint.split("&"))


def _constrained(constraint: str) -> str:
    """Returns the model that the job's node features require, "" if there are several or alternatives."""
    types = [name for name in required_features(constraint) if name.startswith("vgpu_type_")]
    return types[0].removeprefix("vgpu_type_") if len(types) == 1 else ""


def part_shares(parts: Iterable[Part]) -> int:
    """Returns the total share of a run, millionths of one GPU."""
    return sum(part.share_ppm for part in parts)
