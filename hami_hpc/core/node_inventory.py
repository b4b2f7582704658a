# SPDX-License-Identifier: Apache-2.0
"""What `hami-hpc inventory --format json` prints of a node, and `hami-hpc render --inventory` reads. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hami_hpc.core.cpu_cores import Cpu, CpuShape, cores_near, from_list, shape_of, slurm_cores
from hami_hpc.core.inventory import MAX_INDEX, Device, Gpu
from hami_hpc.errors import NodeError, shorten

VERSION = 1
BEGIN_SHOWN = 30  # characters of what is not JSON: a word of ssh's or clush's before it
MAX_BYTES = 4 << 20
MIB_MAX = 2**31
CORES_MAX = 1 << 15
LINKS_MAX = 255
CORE_LIST = re.compile(r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?){0,999}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where a GPU is in its node; None for what the driver does not say. cpus: as Linux writes lists, `0-31,64-95`.
    peers: by UUID, how many NVLinks go to another GPU of the node directly."""

    numa_node: int | None = None
    cpus: str | None = None
    nvlinks: int | None = None
    is_mig: bool | None = None
    peers: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Near:
    """What gres.conf can say of a GPU: the cores near it in Slurm's numbers, and its NVLinks to each GPU of the node,
    by minor number, -1 for itself. "" and () where it is not known, and where no two GPUs are linked."""

    cores: str = ""
    links: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeInventory:
    """A node's GPUs as the driver shows them. static: type and device of the instances of a static MIG layout;
    static_uuids: the GPUs that they are on."""

    node: str
    devices: tuple[Device, ...]
    static: tuple[tuple[str, str], ...] = ()
    static_uuids: frozenset[str] = frozenset()
    shape: CpuShape | None = None
    near: Mapping[int, Near] = field(default_factory=dict)  # by minor number


def near_of(gpus: Sequence[Gpu], around: Mapping[str, Surroundings], cpus: Collection[Cpu]) -> dict[int, Near]:
    """Returns by minor number what gres.conf can say of GPUs, which are in the order of their minor numbers."""
    cores = slurm_cores(cpus)
    linked = any((around.get(gpu.uuid) or Surroundings()).peers for gpu in gpus)
    found = {}
    for gpu in gpus:
        place = around.get(gpu.uuid, Surroundings())
        near = cores_near(from_list(place.cpus), cores) if place.cpus and shape_of(cpus) else None
        peers = place.peers or {}
        links = tuple(-1 if other.uuid == gpu.uuid else peers.get(other.uuid, 0) for other in gpus)
        found[gpu.minor] = Near(near or "", links if linked else ())
    return found


def document(
    node: str,
    gpus: Sequence[Gpu],
    shards: Mapping[str, int],
    around: Mapping[str, Surroundings],
    static: Sequence[tuple[str, str]],
    static_uuids: frozenset[str],
    cpus: Collection[Cpu] = (),
) -> dict[str, Any]:
    """Returns what is printed. shards, around: by UUID."""
    rows = []
    near, shape = near_of(gpus, around, cpus), shape_of(cpus)
    for gpu in gpus:
        place = around.get(gpu.uuid, Surroundings())
        rows.append(
            gpu._asdict()
            | {
                "shards": shards[gpu.uuid],
                "numa_node": place.numa_node,
                "cpus": place.cpus,
                "cores": near[gpu.minor].cores or None,
                "nvlinks": place.nvlinks,
                "links": list(near[gpu.minor].links) or None,
                "mig": place.is_mig,
                "static_mig_layout": gpu.uuid in static_uuids,
            }
        )
    instances = [{"type": name, "device": path} for name, path in static]
    return {
        "version": VERSION,
        "node": node,
        "cpus": asdict(shape) if shape else None,
        "gpus": rows,
        "static_mig_instances": instances,
    }


def parse(text: str, where: str) -> NodeInventory:
    """Returns a node's inventory. `where`: the file, for messages. Raises NodeError for anything but such a document.

    Models are not taken from it: they are named by the settings of the machine that renders.
    """
    if not text.strip():
        raise NodeError(f"{where} is empty: the node printed nothing. Delete it if the node has no GPU, else {_HOW}")
    try:
        top = json.loads(text)
    except (ValueError, RecursionError) as error:
        begins = shorten(repr(text[:BEGIN_SHOWN]))
        raise NodeError(f"{where} is not JSON ({shorten(str(error))}); it begins with {begins}; {_HOW}") from error
    version = top.get("version") if isinstance(top, dict) else None
    if isinstance(top, list) or (type(version) is int and version != VERSION):
        raise NodeError(
            f"{where} is not what this hami_hpc's inventory prints (version {VERSION}), but what that of another "
            f"release does: install the same release there and here, then {_HOW}"
        )
    if not isinstance(top, dict) or type(version) is not int:
        raise NodeError(f"{where} is not what this hami_hpc's inventory prints (version {VERSION}); {_HOW}")
    reader = _Reader(where)
    gpus = reader.rows(top, "gpus")
    devices = tuple(
        Device(
            minor=reader.number(row, "minor", MAX_INDEX),
            uuid=reader.text(row, "uuid"),
            name=reader.text(row, "name"),
            total_mib=reader.number(row, "total_mib", MIB_MAX),
        )
        for row in gpus
    )
    if len({device.minor for device in devices}) < len(devices):
        raise NodeError(f"{where}: two GPUs have the same minor number; {_HOW}")
    instances = reader.rows(top, "static_mig_instances")
    shape = reader.shape(top)
    return NodeInventory(
        reader.text(top, "node"),
        devices,
        tuple((reader.text(row, "type"), reader.text(row, "device")) for row in instances),
        frozenset(device.uuid for device, row in zip(devices, gpus, strict=True) if row.get("static_mig_layout")),
        shape,
        {device.minor: reader.near(row, len(devices), shape) for device, row in zip(devices, gpus, strict=True)},
    )


_HOW = "make it with hami-hpc inventory --format json on the node"


def _is_core_list(value: object, shape: CpuShape | None) -> bool:
    """Returns whether a value goes into gres.conf as it is, and names cores that the node has."""
    if not isinstance(value, str) or shape is None or not CORE_LIST.fullmatch(value):
        return False
    try:
        return max(from_list(value)) < shape.cores
    except ValueError:
        return False


class _Reader:
    def __init__(self, where: str) -> None:
        self.where = where

    def rows(self, table: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
        value = table.get(key)
        if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
            raise NodeError(f"{self.where}: '{key}' is no list of tables; {_HOW}")
        return value

    def text(self, table: Mapping[str, Any], key: str) -> str:
        value = table.get(key)
        if not isinstance(value, str) or not value or len(value) > 255 or not value.isprintable():
            raise NodeError(f"{self.where}: '{key}' is no text of one line; {_HOW}")
        return value

    def shape(self, top: Mapping[str, Any]) -> CpuShape | None:
        """Returns the node's CPUs; None where it does not say, as an earlier release's inventory."""
        table = top.get("cpus")
        if table is None:
            return None
        if not isinstance(table, dict):
            raise NodeError(f"{self.where}: 'cpus' is no table; {_HOW}")
        names = ("sockets", "numa_nodes", "cores_per_socket", "threads_per_core")
        shape = CpuShape(*(self.number(table, name, CORES_MAX) for name in names))
        if not 1 <= shape.cores <= CORES_MAX or not shape.threads_per_core or not shape.numa_nodes:
            raise NodeError(f"{self.where}: 'cpus' has none; {_HOW}")
        return shape

    def near(self, row: Mapping[str, Any], gpus: int, shape: CpuShape | None) -> Near:
        cores, links = row.get("cores"), row.get("links")
        if cores is not None and not _is_core_list(cores, shape):
            raise NodeError(f"{self.where}: 'cores' is no list such as 0-31 of the node's cores; {_HOW}")
        if links is not None and (
            not isinstance(links, list)
            or len(links) != gpus
            or not all(type(count) is int and -1 <= count <= LINKS_MAX for count in links)
            or links.count(-1) != 1
        ):
            raise NodeError(f"{self.where}: 'links' is no list with a number for each of the {gpus} GPUs; {_HOW}")
        return Near(cores or "", tuple(links or ()))

    def number(self, table: Mapping[str, Any], key: str, most: int) -> int:
        value = table.get(key)
        if type(value) is not int or not 0 <= value <= most:
            raise NodeError(f"{self.where}: '{key}' is no number from 0 to {most}; {_HOW}")
        return value


def check_distinct(found: Sequence[tuple[str, NodeInventory]]) -> None:
    """Raises NodeError for two files of one node, or with the same GPU: a copy under another name. With their names."""
    nodes: dict[str, str] = {}
    uuids: dict[str, str] = {}
    for where, inventory in found:
        if inventory.node in nodes:
            raise NodeError(f"{nodes[inventory.node]} and {where} are both of node {inventory.node}; remove one")
        nodes[inventory.node] = where
        for device in inventory.devices:
            if device.uuid in uuids:
                raise NodeError(
                    f"{uuids[device.uuid]} and {where} both have GPU {device.uuid}: one is a copy, or the GPU was "
                    "moved and one is old. Make both again"
                )
            uuids[device.uuid] = where
