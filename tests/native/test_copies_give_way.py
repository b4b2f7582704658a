# SPDX-License-Identifier: Apache-2.0
"""Copies of a job beside a latency-critical one have short timeslices: a request's own copy does not wait for them."""

from __future__ import annotations

import time
from pathlib import Path

import arbitration as a
import pytest
from conformance import BUILD, REAL_GPU, put
from test_compute import machine, run, slice_of, start

from hami_hpc.contract import constants as c

__all__ = ["machine"]
pytestmark = pytest.mark.skipif(REAL_GPU, reason="on a real GPU: tests/gpu/bench_neighbours.py")
COPIES = str(BUILD / "compute/copies_have_timeslices")
Machine = tuple[Path, str]
DRIVERS, SHORT = "1000 1000", "50 50"


def test_only_a_job_that_gives_way_has_short_timeslices_of_copies() -> None:
    assert a.Terms(50, latency_others=1).copy_timeslice_us() == 50
    assert a.Terms(50).copy_timeslice_us() == 0
    assert a.Terms(50, latency=True, latency_others=1).copy_timeslice_us() == 0
    assert a.Terms(50, latency=True, latency_others=1, latency_above=1).copy_timeslice_us() == 0


def test_copies_keep_the_drivers_timeslices_beside_nobody_latency_critical(tmp_path: Path, machine: Machine) -> None:
    made = slice_of(tmp_path, machine, 50, "burst")
    assert run(made, COPIES, 600).stdout.splitlines() == [DRIVERS]


def test_copies_give_way_and_those_of_a_later_context_too(tmp_path: Path, machine: Machine) -> None:
    made = slice_of(tmp_path, machine, 50, "burst")
    for path in (made.limits, made.directory / c.FILE_JOB_LIMITS):
        path.write_bytes(put(path.read_bytes(), {"latency_others": 1}))
    result = run(made, COPIES, 1500)
    assert result.returncode == 0, result.stderr
    shown = result.stdout.splitlines()
    assert shown[-1] == SHORT
    # Those of the second context are the driver's own until the next look, and are set one after the other.
    assert set(shown) <= {SHORT, DRIVERS, "50 1000"}


def test_copies_have_the_drivers_timeslices_again_when_the_latency_critical_job_has_gone(
    tmp_path: Path, machine: Machine
) -> None:
    made = slice_of(tmp_path, machine, 50, "burst")
    record = made.directory / c.FILE_JOB_LIMITS

    def write(others: int) -> None:
        with record.open("r+b") as out:
            out.write(put(record.read_bytes(), {"latency_others": others}))

    process = start(made, COPIES, 2500)
    time.sleep(0.6)
    write(1)
    time.sleep(0.5)
    write(0)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert [line for line in out.splitlines() if line != "50 1000"] == [DRIVERS, SHORT, DRIVERS]


@pytest.mark.parametrize(("control", "shown"), [("rm_a06c0103", DRIVERS), ("rm_a06c0104", "")])
def test_a_driver_that_refuses_leaves_the_timeslices_of_copies(
    control: str, shown: str, tmp_path: Path, machine: Machine
) -> None:
    made = slice_of(tmp_path, machine, 50, "burst")
    for path in (made.limits, made.directory / c.FILE_JOB_LIMITS):
        path.write_bytes(put(path.read_bytes(), {"latency_others": 1}))
    result = run(made, COPIES, 600, faults=f"{control}=0x1b")
    assert result.returncode == 0, result.stderr
    assert result.stdout.split("\n", 1)[0] == shown
    assert result.stderr.count("refuses timeslices of copies") == 1
