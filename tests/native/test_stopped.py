# SPDX-License-Identifier: Apache-2.0
"""A process that is stopped (SIGSTOP) at any moment holds up no other job, and its own job's processes not for long.

At any moment: with the lock of the usage record, in the middle of a look at the budget, paused, or open.
"""

from __future__ import annotations

import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from conformance import BUILD, REAL_GPU
from test_compute import machine, measured, slice_of, start

__all__ = ["machine"]  # the fixture
pytestmark = pytest.mark.skipif(REAL_GPU, reason="these kernels exist on the simulation only")
WORKS = str(BUILD / "compute/allocates_and_works")
Machine = tuple[Path, str]
PATIENCE_MS = 10_000  # HAMI_LOCK_PATIENCE_MS
SHUT_MS_MOST = 500  # HAMI_SHUT_NS_MOST
STOP_MS_MOST = 60
# A round takes so long on a busy machine, whatever is stopped: the other job's timeslice, and the tests beside.
SLACK_MS = 500


def ended(process: subprocess.Popen[str], seconds: float) -> float:
    """Returns the longest round of a program that ends well, ms."""
    out, err = process.communicate(timeout=seconds)
    assert process.returncode == 0, err
    return float(out.split()[0])


def is_free(simulated: Path) -> bool:
    """Whether nobody holds the lock of the simulated GPUs, which sim-state takes. A real process never stops within a
    call of the kernel's driver; one on the simulation can, and holds up all others then."""
    try:
        subprocess.run([str(BUILD / "sim/sim-state"), str(simulated)], check=True, capture_output=True, timeout=3)
    except subprocess.TimeoutExpired:
        return False
    return True


def test_stops_at_many_moments_hold_nobody_up(tmp_path: Path, machine: Machine) -> None:
    """Longest rounds: of a process of the same job, and of another job."""
    job, other = slice_of(tmp_path, machine, 40, "cap"), slice_of(tmp_path, machine, 50, "cap", "other")
    moments = random.Random(1)

    def longest() -> tuple[float, float]:
        victim, sibling, neighbour = (start(made, WORKS, 3000) for made in (job, job, other))
        end = time.monotonic() + 2.5
        while time.monotonic() < end:
            time.sleep(moments.uniform(0, 0.02))
            victim.send_signal(signal.SIGSTOP)
            time.sleep(moments.uniform(0, STOP_MS_MOST / 1000))
            victim.send_signal(signal.SIGCONT)
        ended(victim, 30)
        return ended(sibling, 30), ended(neighbour, 30)

    measured(
        longest,
        lambda rounds: rounds[0] < SHUT_MS_MOST + STOP_MS_MOST + SLACK_MS and rounds[1] < SLACK_MS,
    )


@pytest.mark.parametrize("seed", range(6))
def test_a_process_that_is_stopped_for_ever_holds_nobody_up(seed: int, tmp_path: Path, machine: Machine) -> None:
    moments, names = random.Random(seed), iter("abcdefghij")
    while not stopped_for_ever(tmp_path / next(names), machine, 0.5 + moments.uniform(0, 0.1)):
        pass


def stopped_for_ever(folder: Path, machine: Machine, seconds: float) -> bool:
    """Stops a process after that time. Returns whether that was outside of the simulated driver."""
    job, other = slice_of(folder, machine, 40, "cap"), slice_of(folder, machine, 50, "cap", "other")
    victim, sibling, neighbour = running = [start(made, WORKS, 1500) for made in (job, job, other)]
    try:
        time.sleep(seconds)
        victim.send_signal(signal.SIGSTOP)
        if not is_free(machine[0]):
            return False
        assert ended(neighbour, 60) < SLACK_MS or BUILD.name != "native"
        # Its own job's: for as long as the lock of the record is waited for, should it have stopped with that.
        assert ended(sibling, 150) < PATIENCE_MS + SHUT_MS_MOST + SLACK_MS or BUILD.name != "native"
        return True
    finally:
        for process in running:
            process.kill()
            process.communicate()
