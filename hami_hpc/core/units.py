# SPDX-License-Identifier: Apache-2.0
"""Translates a request, by the site's settings, into the units that Slurm schedules (docs/architecture.md, "Units").

slurmctld runs the same rules in Lua, slurm-plugins/lua/hami_hpc_units.lua; tests/vectors check that both agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from hami_hpc.contract import constants as contract
from hami_hpc.core import mig_choice
from hami_hpc.core.gpu_choice import (
    Where,
    candidates,
    capacity,
    check_every_model,
    largest,
    sold_shards,
    type_feature,
    with_preset,
)
from hami_hpc.core.mig_choice import MIG
from hami_hpc.core.places import SHARE, check_count, check_mode, chosen
from hami_hpc.core.request import Request, parse
from hami_hpc.core.request_keys import MemMib, MemPercent, slo_text
from hami_hpc.core.site import Site
from hami_hpc.errors import Refusal, RequestError, request_error


@dataclass(frozen=True, slots=True)
class Units:
    """The slices on one node in Slurm's units: gres/shard, gres/vgpu's class, gres/vgpu_mem (MiB), gres/vgpu_cores
    (percent), and gres/vgpu_slo (us) unless `slo_us` is 0.

    `features` are the node features that the job needs, all of them. `shards` are those of each slice; `mem_mib` and
    `cores` the sums of `count` slices. `places` are the types of the GPUs of several slices; one slice has none.
    """

    shards: int
    service_class: str
    mem_mib: int
    cores: int
    features: tuple[str, ...]
    slo_us: int = 0
    count: int = 1
    places: tuple[str, ...] = ()


def class_of(site: Site, qos: str | None) -> str:
    """Returns the class of service of a QoS; std if no class names it. Ignores case in QoS names, as Slurm does."""
    wanted = (qos or "").lower()
    for name, known in sorted(site.classes.items()):
        if wanted in (each.lower() for each in known):
            return name
    return contract.CLASS_DEFAULT


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


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


def mem_units(mem: MemMib | MemPercent, shard_mib: int, mib: int, shards: int) -> tuple[int, int]:
    """Returns the MiB granted and the shards for `mem` on a GPU of `mib` MiB and `shards` shards of `shard_mib`."""
    if isinstance(mem, MemMib):
        # A GPU has up to one shard of memory more than its whole shards; a request for that takes all shards.
        return mem.mib, min(shards, -(-mem.mib // shard_mib))
    if mem.percent == contract.PERCENT_MAX:
        return mib, shards
    count = max(1, shards * mem.percent // 100)
    return count * shard_mib, count


def of_shards(count: int, gpu_type: str | None, site: Site, where: Where) -> Request:
    """Returns the request that `count` bare shards are translated to. Raises RequestError as resolve does.

    It resolves to the same number of shards, but at least to those of 1 % of a GPU's time.
    """
    request = Request(gpu_type=gpu_type, mem=MemMib(count * site.shard_mib))
    _, shards = largest(site, candidates(site, request, where), request, where)
    return replace(request, cores=min(contract.CORES_MAX, max(1, 100 * count // shards)))


def features(request: Request, mode: str | None, models: Sequence[str]) -> tuple[str, ...]:
    """Returns the node features that a request needs in a mode (None: in any), in a fixed order. `models` are those
    that it may run on."""
    names = []
    if mode is not None:
        names.append(contract.FEATURE_MODE.format(mode=mode))
    names += type_feature(request, models)
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


def least_shards(shards: int, max_tenants: int) -> int:
    """Returns the fewest shards of a slice on a GPU of which Slurm has `shards`, so that `max_tenants` slices fit, and
    one more does not; 0: any number may. Where no number is both, as few as keep out one more."""
    if not max_tenants:
        return 0
    return max(shards // max_tenants, shards // (max_tenants + 1) + 1)


def _share(request: Request, site: Site, models: Sequence[str], where: Where) -> _Slice:
    """Returns the slice of a request in a mode that divides a GPU's memory and time by shards."""
    mib, shards = largest(site, models, request, where)
    if shards < 1:
        raise request_error("E_SITE", Refusal(given="shard_mib is more than a GPU has"))
    mem = _default_mem(site, mib) if request.mem is None else request.mem
    mem_mib, needed = mem_units(mem, site.shard_mib, mib, shards)
    needed = max(needed, least_shards(sold_shards(site, models, shards), site.max_tenants))
    cores = _default_cores(site) if request.cores is None else request.cores
    if cores is None:
        cores = min(contract.CORES_MAX, max(1, 100 * needed // shards))
    needed = max(needed, 1, shards * cores // 100)
    check_every_model(site, models, mem_mib, needed, where)
    return _Slice(needed, mem_mib, cores)


def _default_cores(site: Site) -> int | None:
    """Returns the site's default; None where it follows from the memory."""
    return site.default_cores if isinstance(site.default_cores, int) else None


def _instance(request: Request, site: Site, models: Sequence[str], where: Where) -> _Slice | RequestError:
    """Returns the slice that is the MIG instance of a request, or why there is none. Raises RequestError E_SITE."""
    for model in models:
        capacity(site, model)  # that it is one of the site's
    most_mib = min((site.mig[model][-1].mem_mib for model in models if site.mig.get(model)), default=0)
    mem, cores = mig_choice.with_defaults(request, _default_mem(site, most_mib), _default_cores(site))
    sized = replace(request, mem=mem, cores=cores)
    chosen = mig_choice.choose(sized, site.mig, models, where.text(), site.modes)
    if isinstance(chosen, RequestError):
        return chosen
    return _Slice(chosen.shards, chosen.mem_mib, chosen.cores)


def _place(
    mode: str | None, request: Request, site: Site, models: Sequence[str], where: Where
) -> tuple[str | None, _Slice]:
    """Returns the mode that a request gets, which decides for mode=auto, and its slice. Raises RequestError."""
    if request.count is not None:
        return SHARE, _share(request, site, models, where)
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


def resolve(request: Request, site: Site, where: Where, turn: int = 0) -> Units:
    """Returns the units of `request` in `where`. Raises RequestError with a contract code if it cannot run there.

    Of more places than the request needs it takes those from number `turn` on, so that jobs are spread over them.
    """
    request = with_preset(request, site.presets)
    models = candidates(site, request, where)
    gpus = {Where((name,)).text(): site.partition_gpus.get(name, 0) for name in where.partitions}
    places_here = check_count(request, site.slices_max, gpus)
    check_mode(request, site.modes)
    mode, granted = _place(mig_choice.mode_of(request, site.modes), request, site, models, where)
    service_class = class_of(site, where.qos)
    check_policy(site, service_class, request.policy)
    check_slo(site, service_class, request.slo)
    # A site with MIG has nodes that isolate in one mode alone, so each job says which.
    says_mode = request.mode is not None or mode == MIG or MIG in site.modes
    # Several slices are only of mode=share, whatever the node's first mode is.
    says_mode = says_mode or (request.count is not None and list(site.modes) != [SHARE])
    count = request.count or 1
    return Units(
        shards=granted.shards,
        service_class=service_class,
        mem_mib=granted.mem_mib * count,
        cores=granted.cores * count,
        features=features(request, mode if says_mode else None, models),
        slo_us=request.slo or 0,
        count=count,
        places=chosen(request.count, places_here, turn),
    )
