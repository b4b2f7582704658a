# SPDX-License-Identifier: Apache-2.0
"""Which MIG profile a request takes, by what the site offers. Pure.

slurmctld runs the same rules in Lua, slurm-plugins/lua/hami_hpc_mig.lua; tests/vectors check that both agree.
"""

from __future__ import annotations

from dataclasses import dataclass

from hami_hpc.contract import constants as contract
from hami_hpc.core.request import Request, canonical
from hami_hpc.core.request_keys import MemMib, MemPercent
from hami_hpc.errors import Refusal, RequestError, request_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MIG = "mig"
Mem = MemMib | MemPercent | None


@dataclass(frozen=True, slots=True)
class OfferedProfile:
    """A profile that a site offers on a GPU model, and what one instance of it is in Slurm's units.

    `mem_percent` and `cores` are percent of the GPU's memory slices and compute slices, rounded down.
    """

    name: str
    mem_mib: int
    mem_percent: int
    cores: int
    shards: int

    def has(self, mem: Mem) -> bool:
        if isinstance(mem, MemMib):
            return mem.mib <= self.mem_mib
        return mem is None or mem.percent <= self.mem_percent


def mode_of(request: Request, modes: Sequence[str]) -> str | None:
    """Returns the mode that a request names, "auto" too, else the site's first; None if the site has none.

    Raises RequestError when the site does not offer it, or the request contradicts itself.
    """
    key = _mig_key(request)
    if key is None and request.mode is None:
        return modes[0] if modes else None
    if key is not None and request.mode not in (None, MIG, contract.MODE_AUTO):
        example = f"--gres={contract.REQUEST_NAME}:{key}"
        raise request_error("E_MODE_CONFLICT", Refusal(given=request.mode or "", key=key, example=example))
    if key is not None and MIG not in modes:
        raise _not_here(key, "this cluster", modes)
    mode = MIG if key is not None else request.mode
    if mode not in (*modes, contract.MODE_AUTO):
        allowed = ", ".join(modes) or "none"
        refusal = Refusal(given=mode or "", where="this cluster", allowed=allowed, example="--gres=vgpu:mem=8G")
        raise request_error("E_MODE_NOT_OFFERED", refusal)
    return mode


def choose(
    request: Request,
    profiles: Mapping[str, Sequence[OfferedProfile]],
    models: Sequence[str],
    where: str,
    modes: Sequence[str],
) -> OfferedProfile | RequestError:
    """Returns the smallest profile with the request's mem and cores, or the one that it names; else why there is none.

    It has to be the same one on all of `models`. `profiles` are the site's by model, the smallest first.
    """
    choices = [_on_model(request, tuple(profiles.get(model, ())), f"{model} in {where}", modes) for model in models]
    good = [choice for choice in choices if isinstance(choice, OfferedProfile)]
    if good and (len(good) < len(choices) or len(set(good)) > 1):
        refusal = Refusal(where=where, allowed=", ".join(models), example=f"--gres=vgpu:{models[0]}:mem=8G")
        return request_error("E_TYPE_NEEDED", refusal)
    return choices[0]


def with_defaults(request: Request, mem: MemMib | MemPercent, cores: int | None) -> tuple[Mem, int | None]:
    """Returns the mem and cores that an instance needs: the site's defaults where the request does not say its size.

    mode=auto may also become a share, so it needs as much as that would get.
    """
    says_size = request.mig is not None or request.mem is not None or request.cores is not None
    if (request.mode == contract.MODE_AUTO and request.mig is None) or not says_size:
        return (mem if request.mem is None else request.mem), (cores if request.cores is None else request.cores)
    return request.mem, request.cores


def wastes_little(shards: int, needed: int, most_percent: int) -> bool:
    """Returns whether at most that part of an instance of `shards` is more than the `needed` ones of a share."""
    return 100 * (shards - needed) <= most_percent * shards


def _on_model(
    request: Request, profiles: tuple[OfferedProfile, ...], where: str, modes: Sequence[str]
) -> OfferedProfile | RequestError:
    if not profiles:
        return _not_here(_mig_key(request) or f"mode={request.mode or MIG}", where, modes)
    enough = [each for each in profiles if each.has(request.mem) and each.cores >= (request.cores or 0)]
    example = f"--gres=vgpu:mig={(enough or profiles[-1:])[0].name}"
    allowed = ", ".join(f"{each.name} ({each.mem_mib}M, cores={each.cores})" for each in profiles)
    if request.mig is None:
        given = canonical(Request(mem=request.mem, cores=request.cores)).partition(":")[2].replace(";", ",")
        refusal = Refusal(given=given, where=where, allowed=allowed, example=example)
        return enough[0] if enough else request_error("E_MIG_TOO_BIG", refusal)
    named = next((each for each in profiles if each.name == request.mig), None)
    if named is None:
        refusal = Refusal(given=request.mig, where=where, allowed=allowed, example=example)
        return request_error("E_MIG_UNKNOWN", refusal)
    if named not in enough:
        over = Request(mem=request.mem) if not named.has(request.mem) else Request(cores=request.cores)
        key = canonical(over).partition(":")[2]
        refusal = Refusal(key=key, given=named.name, where=where, allowed=allowed, example=example)
        return request_error("E_MIG_TOO_SMALL", refusal)
    return named


def _mig_key(request: Request) -> str | None:
    """Returns the key by which a request asks for a MIG instance whatever its mode, None if there is none."""
    if request.mig is not None:
        return f"mig={request.mig}"
    return None if request.isolation is None else f"isolation={request.isolation}"


def _not_here(key: str, where: str, modes: Sequence[str]) -> RequestError:
    allowed = ", ".join(modes) or "none"
    refusal = Refusal(key=key, where=where, allowed=allowed, example="--gres=vgpu:mem=8G")
    return request_error("E_MIG_NOT_HERE", refusal)
