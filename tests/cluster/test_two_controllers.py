# SPDX-License-Identifier: Apache-2.0
"""A second slurmctld takes over while jobs run and wait: what runs goes on, and slices start when the first is back."""

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


def log(layout: Layout) -> Path:
    return layout.log / f"{controllers.SECOND}.log"


@pytest.mark.slurm_before("23.02")  # others were not tried
def test_running_jobs_survive_a_takeover_and_slices_start_when_the_first_controller_is_back(restored: Layout) -> None:
    (restored.home / "games" / "go").unlink(missing_ok=True)
    log(restored).unlink(missing_ok=True)
    with controllers.two_controllers(restored) as layout:
        assert "gres/shard" not in findings(layout)
        running = jobs.submit(layout, "games", REQUEST, script=SCRIPT)
        jobs.wait_for_state(layout, running, "RUNNING")
        waiting = jobs.submit(layout, "news", "--hold", "--gres=vgpu:mem=100%,cores=100", script="slice")
        daemons.stop(layout, controllers.FIRST)  # it saves its state
        jobs.wait(layout, lambda: has_taken_over(layout), "the second controller to take over", 30)
        (layout.home / "games" / "go").touch()
        jobs.wait_for_state(layout, running, "COMPLETED")
        assert total_mib(jobs.output(layout, "games", running)) == [1024, 8192]
        node.wait_until_clean(layout)
        assert "has no shards in Slurm" in findings(layout)["gres/shard"]
        refused = jobs.run_as(layout, "games", ("sbatch", REQUEST, "--wrap", "true"))
        assert "Requested node configuration is not available" in refused.err

        controllers.start(layout, controllers.FIRST)
        # Until the node has registered, Slurm may start a job there without a GPU, which is refused.
        jobs.wait(layout, lambda: starts_a_slice(layout), "slices to start", 60)
        jobs.run_as(layout, "news", ("scontrol", "release", str(waiting)))
        jobs.wait_for_state(layout, waiting, "COMPLETED", timeout_s=90)
        assert "gres/shard" not in findings(layout)
