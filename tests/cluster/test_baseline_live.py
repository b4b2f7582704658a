# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc baseline` on the private cluster's simulated GPUs: record, check, a GPU that became slow, a GPU in use."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from harness import jobs, node
from harness.config import PYTHON, simulated_kernel
from harness.layout import Layout

from hami_hpc.core.baseline import FIGURES
from hami_hpc.node.baseline_file import NAME

USER = "games"


def baseline(layout: Layout, *words: str) -> tuple[int, Any, str]:
    """Runs the command as slurmd's HealthCheckProgram would be: as root, with little in the environment."""
    environment = jobs.user_environment(layout, "root") | {
        "HAMI_HPC_CONFIG": str(layout.site_config),
        "LD_PRELOAD": str(simulated_kernel(layout)),
    }
    command = (str(PYTHON.with_name("hami-hpc")), "baseline", *words, "--format", "json")
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, json.loads(done.stdout or "null"), done.stderr


def checked(layout: Layout, *words: str) -> tuple[int, Any, str]:
    """As baseline, but again where the machine that runs the tests was busy."""
    for _ in range(4):
        answer = baseline(layout, "check", *words)
        if answer[0] == 0:
            break
    return answer


@pytest.fixture
def slow(restored: Layout) -> Iterator[Layout]:
    """The cluster without a baseline, whose machine.conf is put back."""
    path, recorded = restored.machine / "machine.conf", restored.state_dir / NAME
    before = path.read_text()
    recorded.unlink(missing_ok=True)
    yield restored
    path.write_text(before)
    recorded.unlink(missing_ok=True)


def test_a_recorded_node_is_checked_until_it_becomes_slow(slow: Layout) -> None:
    status, answers, _ = baseline(slow, "check", "--quick")
    assert (status, [answer["figures"] for answer in answers]) == (3, [{}, {}])
    status, answers, errors = baseline(slow, "record")
    assert (status, errors) == (0, "")
    for answer in answers:
        figures = answer["figures"]
        assert sorted(figures) == sorted(figure.key for figure in FIGURES)
        assert 300 < figures["alone_per_s"] < 1010  # what a busy machine reaches, too
        assert figures["cap25_error"] < 15  # 75 without a limit
        assert figures["lesser_percent"] > 30
    assert checked(slow)[0] == 0
    assert checked(slow, "--quick")[0] == 0
    assert node.leftovers(slow) == []
    path = slow.machine / "machine.conf"
    path.write_text(path.read_text().replace("clock_mhz=1980", "clock_mhz=1300", 1))
    status, answers, errors = baseline(slow, "check", "--quick")
    assert status == 1
    assert "one tenant's rate: " in errors
    assert answers[0]["problem"]
    job = jobs.submit(slow, USER, "--gres=vgpu:mem=1G,cores=10", script="sleep 60")
    jobs.wait_for_state(slow, job, "RUNNING")
    status, answers, _ = checked(slow, "--quick")  # the other GPU is measured, and is as it was
    assert (status, answers[0]["skipped"]) == (0, f"job {job} holds a part of it")
    assert not (slow.run_dir / "baseline").exists()
