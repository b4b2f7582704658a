# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc swap` on real Slurm: a best-effort job's memory leaves the GPU and comes back under its running program."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest
from harness import agent, jobs
from harness.layout import CHECKOUT, Layout
from test_resize_live import USER, end, running
from test_views import hami

from hami_hpc.core.agent_state import JobState
from hami_hpc.node import agent_file, boot

BE = ("--qos=be", "--gres=vgpu:mem=8G,cores=50")


@pytest.fixture
def moving(restored: Layout) -> Iterator[Layout]:
    """The cluster, with best-effort jobs that may be moved."""
    before = restored.site_config.read_text()
    restored.site_config.write_text(before.replace("[classes.be]\n", "[classes.be]\nswap = true\n"))
    yield restored
    restored.site_config.write_text(before)


def used_mib(layout: Layout) -> int:
    """What all processes hold of the simulated GPUs."""
    state = CHECKOUT / "build/native/sim/sim-state"
    out = subprocess.run([state, layout.machine], check=True, capture_output=True, text=True).stdout
    return sum(int(gpu["used_bytes"]) for gpu in json.loads(out)["gpus"]) >> 20


def agent_sees(layout: Layout, job: int, is_so: Callable[[JobState], bool]) -> bool:
    """Returns whether the agent saw the job, and that of it, at its last look."""
    state = agent_file.read(str(layout.run_dir), boot.boot_id())
    return state is not None and any(one.job_id == job and is_so(one) for one in state.jobs)


def allocated(layout: Layout, job: int) -> None:
    jobs.wait(layout, lambda: "ok" in jobs.output(layout, USER, job), "the allocation")


def test_a_job_leaves_the_gpu_and_comes_back(moving: Layout) -> None:
    job = running(moving, "rm -f go\nslice --use 1000 --until go", *BE)
    allocated(moving, job)
    held = used_mib(moving)
    done = hami(moving, "root", "swap", "out", str(job))
    assert done.status == 0, done.text
    assert done.out.startswith(f"job {job}: 112"), done.out  # its 1000 MiB, and 128 of stacks
    assert done.out.endswith(f" MiB stay on the GPU; they wait until hami-hpc swap in {job}\n")
    assert used_mib(moving) <= held - 1000
    left_s = time.monotonic()
    jobs.wait(moving, lambda: agent_sees(moving, job, lambda one: one.place == "host"), "the agent")
    time.sleep(2)
    done = hami(moving, "root", "usage", str(job))
    assert "  off the GPU for 00:00:0" in done.out, done.text
    done = hami(moving, "root", "swap", "in", str(job))
    assert done.status == 0, done.text
    assert done.out == f"job {job}: the memory of 1 process is on the GPU\n"
    away_s = time.monotonic() - left_s
    assert used_mib(moving) == held
    jobs.wait(moving, lambda: agent_sees(moving, job, lambda one: one.place == "gpu"), "the agent")
    (moving.home / USER / "go").touch()
    end(moving, job)
    off_s = json.loads((moving.state_dir / f"usage/{job}.json").read_text())["off_gpu_ns"] / 1e9
    assert 1.5 <= off_s <= away_s + 1.5, f"the agent looks each second, and the memory was away for {away_s:.1f} s"
    kinds = [event.kind for event in agent.events_since(moving, 0)]
    assert kinds == [] or "swap" not in kinds, "no finding"


def test_others_are_told_why_they_stay(moving: Layout) -> None:
    std = running(moving, "rm -f go\nslice --use 500 --until go", "--gres=vgpu:mem=2G,cores=10")
    allocated(moving, std)
    for words, said in (
        (
            ("root", "out", std),
            f"job {std} cannot be moved: its class std did not allow it when the job began",
        ),
        (("root", "out", 4_000_000), "job 4000000 has no vGPU on this node"),
        ((USER, "out", std), "only root can move a job's memory: run this as root on the job's node"),
    ):
        user, direction, job = words
        done = hami(moving, str(user), "swap", str(direction), str(job))
        assert done.status == 1, done.text
        assert said in done.err, done.text
    (moving.home / USER / "go").touch()
    end(moving, std)


def test_a_job_whose_memory_is_away_can_be_cancelled(moving: Layout) -> None:
    job = running(moving, "slice --use 1000 --hold 600", *BE)
    allocated(moving, job)
    assert hami(moving, "root", "swap", "out", str(job)).status == 0
    jobs.admin(moving, "scancel", str(job))
    jobs.wait_for_state(moving, job, "CANCELLED")
    assert used_mib(moving) == 0
    record = json.loads((moving.state_dir / f"usage/{job}.json").read_text())
    assert record["usage"] == "ok"
