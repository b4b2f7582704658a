# SPDX-License-Identifier: Apache-2.0
"""hami_hpc/agent/traffic.py: bytes over PCIe and NVLink, whatever the counters do."""

from __future__ import annotations

import ctypes

import pynvml
import pytest
from nvml_testbed import FIELDS as CALL
from nvml_testbed import Bench, FakeGpu

from hami_hpc.agent import traffic
from hami_hpc.agent.traffic import ALL_LINKS

TX, RX = pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES
LINK_TX, LINK_RX = pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX
LONG = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
INT = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch, "GPU-a")


def put(gpu: FakeGpu, kind: int = LONG, **values: int) -> None:
    names = {"tx": (TX, 0), "rx": (RX, 0), "link_tx": (LINK_TX, ALL_LINKS), "link_rx": (LINK_RX, ALL_LINKS)}
    gpu.counters |= {names[name]: (kind, value) for name, value in values.items()}


def moved(bench: Bench) -> tuple[int, int]:
    (look,) = bench.gpus.look()
    bench.wait(1)
    return look.pcie_bytes, look.nvlink_bytes


def test_the_rows_and_numbers_are_pynvmls() -> None:
    assert traffic._VALUE.size == ctypes.sizeof(pynvml.c_nvmlFieldValue_t)
    value = pynvml.c_nvmlFieldValue_t(1, 2, 3, 4, 5, 6)
    value.value.ullVal = 7
    assert traffic._VALUE.unpack(bytes(value)) == (1, 2, 3, 4, 5, 6, (7).to_bytes(8, "little"))
    assert [one.number for one in traffic.FIELDS] == [TX, RX, LINK_TX, LINK_RX]
    kinds = (INT, pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG, LONG)
    assert dict(zip(kinds, (4, 8, 8), strict=True)) == traffic.UNSIGNED


def test_both_directions_count_from_the_second_look_on_and_nvlink_is_in_kib(bench: Bench) -> None:
    gpu = bench.nvml.gpus[0]
    put(gpu, tx=1 << 40, rx=5, link_tx=1 << 50, link_rx=7)
    assert moved(bench) == (0, 0)
    put(gpu, tx=(1 << 40) + 100, rx=1005, link_tx=(1 << 50) + 3, link_rx=8)
    assert moved(bench) == (1100, 4096)
    put(gpu, tx=(1 << 40) + 101)
    assert moved(bench) == (1101, 4096)


def test_a_counter_that_wraps_or_begins_anew_adds_nothing_and_goes_on(bench: Bench) -> None:
    gpu = bench.nvml.gpus[0]
    put(gpu, INT, rx=(1 << 32) - 10)
    moved(bench)
    put(gpu, INT, rx=500)
    assert moved(bench) == (0, 0)
    put(gpu, INT, rx=700)
    assert moved(bench) == (200, 0)


@pytest.mark.parametrize("name", ["tx", "link_rx"])
def test_more_than_a_bus_can_move_in_the_time_adds_nothing(bench: Bench, name: str) -> None:
    put(bench.nvml.gpus[0], **{name: 0})
    moved(bench)
    put(bench.nvml.gpus[0], **{name: 1 << 62})
    assert moved(bench) == (0, 0)
    put(bench.nvml.gpus[0], **{name: (1 << 62) + 1024})
    assert sum(moved(bench)) in (1024, 1 << 20)


def test_what_a_gpu_lacks_is_asked_for_once(bench: Bench) -> None:
    put(bench.nvml.gpus[0], tx=1)
    for _ in range(5):
        moved(bench)
    asked = bench.nvml.asked_fields
    assert [asked.count(one) for one in (TX, RX, LINK_TX, LINK_RX)] == [5, 1, 1, 1]


def test_a_call_that_fails_for_good_leaves_out_what_was_lacking_before_too(bench: Bench) -> None:
    put(bench.nvml.gpus[0], tx=1)
    moved(bench)
    bench.nvml.gpus[0].errors[CALL] = pynvml.NVML_ERROR_NOT_SUPPORTED
    for _ in range(3):
        moved(bench)
    assert bench.nvml.calls.count(CALL) == 2


@pytest.mark.parametrize(
    ("code", "calls"),
    [
        (pynvml.NVML_ERROR_NOT_SUPPORTED, 1),
        (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, 1),
        (pynvml.NVML_ERROR_NO_PERMISSION, 1),
        (pynvml.NVML_ERROR_UNKNOWN, 4),
        (pynvml.NVML_ERROR_TIMEOUT, 4),
    ],
)
def test_a_call_that_fails_for_good_is_not_made_again(bench: Bench, code: int, calls: int) -> None:
    bench.nvml.gpus[0].errors[CALL] = code
    for _ in range(4):
        assert moved(bench) == (0, 0)
    assert bench.nvml.calls.count(CALL) == calls


def test_a_field_that_fails_for_a_moment_counts_all_since_the_last_time(bench: Bench) -> None:
    gpu = bench.nvml.gpus[0]
    put(gpu, tx=100)
    moved(bench)
    gpu.counters[TX, 0] = (None, pynvml.NVML_ERROR_UNKNOWN)
    assert moved(bench) == (0, 0)
    put(gpu, tx=300)
    assert moved(bench) == (200, 0)


@pytest.mark.parametrize("kind", [pynvml.NVML_VALUE_TYPE_DOUBLE, 4, 77])
def test_a_value_that_is_no_count_is_not_read(bench: Bench, kind: int) -> None:
    for value in (1, 1000):
        put(bench.nvml.gpus[0], kind, tx=value)
        assert moved(bench) == (0, 0)
    assert bench.nvml.asked_fields.count(TX) == 1


def test_a_driver_without_the_function_is_no_fault(bench: Bench) -> None:
    del bench.nvml.nvmlLib.nvmlDeviceGetFieldValues
    assert [moved(bench) for _ in range(3)] == [(0, 0)] * 3


def test_what_was_counted_stays_when_nvml_is_opened_again(bench: Bench) -> None:
    gpu = bench.nvml.gpus[0]
    for value in (100, 400):
        put(gpu, tx=value)
        moved(bench)
    gpu.errors["nvmlDeviceGetMemoryInfo"] = pynvml.NVML_ERROR_UNKNOWN  # on each GPU: it is closed
    moved(bench)
    del gpu.errors["nvmlDeviceGetMemoryInfo"]
    bench.wait(60)
    put(gpu, tx=500)
    assert moved(bench) == (400, 0)
