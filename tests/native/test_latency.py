# SPDX-License-Identifier: Apache-2.0
"""How long requests take: as the interposer measures it, and as programs say it; on the simulated driver and kernel.

Bounds are wide, and what misses them is measured again (test_compute.measured).
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from conformance import BUILD, REAL_GPU, ROOT, Slice, compiled, make_slice, sanitizer
from test_compute import machine, measured, run, start

from hami_hpc.contract import constants as c
from hami_hpc.core.delays import BOUNDS_NS, Delays, parse_delays, quantile_us

__all__ = ["machine"]
pytestmark = pytest.mark.skipif(REAL_GPU, reason="these kernels exist on the simulation only")
SERVE = str(BUILD / "compute/requests_take_time")
HINTS = str(BUILD / "compute/hints_mark_requests")
LC = {"latency": 1, "floor_percent": 5, "slo_us": 10_000}


def slice_of(tmp_path: Path, machine: tuple[Path, str] | None, **fields: int) -> Slice:
    directory = tmp_path / str(len(list(tmp_path.iterdir())))
    place = machine or (None, "GPU-0")
    return make_slice(directory, *place, job_mib=8192, policy="burst", fields=LC | fields)


def delays_of(made: Slice) -> Delays:
    return parse_delays((made.directory / c.FILE_USAGE).read_bytes())


def served(tmp_path: Path, machine: tuple[Path, str], *how: object, faults: str = "", **fields: int) -> Delays:
    made = slice_of(tmp_path, machine, **fields)
    run(made, SERVE, *how, faults=faults)
    return delays_of(made)


@pytest.mark.parametrize("how", ["wait", "poll", "leave"])
@pytest.mark.parametrize(("us", "gap_us"), [(400, 4000), (5000, 5000)])
def test_a_request_lasts_from_its_first_launch_until_nothing_is_outstanding(
    tmp_path: Path, machine: tuple[Path, str], how: str, us: int, gap_us: int
) -> None:
    delays = measured(
        lambda: served(tmp_path, machine, 40, us, gap_us, how),
        lambda found: found.request_count == 40 and us <= quantile_us(found.buckets, 50) <= 1.6 * us,
    )
    if BUILD.name == "native":
        assert 40 * us * 1000 * 0.99 <= delays.latency_sum_ns


def test_requests_that_follow_one_another_at_once_are_told_apart_where_the_host_waits(
    tmp_path: Path, machine: tuple[Path, str]
) -> None:
    measured(
        lambda: served(tmp_path, machine, 60, 500, 0, "wait", floor_percent=0),
        lambda found: found.request_count == 60 and quantile_us(found.buckets, 50) <= 1024,
    )


LATE_THREADS = """
#include <pthread.h>
#include <unistd.h>
int pthread_setname_np(pthread_t thread, const char *name)
{
	(void)thread;
	return name ? usleep(5000) : 0;
}
"""


def test_a_request_before_the_measuring_thread_runs_counts(tmp_path: Path, machine: tuple[Path, str]) -> None:
    tool = compiled(LATE_THREADS, tmp_path / "liblate.so")

    def beside_late_threads() -> Delays:
        made = slice_of(tmp_path, machine, floor_percent=0)
        environment = made.environment()
        environment["LD_PRELOAD"] += f" {tool}"
        subprocess.run([SERVE, "3", "10000", "20000", "early"], env=environment, check=True, timeout=60)
        return delays_of(made)

    measured(beside_late_threads, lambda found: found.request_count == 3)


def test_requests_longer_than_the_slo_are_misses(tmp_path: Path, machine: tuple[Path, str]) -> None:
    measured(
        lambda: served(tmp_path, machine, 10, 15_000, 1000, "wait", floor_percent=0),
        lambda found: found.slo_miss_count == found.request_count == 10,
    )
    assert served(tmp_path, machine, 10, 15_000, 1000, "wait", slo_us=0).slo_miss_count == 0


def test_only_latency_critical_jobs_are_measured(tmp_path: Path, machine: tuple[Path, str]) -> None:
    assert served(tmp_path, machine, 10, 1000, 100, "wait", latency=0).buckets == ()


@pytest.mark.parametrize("fault", ["cuEventCreate=2:after=1", "cuCtxRecordEvent=999"])
def test_nothing_is_measured_where_the_driver_cannot_tell(
    tmp_path: Path, machine: tuple[Path, str], fault: str
) -> None:
    for _ in range(5):
        try:
            assert served(tmp_path, machine, 20, 1000, 1000, "wait", faults=fault).buckets == ()
        except AssertionError as error:
            if "cuEventCreate(&done" not in str(
                error
            ):  # the keeper's event came first, and the program's had the fault
                raise
        else:
            return
    pytest.fail("the program's own event never came before the keeper's")


def test_a_capture_spoils_no_more_than_the_request_it_is_in(tmp_path: Path, machine: tuple[Path, str]) -> None:
    measured(
        lambda: served(tmp_path, machine, 20, 1000, 2000, "capture"),
        lambda found: 18 <= found.request_count <= 20 and quantile_us(found.buckets, 99) <= 2048,
    )


def test_pauses_and_hits_of_the_floor_are_counted(tmp_path: Path, machine: tuple[Path, str]) -> None:
    made = slice_of(tmp_path, machine, floor_percent=50)
    run(made, BUILD / "compute/spin_for", 1000, 1000)
    found = delays_of(made)
    assert found.floor_hit_count > 0
    assert found.pause_count > 0
    assert found.paused_ns > 0
    capped = make_slice(tmp_path / "cap", *machine, job_mib=8192, cores_percent=30)
    run(capped, BUILD / "compute/spin_for", 500, 1000)
    assert (delays_of(capped).floor_hit_count, delays_of(capped).pause_count > 0) == (0, True)


@pytest.mark.parametrize("us", [300, 900, 3000])
def test_the_floor_holds_beside_requests_that_leave_no_time_to_be_on_the_gpu(
    us: int, tmp_path: Path, machine: tuple[Path, str]
) -> None:
    """Between two of them others come to the engine and have to leave it at once, which costs more than they have."""

    def beside() -> tuple[float, int]:
        urgent = slice_of(tmp_path, machine, floor_percent=20, others_least_cores=50)
        other = slice_of(tmp_path, machine, latency=0, floor_percent=0, latency_others=1, others_least_cores=50)
        spins = start(other, BUILD / "compute/spin_for", 2000, 1000)
        serves = start(urgent, SERVE, 100_000, us, 0, "wait")
        percent = float(spins.communicate(timeout=60)[0])
        serves.kill()
        serves.communicate()
        return percent, delays_of(urgent).floor_hit_count

    measured(beside, lambda found: found[0] > 18 and found[1] > 0)


def test_two_latency_critical_jobs_leave_the_floor_together(tmp_path: Path, machine: tuple[Path, str]) -> None:
    """What one of them leaves the other would take."""

    def beside() -> float:
        more = {"floor_percent": 20, "latency_others": 1, "turn_length_permille": 800, "cores_percent": 40}
        urgent = [slice_of(tmp_path, machine, others_least_cores=20, **more) for _ in range(2)]
        other = slice_of(tmp_path, machine, latency=0, floor_percent=0, latency_others=2, others_least_cores=40)
        serves = [start(job, SERVE, 100_000, 900, 0, "wait") for job in urgent]
        spins = start(other, BUILD / "compute/spin_for", 3000, 1000)
        percent = float(spins.communicate(timeout=60)[0])
        for process in serves:
            process.kill()
            process.communicate()
        return percent

    measured(beside, lambda percent: 17 < percent < 40)


def test_a_forked_child_and_its_parent_are_both_measured(tmp_path: Path, machine: tuple[Path, str]) -> None:
    made = slice_of(tmp_path, machine)
    run(made, BUILD / "compute/forks_beside_the_keeper")
    assert delays_of(made).request_count > 20


def test_captures_beside_the_measurement_are_never_spoilt(tmp_path: Path, machine: tuple[Path, str]) -> None:
    made = slice_of(tmp_path, machine)
    run(made, BUILD / "compute/captures_are_never_spoilt")


# ------------------------------------------------------------------------------------------- hints


def test_each_thread_marks_requests_of_its_own_with_deadlines(tmp_path: Path, machine: tuple[Path, str]) -> None:
    made = slice_of(tmp_path, machine, latency=0)
    run(made, HINTS, 8, 10)
    found = delays_of(made)
    assert found.request_count == 8 * 10 + 1
    assert 8 * 5 <= found.slo_miss_count <= 8 * 10, "2 ms are more than 1 ms, and less than 1 s"
    assert quantile_us(found.buckets, 50) >= 2000


def test_without_the_interposer_hints_say_so_and_do_nothing(tmp_path: Path, machine: tuple[Path, str]) -> None:
    made = slice_of(tmp_path, machine)
    result = made.run(HINTS, "2", "3", preload=False)
    assert result.returncode == 0, result.stderr
    assert delays_of(made).buckets == ()


def test_who_gives_hints_is_not_measured_besides(tmp_path: Path, machine: tuple[Path, str]) -> None:
    made = slice_of(tmp_path, machine)
    run(made, BUILD / "compute/hinted_requests", 20, 1000)
    found = delays_of(made)
    assert found.request_count in (20, 21), "one at most was measured before the first hint"


@pytest.mark.skipif(bool(sanitizer()), reason="Python is not built with sanitizers")
def test_python_gives_hints(tmp_path: Path) -> None:
    program = """
from hami_hpc.hints import request, soon, is_active
assert is_active()
for _ in range(5):
    with request(deadline_ms=1000):
        soon()
    with request():
        pass
try:
    with request(deadline_ms=0.001):
        raise KeyError("passes")
except KeyError:
    pass
"""
    made = slice_of(tmp_path, None)
    result = subprocess.run(
        [sys.executable, "-c", program], env=made.environment() | {"PYTHONPATH": str(ROOT)}, capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    found = delays_of(made)
    assert (found.request_count, found.slo_miss_count) == (11, 1)


def test_the_bounds_are_those_of_the_interposer(tmp_path: Path) -> None:
    """As tests/native/unit/requests_are_counted_in_rows.c says them."""
    assert BOUNDS_NS[:4] == (64_000, 90_509, 128_000, 181_019)
    assert (len(BOUNDS_NS), BOUNDS_NS[40]) == (41, 64_000 << 20)
    made = slice_of(tmp_path, None)
    done = subprocess.run([BUILD / "unit/requests_are_counted_in_rows", made.limits], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_of_two_latency_critical_jobs_the_one_beyond_its_share_has_short_timeslices(
    tmp_path: Path, machine: tuple[Path, str]
) -> None:
    """Both have 30 cores; the other one asks for 1 ms in each 20."""

    def timeslices() -> tuple[list[int], list[int]]:
        jobs = [slice_of(tmp_path, machine, latency_others=1, cores_percent=30) for _ in range(2)]
        for job in jobs:
            job.extra[c.ENV_LOG] = "2"
        running = [start(jobs[0], SERVE, 2000, 1000, 0, "poll"), start(jobs[1], SERVE, 150, 1000, 19_000, "wait")]
        said = [process.communicate(timeout=60)[1] for process in running]
        assert [process.returncode for process in running] == [0, 0], said
        found = [[int(us) for us in re.findall(r"timeslices of (\d+) us", text)] for text in said]
        return found[0], found[1]

    measured(timeslices, lambda found: found[0][:2] == [20_000, 1500] and set(found[1]) == {20_000})
