# SPDX-License-Identifier: Apache-2.0
"""The MIG profiles of the simulated GPU models, as NVML would list them, for tests and benchmarks."""

from __future__ import annotations

from pathlib import Path

from hami_hpc.core.mig_layout import Profile

MODELS = Path(__file__).resolve().parents[2] / "native" / "sim" / "models"
NAMES = ("a100-40", "a100-80", "h100", "h200")


def profiles_of(model: str) -> tuple[Profile, ...]:
    """Returns the profiles of native/sim/models/MODEL.conf."""
    lines = (MODELS / f"{model}.conf").read_text(encoding="utf-8").splitlines()
    (value,) = (line.removeprefix("mig=") for line in lines if line.startswith("mig="))
    rows = (MODELS / "mig-placements.tsv").read_text(encoding="utf-8").splitlines()
    placements = [row.split("\t") for row in rows if not row.startswith("#")]
    profiles = []
    for entry, (number, compute, memory, starts, most) in zip(value.split(","), placements, strict=True):
        name, mem_mib, _ = entry.split(":")
        begins = tuple(int(start) for start in starts.split(","))
        profiles.append(
            Profile(int(number), name, int(compute), int(memory), int(mem_mib), begins, int(memory), int(most))
        )
    return tuple(profiles)
