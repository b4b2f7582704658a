# SPDX-License-Identifier: Apache-2.0
"""The GPU models that a request may run on, and what it takes of them (docs/adr/066). Pure.

slurmctld runs the same rules in Lua, slurm-plugins/lua/hami_hpc_models.lua; tests/vectors check that both agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hami_hpc.contract import constants as contract
from hami_hpc.core.request import Request, canonical
from hami_hpc.core.request_keys import MemMib, mem_text, types_in
from hami_hpc.core.site import Site
from hami_hpc.core.sizes import GpuSize, gpu_size
from hami_hpc.errors import Refusal, RequestError, request_error, shorten


@dataclass(frozen=True, slots=True)
class Where:
    """Where a request is to run: the partitions it may go to, which must all allow it, and its QoS (None: none)."""

    partitions: tuple[str, ...]
    qos: str | None = None

    def text(self) -> str:
        noun = "partition " if len(self.partitions) == 1 else "partitions "
        return noun + shorten(", ".join(self.partitions))


def size_of(site: Site, model: str) -> GpuSize:
    """Returns the sizes of one GPU of `model`. Raises RequestError E_SITE for an unknown model."""
    total_mib = site.gpu_models.get(model)
    if total_mib is None:
        raise request_error("E_SITE", Refusal(given=f"gpu_models.{model} is missing"))
    return gpu_size(total_mib, site.memory_scaling, site.shard_mib)


def capacity(site: Site, model: str) -> tuple[int, int]:
    """Returns the MiB of one GPU of `model` that can be granted to one slice, and its shards.

    Rounds both down, so that shards * shard_mib never exceeds the MiB. Raises RequestError E_SITE for an unknown model.
    """
    size = size_of(site, model)
    return size.slice_mib, size.slice_shards


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _example_of(models: Sequence[str]) -> str:
    return f"--gres=vgpu:{models[0]}:mem=8G" if models else contract.REQUEST_EXAMPLE


def _unknown_type(given: str, where: str, allowed: Sequence[str]) -> RequestError:
    refusal = Refusal(given=given, where=where, allowed=_listed(allowed), example=_example_of(allowed))
    return request_error("E_TYPE_UNKNOWN", refusal)


def _allowed_models(site: Site, request: Request, models: Sequence[str], name: str) -> Sequence[str]:
    """Returns those of a partition's models that the request's type allows."""
    place = Where((name,)).text()
    if request.gpu_type is not None:
        if request.gpu_type not in models:
            raise _unknown_type(request.gpu_type, place, models)
        return [request.gpu_type]
    if request.type is None:
        return models
    names, is_negated = types_in(request.type)
    for wanted in names:
        if wanted not in site.gpu_models:
            raise _unknown_type(wanted, "this cluster", sorted(site.gpu_models))
    left = [model for model in models if (model in names) != is_negated]
    if not left:
        allowed, example = _listed(models), _example_of(models)
        raise request_error("E_TYPE_NONE", Refusal(given=request.type, where=place, allowed=allowed, example=example))
    return left


def candidates(site: Site, request: Request, where: Where) -> list[str]:
    """Returns the models that a request may run on, each once. Raises RequestError where a partition has none."""
    models: dict[str, None] = {}
    for name in where.partitions:
        partition_models = site.partitions.get(name, ())
        if not partition_models:
            allowed = _listed(sorted(site.partitions))
            raise request_error("E_NO_VGPU_HERE", Refusal(where=Where((name,)).text(), allowed=allowed))
        models.update(dict.fromkeys(_allowed_models(site, request, partition_models, name)))
    return list(models)


def _too_big(mem: MemMib, where: Where, model: str, mib: int) -> RequestError:
    refusal = Refusal(
        given=mem_text(mem),
        where=where.text(),
        model=model,
        allowed=f"{mib}M",
        example=f"--gres=vgpu:mem={mib}M",
    )
    return request_error("E_MEM_TOO_BIG", refusal)


def largest(site: Site, models: Sequence[str], request: Request, where: Where) -> tuple[int, int]:
    """Returns the MiB and the shards of a GPU of the model with the most shards, of those with at least the MiB that
    the request names; of several such models, the fewest MiB. Percentages are of this GPU.

    Slurm has one number of shards for a job, whatever GPU it gets, and none of a GPU with fewer. So many of this GPU's
    are at least the same part of each other one.
    """
    sizes = {model: capacity(site, model) for model in models}
    asked = request.mem.mib if isinstance(request.mem, MemMib) else 0
    fitting = [size for size in sizes.values() if size[0] >= asked]
    if isinstance(request.mem, MemMib) and not fitting:
        model = max(sizes, key=lambda name: sizes[name][0])
        raise _too_big(request.mem, where, model, sizes[model][0])
    shards = max(count for _, count in fitting)
    if any(mib < asked and count >= shards for mib, count in sizes.values()):
        # A model has as many shards and less memory: a slice of all shards must not get it.
        refusal = Refusal(where=where.text(), allowed=_listed(models), example=_example_of(models))
        raise request_error("E_TYPE_NEEDED", refusal)
    return min(mib for mib, count in fitting if count == shards), shards


def sold_shards(site: Site, models: Sequence[str], shards: int) -> int:
    """Returns the most shards that Slurm has of a GPU of those `models` whose largest slice has `shards` shards."""
    sizes = [size_of(site, model) for model in models]
    return max(size.sold_shards for size in sizes if size.slice_shards == shards)


def check_every_model(site: Site, models: Sequence[str], mem_mib: int, shards: int, where: Where) -> None:
    """Raises RequestError when Slurm could place a slice of `mem_mib` MiB and `shards` shards on a GPU of which no
    slice may have so much memory. An oversold GPU has more shards for all slices than one slice of it may have."""
    for model in models:
        size = size_of(site, model)
        if size.slice_mib < mem_mib and shards <= size.sold_shards:
            refusal = Refusal(where=where.text(), allowed=_listed(models), example=_example_of(models))
            raise request_error("E_TYPE_NEEDED", refusal)


def type_feature(request: Request, models: Sequence[str]) -> tuple[str, ...]:
    """Returns the node feature that a request for a type needs, none if it names none. Of several a node has one."""
    if request.gpu_type is None and request.type is None:
        return ()
    names = [contract.FEATURE_TYPE.format(type=model) for model in models]
    return (f"({'|'.join(names)})",) if len(names) > 1 else tuple(names)


def with_preset(request: Request, presets: Mapping[str, Request]) -> Request:
    """Returns the request with what its preset has and it does not say itself. Raises RequestError E_PRESET."""
    if request.preset is None:
        return request
    preset = presets.get(request.preset)
    if preset is None:
        names = sorted(presets)
        example = f"--gres={contract.REQUEST_NAME}:preset={names[0]}" if names else contract.REQUEST_EXAMPLE
        raise request_error("E_PRESET", Refusal(given=request.preset, allowed=_listed(names), example=example))
    says_type = request.gpu_type is not None or request.type is not None
    says_mode = any(value is not None for value in (request.mode, request.mig, request.isolation))
    return replace(
        request,
        preset=None,
        gpu_type=request.gpu_type if says_type else preset.gpu_type,
        type=request.type if says_type else preset.type,
        mem=preset.mem if request.mem is None else request.mem,
        cores=preset.cores if request.cores is None else request.cores,
        mode=request.mode if says_mode else preset.mode,
        policy=preset.policy if request.policy is None else request.policy,
        slo=preset.slo if request.slo is None else request.slo,
    )


def preset_text(preset: Request) -> str:
    """Returns a preset as it is written in a request, without `vgpu:`, with semicolons."""
    return canonical(preset).partition(":")[2].replace(":", ";")
