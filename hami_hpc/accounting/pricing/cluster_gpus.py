# SPDX-License-Identifier: Apache-2.0
"""The GPUs of the site as accounting needs them: the size of each model, and the models of each partition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hami_hpc.accounting.store.geometry_file import Geometry
from hami_hpc.core.sizes import GpuSize, gpu_size


@dataclass(frozen=True, slots=True)
class GpuModel:
    """One GPU model. total_mib: memory usable by CUDA. mig_slices, mig_memory_slices: MIG's slices of one GPU."""

    name: str
    total_mib: int
    mig_slices: int = 7
    mig_memory_slices: int = 8


@dataclass(frozen=True, slots=True)
class ClusterGpus:
    """The site's GPUs.

    models: by name. partitions: partition, or cluster/partition for that of one cluster alone -> its models. nodes:
    host -> model, for partitions with several models. aliases: other spelling of a model in gres types -> model
    (``nvidia_h200`` -> ``h200``). foreign: partitions whose GPUs hami_hpc does not manage -> shards of one GPU there, 0
    if the site does not say. former: other sizes of slices, each with the instant before which runs started that have
    them, ascending.
    """

    models: Mapping[str, GpuModel]
    partitions: Mapping[str, tuple[str, ...]]
    shard_mib: int = 256
    memory_scaling: float = 1.0
    nodes: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    foreign: Mapping[str, int] = field(default_factory=dict)
    former: tuple[tuple[int, Geometry], ...] = ()

    def eras(self) -> tuple[ClusterGpus, ...]:
        """Returns the GPUs with the sizes of each time, in the order of ``former``, and last with the present ones."""
        sizes = [(former.shard_mib, former.memory_scaling) for _, former in self.former]
        return tuple(
            replace(self, shard_mib=shard_mib, memory_scaling=scaling, former=())
            for shard_mib, scaling in [*sizes, (self.shard_mib, self.memory_scaling)]
        )

    def era(self, start_s: int) -> int:
        """Returns the index in eras() for a run that started at ``start_s``."""
        return sum(until_s <= start_s for until_s, _ in self.former)

    def size(self, model: GpuModel) -> GpuSize:
        """Returns the sizes of one GPU: of its largest slice, and of all that is sold of it."""
        return gpu_size(model.total_mib, self.memory_scaling, self.shard_mib)
