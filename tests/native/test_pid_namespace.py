# SPDX-License-Identifier: Apache-2.0
"""Programs in PID namespaces of their own, as containers have: the driver's records have numbers of the first one,
which no program there knows. On the simulation."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from conformance import REAL_GPU, Slice
from test_compute import SPIN, machine, measured, run, run_within, slice_of, start

__all__ = ["machine"]
IN_NAMESPACE = ("unshare", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc")
NO_IDS = "rm_a06f0113=0x56"  # as drivers before 555: not supported
Machine = tuple[Path, str]


def can_unshare() -> bool:
    return subprocess.run([*IN_NAMESPACE, "true"], capture_output=True, check=False).returncode == 0


pytestmark = [
    pytest.mark.skipif(REAL_GPU, reason="these kernels exist on the simulation only"),
    pytest.mark.skipif(not can_unshare(), reason="no PID namespace can be made here"),
]


def inside(*jobs: Slice, milliseconds: int) -> list[float]:
    """What jobs get each that run 1 ms kernels side by side, each in a PID namespace of its own."""
    running = [start(job, *IN_NAMESPACE, SPIN, milliseconds, 1000) for job in jobs]
    return [float(process.communicate()[0]) for process in running]


def test_a_cap_beside_one_that_wants_everything_has_its_share(tmp_path: Path, machine: Machine) -> None:
    """All time in which its channels were open counted as used, so it had 29 to 34 %."""
    jobs = [slice_of(tmp_path, machine, 50, policy, policy) for policy in ("cap", "burst")]
    measured(lambda: inside(*jobs, milliseconds=2000), lambda got: all(40 < share < 60 for share in got))


def test_each_of_two_ranks_in_one_namespace_knows_itself(tmp_path: Path, machine: Machine) -> None:
    """Two processes of one job, with a number each, beside another job with the same share."""
    ranks, alone = (slice_of(tmp_path, machine, 50, "burst", name) for name in ("ranks", "alone"))
    both = f"{SPIN} 3000 1000 & {SPIN} 3000 1000; wait"

    def measure() -> list[float]:
        running = [start(ranks, *IN_NAMESPACE, "sh", "-c", both), start(alone, SPIN, 3000, 1000)]
        return [sum(float(word) for word in process.communicate()[0].split()) for process in running]

    measured(measure, lambda got: 0.6 < got[0] / got[1] < 1.6)


def test_a_driver_that_does_not_tell_ids_of_channels_holds_the_cap(tmp_path: Path, machine: Machine) -> None:
    made = slice_of(tmp_path, machine, 30, "cap")
    result = run_within(20, 40, made, *IN_NAMESPACE, SPIN, 1500, 1000, faults=NO_IDS)
    assert "does not tell when this process was at work" in result.stderr
    assert "does not tell" not in run(made, *IN_NAMESPACE, SPIN, 100, 1000).stderr
    assert "does not tell" not in run(made, SPIN, 100, 1000, faults=NO_IDS).stderr, "it knows its number"
