# SPDX-License-Identifier: Apache-2.0
"""Places: the gres types of a node's GPUs where a job may have several slices (docs/adr/055). Pure.

slurmctld runs the rules for requests in Lua, slurm-plugins/lua/hami_hpc_places.lua; tests/vectors compare both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hami_hpc.contract import constants as contract
from hami_hpc.core.request import Request
from hami_hpc.errors import Refusal, request_error

SHARE = "share"
_EXAMPLE = "--gres=vgpu:2:mem=8G,cores=50"
_ONE_EXAMPLE = contract.REQUEST_EXAMPLE


def of_gpus(gpus: int, slices_max: int) -> tuple[str, ...]:
    """Returns the type of each of a node's GPUs, in Slurm's order: runs of neighbours, of which the first ones are one
    longer where the types do not divide the GPUs. "" for each where jobs have one slice, so that there are no types."""
    if slices_max <= 1:
        return ("",) * gpus
    count = min(slices_max, gpus)
    return tuple(contract.PLACES[place] for place in range(count) for _ in range((gpus - place - 1) // count + 1))


def check_count(request: Request, slices_max: int, gpus: Mapping[str, int]) -> int:
    """Returns from how many places the request may choose. `gpus` has, by the text that names a partition, the GPUs of
    its largest node, 0 where that is not known. Raises RequestError E_COUNT for a count that no node has."""
    if request.count is None:
        return 1
    given = str(request.count)
    if request.count > slices_max:
        several = f"at most {slices_max} vgpus" if slices_max > 1 else "one vgpu"
        allowed = f"slices_max is {slices_max} here, so a job has {several} per node"
        example = _EXAMPLE if slices_max > 1 else _ONE_EXAMPLE
        raise request_error("E_COUNT", Refusal(given=given, allowed=allowed, example=example))
    for name, count in gpus.items():
        if 0 < count < request.count:
            allowed = f"no node of {name} has more than {count} GPU{'s' if count > 1 else ''}"
            example = _EXAMPLE if count > 1 else _ONE_EXAMPLE
            raise request_error("E_COUNT", Refusal(given=given, allowed=allowed, example=example))
    return min([slices_max, *(count for count in gpus.values() if count)])


def check_mode(request: Request, modes: Sequence[str]) -> None:
    """Raises RequestError E_COUNT_MODE for a count together with something else than mode=share."""
    if request.count is None:
        return
    allowed = "leave {} out"
    if request.mig is not None:
        key = f"mig={request.mig}"
    elif request.isolation is not None:
        key = f"isolation={request.isolation}"
    elif request.mode not in (None, SHARE, contract.MODE_AUTO):
        key = f"mode={request.mode}"
    elif SHARE not in modes:
        key, allowed = f"the modes of this cluster ({', '.join(modes) or 'none'})", "ask for one vgpu"
    else:
        return
    refusal = Refusal(given=str(request.count), key=key, allowed=allowed.format(key), example=_EXAMPLE)
    raise request_error("E_COUNT_MODE", refusal)


def chosen(count: int | None, places: int, turn: int) -> tuple[str, ...]:
    """Returns the types of `count` slices, from number `turn` on of the first `places` ones; none for one slice."""
    if count is None:
        return ()
    return tuple(contract.PLACES[place] for place in sorted((turn + step) % places for step in range(count)))
