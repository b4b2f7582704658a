# SPDX-License-Identifier: Apache-2.0
"""Static MIG layouts: the instances that an administrator wants to stand on a GPU, which Slurm gives whole, as gres/gpu
of the profile's type. Pure. The prolog of a node that has one imports this: docs/adr/021.
"""

from __future__ import annotations

from hami_hpc.core.mig_layout import Profile, by_size, slices, whole
from hami_hpc.core.values import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

VERSION = 1
HEAD = f"hami-hpc static MIG layout {VERSION}"
INSTANCES_MAX = 16  # of a GPU


class Slot(NamedTuple):
    """One instance that is to stand on a GPU."""

    gpu_uuid: str
    minor: int
    profile_id: int
    start: int
    size: int
    profile: str


def ordered(slots: Iterable[Slot]) -> tuple[Slot, ...]:
    """Returns the slots in the order of their device files and of the types in Gres=: all of one type in a row, because
    Slurm pairs the types with the devices by their order."""
    return tuple(sorted(slots, key=lambda one: (-one.size, one.profile, one.minor, one.start)))


def types_of(slots: Iterable[Slot]) -> dict[str, int]:
    """Returns how many slots there are of each profile, in the order of the devices."""
    counts: dict[str, int] = {}
    for slot in ordered(slots):
        counts[slot.profile] = counts.get(slot.profile, 0) + 1
    return counts


def arrange(profiles: tuple[Profile, ...], names: Sequence[str]) -> tuple[tuple[Profile, int], ...] | None:
    """Returns a place for an instance of each name, None if the GPU cannot hold them at once.

    Raises ValueError for a name that is no profile's.
    """
    by_name = {profile.name: profile for profile in profiles}
    unknown = sorted(set(names) - by_name.keys())
    if unknown:
        known = ", ".join(profile.name for profile in sorted(profiles, key=by_size))
        raise ValueError(f"{', '.join(unknown)[:64]} is no profile of it; its profiles are: {known}")
    wanted = sorted((by_name[name] for name in names), key=by_size, reverse=True)
    full = whole(profiles)
    compute = sum(profile.compute_slices for profile in wanted)
    if full is None or compute > full.compute_slices or sum(one.size for one in wanted) > full.size:
        return None
    if any(names.count(profile.name) > profile.instances_max for profile in wanted):
        return None
    return _placed(wanted, 0)


def _placed(wanted: list[Profile], taken: int) -> tuple[tuple[Profile, int], ...] | None:
    if not wanted:
        return ()
    for start in sorted(wanted[0].starts):
        mask = slices(start, wanted[0].size)
        if mask & taken:
            continue
        rest = _placed(wanted[1:], taken | mask)
        if rest is not None:
            return ((wanted[0], start), *rest)
    return None


def read_layout(document: Mapping[str, object]) -> dict[str, dict[str, tuple[str, ...]]]:
    """Returns the profiles by host list and GPU (UUID or minor number) of a layout file. Raises ValueError.

    version = 1
    [nodes."gpu[03-04]"]
    1 = ["3g.71gb", "3g.71gb"]
    """
    left = dict(document)
    version, nodes = left.pop("version", None), left.pop("nodes", {})
    if version != VERSION or type(version) is not int:
        raise ValueError(f"version = {VERSION} must be there (found: {str(version)[:32]!r})")
    if left:
        raise ValueError(f"unknown key {next(iter(left))[:64]!r}; known: version, nodes")
    if not isinstance(nodes, dict):
        raise ValueError("nodes is not a table")
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for hosts, gpus in nodes.items():
        if not isinstance(gpus, dict):
            raise ValueError(f'[nodes."{hosts[:64]}"] is not a table of GPUs')
        found[hosts] = {gpu: _names(hosts, gpu, names) for gpu, names in gpus.items()}
    return found


def _names(hosts: str, gpu: str, names: object) -> tuple[str, ...]:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or len(names) > INSTANCES_MAX:
        example = '["3g.71gb", "3g.71gb"]'
        raise ValueError(
            f'[nodes."{hosts[:64]}"]: {gpu[:64]} is not a list of at most {INSTANCES_MAX} profiles: {example}'
        )
    return tuple(names)


def to_text(slots: Iterable[Slot]) -> str:
    """Returns the text of the file that notes the applied layout."""
    rows = (
        f"{one.gpu_uuid} {one.minor} {one.profile_id} {one.start} {one.size} {one.profile}" for one in ordered(slots)
    )
    return "\n".join([HEAD, *rows, ""])


def from_text(text: str) -> tuple[Slot, ...]:
    """Returns the slots of such a text. Raises ValueError for any other, also one that was cut."""
    lines = text.split("\n")
    if lines[0] != HEAD or lines[-1] != "":
        raise ValueError("it does not begin and end as hami-hpc mig apply writes it")
    found = []
    for line in lines[1:-1]:
        words = line.split(" ")
        if len(words) != 6 or not words[0].startswith("GPU-") or not words[5]:
            raise ValueError(f"line {line[:64]!r} is not understood")
        minor, profile_id, start, size = map(int, words[1:5])
        found.append(Slot(words[0], minor, profile_id, start, size, words[5]))
    return tuple(found)
