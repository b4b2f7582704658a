# SPDX-License-Identifier: Apache-2.0
"""Reads the state of the private cluster's node from three independent sources: the simulated driver (the memory that
processes really use), hami_hpc's ledger (the grants), and the run directory."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from . import jobs
from .layout import CHECKOUT, Layout

MIB = 1 << 20
_GRANTS = "SELECT job_id, gpu_uuid, mem_mib, cores_percent FROM grants"


@dataclass(frozen=True, slots=True)
class Process:
    """A process that has a context on a simulated GPU."""

    pid: int
    uid: int
    used_bytes: int


@dataclass(frozen=True, slots=True)
class SimulatedGpu:
    """The simulated driver's record of one GPU. peak_bytes: the largest use at
    any time; refusals: requests that were larger than the whole GPU's free memory."""

    index: int
    uuid: str
    total_bytes: int
    used_bytes: int
    peak_bytes: int
    refusals: int
    processes: tuple[Process, ...]


@dataclass(frozen=True, slots=True)
class Granted:
    """A live row of the ledger."""

    job_id: int
    gpu_uuid: str
    mem_mib: int
    cores_percent: int


def gpus(layout: Layout) -> list[SimulatedGpu]:
    """Returns the simulated driver's own state, without dead processes."""
    text = jobs.admin(layout, str(CHECKOUT / "build/native/sim/sim-state"), str(layout.machine))
    return [
        SimulatedGpu(
            index=gpu["index"],
            uuid=gpu["uuid"],
            total_bytes=gpu["total_bytes"],
            used_bytes=gpu["used_bytes"],
            peak_bytes=gpu["peak_bytes"],
            refusals=gpu["refusals"],
            processes=tuple(Process(p["pid"], p["uid"], p["used_bytes"]) for p in gpu["processes"]),
        )
        for gpu in json.loads(text)["gpus"]
    ]


def regions(layout: Layout) -> list[Path]:
    """Returns the run directories of the node's jobs."""
    folder = layout.run_dir / "jobs"
    return sorted(folder.iterdir()) if folder.exists() else []


def grants(layout: Layout) -> list[Granted]:
    """Returns the ledger's live rows; other processes may write at the same time."""
    path = layout.run_dir / "ledger.db"
    if not path.exists():
        return []
    connection = sqlite3.connect(path, timeout=10)
    try:
        rows = connection.execute(_GRANTS).fetchall()
    finally:
        connection.close()
    return [Granted(*row) for row in rows]


def slurms_state(layout: Layout, name: str) -> str:
    """Returns the node's state as scontrol shows it."""
    return jobs.admin(layout, "scontrol", "show", "node", name).partition(" State=")[2].split()[0]


def drain_reason(layout: Layout) -> str:
    """Returns why the layout's node takes no jobs; empty when it takes jobs."""
    text = jobs.admin(layout, "sinfo", "-h", "-N", "-n", layout.node, "-o", "%T %E")
    state, _, reason = text.strip().partition(" ")
    return reason if "drain" in state or "down" in state else ""


def leftovers(layout: Layout) -> list[str]:
    """Describes everything that jobs have left; empty when the node is clean."""
    remains = [f"run directory {path}" for path in regions(layout)]
    remains += [f"grant of job {grant.job_id}" for grant in grants(layout)]
    for gpu in gpus(layout):
        remains += [f"process {p.pid} on GPU {gpu.index} with {p.used_bytes // MIB} MiB" for p in gpu.processes]
        if gpu.used_bytes:
            remains.append(f"{gpu.used_bytes // MIB} MiB in use on GPU {gpu.index}")
    return remains


def wait_until_clean(layout: Layout, timeout_s: float = 30.0) -> None:
    """Waits until nothing of any job is left. Raises ClusterError, which names what is left."""
    seen: list[str] = []

    def clean() -> bool:
        seen[:] = leftovers(layout)
        return not seen

    jobs.wait(layout, clean, "the node to be clean", timeout_s, detail=lambda: "still there: " + "; ".join(seen[:10]))
