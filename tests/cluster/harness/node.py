# SPDX-License-Identifier: Apache-2.0
"""What is true on the private cluster's node, from three sources that know nothing of one another: the simulated driver
(memory that processes really hold), hami_hpc's ledger (what was granted), and the run directory."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from . import jobs
from .config import NODE
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
    """One GPU as the simulated driver keeps it. peak_bytes: the most that was
    ever in use at once; refusals: requests that did not fit the whole GPU."""

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
    """The simulated driver's own state, dead processes already swept out of it."""
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
    """The run directories of jobs that are on the node."""
    folder = layout.run_dir / "jobs"
    return sorted(folder.iterdir()) if folder.exists() else []


def grants(layout: Layout) -> list[Granted]:
    """The ledger's live rows, read beside whoever writes them."""
    path = layout.run_dir / "ledger.db"
    if not path.exists():
        return []
    connection = sqlite3.connect(path, timeout=10)
    try:
        rows = connection.execute(_GRANTS).fetchall()
    finally:
        connection.close()
    return [Granted(*row) for row in rows]


def drain_reason(layout: Layout) -> str:
    """Why the node with the GPUs takes no jobs; empty when it does."""
    text = jobs.admin(layout, "sinfo", "-h", "-N", "-n", NODE, "-o", "%T %E")
    state, _, reason = text.strip().partition(" ")
    return reason if "drain" in state or "down" in state else ""


def leftovers(layout: Layout) -> list[str]:
    """What is still there of any job; empty when the node is clean."""
    found = [f"run directory {path}" for path in regions(layout)]
    found += [f"grant of job {grant.job_id}" for grant in grants(layout)]
    for gpu in gpus(layout):
        found += [f"process {p.pid} on GPU {gpu.index} with {p.used_bytes // MIB} MiB" for p in gpu.processes]
        if gpu.used_bytes:
            found.append(f"{gpu.used_bytes // MIB} MiB in use on GPU {gpu.index}")
    return found


def wait_until_clean(layout: Layout, timeout_s: float = 30.0) -> None:
    """Waits until no job has left anything. Raises ClusterError naming what stays."""
    seen: list[str] = []

    def clean() -> bool:
        seen[:] = leftovers(layout)
        return not seen

    jobs.wait(layout, clean, "the node to be clean", timeout_s, detail=lambda: "still there: " + "; ".join(seen[:10]))
