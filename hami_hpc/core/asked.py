# SPDX-License-Identifier: Apache-2.0
"""What a vGPU job asked for, read back from the units that Slurm has of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hami_hpc.contract import constants as c
from hami_hpc.core.request import MemMib, mem_text, slo_text

_TYPE = c.FEATURE_TYPE.format(type="")
_SLO = re.compile(rf"\b{c.GRES_SLO}[:=]([0-9]+)\b")
_MODE = c.FEATURE_MODE.format(mode="")


@dataclass(frozen=True, slots=True)
class Asked:
    """The slice on each of the job's nodes. `gpu_type`, `mode` and `policy` are "" and `slo_us` is 0 where the request
    had none."""

    mem_mib: int
    cores: int
    shards: int
    service_class: str
    gpu_type: str
    mode: str
    nodes: int
    policy: str = ""
    slo_us: int = 0

    @property
    def request(self) -> str:
        """The request that gives this slice."""
        parts = [f":{self.gpu_type}" if self.gpu_type else "", f":mem={mem_text(MemMib(self.mem_mib))}"]
        parts += [f",cores={self.cores}", f",mode={self.mode}" if self.mode else ""]
        parts += [f",policy={self.policy}" if self.policy else ""]
        parts += [f",slo={slo_text(self.slo_us)}"] if self.slo_us else []
        return f"{c.REQUEST_NAME}{''.join(parts)}"


def decode(units: Mapping[str, int], features: str, nodes: int, tres_per_node: str = "") -> Asked | None:
    """Returns the slice in a job's TRES (of all its nodes), Features and TresPerNode; None for a job without slices.

    A job that holds whole nodes (--exclusive) has all of their vgpu units, and is not limited (core/grant.py).
    """
    slices = units.get(c.GRES_CLASS, 0)
    if slices < 1 or slices != nodes or not units.get(c.GRES_MEM):
        return None
    typed = f"{c.GRES_CLASS}:"
    classes = [name.removeprefix(typed) for name, count in units.items() if name.startswith(typed) and count]
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
    )


def needed_features(features: str) -> tuple[str, ...] | None:
    """Returns the features that a job's nodes must all have; None for an expression with more than `&`."""
    if not features:
        return ()
    words = features.strip("()").split("&")
    return tuple(words) if all(word and not set(word) & set("|()[]*,!:") for word in words) else None


def has_features(available: Sequence[str], features: str) -> bool:
    """Returns whether a node may have the features; True for an expression that this does not read."""
    return set(needed_features(features) or ()) <= set(available)
