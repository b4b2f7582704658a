# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: N802  (the names are NVML's)
"""NVML's GPU performance monitoring for the fake of nvml_testbed.py."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

import pynvml
from nvml_testbed import MIB, Bench, FakeGpu

QUERY, ALLOC, FREE = "nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmSampleFree"
GET, METRICS = "nvmlGpmSampleGet", "nvmlGpmMetricsGet"
FUNCTIONS = (QUERY, ALLOC, FREE, GET, METRICS)


class Sample(NamedTuple):
    """What a GPU had counted when it was taken: bytes sent and received."""

    uuid: str
    at_ns: int
    counts: tuple[int, int]


class FakeGpm:
    """What GPUs count, and the samples of it that NVML holds."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.nvml = bench, bench.nvml
        self.unsupported: set[str] = set()  # UUIDs of GPUs without it
        self.sent: dict[str, int] = {}
        self.received: dict[str, int] = {}
        self.rates: list[tuple[int, float]] = []  # instead of those of the samples: result and value of each metric
        self.held: dict[int, Sample | None] = {}
        self.allocated = 0
        for name in FUNCTIONS:
            setattr(self.nvml.nvmlLib, name, self._checked(name, getattr(self, f"_{name}")))

    def count(self, name: str) -> int:
        return self.nvml.calls.count(name)

    def move(self, gpu: FakeGpu, sent: int = 0, received: int = 0) -> None:
        self.sent[gpu.uuid] = self.sent.get(gpu.uuid, 0) + sent
        self.received[gpu.uuid] = self.received.get(gpu.uuid, 0) + received

    def _checked(self, name: str, function: Callable[..., int]) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            gpu = arguments[0] if isinstance(arguments[0], FakeGpu) else None
            assert self.bench.opened() == 1, f"{name} while NVML is not open"
            try:
                self.nvml.check(name, gpu)
            except pynvml.NVMLError as error:
                return int(error.value)
            return function(*arguments)

        return call

    def _nvmlGpmQueryDeviceSupport(self, gpu: FakeGpu, room: Any) -> int:
        support = pynvml.c_nvmlGpmSupport_t.from_buffer(room)
        assert support.version == pynvml.NVML_GPM_SUPPORT_VERSION
        support.isSupportedDevice = gpu.uuid not in self.unsupported
        return 0

    def _nvmlGpmSampleAlloc(self, room: Any) -> int:
        self.allocated += 1
        room._obj.value = 0x1000 * self.allocated
        self.held[room._obj.value] = None
        return 0

    def _nvmlGpmSampleFree(self, sample: ctypes.c_void_p) -> int:
        assert sample.value is not None
        del self.held[sample.value]  # KeyError: freed twice
        return 0

    def _nvmlGpmSampleGet(self, gpu: FakeGpu, sample: ctypes.c_void_p) -> int:
        assert sample.value in self.held
        uuid = gpu.uuid
        counts = (self.sent.get(uuid, 0), self.received.get(uuid, 0))
        self.held[sample.value] = Sample(uuid, self.bench.now_ns, counts)
        return 0

    def _nvmlGpmMetricsGet(self, room: Any) -> int:
        asked = pynvml.c_nvmlGpmMetricsGet_t.from_buffer(room)
        assert (asked.version, asked.numMetrics) == (pynvml.NVML_GPM_METRICS_GET_VERSION, 2)
        addresses = [ctypes.cast(one, ctypes.c_void_p).value or 0 for one in (asked.sample1, asked.sample2)]
        older, newer = (self.held[address] for address in addresses)
        assert older is not None
        assert newer is not None
        assert older.uuid == newer.uuid
        assert older.at_ns < newer.at_ns
        seconds = (newer.at_ns - older.at_ns) / 1e9
        numbers = (pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC, pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC)
        for index, number in enumerate(numbers):
            assert asked.metrics[index].metricId == number
            rate = (newer.counts[index] - older.counts[index]) / MIB / seconds
            result, value = self.rates[index] if self.rates else (0, rate)
            asked.metrics[index].nvmlReturn, asked.metrics[index].value = result, value
        return 0
