# SPDX-License-Identifier: Apache-2.0
"""Checks that Slurm has the site's classes of service: a class is a type of gres/vgpu, which files of render's name."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from hami_hpc.contract import constants as c
from hami_hpc.core.finding import Finding, Level, finding
from hami_hpc.doctor.facts import Facts
from hami_hpc.slurm import commands
from hami_hpc.slurm.files import ConfFile
from hami_hpc.slurm.lines import names_node

RENDER = "hami-hpc render -o on each node with GPUs, then restart all slurmd, then slurmctld (docs/qos.md, A new class)"


def check_classes(facts: Facts) -> Iterator[Finding]:
    """Checks that each class of the settings is in gres.conf, in slurmctld's Gres of this node, and in what slurmdbd
    stores. A job of one that is not would not start here, or have no class on the bill."""
    path = f"{facts.conf_dir}/gres.conf"
    here = _in_gres_conf(path, facts.node) if Path(path).exists() else None
    places = [] if here is None else [(path, here)]
    places.append((f"Slurm's Gres of {facts.node}", frozenset(commands.gres_by_type(facts.node, c.GRES_CLASS))))
    lacking = [f"{where} lacks {_listed(facts, known)}" for where, known in places if _missing(facts, known)]
    yield finding("classes", not lacking, "; ".join(lacking) or ", ".join(facts.settings.classes), RENDER)
    stored = facts.slurm.get("AccountingStorageTRES", "").split(",")
    known = frozenset(name.partition(":")[2] for name in stored if name.startswith(f"gres/{c.GRES_CLASS}:"))
    if facts.has_slurmdbd and _missing(facts, known):
        detail = f"AccountingStorageTRES lacks {_listed(facts, known)}: the bill shows no class for their jobs"
        yield Finding("classes, accounting", Level.WARN, detail, RENDER)


def _missing(facts: Facts, known: Collection[str]) -> list[str]:
    return [name for name in facts.settings.classes if name not in known]


def _listed(facts: Facts, known: Collection[str]) -> str:
    return ", ".join(f"{c.GRES_CLASS}:{name}" for name in _missing(facts, known))


def _in_gres_conf(path: str, node: str) -> frozenset[str]:
    """Returns the types of gres/vgpu that gres.conf has for a node; a line without NodeName is for every node."""
    return frozenset(
        line.get("Type")
        for line in ConfFile(path).lines
        if line.get("Name").lower() == c.GRES_CLASS
        and (not line.get("NodeName") or names_node(line.get("NodeName"), node))
    )
