# SPDX-License-Identifier: Apache-2.0
"""Parses what a job held of the cluster's GPUs from Slurm's AllocTRES text.

AllocTRES prints a gres both typed and untyped (``gres/vgpu:be=1,gres/vgpu=1``). Both are the same devices and must not
be added up: the untyped number is the count, the typed numbers say how many are of each type.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_TOKEN = re.compile(r"([a-z_]+)(?:/([^=,\s]+))?=([0-9]+)(\.[0-9]+)?([KMGTPEZ]?)")
_MIG = re.compile(r"(?:(?P<model>.+)[_-])?(?P<slices>[1-9])g\.(?P<gb>[1-9][0-9]*)gb(?:[.+]me(?:\.all)?)?")
_COUNT_MAX = 1_000_000_000


class TresError(ValueError):
    """An AllocTRES text that Slurm cannot have written. The message names the part and the reason."""


@dataclass(frozen=True, slots=True)
class MigProfile:
    """A MIG profile in a gres type: ``h200_1g.18gb``, or ``1g.18gb`` (then model is empty)."""

    model: str
    slices: int
    memory_gb: int


@dataclass(frozen=True, slots=True, order=True)
class AllocatedGpus:
    """GPU resources of one job run, summed over its nodes. A job without GPU has only zeros and empty values.

    gpus: (type, count) of whole GPUs and MIG instances; the type is empty if Slurm recorded none.
    vgpu_class: the name of its class, or empty if Slurm recorded none.
    whole_units: gres/vgpu of a job with whole nodes, which are not slices; only sreport counts them.
    """

    gpus: tuple[tuple[str, int], ...] = ()
    vgpu_class: str = ""
    vgpu: int = 0
    vgpu_mem_mib: int = 0
    vgpu_cores_percent: int = 0
    shards: int = 0
    whole_units: int = 0

    def __bool__(self) -> bool:
        return bool(self.gpus or self.vgpu or self.shards)

    def key(self) -> str:
        """Returns the canonical text for the store; empty for a job without GPU. ``from_key`` parses it."""
        parts = [f"gpu:{kind}={count}" for kind, count in self.gpus]
        if self.vgpu:
            parts.append(f"vgpu:{self.vgpu_class}={self.vgpu}")
            parts.append(f"mem={self.vgpu_mem_mib}")
            parts.append(f"cores={self.vgpu_cores_percent}")
        if self.shards:
            parts.append(f"shard={self.shards}")
        if self.whole_units:
            parts.append(f"units={self.whole_units}")
        return ";".join(parts)

    @staticmethod
    def from_key(key: str) -> AllocatedGpus:
        """Parses the text that ``key`` returns."""
        gpus: list[tuple[str, int]] = []
        numbers = {"vgpu": 0, "mem": 0, "cores": 0, "shard": 0, "units": 0}
        vgpu_class = ""
        for part in key.split(";") if key else ():
            name, _, count = part.rpartition("=")
            if name.startswith("gpu:"):
                gpus.append((name.removeprefix("gpu:"), int(count)))
            elif name.startswith("vgpu:"):
                vgpu_class = name.removeprefix("vgpu:")
                numbers["vgpu"] = int(count)
            else:
                numbers[name] = int(count)
        return AllocatedGpus(
            tuple(gpus),
            vgpu_class,
            numbers["vgpu"],
            numbers["mem"],
            numbers["cores"],
            numbers["shard"],
            numbers["units"],
        )


def parse_mig(gres_type: str) -> MigProfile | None:
    """Returns the MIG profile that a gres type names, or None when it names a whole GPU."""
    match = _MIG.fullmatch(gres_type)
    if match is None:
        return None
    return MigProfile(match["model"] or "", int(match["slices"]), int(match["gb"]))


def parse_alloc_tres(text: str) -> AllocatedGpus:
    """Parses sacct's AllocTRES, as printed with --noconvert.

    A job with whole nodes (--exclusive, OverSubscribe=EXCLUSIVE) holds all units of all vgpu classes there; no other
    job does. It is counted as a job with whole GPUs, and its units are left out, because they are those same GPUs.

    Raises TresError for a token that is not NAME=NUMBER, a name given twice, a count with a unit suffix (a sacct
    call without --noconvert), more typed than untyped devices, and a vgpu without its memory and cores.
    """
    counts = _gres_counts(text)
    typed_gpus = _typed("gpu", counts)
    typed_vgpu = _typed("vgpu", counts)
    gpus = _with_untyped_rest(typed_gpus, counts.get("gpu", typed_gpus[0]), "gpu")
    vgpu = counts.get("vgpu", typed_vgpu[0])
    classes = _with_untyped_rest(typed_vgpu, vgpu, "vgpu")
    mem_mib, cores = counts.get("vgpu_mem", 0), counts.get("vgpu_cores", 0)
    if vgpu > 1 and (gpus or len(classes) > 1):
        return AllocatedGpus(gpus or _whole_gpus(cores), whole_units=vgpu)
    if vgpu and not (mem_mib and cores):
        missing = "gres/vgpu_cores" if mem_mib else "gres/vgpu_mem"
        raise TresError(f"gres/vgpu without {missing}; add it to AccountingStorageTRES")
    if not vgpu and (mem_mib or cores):
        raise TresError("gres/vgpu_mem or gres/vgpu_cores without gres/vgpu; add it to AccountingStorageTRES")
    return AllocatedGpus(gpus, classes[0][0] if classes else "", vgpu, mem_mib, cores, counts.get("shard", 0))


def _whole_gpus(cores_percent: int) -> tuple[tuple[str, int], ...]:
    """Returns the GPUs of whole nodes from gres/vgpu_cores (100 per GPU), if AccountingStorageTRES lacks gres/gpu."""
    count, rest = divmod(cores_percent, 100)
    if rest or not count:
        raise TresError(
            f"gres/vgpu of several classes with gres/vgpu_cores={cores_percent} and no gres/gpu: the job held whole "
            "nodes, but the number of GPUs is not recorded; add gres/gpu to AccountingStorageTRES"
        )
    return (("", count),)


def _gres_counts(text: str) -> dict[str, int]:
    """Returns gres name (``gpu``, ``gpu:h200``) -> count for every gres in the text. Only checks other TRES."""
    counts: dict[str, int] = {}
    seen: set[str] = set()
    for token in text.split(",") if text else ():
        match = _TOKEN.fullmatch(token)
        if match is None:
            raise TresError(f"'{token[:40]}' is not NAME=NUMBER")
        kind, name, number, fraction, unit = match.groups()
        full_name = f"{kind}/{name}" if name else kind
        if full_name in seen:
            raise TresError(f"{full_name} is given twice")
        seen.add(full_name)
        if kind != "gres" or not name:
            continue
        if fraction or unit:
            raise TresError(f"{full_name} has a unit or fraction ({number}{fraction or ''}{unit}); use --noconvert")
        counts[name] = int(number)
        if counts[name] > _COUNT_MAX:
            raise TresError(f"{full_name}={number} is more than any cluster has")
    return counts


def _typed(name: str, counts: dict[str, int]) -> tuple[int, list[tuple[str, int]]]:
    """Returns (sum, [(type, count)]) of the typed entries of one gres, without zero counts."""
    typed = [(key.removeprefix(f"{name}:"), count) for key, count in counts.items() if key.startswith(f"{name}:")]
    for gres_type, _ in typed:
        if not gres_type or ";" in gres_type:
            raise TresError(f"gres/{name} has the type '{gres_type}', which is not a valid type")
    return sum(count for _, count in typed), sorted((kind, count) for kind, count in typed if count)


def _with_untyped_rest(typed: tuple[int, list[tuple[str, int]]], total: int, name: str) -> tuple[tuple[str, int], ...]:
    """Returns the typed entries, and the rest of ``total`` as one entry with an empty type."""
    typed_sum, entries = typed
    if typed_sum > total:
        raise TresError(f"gres/{name}={total} but its types add up to {typed_sum}")
    rest = total - typed_sum
    return tuple(([("", rest)] if rest else []) + entries)
