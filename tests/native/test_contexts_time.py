# SPDX-License-Identifier: Apache-2.0
"""Busy contexts of one process divide its time beside a latency-critical job: one at a time is open, so that the GPU
does not change between them all the time; on the simulation, where each context takes its own turns."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from conformance import BUILD, REAL_GPU, Slice, make_slice, put
from test_changes_wait import SERVE, Busy
from test_compute import SPIN, machine, measured, run, shares, slice_of, start

from hami_hpc.contract import constants as c

__all__ = ["machine"]
pytestmark = pytest.mark.skipif(REAL_GPU, reason="these kernels exist on the simulation only")
CONTEXTS = str(BUILD / "compute/contexts_at_once")
Machine = tuple[Path, str]
MIB = 40_000  # a context takes 512


def best_effort(tmp_path: Path, machine: Machine, **fields: int) -> Slice:
    """A job beside a latency-critical one."""
    place = tmp_path / f"job{len(list(tmp_path.iterdir()))}"
    fields = {"latency_others": 1} | fields
    return make_slice(place, *machine, job_mib=MIB, cores_percent=30, policy="burst", fields=fields)


def each(made: Slice, busy: int, idle: int, how: str, ms: int = 2000, faults: str = "") -> list[float]:
    """What each busy context got, percent of the GPU."""
    return shares(run(made, CONTEXTS, ms, busy, idle, how, faults=faults))


def fair(most: float, least: float, got: list[float]) -> bool:
    """Whether they have so much together, and each at least so much of an equal part."""
    return sum(got) > most and min(got) > least * sum(got) / len(got)


@pytest.mark.parametrize("busy", [2, 4, 16])
def test_contexts_get_as_much_done_as_one_beside_an_idle_latency_critical_job(
    busy: int, tmp_path: Path, machine: Machine
) -> None:
    """Together they had 4.8 % of the GPU."""
    made = best_effort(tmp_path, machine)
    measured(lambda: each(made, busy, 0, "busy"), lambda got: fair(80, 0.7, got))


def request_p50_us(tmp_path: Path, machine: Machine, made: Slice, contexts: int) -> float:
    busy = start(made, CONTEXTS, 2500, contexts, 0, "busy")
    time.sleep(0.7)
    place = tmp_path / f"job{len(list(tmp_path.iterdir()))}"
    fields = {"latency": 1, "floor_percent": 5}
    urgent = make_slice(place, *machine, job_mib=8192, cores_percent=30, policy="burst", fields=fields)
    words = [SERVE, "150", "300", "4000", "list"]
    served = subprocess.run(words, env=urgent.environment(), capture_output=True, text=True, timeout=60, check=True)
    busy.communicate(timeout=60)
    assert busy.returncode == 0
    took = sorted(int(end) - int(begin) for begin, end in (x.split() for x in served.stdout.splitlines() if " " in x))
    return took[len(took) // 2] / 1000


def test_a_request_waits_for_one_of_sixteen_contexts(tmp_path: Path, machine: Machine) -> None:
    """It waited for each of them in turn: 2985 us instead of 529 beside one."""
    made = best_effort(tmp_path, machine)
    measured(
        lambda: [request_p50_us(tmp_path, machine, made, contexts) for contexts in (1, 16)],
        lambda took: took[1] < 1.3 * took[0],
    )


def test_idle_contexts_have_no_part(tmp_path: Path, machine: Machine) -> None:
    made = best_effort(tmp_path, machine)
    measured(lambda: each(made, 2, 4, "busy"), lambda got: fair(85, 0.8, got))


def test_contexts_that_work_one_after_the_other_wait_for_no_part(tmp_path: Path, machine: Machine) -> None:
    made = best_effort(tmp_path, machine)
    measured(lambda: each(made, 3, 0, "turns"), lambda got: sum(got) > 75)


def test_contexts_that_wait_for_one_another_go_on(tmp_path: Path, machine: Machine) -> None:
    made = best_effort(tmp_path, machine)
    measured(lambda: each(made, 4, 0, "waits"), lambda got: sum(got) > 25 and min(got) > 2)


def test_contexts_that_come_and_go_leave_the_others_their_parts(tmp_path: Path, machine: Machine) -> None:
    """Two of three have their two thirds, whatever the third is: also while it is being destroyed, which waits for its
    work."""
    made = best_effort(tmp_path, machine)
    measured(lambda: each(made, 2, 0, "short"), lambda got: fair(45, 0.7, got))


@pytest.mark.parametrize("how", ["late", "leaves"])
def test_a_context_has_a_part_while_it_has_work(how: str, tmp_path: Path, machine: Machine) -> None:
    """One of two, in half of the time: a quarter."""
    made = best_effort(tmp_path, machine)
    measured(lambda: each(made, 2, 0, how), lambda got: sum(got) > 85 and 15 < got[1] < 35)


def test_contexts_keep_to_their_jobs_turn(tmp_path: Path, machine: Machine) -> None:
    """Two tenants with equal turns: one of four contexts, one of a single one."""

    def both() -> tuple[float, float]:
        first, second = (
            best_effort(tmp_path, machine, turn_begin_permille=begin, turn_length_permille=200) for begin in (0, 200)
        )
        several, single = start(first, CONTEXTS, 2500, 4, 0, "busy"), Busy(second, 2500)
        got = sum(float(word) for word in several.communicate(timeout=60)[0].split())
        return got, single.share()

    measured(both, lambda got: 0.7 < got[0] / got[1] < 1.3 and got[1] > 14)


def test_a_process_of_several_contexts_has_the_part_of_one_process(tmp_path: Path, machine: Machine) -> None:
    def both() -> tuple[float, float]:
        made = best_effort(tmp_path, machine)
        several, single = start(made, CONTEXTS, 2500, 4, 0, "busy"), Busy(made, 2500)
        got = sum(float(word) for word in several.communicate(timeout=60)[0].split())
        return got, single.share()

    measured(both, lambda got: sum(got) > 75 and 0.7 < got[0] / got[1] < 1.4)


def test_forked_children_leave_the_contexts_their_parts(tmp_path: Path, machine: Machine) -> None:
    made = best_effort(tmp_path, machine)
    measured(lambda: each(made, 2, 0, "forks"), lambda got: fair(75, 0.7, got))


@pytest.mark.parametrize("after", [0, 1, 2, 5])
def test_where_the_driver_refuses_to_pause_no_context_stays_paused(
    after: int, tmp_path: Path, machine: Machine
) -> None:
    """From some change on: a pause, or an opening after one."""
    made = best_effort(tmp_path, machine)
    result = run(made, CONTEXTS, 500, 3, 0, "busy", faults=f"rm_2080110b=0x1b:after={after}:times=3")
    assert len(shares(result)) == 3


def test_the_contexts_are_open_again_when_the_latency_critical_job_has_gone(tmp_path: Path, machine: Machine) -> None:
    def both() -> list[float]:
        made = best_effort(tmp_path, machine)
        busy = start(made, CONTEXTS, 3000, 4, 0, "busy")
        for others in (0, 1, 0):
            time.sleep(0.7)
            record = made.directory / c.FILE_JOB_LIMITS
            written = put(record.read_bytes(), {"latency_others": others})
            with record.open("r+b") as file:
                file.write(written)
        return [float(word) for word in busy.communicate(timeout=60)[0].split()]

    measured(both, lambda got: fair(75, 0.6, got))


@pytest.mark.parametrize("fields", [{}, {"latency_others": 1}])
def test_a_cap_holds_for_several_contexts(fields: dict[str, int], tmp_path: Path, machine: Machine) -> None:
    place = tmp_path / "capped"
    made = make_slice(place, *machine, job_mib=MIB, cores_percent=30, policy="cap", fields=fields)
    measured(lambda: each(made, 4, 0, "busy"), lambda got: 20 < sum(got) < 36)


def test_without_a_latency_critical_job_contexts_take_turns_as_the_gpu_gives_them(
    tmp_path: Path, machine: Machine
) -> None:
    result = run(slice_of(tmp_path, machine, 100, "burst"), CONTEXTS, 500, 2, 0, "busy", log="2")
    assert "wait for their part" not in result.stderr


@pytest.mark.parametrize(("contexts", "mechanism"), [(4, "auto"), (16, "auto"), (4, "slice")])
def test_many_contexts_have_no_more_of_the_gpu_than_one(
    contexts: int, mechanism: str, tmp_path: Path, machine: Machine
) -> None:
    """Beside a neighbour with the same share: each context had the whole timeslice, so 4 had 80 %, 16 had 94 %."""
    terms = [{"others_least_cores": 50, "turn_begin_permille": at, "turn_length_permille": 500} for at in (0, 500)]
    jobs = [
        make_slice(tmp_path / f"job{n}", *machine, job_mib=MIB, cores_percent=50, policy="burst", fields=terms[n])
        for n in (0, 1)
    ]
    for made in jobs:
        for path in (made.limits, made.directory / c.FILE_JOB_LIMITS):
            path.write_bytes(put(path.read_bytes(), {"mechanism": c.MECHANISMS[mechanism]}))

    def neighbour() -> float:
        many = start(jobs[0], CONTEXTS, 4000, contexts, 0, "busy")
        time.sleep(1)
        share = shares(run(jobs[1], SPIN, 2000, 1000))[0]
        out, err = many.communicate(timeout=60)
        assert many.returncode == 0, err + out
        return share

    measured(neighbour, lambda share: 40 <= share <= 60)
