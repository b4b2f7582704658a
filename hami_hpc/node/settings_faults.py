# SPDX-License-Identifier: Apache-2.0
"""What no setting can be, beyond its type: rules of node/config.py, which prolog and epilog import. Pure."""

from __future__ import annotations

from hami_hpc.contract import constants as c
from hami_hpc.core.grant import is_class_name
from hami_hpc.core.sizes import is_oversold

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


def is_host_list(text: str) -> bool:
    """Returns whether a text can be names of nodes with ranges: another one would name no node, silently."""
    first, *parts = text.split("[")
    pieces = [part.partition("]") for part in parts]
    outside = first + "".join(rest for _, _, rest in pieces)
    return (
        all(ranges and bracket and frozenset("0123456789-,").issuperset(ranges) for ranges, bracket, _ in pieces)
        and (NAME_CHARACTERS | {".", ","}).issuperset(outside)
        and bool(text)
    )


def places(slices_max: int, modes: Sequence[str], models: Iterable[str]) -> str:
    """Returns what is allowed instead where jobs cannot have several slices, "" where they can."""
    if slices_max <= 1:
        return ""
    if "share" not in modes:
        return '1, or "share" in modes: in other modes a job has one slice per node'
    clash = [model for model in models if len(model) == 1 and model in c.PLACES]
    return f"1, or another name for [gpu_models.{clash[0]}]: GPUs have types from a on then" if clash else ""


def oversold(memory_scaling: float, has_agent: bool, modes: Sequence[str], slices_max: int, has_swap: bool) -> str:
    """Returns what is allowed instead where the memory of GPUs cannot be oversold, "" where it can, or is not.

    `has_swap`: whether a class has swap = true.
    """
    if not is_oversold(memory_scaling):
        return ""
    if not has_agent:
        return "at most 1 without the table [agent]: the agent lets jobs take turns on a GPU"
    if tuple(modes) != ("share",):
        return 'at most 1 unless modes = ["share"]: in other modes jobs cannot take turns on a GPU'
    if slices_max != 1:
        return "at most 1 unless slices_max = 1: jobs with several slices cannot take turns on a GPU"
    if not has_swap:
        return "at most 1 unless a class has swap = true: no job could leave the GPU to another"
    return ""


def class_name(name: str, models: Iterable[str]) -> str:
    """Returns why a class cannot have this name, "" if it can: it is a gres type, and stands where users write others.

    Slurm looks for "gres" anywhere in a list of gres (core/request.py).
    """
    if not is_class_name(name):
        return (
            f"it has 1 to {c.CLASS_NAME_MAX} characters, lower-case letters, digits and '_', and begins with a letter. "
            "Example: [classes.interactive]"
        )
    if name in c.KEY_FORM:
        return f"{name} is a key of a request (vgpu:{c.KEY_EXAMPLE[name].split(',')[0].split(' ')[0]})"
    if name in c.CLASS_RESERVED or "gres" in name:
        return "Slurm reads it as something else in a list of gres"
    if name in models:
        return f"[gpu_models.{name}] has it, and vgpu:{name} could mean either"
    return ""
