# SPDX-License-Identifier: Apache-2.0
"""What a process uses just before it ends is counted, so that many short ones keep a share together."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from conformance import BUILD, REAL_GPU, Slice, make_slice
from test_compute import machine, measured, run

from hami_hpc.contract import constants as c

__all__ = ["machine"]
pytestmark = pytest.mark.skipif(REAL_GPU, reason="these kernels exist on the simulation only")
SERVE = str(BUILD / "compute/requests_take_time")
SLOTS_AT = c.USAGE_SIZE + c.USAGE_STEP_SIZE * c.USAGE_STEP_COUNT


def busy_ms(made: Slice) -> float:
    """The GPU's time that is counted: of processes that have ended, and in the slots."""
    data = (made.directory / c.FILE_USAGE).read_bytes()
    head, width, _ = c.USAGE_FIELDS["gpu_busy_ns"]
    slot, _, _ = c.USAGE_SLOT_FIELDS["gpu_busy_ns"]
    places = [head, *(SLOTS_AT + i * c.USAGE_SLOT_SIZE + slot for i in range(c.USAGE_SLOT_COUNT))]
    return sum(int.from_bytes(data[at : at + width], "little") for at in places) / 1e6


def slice_of(tmp_path: Path, machine: tuple[Path, str], cores: int, policy: str) -> Slice:
    directory = tmp_path / str(len(list(tmp_path.iterdir())))
    return make_slice(directory, *machine, job_mib=8192, cores_percent=cores, policy=policy)


@pytest.mark.parametrize("policy", ["cap", "burst"])
@pytest.mark.parametrize("ms", [3, 30, 70])
def test_a_short_process_counts_whole(tmp_path: Path, machine: tuple[Path, str], ms: int, policy: str) -> None:
    def five() -> float:
        made = slice_of(tmp_path, machine, 100, policy)
        for _ in range(5):
            run(made, SERVE, 1, 1000 * ms, 0, "early")
        return busy_ms(made)

    measured(five, lambda found: 5 * (ms - 2) <= found <= 5 * (ms + 3))


@pytest.mark.quiet
def test_short_processes_keep_their_cap_together(tmp_path: Path, machine: tuple[Path, str]) -> None:
    """One after the other, each with 20 ms of work: each ends before it would be counted in its course."""

    def percent() -> float:
        made = slice_of(tmp_path, machine, 25, "cap")
        begun = time.monotonic()
        for _ in range(60):
            run(made, SERVE, 1, 20_000, 0, "early")
        return 60 * 20 / (time.monotonic() - begun) / 10

    measured(percent, lambda found: found <= 28)


@pytest.mark.parametrize("ms", [5, 30])
def test_the_making_of_a_context_is_no_use(tmp_path: Path, machine: tuple[Path, str], ms: int) -> None:
    """What libcuda does before it returns the context is its own; on an H200 that takes longer than many programs."""

    def five() -> float:
        made = slice_of(tmp_path, machine, 100, "cap")
        made.extra["HAMI_SIM_FAULTS"] = "sim_context_made=0:delay_us=60000"
        for _ in range(5):
            run(made, SERVE, 1, 1000 * ms, 0, "early")
        return busy_ms(made)

    measured(five, lambda found: 5 * (ms - 2) <= found <= 5 * (ms + 3))


def test_a_process_that_is_killed_soon_after_its_first_work_was_counted(
    tmp_path: Path, machine: tuple[Path, str]
) -> None:
    """It had a context, and nothing to do, for some time: what comes then is counted early too."""

    def counted() -> float:
        made = slice_of(tmp_path, machine, 100, "cap")
        made.extra["HAMI_SIM_FAULTS"] = "sim_context_made=0:delay_us=60000"
        for _ in range(5):
            with subprocess.Popen([SERVE, "1", "5000000", "0", "early"], env=made.environment()) as process:
                time.sleep(0.100)  # some 40 ms of work
                process.kill()
        return busy_ms(made)

    measured(counted, lambda found: found >= 75)


def test_a_killed_process_takes_little_with_it(tmp_path: Path, machine: tuple[Path, str]) -> None:
    def counted() -> float:
        made = slice_of(tmp_path, machine, 100, "cap")
        for _ in range(5):
            with subprocess.Popen([SERVE, "1", "5000000", "0", "early"], env=made.environment()) as process:
                time.sleep(0.045)  # it has worked for less than the time between two counts of one at its work
                process.kill()
        return busy_ms(made)

    measured(counted, lambda found: found >= 75)
