# SPDX-License-Identifier: Apache-2.0
"""How much of a GPU one slice can have, and how much Slurm is told that the GPU has (docs/architecture.md, "Units").

Both are the same unless the site sells more memory than its GPUs have (`memory_scaling` above 1). Pure. slurmctld has
the same rules in Lua, slurm-plugins/lua/hami_hpc_models.lua.
"""

from __future__ import annotations

from hami_hpc.contract import constants as c
from hami_hpc.core.values import NamedTuple


class GpuSize(NamedTuple):
    """The sizes of one GPU. `slice_mib` and `slice_shards` are 100 % of its memory and its time: the largest slice.

    `sold_mib`, `sold_shards` and `sold_cores` (percent of time) are what Slurm has of it for all slices together.
    """

    slice_mib: int
    slice_shards: int
    sold_mib: int
    sold_shards: int
    sold_cores: int


def is_oversold(memory_scaling: float) -> bool:
    """Returns whether the slices of a GPU may have more memory together than the GPU has."""
    return memory_scaling > 1


def largest_mib(total_mib: int, memory_scaling: float) -> int:
    """Returns the MiB that one slice of a GPU may have at most."""
    return int(total_mib * (c.OVERSOLD_PART if is_oversold(memory_scaling) else memory_scaling))


def sold_mib(total_mib: int, memory_scaling: float) -> int:
    """Returns the MiB that all slices of a GPU may have together."""
    return int(total_mib * memory_scaling)


def gpu_size(total_mib: int, memory_scaling: float, shard_mib: int) -> GpuSize:
    """Returns the sizes of a GPU of `total_mib` MiB. Rounds down, so that shards * shard_mib never exceeds the MiB.

    Of an oversold GPU the largest slice is whole shards: several of them fit the GPU, and what each had beyond its
    shards would be sold twice. sold_cores is rounded up, so that cores never keep out a slice whose shards fit.
    """
    sold = sold_mib(total_mib, memory_scaling)
    mib = largest_mib(total_mib, memory_scaling)
    shards, sold_shards = mib // shard_mib, sold // shard_mib
    if not is_oversold(memory_scaling) or shards < 1:
        return GpuSize(mib, shards, sold, sold_shards, c.CORES_MAX)
    return GpuSize(shards * shard_mib, shards, sold, sold_shards, -(-c.CORES_MAX * sold_shards // shards))
