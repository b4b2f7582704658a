# SPDX-License-Identifier: Apache-2.0
"""An exact packer for jobs with equal slices on several GPUs and nodes. Pure.

A job needs `gpus` GPUs with `size` free on each of `nodes` nodes. A depth-first search places one job after the other,
the largest first, in every way that differs: GPUs of a node with as much free are equal, and so are nodes whose GPUs
are. It remembers which states it has tried. Where it looked at more than `budget` states it gives up: the answer is
None, and not a guess.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

CAPACITY = 100  # percent of a GPU's time
BUDGET = 20_000

Node = tuple[int, ...]  # what is free on each GPU, ascending
State = tuple[Node, ...]  # ascending


class Job(NamedTuple):
    """A job's slices: of `size` percent each, on `gpus` GPUs of each of `nodes` nodes."""

    size: int
    gpus: int
    nodes: int

    @property
    def total(self) -> int:
        return self.size * self.gpus * self.nodes


def fits(jobs: Sequence[Job], gpus: Sequence[int], budget: int = BUDGET) -> bool | None:
    """Returns whether all these jobs can be at once on nodes with these numbers of GPUs; None where it is not known."""
    state = tuple(sorted((CAPACITY,) * count for count in gpus))
    ordered = tuple(sorted(jobs, key=lambda job: (job.total, job), reverse=True))
    seen: set[tuple[int, State]] = set()

    def search(index: int, state: State) -> bool:
        if index == len(ordered):
            return True
        if (index, state) in seen or sum(job.total for job in ordered[index:]) > sum(map(sum, state)):
            return False
        if len(seen) >= budget:
            raise _GaveUpError
        seen.add((index, state))
        return any(search(index + 1, following) for following in dict.fromkeys(placements(ordered[index], state)))

    try:
        return search(0, state)
    except _GaveUpError:
        return None


class _GaveUpError(Exception):
    """The search looked at too many states."""


def placements(job: Job, state: State) -> Iterator[State]:
    """Yields the states after each way to place one job, the fullest GPUs first."""
    for chosen in combinations(range(len(state)), job.nodes):
        yield from _on_nodes(job, state, chosen)


def _on_nodes(job: Job, state: State, chosen: Sequence[int]) -> Iterator[State]:
    if not chosen:
        yield tuple(sorted(state))
        return
    index, *others = chosen
    for node in dict.fromkeys(_on_node(job, state[index])):
        yield from _on_nodes(job, (*state[:index], node, *state[index + 1 :]), others)


def _on_node(job: Job, node: Node) -> Iterator[Node]:
    fitting = [gpu for gpu, free in enumerate(node) if free >= job.size]
    for gpus in combinations(fitting, job.gpus):
        yield tuple(sorted(free - job.size * (gpu in gpus) for gpu, free in enumerate(node)))
