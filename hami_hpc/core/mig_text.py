# SPDX-License-Identifier: Apache-2.0
"""The MIG profiles of a GPU model as they stand in hami-hpc.toml, from NVML's profiles and back. Pure.

    "1g.18gb" = "16384 MiB, 1/7 compute, 1/8 memory at {0,1,2,3,4,5,6}, at most 7"

MiB of an instance; its compute slices and memory slices of all that the GPU has; the memory slices at which one may
begin, as `nvidia-smi mig -lgipp` lists them; how many there can be at once.
"""

from __future__ import annotations

from hami_hpc.core.mig_layout import Profile, by_size, whole

FORM = "16384 MiB, 1/7 compute, 1/8 memory at {0,1,2,3,4,5,6}, at most 7"
# What stands behind each number, and the digits that it may have; 0: numbers with commas between them.
_PARTS = (*((" MiB, ", 8), ("/", 3), (" compute, ", 3), ("/", 3), (" memory at {", 3), ("}, at most ", 0), ("", 3)),)
SLICES_MAX = 16  # of a GPU; the largest known has 8
NO_ID = -1  # profile_id of what was read from settings: only NVML knows it


def settings_lines(profiles: tuple[Profile, ...]) -> list[str]:
    """Returns the lines of [gpu_models.MODEL.mig_profiles] for what NVML lists, the smallest profile first.

    Of profiles with equal memory and compute slices ("1g.18gb" and "1g.18gb+me"), which units cannot tell apart, it has
    the one of which there can be the most. Raises ValueError when the whole GPU's profile is missing.
    """
    full = whole(profiles)
    if full is None:
        raise ValueError("the profiles of a GPU include the one that takes all of it")
    first: dict[tuple[int, int], Profile] = {}
    for profile in sorted(profiles, key=by_size):
        first.setdefault((profile.size, profile.compute_slices), profile)
    return [f'"{profile.name}" = "{_text(profile, full)}"' for profile in first.values()]


def _text(profile: Profile, full: Profile) -> str:
    starts = ",".join(map(str, sorted(profile.starts)))
    return (
        f"{profile.mem_mib} MiB, {profile.compute_slices}/{full.compute_slices} compute, "
        f"{profile.size}/{full.size} memory at {{{starts}}}, at most {profile.instances_max}"
    )


def read_profiles(texts: dict[str, str], total_mib: int) -> tuple[Profile, ...]:
    """Returns the profiles of settings: those listed, and the whole GPU's, from which its totals follow.

    Where that one is not offered it is added, with an empty name. Raises ValueError, which names the wrong profile.
    """
    profiles = []
    totals = set()
    for name, text in texts.items():
        profile, compute, memory = _read(name, text)
        profiles.append(profile)
        totals.add((compute, memory))
    if len(totals) > 1:
        raise ValueError("the profiles of one GPU model are parts of the same numbers of compute and memory slices")
    for compute, memory in totals:
        if not any(profile.size == memory and profile.compute_slices == compute for profile in profiles):
            profiles.append(Profile(NO_ID, "", compute, memory, total_mib, (0,), memory, 1))
    return tuple(profiles)


def _read(name: str, text: str) -> tuple[Profile, int, int]:
    """Returns a profile, and the compute and memory slices of its GPU."""
    parts = split(text)
    if parts is None:
        raise ValueError(f"{name} = {text[:80]!r} is not understood; allowed is text such as {FORM!r}")
    mem_mib, need, compute, size, memory, most = (int(parts[i]) for i in (0, 1, 2, 3, 4, 6))
    starts = tuple(int(part) for part in parts[5].split(",") if part)
    if not (1 <= need <= compute <= SLICES_MAX and 1 <= size <= memory <= SLICES_MAX and mem_mib and most):
        raise ValueError(f"{name} = {text!r} has a part of 0, a part above the whole, or more than {SLICES_MAX} slices")
    if len(set(starts)) < len(starts) or max(starts) + size > memory:
        raise ValueError(f"{name} = {text!r} has a start twice, or one from which an instance goes past the GPU's end")
    return Profile(NO_ID, name, need, size, mem_mib, starts, size, most), compute, memory


def split(text: str) -> list[str] | None:
    """Returns the seven parts of such a text that are numbers; None for any other. Without the module re, which takes
    an eighth of a prolog."""
    parts = []
    for behind, digits_most in _PARTS:
        part, found, text = text.partition(behind) if behind else (text, "", "")
        digits = part if digits_most else part.replace(",", "")
        if found != behind or not (digits.isascii() and digits.isdecimal()) or part[0] == ",":
            return None
        if digits_most and len(digits) > digits_most:
            return None
        parts.append(part)
    return parts
