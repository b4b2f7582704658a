# SPDX-License-Identifier: Apache-2.0
"""Computes what a node offers to Slurm from the site's settings and the node's GPUs, for render's templates. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from hami_hpc.contract import constants as c
from hami_hpc.core import mixed, places
from hami_hpc.core.gpu_choice import preset_text, size_of
from hami_hpc.core.inventory import Gpu
from hami_hpc.core.mig_choice import MIG
from hami_hpc.core.site import Site
from hami_hpc.core.sizes import is_oversold
from hami_hpc.errors import NodeError
from hami_hpc.slurm.lines import names_node

# From this release on Slurm takes a node out of service that reports shards of a type of which slurm.conf has none, as
# slurmd does for the instances of a static MIG layout: 0 of each.
OTHER_TYPES_REFUSED_SINCE = 23 << 16 | 11 << 8


@dataclass(frozen=True, slots=True)
class GpuLine:
    """One gpu and one shard line of gres.conf: all GPUs of one type. `minors` is a Slurm hostlist."""

    model: str
    minors: str
    count: int
    shards: int
    place: str = ""  # the gres type of its GPUs and shards where jobs may have several slices; else it is the model
    gpus: tuple[int, ...] = ()  # their minor numbers, in order

    @property
    def gpu_type(self) -> str:
        return self.place or self.model


@dataclass(frozen=True, slots=True)
class NodeOffer:
    """A node's gres and features: what is sold of its GPUs, which is more than they have where memory is oversold.

    `shards` is also the count of each vgpu class: a slice takes at least one shard.

    `slo_us` is so large that jobs with an slo never wait for it: shards times the largest slo. `fixed` bounds the
    slices that are never moved where memory is oversold: the shards of the GPUs' largest slices; else 0.
    """

    lines: tuple[GpuLine, ...]
    shards: int
    mem_mib: int
    cores_percent: int
    slo_us: int
    fixed: int
    gres: str
    features: tuple[str, ...]
    has_typed_shards: bool


def hostlist(numbers: Iterable[int]) -> str:
    """Returns the numbers as `[0-3,6]`, a single number as `6`."""
    ordered = sorted(numbers)
    runs: list[list[int]] = []
    for number in ordered:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    return texts[0] if len(ordered) == 1 else f"[{','.join(texts)}]"


def propose_model(product: str) -> str:
    """Returns a name for the settings that `match_model` finds in the product name: `h100` of `NVIDIA H100 80GB`."""
    words: list[str] = re.findall(r"[a-z0-9]+", product.lower().removeprefix("nvidia "))
    models = [word for word in words if re.fullmatch(r"[a-z]{1,3}\d+[a-z]?", word)]
    numbers = [word for word in words if word.isdigit()]
    return [*models, *numbers, *words[::-1], "gpu"][0]


def node_modes(modes: Sequence[str], mig_nodes: Sequence[str], node: str) -> tuple[str, ...]:
    """Returns the modes of a node: MIG alone where mig_nodes names it, else the others. Without mig_nodes, all of them.

    A GPU in MIG mode can do nothing else, and Slurm knows features of nodes, not of GPUs. Raises NodeError for a node
    that would have no mode.
    """
    if MIG not in modes or not mig_nodes:
        return tuple(modes)
    if any(names_node(hosts, node) for hosts in mig_nodes):
        return (MIG,)
    others = tuple(mode for mode in modes if mode != MIG)
    if not others:
        raise NodeError(
            f"modes offers mig alone, and mig_nodes does not name {node}. Add it to mig_nodes, or remove mig_nodes"
        )
    return others


def shards_may_have_types(version: int | None, has_static: bool) -> bool:
    """Returns whether a node of this release (None: not known) can have shards with types (docs/adr/109)."""
    return not has_static or (version is not None and version < OTHER_TYPES_REFUSED_SINCE)


def make_offer(
    site: Site,
    gpus: Iterable[Gpu],
    modes: Sequence[str] | None = None,
    static: Mapping[str, int] | None = None,
    has_typed_shards: bool = True,
) -> NodeOffer:
    """Returns what a node with these GPUs offers in its modes (None: the site's). `static` has the MIG instances of a
    static layout by type, in the order of their devices; their GPUs are not among `gpus`.

    Raises NodeError for no GPU, an unknown model, and several models.
    """
    by_model: dict[str, list[Gpu]] = {}
    for gpu in gpus:
        if gpu.model not in site.gpu_models:
            raise NodeError(
                f"GPU {gpu.minor} is a {gpu.name} with {gpu.total_mib} MiB, which is not in [gpu_models.*]. Add "
                f"[gpu_models.{propose_model(gpu.name)}] with total_mib = {gpu.total_mib}"
            )
        by_model.setdefault(gpu.model, []).append(gpu)
    if not by_model:
        raise NodeError("this node has no GPU. To render for another node, name its GPUs: --gpus h200:2")
    if len(by_model) > 1:
        raise NodeError(f"this node has GPUs of {len(by_model)} models ({', '.join(sorted(by_model))}). {mixed.ADVICE}")
    ((model, members),) = by_model.items()
    size = size_of(site, model)
    mem_mib = size.sold_mib * len(members)
    lines = _lines(model, members, size.sold_shards, site.slices_max)
    if site.slices_max > 1 and static:
        raise NodeError(
            f"slices_max = {site.slices_max} and a static MIG layout ({', '.join(static)}) do not go together: jobs "
            "ask for whole GPUs without a type then, and could be given an instance. Set slices_max = 1, or take the "
            "layout away (hami-hpc mig apply)"
        )
    shards = sum(line.shards for line in lines)
    cores_percent = size.sold_cores * sum(line.count for line in lines)
    slo_us = shards * c.SLO_US_MAX
    fixed = size.slice_shards * len(members) if is_oversold(site.memory_scaling) else 0
    offered_policies = {name for policies in site.policies.values() for name in policies}
    return NodeOffer(
        lines=tuple(lines),
        shards=shards,
        mem_mib=mem_mib,
        cores_percent=cores_percent,
        slo_us=slo_us,
        fixed=fixed,
        gres=",".join(
            [
                *(f"gpu:{line.gpu_type}:{line.count}" for line in lines),
                *(f"gpu:{name}:{number}" for name, number in (static or {}).items()),
                *_shard_gres(lines, has_typed_shards),
                *(f"{c.GRES_CLASS}:{name}:{shards}" for name in site.classes),
                f"{c.GRES_MEM}:{mem_mib}",
                f"{c.GRES_CORES}:{cores_percent}",
                f"{c.GRES_SLO}:{slo_us}",
                *([f"{c.GRES_FIXED}:{fixed}"] if fixed else []),
            ]
        ),
        features=(
            *(c.FEATURE_MODE.format(mode=mode) for mode in (site.modes if modes is None else modes)),
            c.FEATURE_TYPE.format(type=model),
            *(c.FEATURE_POLICY.format(policy=name) for name in c.POLICIES if name in offered_policies),
        ),
        has_typed_shards=has_typed_shards,
    )


def _lines(model: str, gpus: Sequence[Gpu], shards: int, slices_max: int) -> tuple[GpuLine, ...]:
    """Returns a line for each type, in the order of the GPUs: Slurm pairs types and devices by their order."""
    ordered = sorted(gpus, key=lambda gpu: gpu.slurm_index)
    by_place: dict[str, list[int]] = {}
    for gpu, place in zip(ordered, places.of_gpus(len(ordered), slices_max), strict=True):
        by_place.setdefault(place, []).append(gpu.minor)
    return tuple(
        GpuLine(model, hostlist(minors), len(minors), shards * len(minors), place, tuple(minors))
        for place, minors in by_place.items()
    )


def _shard_gres(lines: Sequence[GpuLine], has_types: bool) -> list[str]:
    """Returns the shards with their types: without, a slurmctld that recovers its nodes (a second one, -R) counts
    none."""
    if not has_types:
        return [f"{c.GRES_SHARD}:{sum(line.shards for line in lines)}"]
    return [f"{c.GRES_SHARD}:{line.gpu_type}:{line.shards}" for line in lines]


def tracked_tres(models: Iterable[str], classes: Iterable[str]) -> str:
    """Returns the value for AccountingStorageTRES: what slurmdbd must store for the bill. `models`: those that are gres
    types."""
    names = ["gpu", *(f"gpu:{model}" for model in sorted(models)), c.GRES_SHARD, c.GRES_CLASS]
    names += [f"{c.GRES_CLASS}:{name}" for name in classes] + [c.GRES_MEM, c.GRES_CORES]
    return ",".join(f"gres/{name}" for name in names)


def lua_text(value: object, indent: str = "") -> str:
    """Returns plain data (dict, list, str, int, float, bool) as a Lua expression.

    In strings every byte outside printable ASCII, quotes and backslashes become decimal escapes, which all Lua versions
    read alike. Raises TypeError for other types.
    """
    inner = indent + "\t"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        plain = (chr(b) if 0x20 <= b <= 0x7E and b not in b'"\\' else f"\\{b:03d}" for b in value.encode())
        return f'"{"".join(plain)}"'
    if isinstance(value, Mapping):
        rows = [f"{inner}[{lua_text(key)}] = {lua_text(entry, inner)}," for key, entry in value.items()]
        return "{\n" + "\n".join(rows) + f"\n{indent}}}" if rows else "{}"
    if isinstance(value, list | tuple):
        return "{ " + ", ".join(lua_text(entry, inner) for entry in value) + " }" if value else "{}"
    raise TypeError(f"{type(value).__name__} has no Lua form here")


def _model_table(site: Site, model: str) -> dict[str, object]:
    table: dict[str, object] = {"total_mib": site.gpu_models[model]}
    if site.mig.get(model):
        table["mig"] = [asdict(profile) for profile in site.mig[model]]
    return table


def _partition_table(site: Site, name: str) -> dict[str, object]:
    table: dict[str, object] = {"gpu_models": list(site.partitions[name])}
    if name in site.partition_gpus:
        table["gpus"] = site.partition_gpus[name]
    return table


def site_table(site: Site) -> dict[str, object]:
    """Returns the content of the Lua site table that both filters read."""
    return {
        "version": 1,
        "shard_mib": site.shard_mib,
        "memory_scaling": site.memory_scaling,
        "default_mem": site.default_mem,
        "default_cores": site.default_cores,
        "bare_shard": site.bare_shard,
        "qos_enforced": site.qos_enforced,
        "modes": list(site.modes),
        "classes": {name: list(qos) for name, qos in site.classes.items()},
        "policies": {name: list(policies) for name, policies in site.policies.items()},
        "latency": list(site.latency or ()),
        "mig_waste_percent": site.mig_waste_percent,
        "slices_max": site.slices_max,
        "max_tenants": site.max_tenants,
        "fixed": list(site.fixed),
        "presets": {name: preset_text(request) for name, request in site.presets.items()},
        "gpu_models": {name: _model_table(site, name) for name in site.gpu_models},
        "partitions": {name: _partition_table(site, name) for name in site.partitions},
    }
