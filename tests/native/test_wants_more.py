# SPDX-License-Identifier: Apache-2.0
"""Latency-critical jobs that want more than their cores, with what root tells them of it; on the simulation."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from beyond import Job, Root
from conformance import BUILD, REAL_GPU, make_slice
from test_compute import SPIN, machine, measured, start

from hami_hpc.contract import constants as c

__all__ = ["machine"]
pytestmark = pytest.mark.skipif(REAL_GPU, reason="on a real GPU: tests/gpu/latency_beyond.py")
SERVE = str(BUILD / "compute/requests_take_time")


def on_a_gpu(
    tmp_path: Path, machine: tuple[Path, str], *jobs: tuple[int, int], policy: str = "burst", mode: str = "share"
) -> Root:
    """Makes jobs of so many cores, latency-critical (1) or not, that root has told of each other. `policy` and `mode`:
    of those that are not."""
    place = tmp_path / f"gpu{len(list(tmp_path.iterdir()))}"
    made = []
    for number, (cores, latency) in enumerate(jobs, start=1):
        fields = {"latency": latency, "floor_percent": 5 * latency}
        slice = make_slice(
            place / str(number),
            *machine,
            job_mib=8192,
            cores_percent=cores,
            policy="burst" if latency else policy,
            mode="share" if latency else mode,
            fields=fields,
        )
        terms = ("burst", "share") if latency else (policy, mode)
        made.append(Job(number, cores, latency, slice, *terms))
    return Root(made)


def busy(job: Job, milliseconds: int, kernel_us: int = 1000) -> subprocess.Popen[str]:
    return start(job.made, SPIN, milliseconds, kernel_us)


def share(process: subprocess.Popen[str]) -> float:
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    return float(out)


def times_us(out: str) -> list[int]:
    """Returns how long the requests took that requests_take_time lists, sorted."""
    words = [line.split() for line in out.splitlines() if " " in line]
    return sorted((int(end) - int(begin)) // 1000 for begin, end in words)


def percentile(values: Sequence[int], percent: int) -> int:
    return values[len(values) * percent // 100]


def served(root: Root, seconds: int) -> tuple[int, list[float]]:
    """Returns the p90 of the first job's requests (0.5 ms each, 4 ms apart) when the others have worked for two
    seconds, us, and what those had of the GPU."""
    others = [busy(job, seconds * 1000) for job in root.jobs[1:]]
    time.sleep(2)
    command = [SERVE, str((seconds - 3) * 1000 // 5), "500", "4000", "list"]
    service = subprocess.run(
        command, env=root.jobs[0].made.environment(), capture_output=True, text=True, timeout=60, check=True
    )
    return percentile(times_us(service.stdout), 90), [share(one) for one in others]


def test_a_service_does_not_wait_for_one_that_wants_more(tmp_path: Path, machine: tuple[Path, str]) -> None:
    def both() -> tuple[int, int, list[float]]:
        root = on_a_gpu(tmp_path, machine, (20, 1), (40, 1), (40, 0))
        alone, _shares = served(root, 5)
        with root.agent():
            with_agent, shares = served(root, 6)
        assert root.changes == [(2, True)]
        return alone, with_agent, shares

    def is_right(found: tuple[int, int, list[float]]) -> bool:
        alone, with_agent, shares = found
        return with_agent < alone - 400 and with_agent < 1600 and min(shares) > 20

    measured(both, is_right)


@pytest.mark.parametrize(("policy", "mode"), [("burst", "share"), ("cap", "share"), ("none", "mps")])
def test_a_job_has_its_cores_beside_one_that_wants_more_than_its_own(
    tmp_path: Path, machine: tuple[Path, str], policy: str, mode: str
) -> None:
    """The only latency-critical job there would leave it the floor."""

    def found() -> tuple[float, float]:
        root = on_a_gpu(tmp_path, machine, (30, 1), (50, 0), policy=policy, mode=mode)
        with root.agent():
            greedy = busy(root.jobs[0], 10_500)
            before = share(busy(root.jobs[1], 2000))
            assert root.changes == [], "it has been so for less than three seconds"
            share(busy(root.jobs[1], 4500))
            after = share(busy(root.jobs[1], 2500))
            share(greedy)
        assert root.changes[0] == (1, True)
        return before, after

    measured(found, lambda shares: shares[0] < 15 and 45 < shares[1] < (53 if policy == "cap" else 70))


def test_a_job_that_wants_less_again_is_latency_critical_again(tmp_path: Path, machine: tuple[Path, str]) -> None:
    root = on_a_gpu(tmp_path, machine, (20, 1), (40, 1), (30, 0))
    with root.agent():
        batch = busy(root.jobs[2], 6500)
        share(busy(root.jobs[1], 2500))
        assert root.changes == [(2, True)]
        time.sleep(2.5)
        assert root.changes == [(2, True), (2, False)]
        command = [SERVE, "100", "500", "4000", "wait"]
        subprocess.run(command, env=root.jobs[1].made.environment(), timeout=60, check=True, capture_output=True)
        share(batch)
    assert root.changes == [(2, True), (2, False)], "it says no more that it wants more"


def test_what_root_says_is_kept_to_while_the_job_works(tmp_path: Path, machine: tuple[Path, str]) -> None:
    """It has its turn, is paused outside of it, and works as before when root says that it is latency-critical."""

    def slices() -> list[str]:
        root = on_a_gpu(tmp_path, machine, (20, 1), (40, 1), (40, 0))
        environment = root.jobs[1].made.environment() | {c.ENV_LOG: "2"}
        greedy = subprocess.Popen([SPIN, "3000", "1000"], env=environment, stderr=subprocess.PIPE, text=True)
        batch = busy(root.jobs[2], 3000)
        time.sleep(1)
        root.jobs[1].is_beyond = True
        root.tell()
        time.sleep(1)
        root.jobs[1].is_beyond = False
        root.tell()
        _out, errors = greedy.communicate(timeout=60)
        share(batch)
        return [line.split("timeslices of ")[1] for line in errors.splitlines() if "timeslices of" in line]

    measured(slices, lambda found: found == ["20000 us", "2000 us", "10 us", "2000 us"])


@pytest.mark.parametrize("latency", [0, 1])
def test_a_step_that_is_held_to_a_part_of_the_jobs_cores_wants_no_more_than_these(
    tmp_path: Path, machine: tuple[Path, str], latency: int
) -> None:
    """It has work all the time, and is paused; its job has 30 cores that nobody uses."""

    def said() -> int:
        fields = {"latency": latency, "floor_percent": 5 * latency}
        sizes = {"job_mib": 8192, "cores_percent": 40, "step_cores_percent": 10, "policy": "cap"}
        made = make_slice(tmp_path / "part", *machine, **sizes, fields=fields)  # type: ignore[arg-type]
        assert share(start(made, SPIN, 2500, 1000)) < 20
        return int(made.usage()["more_unix_ns"])

    measured(said, lambda found: found == 0)
