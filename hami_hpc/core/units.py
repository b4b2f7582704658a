# SPDX-License-Identifier: Apache-2.0
"""Translates a request, by the site's settings, into the units that Slurm schedules (docs/architecture.md, "Units").

slurmctld runs the same rules in Lua, slurm-plugins/lua/hami_hpc_units.lua; tests/vectors check that both agree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hami_hpc.contract import constants as contract
from hami_hpc.core import mig_choice
from hami_hpc.core.mig_choice import MIG, OfferedProfile
from hami_hpc.core.request import MemMib, MemPercent, Request, mem_text, parse, slo_text
from hami_hpc.errors import Refusal, RequestError, request_error, shorten


@dataclass(frozen=True, slots=True)
class Site:
    """The site's settings that decide requests.

    classes: class -> QoS names. policies: class -> what its jobs may ask for. latency: the latency-critical
    classes. gpu_models: name -> memory usable by CUDA, MiB. partitions: name -> its GPU models. qos_enforced: auto
    (job_submit reads slurm.conf) or yes. mig: GPU model -> the MIG profiles offered, the smallest first.
    mig_waste_percent: part of an instance that mode=auto may leave unused.
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
    policies: Mapping[str, Sequence[str]] = field(default_factory=dict)
    latency: Sequence[str] | None = None
    mig: Mapping[str, Sequence[OfferedProfile]] = field(default_factory=dict)
    mig_waste_percent: int = contract.DEFAULT_MIG_WASTE_PERCENT


@dataclass(frozen=True, slots=True)
class Where:
    """Where a request is to run: the partitions it may go to, which must all allow it, and its QoS (None: none)."""

    partitions: tuple[str, ...]
    qos: str | None = None

    def text(self) -> str:
        noun = "partition " if len(self.partitions) == 1 else "partitions "
        return noun + shorten(", ".join(self.partitions))


@dataclass(frozen=True, slots=True)
class Units:
    """One node's slice in Slurm's units: gres/shard, gres/vgpu's class, gres/vgpu_mem (MiB), gres/vgpu_cores (percent),
    and gres/vgpu_slo (us) unless `slo_us` is 0.

    `features` are the node features that the job needs, all of them.
    """

    shards: int
    service_class: str
    mem_mib: int
    cores: int
    features: tuple[str, ...]
    slo_us: int = 0


def capacity(site: Site, model: str) -> tuple[int, int]:
    """Returns the MiB of one GPU of `model` that can be granted, and its shards.

    Rounds both down, so that shards * shard_mib never exceeds the MiB. Raises RequestError E_SITE for an unknown model.
    """
    total_mib = site.gpu_models.get(model)
    if total_mib is None:
        raise request_error("E_SITE", Refusal(given=f"gpu_models.{model} is missing"))
    mib = math.floor(total_mib * site.memory_scaling)
    return mib, mib // site.shard_mib


def class_of(site: Site, qos: str | None) -> str:
    """Returns the class of service of a QoS; std if no class names it. Ignores case in QoS names, as Slurm does."""
    wanted = (qos or "").lower()
    for name, known in sorted(site.classes.items()):
        if wanted in (each.lower() for each in known):
            return name
    return contract.CLASS_DEFAULT


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _candidates(site: Site, request: Request, where: Where) -> list[str]:
    """Returns the models a request may run on: the type asked for, or every model of the partitions, each once."""
    models: dict[str, None] = {}
    for name in where.partitions:
        partition_models = site.partitions.get(name, ())
        place = Where((name,)).text()
        if not partition_models:
            allowed = _listed(sorted(site.partitions))
            raise request_error("E_NO_VGPU_HERE", Refusal(where=place, allowed=allowed))
        if request.gpu_type is not None and request.gpu_type not in partition_models:
            example = f"--gres=vgpu:{partition_models[0]}:mem=8G"
            refusal = Refusal(given=request.gpu_type, where=place, allowed=_listed(partition_models), example=example)
            raise request_error("E_TYPE_UNKNOWN", refusal)
        models.update(dict.fromkeys(partition_models))
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
    """Returns the MiB and shards per GPU that are valid for all of `models`."""
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
    """Returns the site's default, at most the `mib` MiB of a GPU or of its largest instance."""
    try:
        parsed = parse(f"{contract.REQUEST_NAME}:mem={site.default_mem}")
    except RequestError as error:
        raise request_error("E_SITE", Refusal(given=f"default_mem={site.default_mem}")) from error
    assert parsed is not None  # it names vgpu
    mem = parsed.request.mem
    assert mem is not None  # and holds a mem that parsed
    return MemMib(min(mem.mib, mib)) if isinstance(mem, MemMib) else mem


def _mem_units(mem: MemMib | MemPercent, site: Site, mib: int, shards: int) -> tuple[int, int]:
    """Returns the MiB granted and the shards for `mem` on a GPU of `mib` MiB and `shards` shards."""
    if isinstance(mem, MemMib):
        # A GPU has up to one shard of memory more than its whole shards; a request for that takes all shards.
        return mem.mib, min(shards, -(-mem.mib // site.shard_mib))
    if mem.percent == contract.PERCENT_MAX:
        return mib, shards
    count = max(1, shards * mem.percent // 100)
    return count * site.shard_mib, count


def of_shards(count: int, gpu_type: str | None, site: Site, where: Where) -> Request:
    """Returns the request that `count` bare shards are translated to. Raises RequestError as resolve does.

    It resolves to the same number of shards, but at least to those of 1 % of a GPU's time.
    """
    request = Request(gpu_type=gpu_type, mem=MemMib(count * site.shard_mib))
    _, shards = _common_capacity(site, _candidates(site, request, where), request, where)
    return replace(request, cores=min(contract.CORES_MAX, max(1, 100 * count // shards)))


def features(request: Request, mode: str | None) -> tuple[str, ...]:
    """Returns the node features that a request needs in a mode (None: in any), in a fixed order."""
    names = []
    if mode is not None:
        names.append(contract.FEATURE_MODE.format(mode=mode))
    if request.gpu_type is not None:
        names.append(contract.FEATURE_TYPE.format(type=request.gpu_type))
    if request.policy is not None:
        names.append(contract.FEATURE_POLICY.format(policy=request.policy))
    return tuple(names)


def check_policy(site: Site, service_class: str, policy: str | None) -> None:
    """Raises RequestError when a job of the class may not ask for the policy (None: it asks for none)."""
    allowed = site.policies.get(service_class, ())
    if policy is None or policy in allowed:
        return
    if not allowed:
        raise request_error("E_SITE", Refusal(given=f"policies of class {service_class} are missing"))
    names = sorted(name for name, policies in site.policies.items() if policy in policies)
    classes = [f"{name} (QoS {', '.join(site.classes.get(name, ())) or 'none'})" for name in names]
    example = f"--gres=vgpu:mem=8G,cores=50,policy={allowed[0]}"
    refusal = Refusal(
        given=policy, where=service_class, allowed=_listed(allowed), classes="; ".join(classes) or "no class",
        example=example,
    )  # fmt: skip
    raise request_error("E_POLICY_NOT_ALLOWED", refusal)


def check_slo(site: Site, service_class: str, slo_us: int | None) -> None:
    """Raises RequestError when a job of the class may not ask for an slo (None: it asks for none)."""
    if slo_us is None:
        return
    if site.latency is None:
        raise request_error("E_SITE", Refusal(given="the latency-critical classes are missing"))
    if service_class in site.latency:
        return
    named = [(name, site.classes.get(name, ())) for name in sorted(site.latency)]
    classes = "; ".join(f"{name} (QoS {_listed(qos)})" for name, qos in named) or "none"
    qos = next((f"--qos={qos[0]} " for _, qos in named if qos), "")
    example = f"{qos}--gres=vgpu:mem=8G,cores=50,slo={slo_text(slo_us)}"
    refusal = Refusal(given=slo_text(slo_us), where=service_class, classes=classes, example=example)
    raise request_error("E_SLO_NOT_ALLOWED", refusal)


class _Slice(NamedTuple):
    """What is granted on one GPU."""

    shards: int
    mem_mib: int
    cores: int


def _share(request: Request, site: Site, models: Sequence[str], where: Where) -> _Slice:
    """Returns the slice of a request in a mode that divides a GPU's memory and time by shards."""
    mib, shards = _common_capacity(site, models, request, where)
    if shards < 1:
        raise request_error("E_SITE", Refusal(given="shard_mib is more than a GPU has"))
    mem = _default_mem(site, mib) if request.mem is None else request.mem
    cores = site.default_cores if request.cores is None else request.cores
    mem_mib, mem_shards = _mem_units(mem, site, mib, shards)
    return _Slice(max(mem_shards, 1, shards * cores // 100), mem_mib, cores)


def _instance(request: Request, site: Site, models: Sequence[str], where: Where) -> _Slice | RequestError:
    """Returns the slice that is the MIG instance of a request, or why there is none. Raises RequestError E_SITE."""
    for model in models:
        capacity(site, model)  # that it is one of the site's
    largest = min((site.mig[model][-1].mem_mib for model in models if site.mig.get(model)), default=0)
    mem, cores = mig_choice.with_defaults(request, _default_mem(site, largest), site.default_cores)
    sized = replace(request, mem=mem, cores=cores)
    chosen = mig_choice.choose(sized, site.mig, models, where.text(), site.modes)
    if isinstance(chosen, RequestError):
        return chosen
    return _Slice(chosen.shards, chosen.mem_mib, chosen.cores)


def _place(
    mode: str | None, request: Request, site: Site, models: Sequence[str], where: Where
) -> tuple[str | None, _Slice]:
    """Returns the mode that a request gets, which decides for mode=auto, and its slice. Raises RequestError."""
    if mode not in (MIG, contract.MODE_AUTO):
        return mode, _share(request, site, models, where)
    others = [name for name in site.modes if name != MIG]
    instance = _instance(request, site, models, where) if mode == MIG or MIG in site.modes else None
    if mode == MIG or not others:
        if instance is None:
            raise request_error("E_SITE", Refusal(given="modes is empty"))
        if isinstance(instance, RequestError):
            raise instance
        return MIG, instance
    share = _share(request, site, models, where)
    if isinstance(instance, _Slice) and mig_choice.wastes_little(instance.shards, share.shards, site.mig_waste_percent):
        return MIG, instance
    return others[0], share


def resolve(request: Request, site: Site, where: Where) -> Units:
    """Returns the units of `request` in `where`. Raises RequestError with a contract code if it cannot run there."""
    models = _candidates(site, request, where)
    mode, granted = _place(mig_choice.mode_of(request, site.modes), request, site, models, where)
    service_class = class_of(site, where.qos)
    check_policy(site, service_class, request.policy)
    check_slo(site, service_class, request.slo)
    # A site with MIG has nodes that isolate in one mode alone, so each job says which.
    says_mode = request.mode is not None or mode == MIG or MIG in site.modes
    return Units(
        shards=granted.shards,
        service_class=service_class,
        mem_mib=granted.mem_mib,
        cores=granted.cores,
        features=features(request, mode if says_mode else None),
        slo_us=request.slo or 0,
    )
