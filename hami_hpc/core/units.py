# SPDX-License-Identifier: Apache-2.0
"""A request and the site's settings into what Slurm schedules (docs/architecture.md, "Units").

slurm-plugins/lua/hami_hpc_units.lua is the same in Lua, and what slurmctld runs; tests/vectors hold both together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hami_hpc.contract import constants as contract
from hami_hpc.core.request import MemMib, MemPercent, Request, mem_text, parse
from hami_hpc.errors import Refusal, RequestError, request_error, shorten


@dataclass(frozen=True, slots=True)
class Site:
    """The site's settings that decide requests.

    classes: class -> QoS names. gpu_models: name -> memory usable by CUDA, MiB. partitions: name -> its GPU models.
    qos_enforced: auto (job_submit looks into slurm.conf) or yes.
    """

    shard_mib: int
    memory_scaling: float
    default_mem: str
    default_cores: int
    bare_shard: str
    modes: Sequence[str]
    classes: Mapping[str, Sequence[str]]
    gpu_models: Mapping[str, int]
    partitions: Mapping[str, Sequence[str]]
    qos_enforced: str = "auto"


@dataclass(frozen=True, slots=True)
class Where:
    """Where a request is to run: the partitions it may go to (all must agree), and its QoS (None: none)."""

    partitions: tuple[str, ...]
    qos: str | None = None

    def text(self) -> str:
        noun = "partition " if len(self.partitions) == 1 else "partitions "
        return noun + shorten(", ".join(self.partitions))


@dataclass(frozen=True, slots=True)
class Units:
    """What one node's slice counts as: gres/shard, gres/vgpu's class, gres/vgpu_mem (MiB), gres/vgpu_cores (percent).

    `features` are the node features that the job needs, to be joined with AND.
    """

    shards: int
    service_class: str
    mem_mib: int
    cores: int
    features: tuple[str, ...]


def capacity(site: Site, model: str) -> tuple[int, int]:
    """MiB that may be given of one GPU of `model`, and its shards. RequestError E_SITE for a model without an entry.

    Two floors, so that shards * shard_mib never passes the MiB.
    """
    total_mib = site.gpu_models.get(model)
    if total_mib is None:
        raise request_error("E_SITE", Refusal(given=f"gpu_models.{model} is missing"))
    mib = math.floor(total_mib * site.memory_scaling)
    return mib, mib // site.shard_mib


def class_of(site: Site, qos: str | None) -> str:
    """The class of service of a QoS; std if no class names it. Slurm compares QoS names without regard to case."""
    wanted = (qos or "").lower()
    for name in contract.CLASSES:
        if wanted in (known.lower() for known in site.classes.get(name, ())):
            return name
    return "std"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _candidates(site: Site, request: Request, where: Where) -> list[str]:
    """The models a request may land on: the type asked for, or every model of the partitions, each once."""
    models: dict[str, None] = {}
    for name in where.partitions:
        here = site.partitions.get(name, ())
        place = Where((name,)).text()
        if not here:
            allowed = _listed(sorted(site.partitions))
            raise request_error("E_NO_VGPU_HERE", Refusal(where=place, allowed=allowed))
        if request.gpu_type is not None and request.gpu_type not in here:
            example = f"--gres=vgpu:{here[0]}:mem=8G"
            refusal = Refusal(given=request.gpu_type, where=place, allowed=_listed(here), example=example)
            raise request_error("E_TYPE_UNKNOWN", refusal)
        models.update(dict.fromkeys(here))
    return list(models) if request.gpu_type is None else [request.gpu_type]


def _too_big(mem: MemMib, where: Where, model: str, mib: int) -> RequestError:
    refusal = Refusal(
        given=mem_text(mem),
        where=where.text(),
        model=model,
        allowed=f"{mib}M",
        example=f"--gres=vgpu:mem={mib}M",
    )
    return request_error("E_MEM_TOO_BIG", refusal)


def _common_capacity(site: Site, models: Sequence[str], request: Request, where: Where) -> tuple[int, int]:
    """MiB and shards per GPU that hold on every one of `models`."""
    sizes = {model: capacity(site, model) for model in models}
    smallest = min(mib for mib, _ in sizes.values())
    largest_model = max(sizes, key=lambda model: sizes[model][0])
    largest = sizes[largest_model][0]
    asked = request.mem.mib if isinstance(request.mem, MemMib) else 0
    if isinstance(request.mem, MemMib) and asked > largest:
        raise _too_big(request.mem, where, largest_model, largest)
    shards = {count for _, count in sizes.values()}
    if len(shards) > 1 or asked > smallest:
        example = f"--gres=vgpu:{models[0]}:mem=8G"
        refusal = Refusal(where=where.text(), allowed=_listed(models), example=example)
        raise request_error("E_TYPE_NEEDED", refusal)
    return smallest, shards.pop()


def _default_mem(site: Site, mib: int) -> MemMib | MemPercent:
    """The site's default, cut to a GPU of `mib` MiB."""
    try:
        parsed = parse(f"{contract.REQUEST_NAME}:mem={site.default_mem}")
    except RequestError as error:
        raise request_error("E_SITE", Refusal(given=f"default_mem={site.default_mem}")) from error
    assert parsed is not None  # it names vgpu
    mem = parsed.request.mem
    assert mem is not None  # and holds a mem that parsed
    return MemMib(min(mem.mib, mib)) if isinstance(mem, MemMib) else mem


def _mem_units(mem: MemMib | MemPercent, site: Site, mib: int, shards: int) -> tuple[int, int]:
    """MiB granted and shards for `mem` on a GPU of `mib` MiB and `shards` shards."""
    if isinstance(mem, MemMib):
        # Up to one shard's worth of memory lies above the last whole shard: that is the whole GPU, too.
        return mem.mib, min(shards, -(-mem.mib // site.shard_mib))
    if mem.percent == contract.PERCENT_MAX:
        return mib, shards
    count = max(1, shards * mem.percent // 100)
    return count * site.shard_mib, count


def of_shards(count: int, gpu_type: str | None, site: Site, where: Where) -> Request:
    """The request that `count` bare shards stand for. RequestError as resolve.

    It resolves to as many shards again, but for less than the smallest vgpu, which has 1 % of a GPU's time.
    """
    request = Request(gpu_type=gpu_type, mem=MemMib(count * site.shard_mib))
    _, shards = _common_capacity(site, _candidates(site, request, where), request, where)
    return replace(request, cores=min(contract.CORES_MAX, max(1, 100 * count // shards)))


def features(request: Request) -> tuple[str, ...]:
    """Node features that a request needs, in a fixed order."""
    out = []
    if request.mode is not None:
        out.append(contract.FEATURE_MODE.format(mode=request.mode))
    if request.gpu_type is not None:
        out.append(contract.FEATURE_TYPE.format(type=request.gpu_type))
    return tuple(out)


def resolve(request: Request, site: Site, where: Where) -> Units:
    """What `request` counts as in `where`. RequestError with one of the contract's codes if it cannot be there."""
    models = _candidates(site, request, where)
    if request.mode is not None and request.mode not in site.modes:
        refusal = Refusal(
            given=request.mode, where="this cluster", allowed=_listed(site.modes), example="--gres=vgpu:mem=8G"
        )
        raise request_error("E_MODE_NOT_OFFERED", refusal)
    mib, shards = _common_capacity(site, models, request, where)
    if shards < 1:
        raise request_error("E_SITE", Refusal(given="shard_mib is more than a GPU has"))
    mem = _default_mem(site, mib) if request.mem is None else request.mem
    cores = site.default_cores if request.cores is None else request.cores
    mem_mib, mem_shards = _mem_units(mem, site, mib, shards)
    return Units(
        shards=max(mem_shards, 1, shards * cores // 100),
        service_class=class_of(site, where.qos),
        mem_mib=mem_mib,
        cores=cores,
        features=features(request),
    )
