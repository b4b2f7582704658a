# SPDX-License-Identifier: Apache-2.0
"""Errors of a GPU on real Slurm: one of the hardware drains that GPU alone, one of an application nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from harness import jobs, node
from harness.layout import CHECKOUT, Layout
from test_gpu_drain import gpu_of, hami, listed

USER = "games"
HOLD = "echo on; until [ -e go ]; do sleep 0.1; done"
XID_79 = "Xid 79: GPU has fallen off the bus"


@pytest.fixture
def cluster(restored: Layout) -> Iterator[Layout]:
    go = restored.home / USER / "go"
    go.unlink(missing_ok=True)
    yield restored
    jobs.admin(restored, "scancel", f"--user={USER}")
    go.unlink(missing_ok=True)
    for minor in ("0", "1"):
        hami(restored, "resume", minor)


def report_xid(layout: Layout, gpu: int, code: int) -> None:
    jobs.admin(layout, str(CHECKOUT / "build/native/sim/sim-state"), str(layout.machine), "--xid", str(gpu), str(code))


def events(layout: Layout, *words: str) -> list[dict[str, Any]]:
    text = jobs.admin(layout, "hami-hpc", "events", "--format", "json", "--since", "10m", *words)
    return [json.loads(line) for line in text.splitlines()]


def record(layout: Layout, job: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((layout.state_dir / "usage" / f"{job}.json").read_text())
    return found


def on_both_gpus(layout: Layout) -> tuple[int, int]:
    """Returns a running job on GPU 0, which fills it, and one on GPU 1."""
    first = jobs.submit(layout, USER, "--gres=vgpu:mem=100%,cores=50", script=HOLD)
    jobs.wait(layout, lambda: "on" in jobs.output(layout, USER, first), "the first job")
    second = jobs.submit(layout, USER, "--gres=vgpu:mem=8G,cores=5", script=HOLD)
    jobs.wait(layout, lambda: "on" in jobs.output(layout, USER, second), "the second job")
    return first, second


def test_an_xid_79_drains_its_gpu_alone_and_marks_its_job(cluster: Layout) -> None:
    first, second = on_both_gpus(cluster)
    report_xid(cluster, 1, 79)
    jobs.wait(cluster, lambda: not listed(cluster)[1]["in_service"], "GPU 1 to be drained")
    jobs.wait(cluster, lambda: listed(cluster)[1]["free_shards"] == 0, "GPU 1 to be filled")
    rows = listed(cluster)
    assert (rows[1]["reason"], rows[0]["in_service"]) == (XID_79, True)
    assert {jobs.state(cluster, job) for job in (first, second)} == {"RUNNING"}
    jobs.wait(cluster, lambda: XID_79 in jobs.output(cluster, USER, second), "the job to be told")
    shown = jobs.admin(cluster, "scontrol", "show", "job", str(second))
    assert f"AdminComment=hami_hpc: GPU 1 ({rows[1]['uuid']}) of this job reported an error: {XID_79}" in shown
    assert "Xid" not in jobs.output(cluster, USER, first)
    (cluster.home / USER / "go").touch()
    after = jobs.submit(cluster, USER, "--gres=vgpu:mem=8G,cores=5", script="true")
    for job in (first, second, after):
        jobs.wait_for_state(cluster, job, "COMPLETED")
    assert [record(cluster, job)["gpu_fault"] for job in (first, second, after)] == [0, 79, 0]
    assert gpu_of(cluster, after) == rows[0]["uuid"]
    assert not node.drain_reason(cluster)
    found = [(one["kind"], one["source"]) for one in events(cluster, "--kind", "gpu_fault", "--kind", "gpu_drain")]
    assert sorted(found[-2:]) == [("gpu_drain", "agent"), ("gpu_fault", "agent")]
    kinds = [one["kind"] for one in events(cluster, "--job", str(second))]
    assert kinds == ["grant", "grant_end"]
    assert [one["gpu_fault"] for one in events(cluster, "--job", str(second), "--kind", "grant_end")] == [79]


def test_an_xid_31_drains_nothing_and_frees_nobody(cluster: Layout) -> None:
    first, second = on_both_gpus(cluster)
    before = len(events(cluster, "--kind", "gpu_fault"))
    for gpu in (0, 1):
        report_xid(cluster, gpu, 31)
    jobs.wait(cluster, lambda: len(events(cluster, "--kind", "gpu_fault")) == before + 2, "both events")
    (cluster.home / USER / "go").touch()
    for job in (first, second):
        jobs.wait_for_state(cluster, job, "COMPLETED")
        assert record(cluster, job)["gpu_fault"] == 0
    assert all(row["in_service"] for row in listed(cluster).values())
