# SPDX-License-Identifier: Apache-2.0
"""The MIG profiles that the settings offer: [gpu_models.MODEL.mig_profiles]. Checked for render and the filters; of the
prologs only those of MIG jobs read them.
"""

from __future__ import annotations

from hami_hpc.contract import constants as c
from hami_hpc.core.mig_layout import Profile, by_size, whole
from hami_hpc.core.mig_text import read_profiles
from hami_hpc.errors import NodeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Protocol

    from hami_hpc.core.mig_choice import OfferedProfile
    from hami_hpc.core.sizes import GpuSize

    class Settings(Protocol):
        """What is needed of node/config.py's settings, which import this module."""

        @property
        def path(self) -> str: ...
        @property
        def gpu_models(self) -> Mapping[str, int]: ...
        @property
        def mig_profiles(self) -> Mapping[str, Mapping[str, str]]: ...
        def gpu_size(self, model: str) -> GpuSize: ...


def profiles_of(settings: Settings, model: str) -> tuple[Profile, ...]:
    """Returns the profiles of a model, with the whole GPU's, which may be unoffered and then has no name.

    Raises NodeError for a text that is not understood.
    """
    try:
        return read_profiles(dict(settings.mig_profiles.get(model, {})), settings.gpu_models[model])
    except ValueError as error:
        raise NodeError(f"{_where(settings, model)}: {error}") from None


def profile_name(settings: Settings, model: str, mem_mib: int, cores_percent: int) -> str | None:
    """Returns the profile of a job's units; None when these settings offer none like it, as after a change of them.

    Raises NodeError as profiles_of does.
    """
    if model not in settings.gpu_models:  # renamed there since the node's GPUs were entered in its ledger
        return None
    profiles = profiles_of(settings, model)
    full = whole(profiles)
    for profile in profiles:
        if full and profile.name and profile.mem_mib == mem_mib and _cores(profile, full) == cores_percent:
            return profile.name
    return None


def offered(settings: Settings, model: str) -> tuple[OfferedProfile, ...]:
    """Returns what requests can have on a model, the smallest first. Raises NodeError for profiles that nobody can."""
    from hami_hpc.core.mig_choice import OfferedProfile
    from hami_hpc.core.mig_units import shards_of

    profiles = profiles_of(settings, model)
    full = whole(profiles)
    listed = tuple(sorted((each for each in profiles if each.name), key=by_size))
    if full is None or not listed:
        return ()
    _check(settings, model, listed, full)
    names = frozenset(profile.name for profile in listed)
    weights = shards_of(profiles, settings.gpu_size(model).slice_shards, names)
    return tuple(
        OfferedProfile(
            name=profile.name,
            mem_mib=profile.mem_mib,
            mem_percent=100 * profile.size // full.size,
            cores=_cores(profile, full),
            shards=weights[profile.name],
        )
        for profile in listed
    )


def _check(settings: Settings, model: str, listed: tuple[Profile, ...], full: Profile) -> None:
    """Raises NodeError for a wrong name, for more memory than a GPU gives, and for a profile that hides another."""
    from hami_hpc.core.request_keys import is_mig_name

    usable_mib = settings.gpu_size(model).slice_mib
    for index, profile in enumerate(listed):
        if not is_mig_name(profile.name):
            raise NodeError(
                f"{_where(settings, model, profile)}: {profile.name[: c.GIVEN_MAX]!r} is not the name of a MIG profile"
            )
        if profile.mem_mib > usable_mib:
            raise NodeError(
                f"{_where(settings, model, profile)}: {profile.name} has {profile.mem_mib} MiB, and a GPU has "
                f"{usable_mib} MiB to give (total_mib x memory_scaling). Remove the profile, or change these"
            )
        for other in listed[:index]:
            if other.mem_mib >= profile.mem_mib and _cores(other, full) >= _cores(profile, full):
                raise NodeError(
                    f"{_where(settings, model, profile)}: no job could get {profile.name}, because {other.name} is no "
                    "larger and has as much memory and compute. Remove one of them"
                )


def _cores(profile: Profile, full: Profile) -> int:
    return 100 * profile.compute_slices // full.compute_slices


def _where(settings: Settings, model: str, profile: Profile | None = None) -> str:
    from hami_hpc.node.settings_lines import where

    return where(settings.path, f"gpu_models.{model}.mig_profiles", profile.name if profile else "")
