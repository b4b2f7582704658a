# SPDX-License-Identifier: Apache-2.0
"""Processes of one job beside other jobs, on the simulation: those that have little to do take nothing from those that
have, and however many there are, the others keep their cores."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from conformance import BUILD, REAL_GPU, Slice, make_slice
from test_compute import SPIN, machine, measured, run, start

__all__ = ["machine"]
pytestmark = pytest.mark.skipif(REAL_GPU, reason="these kernels exist on the simulation only")
KIND = str(BUILD / "compute/work_of_a_kind")
CONTEXTS = str(BUILD / "compute/contexts_at_once")
Machine = tuple[Path, str]
MS = 3500
WORK = (SPIN, MS, 1000)


def jobs(tmp_path: Path, machine: Machine, *cores: int, policy: str = "burst") -> list[Slice]:
    """Jobs that know of one another."""
    made = []
    for i, percent in enumerate(cores):
        others = cores[:i] + cores[i + 1 :]
        fields = {"others_least_cores": min(others), "only_other_cores": others[0] if len(others) == 1 else 0}
        place = tmp_path / f"job{len(list(tmp_path.iterdir()))}"
        made.append(make_slice(place, *machine, job_mib=40_000, cores_percent=percent, policy=policy, fields=fields))
    return made


@contextmanager
def running(made: Slice, *command: object) -> Iterator[subprocess.Popen[str]]:
    process = start(made, *command)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def together(of: Slice, commands: Sequence[tuple[object, ...]], others: Sequence[Slice]) -> list[float]:
    """What each of the job's programs, and each of the other jobs, got, percent of the GPU."""
    with ExitStack() as stack:
        programs = [stack.enter_context(running(of, *command)) for command in commands]
        programs += [stack.enter_context(running(other, *WORK)) for other in others]
        return [sum(map(float, program.communicate(timeout=60)[0].split())) for program in programs]


def test_idle_processes_take_nothing_from_the_one_that_works(tmp_path: Path, machine: Machine) -> None:
    """Of a job of 25 it had 5.8 % beside seven idle ones, as each had an eighth of the job's timeslice."""
    first, *others = jobs(tmp_path, machine, 25, 25, 25, 25)
    with ExitStack() as stack:
        for _ in range(7):
            stack.enter_context(running(first, SPIN, 50, 1000, 60_000))
        time.sleep(1.5)
        measured(lambda: together(first, [WORK], others), lambda got: got[0] > 21)


def test_processes_with_little_to_do_take_little_from_the_one_that_works(tmp_path: Path, machine: Machine) -> None:
    """13 us each ms: it had 19 % of its 50, as they waited for the GPU nearly always."""
    first, other = jobs(tmp_path, machine, 50, 50)
    commands = [WORK, *[(KIND, "light", MS, 0)] * 3]
    measured(lambda: together(first, commands, [other]), lambda got: got[0] > 44)


def test_processes_that_begin_to_work_divide_the_drivers_timeslice(tmp_path: Path, machine: Machine) -> None:
    """Of a job without a policy. They counted for what they used before, and had two thirds of the GPU."""
    first, other = jobs(tmp_path, machine, 50, 50, policy="none")

    def others() -> float:
        with ExitStack() as stack:
            programs = [stack.enter_context(running(made, KIND, "later", 6000, 0)) for made in (first, first, other)]
            return float(programs[-1].communicate(timeout=60)[0])

    measured(others, lambda got: got > 19)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_was_killed_or_stopped_divides_nothing(
    how: signal.Signals, tmp_path: Path, machine: Machine
) -> None:
    """Its place in the record stays until another one needs it."""
    first, other = jobs(tmp_path, machine, 50, 50)
    with ExitStack() as stack:
        ended = [stack.enter_context(running(first, SPIN, 60_000, 1000)) for _ in range(3)]
        time.sleep(1)
        for process in ended:
            process.send_signal(how)
        time.sleep(1.5)
        measured(lambda: together(first, [WORK], [other]), lambda got: got[0] > 44)


@pytest.mark.parametrize(
    ("cores", "processes", "least"), [(10, 16, 86), (1, 16, 94), pytest.param(50, 16, 48, marks=pytest.mark.quiet)]
)
def test_many_processes_leave_the_others_their_cores(
    cores: int, processes: int, least: float, tmp_path: Path, machine: Machine
) -> None:
    """16 of a job of 10 left one of 90 with 83.8 %, of 1 one of 99 with 82, and of 50 one of 50 with 46.6."""
    first, other = jobs(tmp_path, machine, cores, 100 - cores)
    got = measured(lambda: together(first, [WORK] * processes, [other]), lambda got: got[-1] > least)
    assert sum(got[:-1]) > 0.6 * cores


def test_many_contexts_leave_the_others_their_cores(tmp_path: Path, machine: Machine) -> None:
    """16 of one process of a job of 10 left one of 90 with 83.7 %."""
    first, other = jobs(tmp_path, machine, 10, 90)
    got = measured(lambda: together(first, [(CONTEXTS, MS, 16, 0, "busy")], [other]), lambda got: got[-1] > 86)
    assert got[0] > 6


def test_all_processes_get_on(tmp_path: Path, machine: Machine) -> None:
    """Those that are open in turns."""
    first, other = jobs(tmp_path, machine, 10, 90)
    measured(
        lambda: together(first, [WORK] * 12, [other])[:-1],
        lambda got: min(got) > 0.3 * sum(got) / len(got) and max(got) < 3 * sum(got) / len(got),
    )


def test_processes_that_end_their_work_leave_the_time_to_the_rest(tmp_path: Path, machine: Machine) -> None:
    """Fifteen of sixteen are idle after half a second: what is left is a job of one process."""
    first, other = jobs(tmp_path, machine, 10, 90)
    with ExitStack() as stack:
        for _ in range(15):
            stack.enter_context(running(first, SPIN, 500, 1000, 60_000))
        time.sleep(4)
        measured(lambda: together(first, [WORK], [other]), lambda got: got[0] > 7.5 and got[1] > 86)


def test_without_others_all_are_open(tmp_path: Path, machine: Machine) -> None:
    place = tmp_path / "alone"
    alone = make_slice(place, *machine, job_mib=40_000, cores_percent=1, policy="burst")
    measured(lambda: together(alone, [WORK] * 4, []), lambda got: sum(got) > 80)
    assert "waits" not in run(alone, SPIN, 100, 1000).stderr
