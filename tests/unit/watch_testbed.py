# SPDX-License-Identifier: Apache-2.0
"""Looks for the tests of hami_hpc/core/watch.py: made of the processes and slices that matter."""

from __future__ import annotations

from hami_hpc.core.grant import Grant
from hami_hpc.core.watch import MIB, Kind, Limits, Look, Process, Slice, Suspicion

GPU, OTHER_GPU = "GPU-1", "GPU-2"
LIMITS = Limits(64 * MIB, frozenset({0}))


def grant(job_id: int = 7, mem_mib: int = 1024, cores: int = 25, policy: str = "cap") -> Grant:
    return Grant(job_id, 1000, GPU, 0, 100_000, "h200", mem_mib, cores, "std", policy, "share", 1)


def process(pid: int = 100, job_id: int = 7, used_mib: int = 512, **more: object) -> Process:
    values: dict[str, object] = {
        "pid": pid,
        "started": 1,
        "uid": 1000,
        "job_id": job_id,
        "gpu_uuid": GPU,
        "used_bytes": used_mib * MIB,
        "busy_ns": 0,
        "has_interposer": True,
    }
    return Process(**values | more)  # type: ignore[arg-type]


def look(
    *processes: Process,
    slices: tuple[Slice, ...] | None = None,
    whole: frozenset[int] = frozenset(),
    held: dict[int, frozenset[str] | None] | None = None,
    at: int = 0,
) -> Look:
    return Look(at, processes, (Slice(grant(), None, 0, 0),) if slices is None else slices, whole, held or {})


def suspicion(kind: Kind = Kind.MEMORY_OVER, job_id: int = 7) -> Suspicion:
    return Suspicion(kind, job_id, 0, GPU, (), "text")
