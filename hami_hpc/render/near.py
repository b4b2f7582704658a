# SPDX-License-Identifier: Apache-2.0
"""Cores= and Links= of gres.conf's gpu lines: which cores are near a GPU, and which GPUs NVLinks connect. Pure.

From 24.05 on Slurm's choice by links is the wrong one: it gives `--gres=gpu:2` the GPUs that are connected worst, since
it sorts by links in ascending order. There Links= is left out.

Slurm reads Cores= as numbers of the cores that slurm.conf gives the node. Where the two have other sockets than the
machine, a GPU would be near wrong cores, without a word; so nothing is written then (docs/adr/073).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hami_hpc.core.cpu_cores import CpuShape
from hami_hpc.core.node_inventory import Near
from hami_hpc.render.merging import NODES
from hami_hpc.render.node_lines import CPU_KEYS
from hami_hpc.render.offer import GpuLine, hostlist

LINKS_BEFORE = 24 << 16 | 5 << 8


@dataclass(frozen=True, slots=True)
class GpuRun:
    """GPUs of one line: their minor numbers as a host list, and what follows File=."""

    minors: str
    more: str


def with_cpus(parameters: str, shape: CpuShape | None) -> str:
    """Returns more of a NodeName line; where it says nothing of CPUs, with those of the machine."""
    has_cpus = any(word.partition("=")[0].lower() in CPU_KEYS for word in parameters.split())
    return parameters if shape is None or has_cpus else f"{shape.words()} {parameters}".rstrip()


def are_links_used(version: int | None) -> bool:
    """Returns whether this release of Slurm chooses GPUs that links connect."""
    return version is not None and version < LINKS_BEFORE


def without_links(near: Mapping[int, Near]) -> dict[int, Near]:
    return {minor: Near(place.cores) for minor, place in near.items()}


def runs_of(line: GpuLine, near: Mapping[int, Near], with_cores: bool) -> list[GpuRun]:
    """Returns the gpu lines of GPUs of one type: neighbours that are near the same cores, and not linked, share one."""

    def more(minor: int) -> str:
        place = near.get(minor, Near())
        cores = f" Cores={place.cores}" if with_cores and place.cores else ""
        links = f" Links={','.join(map(str, place.links))}" if place.links else ""
        return cores + links

    return [GpuRun(hostlist(minors), text) for text, minors in itertools.groupby(line.gpus, more)]


def obstacle(near: Sequence[Near], shape: CpuShape | None, words: Mapping[str, int]) -> str:
    """Returns why Cores= cannot be written for a node, which it calls NODES; "" if it can.

    words: what its NodeName line says of CPUs.
    """
    if shape is None or not all(place.cores for place in near):
        return (
            f"Cores= is left out for {NODES}: its sockets differ, or nothing says which cores are near which GPU (its "
            "driver, its kernel, --gpus)"
        )
    boards = words.get("boards", 1)
    sockets = words["socketsperboard"] * boards if "socketsperboard" in words else words.get("sockets", 0)
    cores = words.get("corespersocket", 1)
    if sockets in (shape.sockets, shape.numa_nodes) and sockets * cores == shape.cores:
        return ""
    return (
        f"Cores= is left out for {NODES}: its machine has {shape.sockets} socket(s) with {shape.cores_per_socket} "
        f"cores, and the NodeName line has not. Write {shape.words()} there instead of CPUs=, and render again"
    )
