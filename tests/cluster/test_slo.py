# SPDX-License-Identifier: Apache-2.0
"""An slo from sbatch to the usage record: requests of a latency-critical job are measured, and late ones counted."""

from __future__ import annotations

import json
import shutil
from typing import Any

from harness import jobs
from harness.layout import CHECKOUT, Layout

USER = "games"
REQUEST = "--gres=vgpu:mem=1G,cores=50"


def record_of(layout: Layout, job: int) -> dict[str, Any]:
    path = layout.state_dir / "usage" / f"{job}.json"
    jobs.wait(layout, path.exists, f"the usage record of job {job}", 30)
    record: dict[str, Any] = json.loads(path.read_text())
    return record


def test_requests_are_measured_and_those_later_than_the_slo_counted(cluster: Layout) -> None:
    program = cluster.home / USER / "requests_take_time"
    shutil.copy(CHECKOUT / "build/native/compute/requests_take_time", program)
    script = f"srun {program} 10 20000 20000 early"
    slo, none = (
        jobs.submit(cluster, USER, f"--qos={qos}", REQUEST + text, script=script)
        for qos, text in (("lc", ",slo=10ms"), ("be", ""))
    )
    for job in (slo, none):
        jobs.wait_for_state(cluster, job, "COMPLETED")
    found = record_of(cluster, slo)
    assert found["slo_us"] == 10_000
    assert found["request_count"] == found["slo_miss_count"] == 10
    assert 20_000 <= found["latency_p50_us"] <= found["latency_p99_us"]
    other = record_of(cluster, none)
    assert (other["slo_us"], other["request_count"], other["latency_p99_us"]) == (0, 0, 0)
