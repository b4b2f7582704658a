# SPDX-License-Identifier: Apache-2.0
"""What accounting must know of the site: how large each GPU model is and which partition has which models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class GpuModel:
    """total_mib: memory usable by CUDA. A GPU has ``mig_slices`` compute and ``mig_memory_slices`` memory slices."""

    name: str
    total_mib: int
    mig_slices: int = 7
    mig_memory_slices: int = 8


@dataclass(frozen=True, slots=True)
class ClusterGpus:
    """models: by name. partitions: partition to its models. nodes: host to model, for partitions with several.
    aliases: other spellings of a model in gres types (``nvidia_h200`` to ``h200``)."""

    models: Mapping[str, GpuModel]
    partitions: Mapping[str, tuple[str, ...]]
    shard_mib: int = 256
    memory_scaling: float = 1.0
    nodes: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)

    def usable_mib(self, model: GpuModel) -> int:
        """Memory of one GPU that is handed out, MiB."""
        return int(model.total_mib * self.memory_scaling)

    def shards(self, model: GpuModel) -> int:
        """Shards of one GPU (docs/architecture.md, Units)."""
        return int(model.total_mib * self.memory_scaling / self.shard_mib)
