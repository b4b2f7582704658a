# SPDX-License-Identifier: Apache-2.0
"""The time of several GPUs in one process: each slice has its own cap, timeslices, gate and counts. On the simulated
driver and kernel; bounds are wide, and what misses them is measured again (test_compute.measured)."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from conformance import REAL_GPU, compiled
from several_slices import Job, Machine, make_job, make_machine
from test_compute import measured

from hami_hpc.contract import constants as c
from hami_hpc.core.delays import parse_delays, quantile_us

pytestmark = pytest.mark.skipif(REAL_GPU, reason="these kernels exist on the simulation only")
PAUSE = "rm_2080110b"  # the control that pauses


@pytest.fixture
def two(tmp_path: Path) -> Machine:
    return make_machine(tmp_path / "machine", 2)


def shares(result: subprocess.CompletedProcess[str]) -> list[float]:
    assert result.returncode == 0, result.stderr
    return [float(word) for word in result.stdout.split()]


def busy_ms(job: Job, index: int) -> float:
    data = job.path("usage", index).read_bytes()
    head, width, _ = c.USAGE_FIELDS["gpu_busy_ns"]
    slot, _, _ = c.USAGE_SLOT_FIELDS["gpu_busy_ns"]
    first = c.USAGE_SIZE + c.USAGE_STEP_SIZE * c.USAGE_STEP_COUNT
    places = [head, *(first + i * c.USAGE_SLOT_SIZE + slot for i in range(c.USAGE_SLOT_COUNT))]
    return sum(int.from_bytes(data[at : at + width], "little") for at in places) / 1e6


def test_each_gpu_has_its_own_cap(tmp_path: Path, two: Machine) -> None:
    job = make_job(tmp_path, two, [0, 1], cores=(25, 60))
    measured(
        lambda: shares(job.run("spin_on_each", 1500, 1000, 300)),
        lambda got: 17 < got[0] < 33 and 48 < got[1] < 70,
    )


def test_devices_in_another_order_keep_their_caps(tmp_path: Path, two: Machine) -> None:
    job = make_job(tmp_path, two, [0, 1], cores=(25, 60))
    measured(
        lambda: shares(job.run("spin_on_each", 1500, 300, 1000, visible=[1, 0])),
        lambda got: 48 < got[0] < 70 and 17 < got[1] < 33,
    )


def test_one_gpu_at_work_is_not_held_back_by_the_other(tmp_path: Path, two: Machine) -> None:
    job = make_job(tmp_path, two, [0, 1], cores=(10, 100))
    measured(
        lambda: shares(job.run("spin_on_each", 1000, 1000, 1000)),
        lambda got: got[0] < 20 and got[1] > 85,
    )


@pytest.mark.parametrize("works", [0, 1])
def test_what_each_gpu_did_is_counted_there(works: int, tmp_path: Path, two: Machine) -> None:
    rests = 1 - works

    def counted() -> list[float]:
        job = make_job(tmp_path / str(len(list(tmp_path.iterdir()))), two, [0, 1], policy="burst")
        got = shares(job.run("spin_on_each", 1000, *[1000 * (index == works) for index in range(2)]))
        assert got[works] > 50
        times = [job.usage(index)["first_launch_unix_ns"] for index in (works, rests)]
        return [busy_ms(job, works), busy_ms(job, rests), job.usage(works)["last_use_unix_ns"], *times]

    got = measured(counted, lambda found: found[0] > 700 and found[1] < 60)
    assert got[2] >= got[3] > 0
    assert got[4] == 0  # a context, and nothing launched


def test_a_process_on_the_second_gpu_alone_keeps_its_cap(tmp_path: Path, two: Machine) -> None:
    job = make_job(tmp_path, two, [0, 1], cores=30)
    measured(lambda: shares(job.run("spin_on_each", 1500, 1000, visible=[1])), lambda got: 20 < got[0] < 40)
    assert job.usage(0)["time_used"] == job.usage(0)["processes"] == 0
    assert job.usage(1)["time_used"] > 0


def test_processes_on_different_gpus_share_no_budget(tmp_path: Path, two: Machine) -> None:
    job = make_job(tmp_path, two, [0, 1], cores=50)

    def both() -> list[float]:
        running = [job.start("spin_on_each", 1500, 1000, visible=[gpu]) for gpu in range(2)]
        return [float(process.communicate(timeout=60)[0]) for process in running]

    measured(both, lambda got: all(38 < share < 62 for share in got))


def test_beside_another_job_on_one_gpu_the_timeslices_there_share(tmp_path: Path, two: Machine) -> None:
    job = make_job(tmp_path / "wide", two, [0, 1], cores=25, policy="burst")
    other = make_job(tmp_path / "other", two, [1], cores=75, policy="burst")

    def beside() -> list[float]:
        running = [job.start("spin_on_each", 2500, 1000, 1000), other.start("spin_on_each", 2500, 1000)]
        return [float(word) for process in running for word in process.communicate(timeout=60)[0].split()]

    measured(beside, lambda got: got[0] > 85 and 1.8 < got[2] / got[1] < 4.5)


@pytest.mark.parametrize("refuses", [0, 1])
def test_where_one_gpu_refuses_to_pause_that_one_is_gated(refuses: int, tmp_path: Path, two: Machine) -> None:
    job = make_job(tmp_path, two, [0, 1], cores=30)
    result = measured(
        lambda: job.run("spin_on_each", 1500, 1000, 1000, HAMI_SIM_FAULTS=f"{PAUSE}=0x1b:gpu={refuses}"),
        lambda found: all(15 < share < 45 for share in shares(found)),
    )
    assert result.stderr.count("\n") == 1
    assert f"refuses to pause channels on {two.uuids[refuses]} " in result.stderr
    assert "launches are gated instead" in result.stderr


def test_without_switch_events_of_one_gpu_both_caps_hold(tmp_path: Path, two: Machine) -> None:
    job = make_job(tmp_path, two, [0, 1], cores=30)
    measured(
        lambda: shares(job.run("spin_on_each", 1500, 1000, 1000, HAMI_SIM_FAULTS="rm_20801238=0x1b:gpu=1")),
        lambda got: all(18 < share < 42 for share in got),
    )


NO_THREAD = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument)
{
	size_t bytes = 0;
	if (getenv("LATER") && attributes && !pthread_attr_getstacksize(attributes, &bytes) && bytes >> 20 == 1)
		return EAGAIN;
	int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = dlsym(RTLD_NEXT, "pthread_create");
	return real(thread, attributes, run, argument);
}
"""


def test_without_a_thread_for_the_second_gpu_that_one_is_gated(tmp_path: Path, two: Machine) -> None:
    job = make_job(tmp_path, two, [0, 1], cores=30)
    library = compiled(NO_THREAD, tmp_path / "libnothread.so")
    preload = f"{job.environment()['LD_PRELOAD']} {library}"
    result = measured(
        lambda: job.run("the_second_gpu_later", 1200, 1000, LD_PRELOAD=preload),
        lambda found: all(15 < share < 45 for share in shares(found)),
    )
    assert result.stderr.count("launches are gated instead") == 1
    assert f"no thread to keep the share of the GPU's time on {two.uuids[1]} " in result.stderr


def test_the_second_gpu_may_come_later(tmp_path: Path, two: Machine) -> None:
    job = make_job(tmp_path, two, [0, 1], cores=(60, 25))
    measured(
        lambda: shares(job.run("the_second_gpu_later", 1200, 1000)),
        lambda got: 17 < got[0] < 33 and 48 < got[1] < 75,
    )


@pytest.mark.parametrize("marked", [False, True])
def test_a_request_of_both_gpus_is_counted_once(marked: bool, tmp_path: Path, two: Machine) -> None:
    """It ends when the slower GPU is done, whichever that is."""

    def served(first_us: int, second_us: int) -> tuple[int, float, int]:
        directory = tmp_path / str(len(list(tmp_path.iterdir())))
        job = make_job(directory, two, [0, 1], policy="burst")
        for index in range(2):
            job.change(index, {"latency": 1, "floor_percent": 5, "slo_us": 10_000})
        result = job.run("requests_of_both_gpus", 30, first_us, second_us, *(["hints"] if marked else []))
        assert result.returncode == 0, result.stderr
        delays = [parse_delays(job.path("usage", index).read_bytes()) for index in range(2)]
        return delays[0].request_count, quantile_us(delays[0].buckets, 50), delays[1].request_count

    for first_us, second_us in ((400, 3000), (3000, 400)):
        measured(
            partial(served, first_us, second_us),
            lambda found: found[0] == 30 and 3000 <= found[1] <= 6000 and found[2] == 0,
        )


LATE = """
import ctypes, os, sys, time
os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
cuda = ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_LOCAL)
assert cuda.cuInit(0) == 0
limits = [int(word) << 20 for word in os.environ["LIMITS_MIB"].split(",")]
for device, limit in enumerate(limits):
    context, total, left, address = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_uint64()
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    assert cuda.cuMemGetInfo_v2(ctypes.byref(left), ctypes.byref(total)) == 0
    assert total.value == limit, (total.value, limit)
    assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(limit)) == 2
time.sleep(0.3)
"""


def test_libcuda_may_be_opened_late(tmp_path: Path, two: Machine) -> None:
    job = make_job(tmp_path, two, [0, 1], limits_mib=(4096, 2048))
    for visible in ([0, 1], [1, 0]):
        result = job.run(sys.executable, "-I", "-c", LATE, visible=visible)
        assert result.returncode == 0, result.stderr


def test_an_exit_counts_both_gpus(tmp_path: Path, two: Machine) -> None:
    """70 ms on each, by a process that ends at once."""

    def counted() -> list[float]:
        job = make_job(tmp_path / str(len(list(tmp_path.iterdir()))), two, [0, 1], policy="burst")
        shares(job.run("spin_on_each", 70, 1000, 1000))
        return [busy_ms(job, 0), busy_ms(job, 1)]

    measured(counted, lambda found: all(60 < ms < 90 for ms in found))


def test_sixteen_gpus_at_once_keep_their_caps(tmp_path: Path) -> None:
    machine = make_machine(tmp_path / "machine", 16)
    job = make_job(tmp_path, machine, range(16), cores=20)
    measured(
        lambda: shares(job.run("spin_on_each", 2000, *[5000] * 16)),
        lambda got: all(8 < share < 32 for share in got),
    )
