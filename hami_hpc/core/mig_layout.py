# SPDX-License-Identifier: Apache-2.0
"""MIG instances on one GPU: which profile covers a request, and where an instance is placed. Pure.

A GPU is a row of memory slices. An instance takes `size` of them, from a start that its profile allows, and some of the
GPU's compute slices. Instances cannot be moved. Profiles come from NVML; nothing here knows a GPU model.

`profiles` are always all that NVML lists for the GPU, because its totals follow from them; `offered` are the names of
those that the site offers. The MIG prolog imports this: docs/adr/021.
"""

from __future__ import annotations

from hami_hpc.core.values import NamedTuple

UNLIMITED = 1 << 30  # compute slices of a GPU whose number is not known


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


class Hold(NamedTuple):
    """Memory slices that are kept for an instance of one profile, by `hami-hpc mig defragment`."""

    profile: str
    profile_id: int
    start: int
    size: int


class Layout:
    """The placements of some profiles on one GPU, as bit masks of memory slices. `compute` is all that the GPU has."""

    def __init__(self, profiles: tuple[Profile, ...], compute: int) -> None:
        self.compute = compute
        self.rows = [
            (profile.compute_slices, [slices(start, profile.size) for start in profile.starts]) for profile in profiles
        ]
        self._end = max((start + profile.size for profile in profiles for start in profile.starts), default=0)
        self._at: list[list[tuple[int, int, int]]] = [[] for _ in range(self._end)]  # by start: row, its slices, size
        for index, profile in enumerate(profiles):
            for start in profile.starts:
                self._at[start].append((index, profile.compute_slices, profile.size))
        self._sets: dict[tuple[int, int, int], frozenset[tuple[int, ...]]] = {}

    def placements(self, taken: int, compute: int) -> int:
        """Returns how many placements of one more instance, over all profiles, the free slices allow."""
        return sum(
            not mask & taken
            for slices_needed, masks in self.rows
            if slices_needed <= self.compute - compute
            for mask in masks
        )

    def sets(self, taken: int = 0, compute: int = 0) -> frozenset[tuple[int, ...]]:
        """Returns every set of instances that the free slices can hold, each as a count for each profile."""
        return self._sets_from(0, taken, compute)

    def _sets_from(self, start: int, taken: int, compute: int) -> frozenset[tuple[int, ...]]:
        """As sets, of the slices from `start` on: what is left of it has been decided. `taken` begins at `start`."""
        if start >= self._end:
            return frozenset(((0,) * len(self.rows),))
        key = (start, taken, compute)
        if key not in self._sets:
            found = set(self._sets_from(start + 1, taken >> 1, compute))
            for index, slices_needed, size in self._at[start]:
                if slices_needed <= self.compute - compute and not taken & ((1 << size) - 1):
                    for rest in self._sets_from(start + size, taken >> size, compute + slices_needed):
                        found.add((*rest[:index], rest[index] + 1, *rest[index + 1 :]))
            self._sets[key] = frozenset(found)
        return self._sets[key]


def slices(start: int, size: int) -> int:
    """Returns the memory slices of a placement as a bit mask."""
    return ((1 << size) - 1) << start


def whole(profiles: tuple[Profile, ...]) -> Profile | None:
    """Returns the profile that takes the whole GPU, None if there is none among `profiles`."""
    end = max((start + profile.size for profile in profiles for start in profile.starts), default=0)
    candidates = (profile for profile in profiles if profile.size == end)
    return max(candidates, key=lambda profile: profile.compute_slices, default=None)


def by_size(profile: Profile) -> tuple[int, int, int, int, str]:
    """Orders profiles from the smallest. Of equal ones the first is the one that fits most often (not "+me")."""
    return profile.size, profile.compute_slices, profile.mem_mib, -profile.instances_max, profile.name


def covering(
    profiles: tuple[Profile, ...], mem_mib: int, cores_percent: int, offered: frozenset[str] | None = None
) -> Profile | None:
    """Returns the smallest profile with that memory and that part of the GPU's compute slices. None: there is none.

    Raises ValueError when `profiles` lacks the whole GPU's, of which cores are a part.
    """
    full = whole(profiles)
    if full is None:
        raise ValueError("the profiles of a GPU include the one that takes all of it")
    fits = [
        profile
        for profile in profiles
        if (offered is None or profile.name in offered)
        and profile.mem_mib >= mem_mib
        and 100 * profile.compute_slices // full.compute_slices >= cores_percent
    ]
    return min(fits, key=by_size, default=None)


def legal_starts(profile: Profile, profiles: tuple[Profile, ...], taken: tuple[Instance, ...]) -> tuple[int, ...]:
    """Returns the starts at which one more instance of `profile` fits beside those that are there, lowest first.

    Instances of a profile that is not among `profiles` count by their memory slices alone; the driver decides then.
    """
    compute = {each.profile_id: each.compute_slices for each in profiles}
    full = whole(profiles)
    used = sum(compute.get(instance.profile_id, 0) for instance in taken)
    if full is not None and used + profile.compute_slices > full.compute_slices:
        return ()
    if sum(instance.profile_id == profile.profile_id for instance in taken) >= profile.instances_max:
        return ()
    mask = _taken_slices(taken)
    return tuple(start for start in sorted(profile.starts) if not slices(start, profile.size) & mask)


def choose_start(
    profile: Profile,
    profiles: tuple[Profile, ...],
    taken: tuple[Instance, ...],
    offered: frozenset[str] | None = None,
    held: tuple[Hold, ...] = (),
) -> int | None:
    """Returns the start at which an instance of `profile` leaves most room for later ones. None: no room.

    Room is the number of placements of one further instance that stay possible, over all offered profiles; among equals
    the number of sets of instances, and then the highest start (docs/adr/051, docs/benchmarks/mig.md). A place that is
    held for this profile comes first; those held for others are left out.
    """
    starts = legal_starts(profile, profiles, taken)
    if held:
        own = [hold.start for hold in held if hold.profile == profile.name and hold.start in starts]
        if own:
            return own[0]
        held = tuple(hold for hold in held if hold.profile != profile.name)
        taken = beside(taken, held)
        starts = tuple(start for start in legal_starts(profile, profiles, taken) if start in starts)
    if len(starts) < 2:
        return starts[0] if starts else None
    compute = {each.profile_id: each.compute_slices for each in profiles}
    full = whole(profiles)
    later = tuple(each for each in profiles if offered is None or each.name in offered)
    # Without the whole GPU's profile nothing says how many compute slices there are: they limit nothing here then.
    layout = Layout(later, full.compute_slices if full else UNLIMITED)
    used = sum(compute.get(instance.profile_id, 0) for instance in taken) + profile.compute_slices
    mask = _taken_slices(taken)

    after = {start: mask | slices(start, profile.size) for start in starts}
    single = {start: layout.placements(taken_then, used) for start, taken_then in after.items()}
    best = [start for start in starts if single[start] == max(single.values())]
    return max(best, key=lambda start: (len(layout.sets(after[start], used)), start)) if len(best) > 1 else best[0]


def overlaps(instance: Instance, hold: Hold) -> bool:
    return bool(slices(instance.start, instance.size) & slices(hold.start, hold.size))


def beside(taken: tuple[Instance, ...], held: tuple[Hold, ...]) -> tuple[Instance, ...]:
    """Returns the instances that there are to be: those that will stay, and those for which places are held."""
    stay = tuple(one for one in taken if not any(overlaps(one, hold) for hold in held))
    return (*stay, *(Instance(-1, hold.profile_id, hold.start, hold.size, "") for hold in held))


def _taken_slices(taken: tuple[Instance, ...]) -> int:
    mask = 0
    for instance in taken:
        mask |= slices(instance.start, instance.size)
    return mask
