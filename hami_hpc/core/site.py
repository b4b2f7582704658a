# SPDX-License-Identifier: Apache-2.0
"""What decides a request besides the request: the site's settings. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hami_hpc.contract import constants as contract
from hami_hpc.core.mig_choice import OfferedProfile
from hami_hpc.core.request import Request


@dataclass(frozen=True, slots=True)
class Site:
    """The site's settings that decide requests.

    classes: class -> QoS names. policies: class -> what its jobs may ask for. latency: the latency-critical
    classes. gpu_models: name -> memory usable by CUDA, MiB. partitions: name -> its GPU models. qos_enforced: auto
    (job_submit reads slurm.conf) or yes. mig: GPU model -> the MIG profiles offered, the smallest first.
    mig_waste_percent: part of an instance that mode=auto may leave unused. slices_max: most slices of a job on a node.
    partition_gpus: partition -> GPUs of its largest node, where that is known. max_tenants: most slices on a GPU,
    0: any number. presets: name -> what it stands for. default_cores may be "proportional": the part of the GPU's
    shards that the slice has. fixed: the classes whose jobs are never moved off an oversold GPU; none of a site
    whose memory is not oversold.
    """

    shard_mib: int
    memory_scaling: float
    default_mem: str
    default_cores: int | str
    bare_shard: str
    modes: Sequence[str]
    classes: Mapping[str, Sequence[str]]
    gpu_models: Mapping[str, int]
    partitions: Mapping[str, Sequence[str]]
    qos_enforced: str = "auto"
    policies: Mapping[str, Sequence[str]] = field(default_factory=dict)
    latency: Sequence[str] | None = None
    mig: Mapping[str, Sequence[OfferedProfile]] = field(default_factory=dict)
    mig_waste_percent: int = contract.DEFAULT_MIG_WASTE_PERCENT
    slices_max: int = contract.DEFAULT_SLICES_MAX
    partition_gpus: Mapping[str, int] = field(default_factory=dict)
    max_tenants: int = contract.DEFAULT_MAX_TENANTS
    presets: Mapping[str, Request] = field(default_factory=dict)
    fixed: Sequence[str] = ()
