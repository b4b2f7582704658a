# SPDX-License-Identifier: Apache-2.0
"""GPUs that an administrator took out of service, and the placeholder jobs that keep Slurm off them. Pure.

Slurm 22.05 cannot drain one device of a node. What is free on the GPU is therefore held by placeholder jobs
(docs/adr/028): allocations of root without a process, whose name is PLACEHOLDER_NAME.
"""

from __future__ import annotations

import json
import re

from hami_hpc.contract import constants as c
from hami_hpc.core.inventory import indices
from hami_hpc.core.values import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from hami_hpc.core.inventory import Gpu

VERSION = 1
PLACEHOLDER_NAME = "hami-hpc-drain"  # job_submit knows this name too: slurm-plugins/lua/hami_hpc_jobs.lua
# shard:279(IDX:1) in 22.05; later, for each GPU of the node, what is held and what there is: shard:279(0/559,279/559)
_GRES = re.compile(r"(gpu|shard)(?::[^:(,]+)?:(\d{1,12})\((?:IDX:([\d,-]{1,999})|([\d/,]{1,9999}))\)")
_FIXED = re.compile(rf"(?:^|,){c.GRES_FIXED}(?:\(CNT)?:(\d{{1,12}})")
NO_GPU = -1  # in place of the number of a GPU: the job holds none
GONE = -2  # in place of Slurm's number of a GPU out of service: another GPU has that now
_RELEASED = frozenset(
    {"PENDING", "COMPLETING", "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED"}
)


class DrainedGpu(NamedTuple):
    """One GPU out of service. `slurm_index` is Slurm's number of it when it was taken out."""

    uuid: str
    minor: int
    slurm_index: int
    reason: str
    since_unix_s: int


def as_numbered(drained: Iterable[DrainedGpu], gpus: Iterable[Gpu]) -> tuple[DrainedGpu, ...]:
    """Returns the GPUs out of service with the numbers that they have among `gpus`, the node's.

    Numbers change when a GPU has been taken out or replaced. One that is not among them keeps its own, unless another
    has that now: then Slurm's is GONE, so that nobody takes the new GPU for the one that was taken out of service.
    """
    here = {gpu.uuid: gpu for gpu in gpus}
    numbers = {gpu.slurm_index for gpu in here.values()}
    found = []
    for entry in drained:
        if gpu := here.get(entry.uuid):
            entry = entry._replace(minor=gpu.minor, slurm_index=gpu.slurm_index)
        elif entry.slurm_index in numbers:
            entry = entry._replace(slurm_index=GONE)
        found.append(entry)
    return tuple(found)


class Holding(NamedTuple):
    """What one job holds of one GPU of the node: shards, or the whole GPU. `fixed`: what it holds of the node's shards
    that are never moved (docs/adr/085), in the first Holding of the job; one that holds no GPU has NO_GPU."""

    job_id: int
    slurm_index: int
    shards: int  # 0 for a whole GPU
    is_placeholder: bool
    is_unlimited: bool  # the job has no time limit
    fixed: int = 0


def to_json(gpus: Iterable[DrainedGpu]) -> str:
    """Returns the text of the file."""
    return json.dumps({"version": VERSION, "gpus": [gpu._asdict() for gpu in gpus]}, indent=1) + "\n"


def from_json(text: str) -> tuple[DrainedGpu, ...]:
    """Returns the GPUs of a file's text. Raises ValueError for any other text than to_json writes."""
    try:
        table = json.loads(text)
        if table["version"] != VERSION:
            raise ValueError(f"version {table['version']}")
        gpus = tuple(DrainedGpu(**row) for row in table["gpus"])
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    for gpu in gpus:
        numbers = (gpu.minor, gpu.slurm_index, gpu.since_unix_s)
        if not all(isinstance(word, str) for word in (gpu.uuid, gpu.reason)) or not all(
            type(n) is int for n in numbers
        ):
            raise ValueError(f"an entry has a value of a wrong type: {gpu}")
    return gpus


def holdings(
    job_id: int, state: str, is_placeholder: bool, job_text: str, is_this_node: Mapping[str, bool]
) -> tuple[Holding, ...]:
    """Returns what a job holds of this node's GPUs, from the text of `scontrol -o show job -d`.

    Id, state and whether it is a placeholder come from squeue: scontrol prints a job's name and comment unchanged, and
    they can look like another job. With those a user can at most pretend to hold more than the job does.

    `is_this_node` says for each node list of the job's lines (`Nodes=`) whether this node is in it. A job that is
    completing holds nothing: slurmctld has released its gres, and starts no job on the node until the epilog has ended.
    """
    if state in _RELEASED:
        return ()
    found: list[Holding] = []
    for nodes, gres in node_lines(job_text):
        if not is_this_node.get(nodes):
            continue
        for name, count, where, by_gpu in _GRES.findall(gres):
            try:
                of_each = {index: int(count) if name == "shard" else 0 for index in indices(where)} if where else {}
                for index, pair in enumerate(by_gpu.split(",") if by_gpu else ()):
                    if shards := int(pair.partition("/")[0]):
                        of_each[index] = shards
            except ValueError:  # a user's text
                continue
            is_unlimited = " TimeLimit=UNLIMITED " in job_text
            found.extend(Holding(job_id, index, n, is_placeholder, is_unlimited) for index, n in of_each.items())
        if fixed := _FIXED.search(gres):
            count = int(fixed[1])
            if found:
                found[0] = found[0]._replace(fixed=count)
            else:
                found.append(Holding(job_id, NO_GPU, 0, is_placeholder, " TimeLimit=UNLIMITED " in job_text, count))
    return tuple(found)


def node_lines(job_text: str) -> list[tuple[str, str]]:
    """Returns (node list, gres) for each part of the job's allocation."""
    return re.findall(r" Nodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)", job_text)


def free_shards(shards: Mapping[int, int], held: Iterable[Holding]) -> dict[int, int]:
    """Returns the free shards of each GPU. `shards` are all shards of each GPU, by Slurm's index."""
    free = dict(shards)
    for holding in held:
        if holding.slurm_index in free:
            left = free[holding.slurm_index] - holding.shards
            free[holding.slurm_index] = max(0, left) if holding.shards else 0
    return free


def sizes_to_request(free: Mapping[int, int], drained: Collection[int]) -> tuple[int, ...]:
    """Returns the shards of the jobs that fill every drained GPU, whichever GPU slurmctld picks for each job.

    A job cannot name a GPU. But a request for as many shards as the emptiest GPU has free fits only there. So the jobs
    fill all GPUs that have as much free as any drained one, the emptiest first; those on other GPUs are then cancelled.
    """
    missing = [free[index] for index in drained if free.get(index, 0) > 0]
    if not missing:
        return ()
    return tuple(sorted((count for count in free.values() if count >= min(missing)), reverse=True))


def fixed_to_hold(fixed: Mapping[int, int], held: Iterable[Holding], drained: Collection[int]) -> tuple[int, ...]:
    """Returns the sizes of the jobs that hold what GPUs out of service have of the node's shards that are never moved,
    as far as that is free; one for each GPU. `fixed` are those of each GPU, {} where memory is not oversold."""
    held = tuple(held)
    free = sum(fixed.values()) - sum(holding.fixed for holding in held)
    ours = sum(holding.fixed for holding in held if holding.is_placeholder)
    sizes = []
    for index in sorted(drained):
        needed = _fixed_left(fixed, held, index)
        lacking = min(max(needed - ours, 0), free)
        ours, free = max(ours - needed, 0), free - lacking
        if lacking > 0:
            sizes.append(lacking)
    return tuple(sizes)


def fixed_too_many(fixed: Mapping[int, int], held: Iterable[Holding], drained: Collection[int]) -> frozenset[int]:
    """Returns the jobs among those that hold more of these shards than the GPUs out of service have."""
    held = tuple(held)
    ours = sorted((-holding.fixed, holding.job_id) for holding in held if holding.is_placeholder and holding.fixed)
    over = -sum(size for size, _job in ours) - sum(_fixed_left(fixed, held, index) for index in drained)
    found = set()
    for size, job_id in ours:
        if -size <= over:
            over += size
            found.add(job_id)
    return frozenset(found)


def _fixed_left(fixed: Mapping[int, int], held: Iterable[Holding], index: int) -> int:
    """Returns what a GPU has of these shards, but for those of its jobs."""
    jobs = sum(h.fixed for h in held if h.slurm_index == index and not h.is_placeholder)
    return max(fixed.get(index, 0) - jobs, 0)
