# SPDX-License-Identifier: Apache-2.0
"""Who may land on a node's GPUs, as text for people: modes, sizes of slices, partitions, classes. Pure.

All of it is asked of what the rest is rendered from: the settings, the node's offer, slurm.conf's partitions, and the
rules by which job_submit sizes a request (core/units.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from hami_hpc.contract import constants as c
from hami_hpc.core.gpu_choice import Where, size_of
from hami_hpc.core.mig_choice import MIG, OfferedProfile
from hami_hpc.core.request import Request
from hami_hpc.core.request_keys import MemMib, mem_text
from hami_hpc.core.site import Site
from hami_hpc.core.sizes import GpuSize, is_oversold
from hami_hpc.core.tables import table
from hami_hpc.core.units import resolve
from hami_hpc.node.config import ClassSettings, Settings
from hami_hpc.render.offer import NodeOffer
from hami_hpc.slurm.lines import ConfLine, names_node, split_list

FILE = "hami-hpc-tenants.txt"
HEAD = """\
# hami_hpc: who may land on which GPUs, by the settings and slurm.conf's partitions. For people; Slurm does not read it.
# Slices are the largest that a request for so many shards gets; PER GPU is how many of the least size fit one GPU.
"""
FENCES = {
    "share": "interposer (software)",
    "mps": "interposer and MPS daemon (software)",
    MIG: "GPU's own MIG (hardware)",
}
POLICIES = {
    "cap": "cap: its share of the time, never more",
    "burst": "burst: its share, and what others leave idle",
    "none": "none: memory alone is limited",
}
DEFAULT, ALL = "DEFAULT", "ALL"


def of_node(
    settings: Settings, offer: NodeOffer, node: str, static: Sequence[tuple[str, str]], lines: Sequence[ConfLine]
) -> str:
    """Returns the text for a node; nodes whose texts are equal have the same tenants. lines: those of slurm.conf."""
    site, model = settings.site(), offer.lines[0].model
    size = size_of(site, model)
    count = sum(line.count for line in offer.lines)
    text = f"{count} x {model}, {site.gpu_models[model]} MiB each, {size.sold_shards} shards of {site.shard_mib} MiB"
    if is_oversold(site.memory_scaling):
        text += f"; memory is sold {site.memory_scaling:g} times, {size.sold_mib} MiB, and jobs take turns"
    parts = [text]
    instances = ", ".join(f"{number} x {name}" for name, number in Counter(name for name, _ in static).items())
    if instances:
        parts.append(
            f"static MIG layout beside them: {instances}, whole for one job each, fenced by the GPU (hardware)"
        )
    parts.append(_indented(_partitions(site, offer, node, lines)))
    parts.append(_indented(_slices(site, model, size, offer)))
    parts.append(_indented(_classes(settings.classes)))
    return "\n\n".join(parts)


def _indented(text: str) -> str:
    return "\n".join(f"  {line}".rstrip() for line in text.splitlines())


def _modes(site: Site, offer: NodeOffer) -> list[str]:
    return [mode for mode in site.modes if c.FEATURE_MODE.format(mode=mode) in offer.features]


def _slices(site: Site, model: str, size: GpuSize, offer: NodeOffer) -> str:
    """Returns a row for each mode of the node, and one for whole GPUs."""
    rows: list[tuple[object, ...]] = []
    modes = _modes(site, offer)
    partition = next((name for name, models in site.partitions.items() if model in models), "")
    for mode in modes if partition else ():
        if mode == MIG:
            rows += _instances(site.mig.get(model, ()), size)
            continue
        asked = Request(mem=MemMib(1), cores=c.CORES_MIN, mode=mode)
        here = replace(site, partitions={partition: (model,)})  # a request that lands on this node
        least = resolve(asked, here, Where((partition,))).shards
        cores = max(c.CORES_MIN, c.CORES_MAX * least // size.slice_shards)
        mem_mib = min(size.slice_mib, least * site.shard_mib)
        fit = min(size.sold_shards // least, size.sold_cores // cores, size.sold_mib // mem_mib)
        whole = _slice(size.slice_mib, c.CORES_MAX)
        rows.append((mode, FENCES[mode], f"{_slice(mem_mib, cores)} ({least} shards)", fit, whole))
    if modes != [MIG]:  # a GPU in MIG mode is given by instances alone
        one = "gpu:1" if site.slices_max > 1 else f"gpu:{model}:1"
        rows.append(("whole GPUs", "no other tenant", one, 1, "all of the node"))
    return table(("MODE", "FENCED BY", "LEAST SLICE", "PER GPU", "LARGEST SLICE"), rows, right=(3,))


def _instances(profiles: Sequence[OfferedProfile], size: GpuSize) -> list[tuple[object, ...]]:
    if not profiles:
        return [(MIG, FENCES[MIG], "none offered", 0, "none offered")]
    least, most = profiles[0], profiles[-1]
    names = [f"mig={each.name} ({_slice(each.mem_mib, each.cores)})" for each in (least, most)]
    return [(MIG, FENCES[MIG], names[0], size.sold_shards // least.shards, names[1])]


def _slice(mem_mib: int, cores: int) -> str:
    return f"mem={mem_text(MemMib(mem_mib))},cores={cores}"


def _classes(classes: Mapping[str, ClassSettings]) -> str:
    """Returns a row for each class of service: whose jobs are of it, and how their share of the time is kept."""
    rows = []
    for name, each in classes.items():
        qos = ", ".join([*each.qos, *(["all that no class names"] if name == c.CLASS_DEFAULT else [])])
        others = ", ".join(policy for policy in each.policies if policy != each.policy) or "-"
        notes = [f"latency-critical, others keep {each.floor} %"] if each.latency else []
        notes += ["memory may leave the GPU"] if each.swap else []
        rows.append((name, qos or "none", POLICIES[each.policy], others, "; ".join(notes) or "-"))
    return table(("CLASS", "QOS", "POLICY OF mode=share", "ON REQUEST", "ALSO"), rows)


def _partitions(site: Site, offer: NodeOffer, node: str, lines: Sequence[ConfLine]) -> str:
    """Returns a row for each partition that has the node, or may have it where slurm.conf does not say."""
    in_conf = dict(_conf_partitions(lines))
    here = {name for name, models in site.partitions.items() if offer.lines[0].model in models}
    takes = "slices" if _modes(site, offer) == [MIG] else "slices, whole GPUs"
    rows = [(name, takes, "slurm.conf does not have it") for name in site.partitions if name in here - in_conf.keys()]
    for name, (nodes, qos) in in_conf.items():
        if _has_node(nodes, node, offer.features, lines):
            rows.append((name, takes if name in here else "no slices: not in [partitions.*]", qos or "all"))
    return table(("PARTITION", "TAKES", "QOS"), rows or [("none", "-", "-")])


def _conf_partitions(lines: Iterable[ConfLine]) -> list[tuple[str, tuple[str, str]]]:
    """Returns (name, (Nodes=, which QoS)) of each partition of slurm.conf."""
    found, default = [], {"Nodes": "", "AllowQos": "", "DenyQos": ""}
    for line in lines:
        if line.kind != "partitionname":
            continue
        own = {key: line.get(key) or value for key, value in default.items()}
        if line.get("PartitionName").upper() == DEFAULT:
            default = own
            continue
        qos = own["AllowQos"] if own["AllowQos"].upper() != ALL else ""
        qos = qos or (f"all but {own['DenyQos']}" if own["DenyQos"] else "")
        found.append((line.get("PartitionName"), (own["Nodes"], qos)))
    return found


def _has_node(nodes: str, node: str, features: Sequence[str], lines: Iterable[ConfLine]) -> bool:
    """Returns whether Nodes= of a partition names a node: ALL, by name, or by a NodeSet with its name or a feature."""
    if nodes.upper() == ALL or names_node(nodes, node):
        return True
    sets = [line for line in lines if line.kind == "nodeset" and line.get("NodeSet") in split_list(nodes)]
    return any(names_node(each.get("Nodes"), node) or each.get("Feature") in features for each in sets)
