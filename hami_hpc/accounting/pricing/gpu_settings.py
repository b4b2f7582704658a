# SPDX-License-Identifier: Apache-2.0
"""Reads the cluster's GPUs from both settings files: hami-hpc.toml, and rates.toml, which adds to it.

The settings say what slices are like today; [[geometry]] of rates.toml, what they were like before. If the settings
have changed and rates.toml does not say when, nobody's price changes: slices are taken to be as the store remembers
them (geometry_file.py), and undated() is what the operator reads.
"""

from __future__ import annotations

from datetime import date
from zoneinfo import ZoneInfo

from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.pricing.cluster_gpus import ClusterGpus, GpuModel
from hami_hpc.accounting.pricing.rates import Rates
from hami_hpc.accounting.store.geometry_file import Geometry
from hami_hpc.accounting.times import day_start
from hami_hpc.node.config import Settings


def cluster_gpus_of(
    settings: Settings, prices: Rates | None, tz: ZoneInfo, remembered: Geometry | None = None
) -> ClusterGpus:
    """Returns the GPUs of both files. Raises AccountingError when they give a model different sizes.

    tz: the zone of the rates' days. remembered: the geometry that the store remembers.
    """
    extra = prices or Rates()
    models = {name: GpuModel(name, total_mib) for name, total_mib in settings.gpu_models.items()}
    doubled = sorted(
        name for name in models if name in extra.models and models[name].total_mib != extra.models[name].total_mib
    )
    if doubled:
        raise AccountingError(f"total_mib of {doubled[0]} differs between {settings.path} and rates.toml; correct one")
    own = sorted(name for name in extra.shards_per_gpu if name in settings.partitions)
    if own:
        raise AccountingError(
            f"rates.toml: shards_per_gpu of partition {own[0]}, which {settings.path} names: shards of its GPUs have "
            "shard_mib; remove shards_per_gpu"
        )
    keeps = remembered is not None and undated(settings, prices, tz, remembered)
    former, current = _eras(extra, remembered if remembered and keeps else _settings_geometry(settings), tz)
    return ClusterGpus(
        {**models, **extra.models},
        {**settings.partitions, **extra.partitions},
        current.shard_mib,
        current.memory_scaling,
        extra.nodes,
        extra.aliases,
        {name: extra.shards_per_gpu.get(name, 0) for name in extra.partitions if name not in settings.partitions},
        former,
    )


def geometry_of(settings: Settings, prices: Rates | None, tz: ZoneInfo) -> Geometry:
    """Returns the sizes of slices since the last change that is dated."""
    return _eras(prices or Rates(), _settings_geometry(settings), tz)[1]


def undated(settings: Settings, prices: Rates | None, tz: ZoneInfo, remembered: Geometry | None) -> str:
    """Returns what to do if the present geometry is not the one that the store remembers, and rates.toml does not say
    that it follows that one; else empty text."""
    former, present = _eras(prices or Rates(), _settings_geometry(settings), tz)
    if remembered in (None, present) or (former and former[-1][1] == remembered):
        return ""
    assert remembered is not None
    return (
        f"{settings.path} has shard_mib = {present.shard_mib} and memory_scaling = {present.memory_scaling}, and the "
        f"store's jobs ran with {remembered.shard_mib} and {remembered.memory_scaling}: all jobs are priced by the "
        "latter until rates.toml says since when it is another: [[geometry]] with until = (the first day of the new "
        f"values), shard_mib = {remembered.shard_mib}, memory_scaling = {remembered.memory_scaling}"
    )


def _settings_geometry(settings: Settings) -> Geometry:
    return Geometry(settings.shard_mib, settings.memory_scaling)


def _eras(prices: Rates, current: Geometry, tz: ZoneInfo) -> tuple[tuple[tuple[int, Geometry], ...], Geometry]:
    """Returns the former geometries as ClusterGpus has them, and the last one. current: of days without an entry."""
    eras: list[tuple[int, Geometry]] = []
    reached = date.min
    for entry in sorted(prices.geometry, key=lambda entry: entry.valid.start):
        if entry.valid.start > reached:
            eras.append((day_start(entry.valid.start, tz), current))
        if entry.valid.end == date.max:
            return tuple(eras), entry.geometry
        eras.append((day_start(entry.valid.end, tz), entry.geometry))
        reached = entry.valid.end
    return tuple(eras), current
