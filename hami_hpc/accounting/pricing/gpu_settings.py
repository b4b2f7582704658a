# SPDX-License-Identifier: Apache-2.0
"""Reads the cluster's GPUs from both settings files: hami-hpc.toml, and rates.toml, which adds to it."""

from __future__ import annotations

from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.pricing.cluster_gpus import ClusterGpus, GpuModel
from hami_hpc.accounting.pricing.rates import Rates
from hami_hpc.node.config import Settings


def cluster_gpus_of(settings: Settings, prices: Rates | None) -> ClusterGpus:
    """Returns the GPUs of both files. Raises AccountingError when they give a model different sizes."""
    extra = prices or Rates()
    models = {name: GpuModel(name, total_mib) for name, total_mib in settings.gpu_models.items()}
    doubled = sorted(
        name for name in models if name in extra.models and models[name].total_mib != extra.models[name].total_mib
    )
    if doubled:
        raise AccountingError(f"total_mib of {doubled[0]} differs between {settings.path} and rates.toml; correct one")
    return ClusterGpus(
        {**models, **extra.models},
        {**settings.partitions, **extra.partitions},
        settings.shard_mib,
        settings.memory_scaling,
        extra.nodes,
        extra.aliases,
    )
