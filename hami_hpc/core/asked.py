# SPDX-License-Identifier: Apache-2.0
"""What a vGPU job asked for, read back from the units that Slurm has of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hami_hpc.contract import constants as c
from hami_hpc.core.request_keys import MemMib, mem_text, slo_text

_TYPE = c.FEATURE_TYPE.format(type="")
_SLO = re.compile(rf"\b{c.GRES_SLO}[:=]([0-9]+)\b")
_SHARD_TYPES = re.compile(rf"\b{c.GRES_SHARD}:([{c.PLACES}])[:=][0-9]+")
_MODE = c.FEATURE_MODE.format(mode="")


@dataclass(frozen=True, slots=True)
class Asked:
    """The slices on each of the job's nodes, `count` equal ones. `gpu_type`, `mode` and `policy` are "" and `slo_us` is
    0 where the request had none. `places` are the types of the GPUs of several slices."""

    mem_mib: int
    cores: int
    shards: int
    service_class: str
    gpu_type: str
    mode: str
    nodes: int
    policy: str = ""
    slo_us: int = 0
    count: int = 1
    places: tuple[str, ...] = ()
    types: str = ""  # GPU types to choose from, as the value of the key type

    @property
    def request(self) -> str:
        """The request that gives these slices."""
        parts = [f":{self.gpu_type}" if self.gpu_type else "", f":{self.count}" if self.count > 1 else ""]
        parts += [f":type={self.types},mem=" if self.types else ":mem=", mem_text(MemMib(self.mem_mib))]
        parts += [f",cores={self.cores}", f",mode={self.mode}" if self.mode else ""]
        parts += [f",policy={self.policy}" if self.policy else ""]
        parts += [f",slo={slo_text(self.slo_us)}"] if self.slo_us else []
        return f"{c.REQUEST_NAME}{''.join(parts)}"


def decode(units: Mapping[str, int], features: str, nodes: int, tres_per_node: str = "") -> Asked | None:
    """Returns the slices in a job's TRES (of all its nodes), Features and TresPerNode; None for a job without slices.

    A job that holds whole nodes (--exclusive) has all of their vgpu units, and is not limited (core/grant.py).
    """
    slices = units.get(c.GRES_CLASS, 0)
    typed = f"{c.GRES_CLASS}:"
    classes = [name.removeprefix(typed) for name, count in units.items() if name.startswith(typed) and count]
    each, rest = divmod(slices, max(1, nodes))
    if not 1 <= each <= c.SLICES_MAX or rest or (each > 1 and len(classes) > 1) or not units.get(c.GRES_MEM):
        return None
    words = needed_features(features) or ()
    slo = _SLO.search(tres_per_node)  # no TRES of Slurm's: docs/adr/046
    return Asked(
        mem_mib=units[c.GRES_MEM] // slices,
        cores=units.get(c.GRES_CORES, 0) // slices,
        shards=units.get(c.GRES_SHARD, 0) // slices,
        service_class=classes[0] if len(classes) == 1 else "",
        gpu_type=next((word.removeprefix(_TYPE) for word in words if word.startswith(_TYPE)), ""),
        mode=next((mode for mode in c.MODES if f"{_MODE}{mode}" in words), ""),
        nodes=nodes,
        policy=next((policy for policy in c.POLICIES if c.FEATURE_POLICY.format(policy=policy) in words), ""),
        slo_us=int(slo[1]) if slo else 0,
        count=each,
        types=type_choice(features),
        places=tuple(sorted(_SHARD_TYPES.findall(tres_per_node))) if each > 1 else (),
    )


def _terms(features: str) -> list[str] | None:
    """Returns the terms that `&` joins: features, and choices of GPU types, as job_submit writes them, without their
    parentheses. None for another expression."""
    terms = []
    for term in features.split("&") if features else ():
        inner = term[1:-1] if term[:1] + term[-1:] in ("()", "[]") else term
        words = inner.split("|")
        if not all(word and not set(word) & set("()[]*,!:") for word in words):
            return None
        if len(words) > 1 and (inner == term or not all(word.startswith(_TYPE) for word in words)):
            return None
        terms.append(inner)
    return terms


def needed_features(features: str) -> tuple[str, ...] | None:
    """Returns the features that a job's nodes must all have, besides one GPU type of several; None for an expression
    that this does not read."""
    terms = _terms(features)
    return None if terms is None else tuple(term for term in terms if "|" not in term)


def type_choice(features: str) -> str:
    """Returns the GPU types that a job may have one of, as the value of the key type; "" without such a choice."""
    choices = [term.split("|") for term in _terms(features) or () if "|" in term]
    return "|".join(word.removeprefix(_TYPE) for word in choices[0]) if choices else ""


def has_features(available: Sequence[str], features: str) -> bool:
    """Returns whether a node may have the features; True for an expression that this does not read."""
    return all(not set(term.split("|")).isdisjoint(available) for term in _terms(features) or ())
