# SPDX-License-Identifier: Apache-2.0
"""The interposer notes when a job first made a context, first launched and was last at work; on the simulation."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from conformance import REAL_GPU, Slice, make_slice, put
from test_compute import SPIN, machine, run

from hami_hpc.contract import constants as c

__all__ = ["machine"]
pytestmark = pytest.mark.skipif(REAL_GPU, reason="these kernels exist on the simulation only")
TIMES = ("first_context_unix_ns", "first_launch_unix_ns", "last_use_unix_ns")
S = 1_000_000_000


def noted(made: Slice) -> list[int]:
    """The three times in the usage head: context, launch, last use."""
    data = (made.directory / c.FILE_USAGE).read_bytes()
    places = [c.USAGE_FIELDS[name][:2] for name in TIMES]
    return [int.from_bytes(data[at : at + size], "little") for at, size in places]


def with_mechanism(made: Slice, mechanism: str) -> Slice:
    record = put(made.limits.read_bytes(), {"mechanism": c.MECHANISMS[mechanism]})
    made.limits.write_bytes(record)
    return made


@pytest.mark.parametrize(
    ("policy", "cores", "mechanism"),
    [("cap", 50, "auto"), ("cap", 50, "gate"), ("burst", 50, "auto"), ("none", 100, "auto"), ("none", 50, "gate")],
)
def test_every_policy_notes_context_launch_and_last_use(
    tmp_path: Path, machine: tuple[Path, str], policy: str, cores: int, mechanism: str
) -> None:
    made = make_slice(tmp_path / "job", *machine, job_mib=8192, cores_percent=cores, policy=policy)
    before = time.time_ns()
    run(with_mechanism(made, mechanism), SPIN, 400, 1000)
    after = time.time_ns()
    context, launch, last = noted(made)
    assert before < context < launch <= last < after
    if policy != "none" or mechanism != "gate":  # a gate that is not needed lets launches pass unseen
        assert last - launch > 0.3 * S


def test_the_first_process_counts_and_the_last_use_is_the_latest(tmp_path: Path, machine: tuple[Path, str]) -> None:
    made = make_slice(tmp_path / "job", *machine, job_mib=8192, cores_percent=50)
    run(made, SPIN, 50, 1000)
    first = noted(made)
    between = time.time_ns()
    run(made, SPIN, 50, 1000)
    again = make_slice(tmp_path / "job", *machine, job_mib=8192, cores_percent=50, step_id=1)
    run(again, SPIN, 50, 1000)
    context, launch, last = noted(made)
    assert (context, launch) == tuple(first[:2])
    assert last > between > first[2]


def test_a_launch_after_a_long_pause_is_noted_though_it_is_short(tmp_path: Path, machine: tuple[Path, str]) -> None:
    """A kernel of 1 us, launched while the keeper rests: nothing is outstanding when it looks."""
    made = make_slice(tmp_path / "job", *machine, job_mib=8192, policy="burst")
    begun = time.time_ns()
    run(made, SPIN, 1, 1, 800)
    context, launch, last = noted(made)
    assert launch - context < 0.5 * S
    assert last - begun > 0.7 * S


def test_without_a_kernel_there_is_a_context_and_no_launch(tmp_path: Path, machine: tuple[Path, str]) -> None:
    made = make_slice(tmp_path / "job", *machine, job_mib=8192)
    assert made.run("memory_ends_at_the_limit").returncode == 0
    context, launch, _last = noted(made)
    assert context > 0
    assert launch == 0


def test_a_refused_process_notes_nothing(tmp_path: Path, machine: tuple[Path, str]) -> None:
    made = make_slice(tmp_path / "job", *machine, job_mib=8)  # less than a context takes
    environment = made.environment()
    done = subprocess.run([SPIN, "1", "1"], env=environment, capture_output=True, timeout=60, check=False)
    assert done.returncode != 0
    assert noted(made) == [0, 0, 0]
