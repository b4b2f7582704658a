# SPDX-License-Identifier: Apache-2.0
"""How much of a GPU a job run held: whole GPUs, MIG instances, vGPU slices and shards in one currency.

Shares are counted in millionths of one GPU and rounded half to even once per job run, so that every later sum is
one of whole numbers and the parts of a period always add up to the period.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from hami_hpc.accounting.pricing.cluster_gpus import ClusterGpus, GpuModel
from hami_hpc.accounting.sources.tres import AllocatedGpus, parse_mig

PPM = 1_000_000


class Mode(StrEnum):
    """How the GPU was held."""

    WHOLE = "gpu"
    MIG = "mig"
    VGPU = "vgpu"
    SHARD = "shard"


class ShareError(ValueError):
    """A record whose share cannot be known from the site's settings. ``reason`` is fit for grouping."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Part:
    """One priced part of what a run held. share_ppm: millionths of one GPU, all devices and nodes together."""

    model: str
    mode: Mode
    service_class: str
    share_ppm: int


def shares_held(held: AllocatedGpus, partition: str, host: str, constraint: str, gpus: ClusterGpus) -> tuple[Part, ...]:
    """The parts of a run, one per GPU model and mode.

    partition: the one it ran in. host: its first node. constraint: the node features it asked for.
    Raises ShareError when the model, its size, or the partition is not in the site's settings.
    """
    shares: dict[tuple[str, Mode, str], Fraction] = {}

    def add(model: GpuModel, mode: Mode, service_class: str, share: Fraction) -> None:
        key = (model.name, mode, service_class)
        shares[key] = shares.get(key, Fraction(0)) + share

    for gres_type, count in held.gpus:
        mig = parse_mig(gres_type)
        model = _model(mig.model if mig else gres_type, partition, host, constraint, gpus)
        if mig is None:
            add(model, Mode.WHOLE, "", Fraction(count))
        else:
            add(model, Mode.MIG, "", count * mig_share(model, mig.slices, mig.memory_gb))
    if held.vgpu:
        model = _model("", partition, host, constraint, gpus)
        add(model, Mode.VGPU, held.vgpu_class, vgpu_share(held, gpus.usable_mib(model)))
    elif held.shards:
        model = _model("", partition, host, constraint, gpus)
        add(model, Mode.SHARD, "", Fraction(held.shards, gpus.shards(model)))
    return tuple(Part(*key, round(share * PPM)) for key, share in sorted(shares.items()))


def vgpu_share(held: AllocatedGpus, usable_mib: int) -> Fraction:
    """The dominant share of a vGPU job: the larger of its parts of the memory and of the time, over all nodes."""
    share = max(Fraction(held.vgpu_mem_mib, usable_mib), Fraction(held.vgpu_cores_percent, 100))
    if share > held.vgpu:
        raise ShareError(f"holds more of a GPU than its {held.vgpu} vgpu can be; is total_mib right?")
    return share


def mig_share(model: GpuModel, slices: int, memory_gb: int) -> Fraction:
    """The dominant share of one MIG instance, by its compute and memory slices.

    NVIDIA names a profile's memory in rounded GB; the nearest whole number of memory slices is what it holds
    (H200: 18gb 1, 35gb 2, 71gb 4, 141gb 8 of 8).
    """
    total_gb = Fraction(model.total_mib, 1024)
    memory_slices = round(memory_gb * model.mig_memory_slices / total_gb)
    share = max(Fraction(slices, model.mig_slices), Fraction(memory_slices, model.mig_memory_slices))
    if share > 1:
        raise ShareError(f"MIG profile {slices}g.{memory_gb}gb is larger than a {model.name}")
    return share


def _model(name: str, partition: str, host: str, constraint: str, gpus: ClusterGpus) -> GpuModel:
    """The GPU model: as recorded, else of the node, else as constrained, else the partition's only one."""
    found = gpus.aliases.get(name, name) or gpus.nodes.get(host, "") or _constrained(constraint)
    if not found:
        if partition not in gpus.partitions:
            raise ShareError(f"partition {partition or '(none)'} is not in the site's settings")
        models = gpus.partitions[partition]
        if len(models) != 1:
            choice = ", ".join(models) or "no GPU"
            raise ShareError(f"partition {partition} has {choice}: which one the job held is not recorded")
        found = models[0]
    if found not in gpus.models:
        raise ShareError(f"GPU model {found} is not in the site's settings")
    return gpus.models[found]


def _constrained(constraint: str) -> str:
    """The model that the job's node features pin, when they plainly do (one type, no alternatives)."""
    if any(character in constraint for character in "|[]!"):
        return ""
    types = {
        feature.strip("()*").removeprefix("vgpu_type_")
        for feature in constraint.split("&")
        if feature.strip("()*").startswith("vgpu_type_")
    }
    return types.pop() if len(types) == 1 else ""


def part_shares(parts: Iterable[Part]) -> int:
    """The whole share of a run, millionths of one GPU."""
    return sum(part.share_ppm for part in parts)
