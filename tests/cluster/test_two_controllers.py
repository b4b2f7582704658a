# SPDX-License-Identifier: Apache-2.0
"""A second slurmctld takes over while jobs run: they go on, and slices start beside them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harness import config, controllers, daemons, jobs, mounting, node
from harness.layout import Layout
from test_requests import total_mib

REQUEST = "--gres=vgpu:mem=8G,cores=20"
SCRIPT = "until [ -e go ]; do sleep 0.2; done; srun --overlap --gres=vgpu:mem=1G,cores=5 slice; slice"
pytestmark = pytest.mark.skipif(not mounting.can_mount(), reason="nothing can be mounted here")


def findings(layout: Layout) -> dict[str, str]:
    """What doctor fails on, by its subject."""
    text = jobs.admin(layout, "hami-hpc", "doctor", "--node", config.NODE, "--format", "json", allowed=(0, 3))
    return {found["what"]: found["detail"] for found in json.loads(text) if found["level"] == "FAIL"}


def has_taken_over(layout: Layout) -> bool:
    return "Running as primary controller" in log(layout).read_text()


def starts_a_slice(layout: Layout) -> bool:
    return total_mib(jobs.run_as(layout, "games", ("srun", REQUEST, "slice")).out) == [8192]


def waits(layout: Layout, job: int) -> bool:
    """Returns whether a job is not started for some seconds; one that fits starts within a second or two."""
    return not daemons.wait_until(lambda: jobs.job_facts(layout, job)["JobState"] != "PENDING", 8)


def log(layout: Layout) -> Path:
    return layout.log / f"{controllers.SECOND}.log"


def test_jobs_run_and_slices_start_when_a_second_controller_takes_over(restored: Layout) -> None:
    """A job that waited starts as well: the second controller counts what is free, and what is not."""
    (restored.home / "games" / "go").unlink(missing_ok=True)
    log(restored).unlink(missing_ok=True)
    with controllers.two_controllers(restored) as layout:
        whole = jobs.submit(layout, "games", "--gres=vgpu:mem=100%,cores=100", script="sleep 600")
        jobs.wait_for_state(layout, whole, "RUNNING")
        running = jobs.submit(layout, "games", REQUEST, script=SCRIPT)
        jobs.wait_for_state(layout, running, "RUNNING")
        daemons.stop(layout, controllers.FIRST)  # it saves its state
        jobs.wait(layout, lambda: has_taken_over(layout), "the second controller to take over", 30)
        jobs.wait(layout, lambda: starts_a_slice(layout), "slices to start", 60)
        waiting = jobs.submit(layout, "news", "--gres=vgpu:mem=100%,cores=100", script="slice")
        assert waits(layout, waiting)
        (layout.home / "games" / "go").touch()
        jobs.wait_for_state(layout, running, "COMPLETED")
        assert total_mib(jobs.output(layout, "games", running)) == [1024, 8192]
        jobs.wait_for_state(layout, waiting, "COMPLETED", timeout_s=90)
        assert "gres/shard" not in findings(layout)

        controllers.start(layout, controllers.FIRST)
        jobs.wait(layout, lambda: starts_a_slice(layout), "slices to start", 60)
        assert jobs.job_facts(layout, whole)["JobState"] == "RUNNING"
        jobs.run_as(layout, "games", ("scancel", str(whole)))
        node.wait_until_clean(layout)
