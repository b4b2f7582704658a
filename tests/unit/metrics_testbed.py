# SPDX-License-Identifier: Apache-2.0
"""States of an agent for the tests of metrics, and a reader of Prometheus's text format."""

from __future__ import annotations

import time
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from hami_hpc.core.agent_state import AgentState, Event, GpuState, JobState, OtherProcess
from hami_hpc.node import agent_file, boot

GIB = 1 << 30
SECOND = 10**9
CREATED_NS = 1_790_000_000 * SECOND
STARTED_NS = 1_789_999_000 * SECOND
TOML = 'version = 1\n[paths]\nrun_dir = "{run}"\n[gpu_models.h200]\ntotal_mib = 143156\n'


def make_gpu(number: int = 0) -> GpuState:
    uuid = f"GPU-00000000-0000-0000-0000-{number:012d}"
    return GpuState(uuid, number, "h200", "ok", "", 140 * GIB, 100 * GIB, 75.0, 450_500, 12_345_678, 61)


def make_job(job_id: int = 7, gpu: int = 0, finding: tuple[str, ...] = ()) -> JobState:
    return JobState(
        job_id=job_id,
        uid=1000 + job_id,
        created_unix_ns=CREATED_NS,
        service_class="std",
        policy="cap",
        mode="share",
        gpu_uuid=make_gpu(gpu).uuid,
        gpu_minor=gpu,
        mem_bytes=8 * GIB,
        cores_percent=50,
        processes=2,
        used_bytes=6 * GIB,
        peak_bytes=7 * GIB,
        busy_percent=25.0,
        busy_ns=90 * SECOND,
        energy_mj=40_500,
        watched_ns=300 * SECOND,
        off_gpu_ns=75 * SECOND,
        findings=finding,
        disturbed_count=3,
        accounted_bytes=5 * GIB,
        oom_count=4,
        device_oom_count=1,
        pause_count=6,
        paused_ns=1_500_000_000,
    )


def make_state(gpus: int = 1, jobs: int = 1) -> AgentState:
    """Returns a state of this boot, looked at now, with `jobs` jobs on each GPU."""
    return AgentState(
        boot_id=boot.boot_id(),
        pid=4711,
        time_unix_ns=time.time_ns(),
        boot_time_ns=agent_file.now_boot_ns(),
        period_ns=SECOND,
        looks=1000,
        gpus=tuple(make_gpu(number) for number in range(gpus)),
        jobs=tuple(make_job(7 + gpu * jobs + job, gpu) for gpu in range(gpus) for job in range(jobs)),
        others=(
            OtherProcess(100, 0, 0, make_gpu().uuid, 512 << 20, 1.0),
            OtherProcess(101, 5, 99, make_gpu().uuid, GIB, 2.0),
            OtherProcess(102, 5, 99, make_gpu().uuid, GIB, 3.0),
        ),
        events=(
            Event(CREATED_NS, "started", 0, "", "", "the agent has started"),
            Event(CREATED_NS + SECOND, "memory", 7, make_gpu().uuid, "logged", "too much"),
            Event(CREATED_NS + 5 * SECOND, "memory", 7, make_gpu().uuid, "logged", "too much"),
        ),
        started_unix_ns=STARTED_NS,
        event_counts=(("memory_over", 2), ("no_job", 0), ("no_grant", 0), ("started", 1)),
    )


class AgentNode:
    """A node's settings and run directory below `root`, with the agent's folder."""

    def __init__(self, root: Path) -> None:
        self.run_dir, self.config = str(root / "run"), root / "hami-hpc.toml"
        self.state_file = Path(agent_file.folder(self.run_dir)) / agent_file.NAME
        self.state_file.parent.mkdir(parents=True)
        self.config.write_text(TOML.format(run=self.run_dir))

    def write(self, state: AgentState) -> None:
        agent_file.write(self.run_dir, state)


Labels = frozenset[tuple[str, str]]


def parse(text: bytes) -> dict[str, dict[Labels, float]]:
    """Returns {sample name: {labels: value}}. Fails for a sample that is there twice."""
    found: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            rows = found.setdefault(sample.name, {})
            labels = frozenset(sample.labels.items())
            assert labels not in rows, f"{sample.name}{sample.labels} is there twice"
            rows[labels] = sample.value
    return found


def value(samples: dict[str, dict[Labels, float]], name: str, **labels: str) -> float | None:
    """Returns the value of the one sample that has these labels among its own; None where none has."""
    rows = [number for key, number in samples.get(name, {}).items() if labels.items() <= dict(key).items()]
    assert len(rows) <= 1, f"{name}{labels}: {len(rows)} samples"
    return rows[0] if rows else None
