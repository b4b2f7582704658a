# SPDX-License-Identifier: Apache-2.0
"""States of an agent, for the tests of what reads them."""

from __future__ import annotations

import time

from hami_hpc.core.agent_state import LOST, AgentState, Event, GpuState, JobState, OtherProcess
from hami_hpc.node import agent_file
from hami_hpc.node.boot import boot_id

GIB = 1 << 30
GPU_BYTES = 143156 << 20
MODELS = ("h200", "NVIDIA H200 141GB HBM3e SXM")


def make_gpu(index: int, used_bytes: int, **more: object) -> GpuState:
    gpu = GpuState(
        uuid=f"GPU-{index}",
        minor=index,
        model=MODELS[index == 5],
        state="ok",
        detail="",
        total_bytes=GPU_BYTES,
        used_bytes=used_bytes,
        busy_percent=12.5 * index,
        power_mw=100_000 + index,
        energy_mj=1,
        temperature_c=40 + index,
    )
    return gpu._replace(**more)  # type: ignore[arg-type]


def make_job(job_id: int, gpu: int, uid: int = 5, **more: object) -> JobState:
    job = JobState(
        job_id=job_id,
        uid=uid,
        created_unix_ns=1,
        service_class=("std", "lc", "be")[job_id % 3],
        policy="cap",
        mode="share",
        gpu_uuid=f"GPU-{gpu}",
        gpu_minor=gpu,
        mem_bytes=8 * GIB,
        cores_percent=10,
        processes=2,
        used_bytes=3 * GIB,
        peak_bytes=4 * GIB,
        busy_percent=7.5,
        busy_ns=1,
        energy_mj=1,
        watched_ns=1,
        findings=(),
        disturbed_count=0,
        accounted_bytes=0,
        oom_count=0,
        device_oom_count=0,
    )
    return job._replace(**more)  # type: ignore[arg-type]


def make_state(gpus: int = 2, jobs: int = 3, **more: object) -> AgentState:
    """Returns a state of this boot and of now: job 100 on GPU 0, 101 on GPU 1, ..., and two processes without slice."""
    many = tuple(make_job(100 + number, number % gpus, 5 + 4 * (number % 2)) for number in range(jobs))
    rows = [make_gpu(i, sum(job.used_bytes for job in many if job.gpu_minor == i) + GIB) for i in range(gpus)]
    if gpus > 3:
        rows[3] = rows[3]._replace(state=LOST, detail="GPU is lost")
    state = AgentState(
        boot_id=boot_id(),
        pid=1,
        time_unix_ns=time.time_ns(),
        boot_time_ns=agent_file.now_boot_ns(),
        period_ns=1_000_000_000,
        looks=9,
        gpus=tuple(rows),
        jobs=many,
        others=(OtherProcess(811, 0, 0, "GPU-0", GIB, 3.0), OtherProcess(912, 5, 4711, "GPU-1", GIB, 88.0)),
        events=(),
    )
    return state._replace(**more)  # type: ignore[arg-type]


def make_event(kind: str, job_id: int, action: str, text: str) -> Event:
    return Event(time.time_ns(), kind, job_id, "GPU-0", action, text)
