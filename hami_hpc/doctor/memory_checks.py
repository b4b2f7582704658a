# SPDX-License-Identifier: Apache-2.0
"""Checks that a job with a slice of a GPU does not get all of a node's memory, which would keep all others away."""

from __future__ import annotations

from collections.abc import Iterator

from hami_hpc.core.finding import Finding, Level, finding
from hami_hpc.doctor.facts import Check, Facts
from hami_hpc.slurm.files import ConfFile
from hami_hpc.slurm.lines import ConfLine

WHAT = "memory without --mem"
DEFAULTS = ("DefMemPerCPU", "DefMemPerNode")  # DefMemPerGPU is for jobs with gres/gpu alone (22.05 to 26.05)
UNLIMITED = ("", "0", "UNLIMITED", "(null)")


def check_default_memory(facts: Facts) -> Iterator[Finding]:
    """Checks that partitions with slices have a default, where Slurm hands out memory (CR_*_Memory)."""
    if "MEMORY" not in facts.slurm.get("SelectTypeParameters", "").upper():
        return
    lacking: list[str] = []
    if not any(facts.slurm.get(key, "") not in UNLIMITED for key in DEFAULTS):
        lines = ConfFile(facts.slurm_conf).lines
        lacking = [name for name in facts.settings.partitions if not _has_default(lines, name)]
    detail = (
        f"a job without --mem gets all memory of a node in {', '.join(lacking)}: no other job starts beside its slice"
        if lacking
        else "a job without --mem gets a part of the node's"
    )
    advice = "slurm.conf: DefMemPerCPU=MIB for the cluster or the partition (DefMemPerGPU does not count for slices)"
    yield finding(WHAT, not lacking, detail, advice, Level.WARN)


def _has_default(lines: list[ConfLine], partition: str) -> bool:
    """Returns whether the partition's line, or one of PartitionName=DEFAULT, has a default."""
    return any(
        line.get(key) not in UNLIMITED
        for line in lines
        if line.get("PartitionName").lower() in (partition.lower(), "default")
        for key in DEFAULTS
    )


CHECKS: list[tuple[str, Check]] = [("memory", check_default_memory)]
