# SPDX-License-Identifier: Apache-2.0
"""MIG instances on one GPU: which profile covers a request, and where an instance is placed. Pure."""

from __future__ import annotations

from hami_hpc.core.values import NamedTuple


class Profile(NamedTuple):
    """A kind of GPU instance. `starts` are the memory slices at which NVML allows one to begin."""

    profile_id: int
    name: str  # "1g.18gb"
    compute_slices: int
    memory_slices: int
    mem_mib: int
    starts: tuple[int, ...]
    size: int  # memory slices that one placement takes
    instances_max: int


class Instance(NamedTuple):
    """A GPU instance that exists. `uuid` is that of its first compute instance's MIG device, "" without one."""

    gi_id: int
    profile_id: int
    start: int
    size: int
    uuid: str


def covering(
    profiles: tuple[Profile, ...], mem_mib: int, cores_percent: int, offered: frozenset[str] | None = None
) -> Profile | None:
    """Returns the smallest profile with that memory and that part of the GPU's compute slices. None: there is none."""
    most = max((profile.compute_slices for profile in profiles), default=1)
    fits = [
        profile
        for profile in profiles
        if (offered is None or profile.name in offered)
        and profile.mem_mib >= mem_mib
        and 100 * profile.compute_slices // most >= cores_percent
    ]
    return min(fits, key=lambda each: (each.size, each.compute_slices, each.mem_mib), default=None)


def choose_start(
    profile: Profile,
    profiles: tuple[Profile, ...],
    taken: tuple[Instance, ...],
    offered: frozenset[str] | None = None,
) -> int | None:
    """Returns the last start that is free. None: no room."""
    busy = {one for instance in taken for one in range(instance.start, instance.start + instance.size)}
    free = [start for start in profile.starts if busy.isdisjoint(range(start, start + profile.size))]
    return max(free, default=None)
