# SPDX-License-Identifier: Apache-2.0
"""hami_hpc/agent/gpm.py: bytes over PCIe on GPUs with performance monitoring, whatever NVML answers."""

from __future__ import annotations

import ctypes
import json
import math
import subprocess
import sys
from pathlib import Path

import pynvml
import pytest
import sim_testbed
from gpm_testbed import ALLOC, FREE, FUNCTIONS, GET, METRICS, QUERY, FakeGpm
from nvml_testbed import MIB, Bench

from hami_hpc.agent import gpm as module
from hami_hpc.agent.traffic import ALL_LINKS

TX, RX = pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES
LINK_TX = pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX
INT, LONG = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench = Bench(monkeypatch, "GPU-a")
    bench.nvml.gpus[0].compute = [(7, MIB)]
    bench.nvml.gpus[0].counters = {(TX, 0): (INT, 0), (RX, 0): (INT, 0)}
    return bench


@pytest.fixture
def gpm(bench: Bench) -> FakeGpm:
    return FakeGpm(bench)


def moved(bench: Bench, sent: int = 0, received: int = 0, seconds: float = 1, gpm: FakeGpm | None = None) -> int:
    """What a look shows of the first GPU; it moves so much, and its counters of 32 bits too, until the next one."""
    gpu = bench.nvml.gpus[0]
    look = bench.gpus.look()[0]
    if gpm:
        gpm.move(gpu, sent, received)
        gpu.counters |= {(TX, 0): (INT, gpm.sent[gpu.uuid] % 2**32), (RX, 0): (INT, gpm.received[gpu.uuid] % 2**32)}
    bench.wait(seconds)
    return look.pcie_bytes


def test_structures_and_numbers_are_pynvmls() -> None:
    assert module._SUPPORT.size == ctypes.sizeof(pynvml.c_nvmlGpmSupport_t)
    assert module._METRIC.size == ctypes.sizeof(pynvml.c_nvmlGpmMetric_t)
    assert module._HEAD.size == pynvml.c_nvmlGpmMetricsGet_t.metrics.offset
    assert module.ROWS >= pynvml.NVML_GPM_METRIC_MAX
    metrics = (pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC, pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC)
    assert metrics == module.METRICS
    assert {module.VERSION} == {pynvml.NVML_GPM_SUPPORT_VERSION, pynvml.NVML_GPM_METRICS_GET_VERSION}


def test_both_directions_count_at_a_speed_at_which_the_counters_wrap(bench: Bench, gpm: FakeGpm) -> None:
    """312,320 MiB in 6 s, as seen on an H200, where the counters gave 5,664,181,104."""
    bench.nvml.gpus[0].counters[LINK_TX, ALL_LINKS] = (LONG, 5)
    counts = [moved(bench, 30_000 * MIB, 312_320 * MIB // 6 - 30_000 * MIB, gpm=gpm) for _ in range(7)]
    assert counts[0] == 0
    assert 312_320 * MIB - 12 <= counts[6] <= 312_320 * MIB
    assert not {TX, RX} & set(bench.nvml.asked_fields)
    assert bench.nvml.asked_fields.count(LINK_TX) == 7
    assert gpm.count(QUERY) == 1


def test_a_gpu_without_processes_is_not_asked(bench: Bench, gpm: FakeGpm) -> None:
    gpu = bench.nvml.gpus[0]
    gpu.compute, gpu.graphics = [], []
    for _ in range(3):
        moved(bench, MIB, MIB, gpm=gpm)
    assert (gpm.count(GET), gpm.count(ALLOC)) == (0, 0)
    gpu.compute = [(7, MIB)]
    assert moved(bench, 5 * MIB, gpm=gpm) == 0  # what was moved before is nobody's
    gpu.compute = []
    assert moved(bench, 100 * MIB, gpm=gpm) == 5 * MIB
    assert gpm.count(GET) == 2
    assert [moved(bench, 100 * MIB, gpm=gpm) for _ in range(3)] == [5 * MIB] * 3
    assert gpm.count(GET) == 2
    gpu.graphics = [(8, MIB)]
    assert moved(bench, 7 * MIB, gpm=gpm) == 5 * MIB
    assert moved(bench) == 12 * MIB


@pytest.mark.parametrize("rate", [math.nan, math.inf, -math.inf, -1.0, 1e300, 250e9 / MIB + 1])
def test_a_rate_that_no_bus_has_adds_nothing(bench: Bench, gpm: FakeGpm, rate: float) -> None:
    moved(bench)
    gpm.rates = [(0, rate), (0, 3.0)]
    assert moved(bench) == 3 * MIB
    gpm.rates.reverse()
    assert moved(bench) == 6 * MIB
    gpm.rates = [(0, 250e9 / MIB), (0, 0.5)]
    assert moved(bench) == 6 * MIB + MIB // 2 + 250 * 10**9


def test_counters_that_began_anew_add_nothing_for_that_time(bench: Bench, gpm: FakeGpm) -> None:
    moved(bench, 100 * MIB, gpm=gpm)
    moved(bench)
    gpm.sent["GPU-a"] = 0
    assert moved(bench, 3 * MIB, gpm=gpm) == 100 * MIB
    assert moved(bench) == 103 * MIB


def test_a_gpu_that_was_lost_in_between_counts_from_its_return_on(bench: Bench, gpm: FakeGpm) -> None:
    gpu = bench.nvml.gpus[0]
    moved(bench, 100 * MIB, gpm=gpm)
    moved(bench, MIB, gpm=gpm)
    gpu.errors["nvmlDeviceGetMemoryInfo"] = pynvml.NVML_ERROR_GPU_IS_LOST
    bench.gpus.look()
    bench.wait(1)
    del gpu.errors["nvmlDeviceGetMemoryInfo"]
    gpm.move(gpu, 50 * MIB)
    assert moved(bench, 2 * MIB, gpm=gpm) == 100 * MIB
    assert moved(bench) == 102 * MIB


@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.099])
def test_looks_that_follow_too_soon_are_counted_by_a_later_one(bench: Bench, gpm: FakeGpm, seconds: float) -> None:
    moved(bench, MIB, seconds=seconds, gpm=gpm)
    assert moved(bench, MIB, seconds=0.1, gpm=gpm) == 0
    assert gpm.count(GET) == 1
    assert 2 * MIB - 2 <= moved(bench) <= 2 * MIB


@pytest.mark.parametrize(("seconds", "counted"), [(30, 64 * MIB), (30.1, 0)])
def test_after_a_long_pause_rates_say_nothing(bench: Bench, gpm: FakeGpm, seconds: float, counted: int) -> None:
    moved(bench, 64 * MIB, seconds=seconds, gpm=gpm)
    assert counted - 1 <= moved(bench, MIB, gpm=gpm) <= counted
    assert counted + MIB - 1 <= moved(bench) <= counted + MIB


@pytest.mark.parametrize("name", FUNCTIONS[:2] + FUNCTIONS[3:])
def test_a_driver_without_a_function_counts_by_its_counters(bench: Bench, gpm: FakeGpm, name: str) -> None:
    delattr(bench.nvml.nvmlLib, name)
    for _ in range(4):
        moved(bench, 1000, gpm=gpm)
    assert 2000 <= moved(bench) <= 4000  # without the looks that found it missing
    assert gpm.count(QUERY) == (name != QUERY)


def test_a_gpu_without_it_counts_by_its_counters(bench: Bench, gpm: FakeGpm) -> None:
    gpm.unsupported.add("GPU-a")
    assert [moved(bench, 1000, 10, gpm=gpm) for _ in range(4)] == [0, 1010, 2020, 3030]
    assert [gpm.count(name) for name in FUNCTIONS] == [1, 0, 0, 0, 0]


@pytest.mark.parametrize("name", [QUERY, ALLOC, GET, METRICS])
@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION])
def test_a_refusal_is_final_and_the_counters_take_over(bench: Bench, gpm: FakeGpm, name: str, code: int) -> None:
    bench.nvml.errors[name] = code
    for _ in range(6):
        moved(bench, 1000, gpm=gpm)
    assert 4000 <= moved(bench) <= 6000
    assert gpm.count(name) == 1


@pytest.mark.parametrize("index", [0, 1])
def test_a_metric_that_the_gpu_lacks_is_left_to_the_counters(bench: Bench, gpm: FakeGpm, index: int) -> None:
    moved(bench, MIB, gpm=gpm)
    assert moved(bench, MIB, gpm=gpm) == MIB
    gpm.rates = [(0, 0.0), (0, 0.0)]
    gpm.rates[index] = (pynvml.NVML_ERROR_NOT_SUPPORTED, 77.0)
    assert moved(bench, 5, gpm=gpm) == MIB
    assert moved(bench) == MIB + 5
    assert gpm.count(GET) == 3


def test_bytes_are_not_counted_twice_when_the_source_changes(bench: Bench, gpm: FakeGpm) -> None:
    """From the counters to GPM, which the driver told of late, and back."""
    bench.nvml.errors[QUERY] = pynvml.NVML_ERROR_UNKNOWN
    assert [moved(bench, 100, gpm=gpm) for _ in range(4)] == [0, 100, 200, 300]
    del bench.nvml.errors[QUERY]
    before = moved(bench, 7 * MIB, gpm=gpm)
    assert before == 300  # the counters are not read any more
    assert moved(bench, 7 * MIB, gpm=gpm) == before + 7 * MIB
    bench.nvml.errors[GET] = pynvml.NVML_ERROR_NOT_SUPPORTED
    assert moved(bench, 40, gpm=gpm) == before + 7 * MIB
    assert moved(bench) == before + 7 * MIB + 40


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_INVALID_ARGUMENT])
def test_a_sample_that_fails_for_a_moment_is_made_up_for(bench: Bench, gpm: FakeGpm, code: int) -> None:
    moved(bench, MIB, gpm=gpm)
    bench.nvml.errors[GET] = code
    assert [moved(bench, MIB, gpm=gpm) for _ in range(2)] == [0] * 2
    del bench.nvml.errors[GET]
    assert moved(bench) == 3 * MIB
    assert len(gpm.held) == 2


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_INVALID_ARGUMENT])
@pytest.mark.parametrize("name", [ALLOC, GET, METRICS])
def test_while_it_fails_time_and_again_the_counters_are_read(bench: Bench, gpm: FakeGpm, name: str, code: int) -> None:
    """And none of the bytes is counted by both when rates come again. In the second i 1000 x 4^i bytes are moved."""
    if name != ALLOC:
        assert [moved(bench, MIB, gpm=gpm) for _ in range(2)] == [0, MIB]
    bench.nvml.errors[name] = code
    first, *counts = [moved(bench, 1000 * 4**second, gpm=gpm) for second in range(6)]
    assert [count - first for count in counts] == [0, 0, 16_000, 80_000, 336_000]
    del bench.nvml.errors[name]
    for second in range(6, 9):
        moved(bench, 1000 * 4**second, gpm=gpm)
    last = moved(bench, 9 * MIB, gpm=gpm)
    seconds = round((last - first) / 1000)
    assert {seconds // 4**second % 4 for second in range(9)} <= {0, 1}
    assert seconds // 4**8 == 1
    assert abs(moved(bench, gpm=gpm) - last - 9 * MIB) <= 1
    asked = bench.nvml.asked_fields.count(TX)
    moved(bench)
    assert bench.nvml.asked_fields.count(TX) == asked


def test_a_failure_now_and_then_does_not_end_it(bench: Bench, gpm: FakeGpm) -> None:
    for _ in range(10):
        moved(bench, MIB, gpm=gpm)
        bench.nvml.errors[GET] = pynvml.NVML_ERROR_UNKNOWN
        moved(bench, MIB, gpm=gpm)
        moved(bench, MIB, gpm=gpm)
        del bench.nvml.errors[GET]
    assert moved(bench) == 30 * MIB
    assert TX not in bench.nvml.asked_fields


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_INVALID_ARGUMENT])
def test_samples_that_cannot_be_compared_cost_their_time_alone(bench: Bench, gpm: FakeGpm, code: int) -> None:
    moved(bench, MIB, gpm=gpm)
    bench.nvml.errors[METRICS] = code
    assert moved(bench, 2 * MIB, gpm=gpm) == 0
    del bench.nvml.errors[METRICS]
    assert moved(bench) == 2 * MIB


def test_without_room_for_a_sample_nothing_is_counted_until_there_is(bench: Bench, gpm: FakeGpm) -> None:
    bench.nvml.errors[ALLOC] = pynvml.NVML_ERROR_MEMORY
    assert [moved(bench, MIB, gpm=gpm) for _ in range(2)] == [0] * 2
    del bench.nvml.errors[ALLOC]
    assert [moved(bench, MIB, gpm=gpm) for _ in range(2)] == [0, MIB]
    assert len(gpm.held) == 2


def test_a_sample_without_an_address_is_not_used(bench: Bench, gpm: FakeGpm) -> None:
    bench.nvml.nvmlLib.nvmlGpmSampleAlloc = lambda _room: 0
    assert [moved(bench, MIB, gpm=gpm) for _ in range(3)] == [0] * 3
    assert gpm.count(GET) == 0


def test_two_samples_of_each_gpu_are_held_and_all_are_freed_before_nvml_is_shut_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch, "GPU-a", "GPU-b")
    gpm = FakeGpm(bench)
    for gpu in bench.nvml.gpus:
        gpu.compute = [(7, MIB)]
    for opening in range(1, 4):
        for _ in range(50):
            moved(bench, MIB, gpm=gpm)
        assert (len(gpm.held), gpm.allocated) == (4, 4 * opening)
        bench.nvml.errors["nvmlDeviceGetMemoryInfo"] = pynvml.NVML_ERROR_UNKNOWN  # on each GPU: it is closed
        bench.gpus.look()
        assert (len(gpm.held), bench.opened()) == (0, 0)
        del bench.nvml.errors["nvmlDeviceGetMemoryInfo"]
        bench.wait(60)
    assert bench.gpus.look()[0].pcie_bytes == 3 * 49 * MIB
    assert gpm.count(QUERY) == 8


@pytest.mark.parametrize("is_there", [True, False])
def test_a_sample_that_cannot_be_freed_is_not_used_again(bench: Bench, gpm: FakeGpm, is_there: bool) -> None:
    moved(bench)
    bench.nvml.errors[FREE] = pynvml.NVML_ERROR_UNKNOWN
    bench.nvml.errors["nvmlDeviceGetMemoryInfo"] = pynvml.NVML_ERROR_UNKNOWN
    if not is_there:
        delattr(bench.nvml.nvmlLib, FREE)
    bench.gpus.look()
    assert (gpm.count(FREE), bench.opened()) == (2 * is_there, 0)
    bench.nvml.errors.clear()
    bench.wait(60)
    moved(bench, MIB, gpm=gpm)
    assert (moved(bench), gpm.allocated) == (MIB, 4)


def test_of_a_gpu_nothing_is_remembered_when_nvml_is_opened_again(bench: Bench, gpm: FakeGpm) -> None:
    """Neither that processes used it, nor how often calls failed."""
    gpu = bench.nvml.gpus[0]
    moved(bench)
    bench.nvml.errors["nvmlDeviceGetMemoryInfo"] = pynvml.NVML_ERROR_UNKNOWN
    bench.gpus.look()
    del bench.nvml.errors["nvmlDeviceGetMemoryInfo"]
    bench.wait(60)
    gpu.compute = []
    moved(bench)
    assert (bench.opened(), gpm.count(GET)) == (1, 1)
    gpu.compute = [(7, MIB)]
    bench.nvml.errors[GET] = pynvml.NVML_ERROR_UNKNOWN
    for _ in range(2):
        moved(bench)
    assert TX not in bench.nvml.asked_fields
    moved(bench)
    assert TX in bench.nvml.asked_fields


# Looks at a simulated machine before and after copies of 4 GiB and 4 MiB to each of its GPUs; prints what it saw.
COPIES = """
import ctypes, json, time
from hami_hpc.agent.gpus import Gpus
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *arguments):
    result = getattr(cuda, name)(*arguments)
    assert result == 0, (name, result)
host, addresses = ctypes.create_string_buffer(4 << 20), [ctypes.c_void_p() for _ in range(2)]
call("cuInit", 0)
for gpu in (0, 1):
    call("cuCtxCreate_v2", ctypes.byref(ctypes.c_void_p()), 0, gpu)
    call("cuMemAlloc_v2", ctypes.byref(addresses[gpu]), ctypes.c_size_t(4 << 20))
gpus = Gpus({"h200": 143156, "a100": 40383})
gpus.look()
for address in addresses:
    for _ in range(1025):
        call("cuMemcpyHtoD_v2", address, host, ctypes.c_size_t(4 << 20))
time.sleep(0.2)
print(json.dumps([look.pcie_bytes for look in gpus.look()]))
"""


def test_on_the_simulated_library_an_h200_counts_all_and_an_a100_what_is_left_of_32_bits(tmp_path: Path) -> None:
    machine = sim_testbed.make(tmp_path / "machine")
    run = subprocess.run(
        [sys.executable, "-c", COPIES], env=machine.env, capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
    h200, a100 = json.loads(run.stdout)
    assert h200 == pytest.approx(4100 * MIB, rel=0.2)
    assert a100 == 4 * MIB
