# SPDX-License-Identifier: Apache-2.0
"""What the cluster's nodes have free for vGPU jobs, by node and GPU, from what Slurm shows of the nodes. Pure.

A slice takes the larger of the shards of its memory and those of its share of the time (core/units.py), so the free
shards of a GPU decide what fits there. Memory and cores of a whole node are counted by Slurm too, and bound it as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hami_hpc.contract import constants as c
from hami_hpc.contract.constants import CORES_MAX
from hami_hpc.core.request_keys import MemMib, mem_text
from hami_hpc.core.sizes import GpuSize

# Parts of a node's state in which it starts no job. A node in a reservation takes the reservation's jobs only.
_UNUSABLE_TEXT = (
    "DOWN DRAIN DRAINED DRAINING ERROR FAIL FAILING FUTURE INVAL INVALID_REG MAINT NOT_RESPONDING POWERING_DOWN "
    "POWER_DOWN REBOOT REBOOT_ISSUED REBOOT_REQUESTED RESERVED UNKNOWN"
)
UNUSABLE = frozenset(_UNUSABLE_TEXT.split(" "))


@dataclass(frozen=True, slots=True)
class Slice:
    """The most memory and the most cores that one slice can get; both at once fit."""

    mem_mib: int
    cores: int

    @property
    def text(self) -> str:
        """The slice as it is written in a request."""
        return f"mem={mem_text(MemMib(self.mem_mib))},cores={self.cores}"


@dataclass(frozen=True, slots=True)
class Size:
    """One GPU of a node in vGPU units. `shard_mib` is a lower bound where the site's settings were not readable.

    `mem_mib` and `shards` are those of the largest slice, 100 % of the GPU; `sold_shards` are those of all its slices,
    which are more where memory is oversold.
    """

    mem_mib: int
    shards: int
    shard_mib: int
    sold_shards: int


@dataclass(frozen=True, slots=True)
class Node:
    """A node with vGPUs as Slurm shows it.

    `used` is (allocated shards) of each GPU by Slurm's index, None where Slurm does not show it. `whole` has the
    indices of GPUs that jobs hold whole. Memory of GPUs is in MiB, as is that of the node. `places` are the types of
    the GPUs where jobs may have several slices. `fixed_used` has the shards of jobs that are never moved off oversold
    GPUs, None where Slurm does not show them; `total` has their bound. `owner` is the user whose jobs alone the node
    takes now (ExclusiveUser), as `name(uid)`, else "".
    """

    name: str
    state: str
    reason: str
    model: str
    gpus: int
    partitions: tuple[str, ...]
    features: tuple[str, ...]
    total: Mapping[str, int]  # gres name -> count: shard, vgpu_mem, vgpu_cores
    allocated: Mapping[str, int]
    used: tuple[int, ...] | None
    whole: frozenset[int]
    cpus: int
    cpus_allocated: int
    memory_mib: int
    memory_allocated_mib: int
    places: tuple[str, ...] = ()
    fixed_used: int | None = None
    owner: str = ""

    @property
    def is_usable(self) -> bool:
        """Whether the node starts jobs; one that powers up does not respond yet, and is given jobs already."""
        words = self.state.upper().replace("*", "+NOT_RESPONDING").replace("$", "+MAINT").split("+")
        bad = UNUSABLE - {"NOT_RESPONDING"} if "POWERING_UP" in words else UNUSABLE
        return bad.isdisjoint(word.rstrip("~#!%@^-") for word in words)

    @property
    def in_its_reservation(self) -> Node:
        """The node as jobs of the reservation see it that has the node."""
        words = [word for word in self.state.split("+") if word.upper() not in {"RESERVED", "MAINT"}]
        return replace(self, state="+".join(words))

    @property
    def state_text(self) -> str:
        return self.state.lower()

    def free(self, gres: str) -> int:
        """Returns how much of a gres no job holds on the whole node."""
        return max(0, self.total.get(gres, 0) - self.allocated.get(gres, 0))


@dataclass(frozen=True, slots=True)
class GpuRoom:
    """The free part of one GPU; `largest` is None where nothing fits."""

    index: int
    free_shards: int
    largest: Slice | None


@dataclass(frozen=True, slots=True)
class Room:
    """What a node has free. `gpus` is empty where Slurm does not show which GPU is how full; then `largest` is a bound.

    `mem_mib` and `cores` are what slices can still get in all.
    """

    mem_mib: int
    cores: int
    largest: Slice | None
    gpus: tuple[GpuRoom, ...]

    @property
    def is_exact(self) -> bool:
        return bool(self.gpus)


def size_of(node: Node, shard_mib: int = 0, known: GpuSize | None = None) -> Size:
    """Returns the size of one of the node's GPUs. `shard_mib` is the site's, 0 where it is not known; `known` is the
    size of the node's model by the site's settings.

    From shards = floor(mem / shard_mib) follows shard_mib > mem / (shards + 1), a bound that gives away the least. So
    does cores = ceil(100 * sold shards / shards of the largest slice), where a GPU has more than 100 cores.
    """
    sold_mib, sold_shards = node.total["vgpu_mem"] // node.gpus, node.total["shard"] // node.gpus
    cores = node.total["vgpu_cores"] // node.gpus
    if shard_mib and known and known[2:] == (sold_mib, sold_shards, cores):
        return Size(known.slice_mib, known.slice_shards, shard_mib, sold_shards)
    if not shard_mib or sold_mib // shard_mib != sold_shards:
        shard_mib = sold_mib // (sold_shards + 1) + 1
    if cores <= CORES_MAX:
        return Size(sold_mib, sold_shards, shard_mib, sold_shards)
    shards = max(1, -(-CORES_MAX * sold_shards // cores))
    return Size(shards * shard_mib, shards, shard_mib, sold_shards)


def sold_percents(node: Node, size: Size) -> dict[int, int]:
    """Returns the shards that are allocated of each GPU as a part of those of the largest slice, percent by index:
    above 100 jobs may take turns. Nothing where memory is not oversold, or Slurm does not show each GPU."""
    if size.sold_shards <= size.shards or node.used is None:
        return {}
    return {index: 100 * used // size.shards for index, used in enumerate(node.used) if index not in node.whole}


def largest_slice(size: Size, free_shards: int, node: Node) -> Slice | None:
    """Returns the largest slice that fits `free_shards` shards of a GPU; None when none does."""
    if free_shards < 1:
        return None
    mem_mib = size.mem_mib if free_shards >= size.shards else free_shards * size.shard_mib
    cores = min(100, (100 * (free_shards + 1) - 1) // size.shards)
    found = Slice(min(mem_mib, node.free("vgpu_mem")), min(cores, node.free("vgpu_cores")))
    return found if found.mem_mib >= 1 and found.cores >= 1 else None


def room_of(node: Node, size: Size) -> Room:
    """Returns what is free on a node. A node that starts no jobs, or has no CPU free, has nothing free."""
    if not node.is_usable or node.cpus_allocated >= node.cpus:
        return Room(0, 0, None, tuple(GpuRoom(index, 0, None) for index in range(node.gpus)))
    if node.used is None:
        free = node.free("shard") - size.sold_shards * len(node.whole)
        at_most = largest_slice(size, min(size.shards, free), node)
        return Room(_mem_of(size, max(0, free), node), _cores_of(size, max(0, free), node), at_most, ())
    gpus = []
    for index, used in enumerate(node.used):
        free = 0 if index in node.whole else max(0, size.sold_shards - used)
        gpus.append(GpuRoom(index, free, largest_slice(size, free, node)))
    slices = [gpu.largest for gpu in gpus if gpu.largest is not None]
    largest = max(slices, key=lambda found: (found.mem_mib, found.cores), default=None)
    free = sum(gpu.free_shards for gpu in gpus)
    return Room(_mem_of(size, free, node), _cores_of(size, free, node), largest, tuple(gpus))


def _mem_of(size: Size, shards: int, node: Node) -> int:
    whole, rest = divmod(shards, size.shards)
    return min(whole * size.mem_mib + rest * size.shard_mib, node.free("vgpu_mem"))


def _cores_of(size: Size, shards: int, node: Node) -> int:
    return min(shards * 100 // size.shards, node.free("vgpu_cores"))


@dataclass(frozen=True, slots=True)
class Need:
    """What a job needs of each of its nodes: shards of each slice, units of all slices, CPUs and memory. `places` are
    the types of the GPUs of several slices, `fixed` the shards that are never moved."""

    shards: int
    mem_mib: int
    cores: int
    cpus: int
    memory_mib: int
    places: tuple[str, ...] = ()
    fixed: int = 0


def shortages(node: Node, size: Size, room: Room, need: Need) -> list[str]:
    """Returns what the node lacks for a job now; nothing when it fits, as far as Slurm shows it."""
    if not node.is_usable:
        return [f"it is {node.state_text}"]
    found = []
    largest_free = max((gpu.free_shards for gpu in room.gpus), default=None)
    if need.places:
        found += _places_short(node, size, room, need)
    elif largest_free is not None and largest_free < need.shards:
        needed, emptiest = -(-100 * need.shards // size.shards), 100 * largest_free // size.shards
        found.append(f"it takes {needed} % of one GPU, and the emptiest has {emptiest} % free")
    if node.free("vgpu_mem") < need.mem_mib or node.free("vgpu_cores") < need.cores:
        found.append("the node's GPU memory or cores are taken")
    if largest_free is None and node.free("shard") < need.shards * max(1, len(need.places)):
        found.append("its GPUs together have less free")
    found += _fixed_short(node, size, need)
    free_cpus = node.cpus - node.cpus_allocated
    if free_cpus < need.cpus:
        found.append(f"{free_cpus} of its CPUs are free and the job needs {need.cpus}")
    free_mib = node.memory_mib - node.memory_allocated_mib
    if free_mib < need.memory_mib:
        found.append(f"{free_mib} MiB of its main memory are free and the job needs {need.memory_mib}")
    return found


def _fixed_short(node: Node, size: Size, need: Need) -> list[str]:
    """Returns whether the jobs that are never moved leave a node too little: they must fit its GPUs all at once."""
    bound = node.total.get(c.GRES_FIXED, 0)
    if not need.fixed or not bound or node.fixed_used is None or bound - node.fixed_used >= need.fixed:
        return []
    left, taken = 100 * (bound - node.fixed_used) // size.shards, -(-100 * need.fixed // size.shards)
    text = f"those there leave {left} % of one, and this takes {taken} %"
    return [f"jobs that are never moved must fit its GPUs at once: {text}"]


def _places_short(node: Node, size: Size, room: Room, need: Need) -> list[str]:
    """Returns what a node lacks for several slices, of which each needs a GPU of its own type."""
    found = []
    needed = -(-100 * need.shards // size.shards)
    for place in need.places:
        free = [gpu.free_shards for gpu in room.gpus if node.places[gpu.index : gpu.index + 1] == (place,)]
        if place not in node.places:
            found.append(f"it has no GPU of type {place}, and the job's slices are on types {', '.join(need.places)}")
        elif free and max(free) < need.shards:
            emptiest = 100 * max(free) // size.shards
            found.append(f"a slice takes {needed} % of a GPU of type {place}, and the emptiest has {emptiest} % free")
    return found


@dataclass(frozen=True, slots=True)
class Total:
    """The sum of all nodes with one GPU model; free and largest count the nodes that start jobs."""

    model: str
    nodes: int
    gpus: int
    mem_mib: int
    allocated_mib: int
    free_mib: int
    largest: Slice | None
    is_exact: bool  # the largest slice is no bound


def totals(nodes: Sequence[tuple[Node, Room]]) -> list[Total]:
    """Returns one sum for each model, by name."""
    sums = []
    for model in sorted({node.model for node, _ in nodes}):
        members = [(node, room) for node, room in nodes if node.model == model]
        largest, is_exact = _largest(room for _, room in members)
        sums.append(
            Total(
                model=model,
                nodes=len(members),
                gpus=sum(node.gpus for node, _ in members),
                mem_mib=sum(node.total["vgpu_mem"] for node, _ in members),
                allocated_mib=sum(node.allocated.get("vgpu_mem", 0) for node, _ in members),
                free_mib=sum(room.mem_mib for _, room in members),
                largest=largest,
                is_exact=is_exact,
            )
        )
    return sums


def _largest(rooms: Iterable[Room]) -> tuple[Slice | None, bool]:
    """Returns the largest slice of several nodes, and whether it is no bound."""
    slices = [(room.largest, room.is_exact) for room in rooms if room.largest is not None]
    return max(slices, key=lambda pair: (pair[0].mem_mib, pair[0].cores), default=(None, True))


@dataclass(frozen=True, slots=True)
class Group:
    """The sums of like nodes, and the largest slice that one of them has free."""

    nodes: tuple[str, ...]
    state_text: str
    model: str
    gpus: int
    whole: int  # GPUs that jobs hold whole
    total: Mapping[str, int]  # gres name -> count, as in Node
    allocated: Mapping[str, int]
    mem_mib: int  # free, as in Room
    cores: int
    largest: Slice | None
    is_exact: bool  # the largest slice is no bound


def groups(nodes: Sequence[tuple[Node, Room]]) -> list[Group]:
    """Returns the nodes in groups of the same state, GPU model, number of GPUs and counts of each gres, in the order of
    each group's first node."""
    alike: dict[tuple[object, ...], list[tuple[Node, Room]]] = {}
    for node, room in nodes:
        key = (node.state_text, node.model, node.gpus, tuple(sorted(node.total.items())))
        alike.setdefault(key, []).append((node, room))
    return [_group(members) for members in alike.values()]


def _group(members: Sequence[tuple[Node, Room]]) -> Group:
    total: Counter[str] = Counter()
    allocated: Counter[str] = Counter()
    for node, _ in members:
        total.update(node.total)
        allocated.update(node.allocated)
    rooms = [room for _, room in members]
    largest, is_exact = _largest(rooms)
    first = members[0][0]
    return Group(
        nodes=tuple(node.name for node, _ in members),
        state_text=first.state_text,
        model=first.model,
        gpus=sum(node.gpus for node, _ in members),
        whole=sum(len(node.whole) for node, _ in members),
        total=total,
        allocated=allocated,
        mem_mib=sum(room.mem_mib for room in rooms),
        cores=sum(room.cores for room in rooms),
        largest=largest,
        is_exact=is_exact,
    )
