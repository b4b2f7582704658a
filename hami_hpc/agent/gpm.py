# SPDX-License-Identifier: Apache-2.0
"""Bytes that a GPU moved over PCIe, by NVML's GPU performance monitoring (GPM), which GPUs from Hopper on have.

A sample is what the GPU had counted when it was taken. Of two samples NVML gives the rates between them. The GPU's own
counters of these bytes (traffic.py) have 32 bits on an H200 and wrap each 0.1 s at full speed.
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass, field
from types import ModuleType

VERSION = 1  # NVML_GPM_SUPPORT_VERSION, NVML_GPM_METRICS_GET_VERSION
METRICS = (20, 21)  # NVML_GPM_METRIC_PCIE_TX_PER_SEC, NVML_GPM_METRIC_PCIE_RX_PER_SEC, MiB/s
_NUMBER = struct.Struct("@I")  # what each structure begins with: its version, or the number of a metric
_SUPPORT = struct.Struct("@II")  # nvmlGpmSupport_t: version, whether the GPU has it
_HEAD = struct.Struct("@IIPP")  # nvmlGpmMetricsGet_t: version, number of metrics, the older and the newer sample
_METRIC = struct.Struct("@IIdPPP")  # nvmlGpmMetric_t: metric, result, value, its name, long name and unit
# The head is followed by NVML_GPM_METRIC_MAX rows, which grew from 98 to 333 without a new version of the structure.
ROWS = 512
MIB = 1 << 20
MOST_PER_S = 250 * 10**9  # bytes in one direction; PCIe 7.0 with 16 lanes moves 242 GB/s
SHORTEST_NS = 100_000_000  # nvml.h: the GPU renews what a sample reads each 100 ms
FAILURES = 3  # one after the other, from which on the GPU's counters are read until rates come again
LONGEST_NS = 30_000_000_000  # three times the longest period of the agent; beyond it nobody has seen that rates hold


def call(module: ModuleType, name: str, *arguments: object) -> int:
    """Returns the result of a function of libnvidia-ml, also of one that the driver's does not have."""
    function = getattr(module.nvmlLib, name, None)
    return int(module.NVML_ERROR_FUNCTION_NOT_FOUND if function is None else function(*arguments))


def is_lacking(module: ModuleType, result: int) -> bool:
    """Returns whether a result says that the GPU or its driver does not have what was asked for."""
    return result in (
        module.NVML_ERROR_NOT_SUPPORTED,
        module.NVML_ERROR_INVALID_ARGUMENT,
        module.NVML_ERROR_FUNCTION_NOT_FOUND,
        module.NVML_ERROR_NO_PERMISSION,
        module.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    )


@dataclass
class Gpm:
    """The samples of one GPU. Two buffers are allocated when they are first needed, used in turn, and freed by
    `close`, which must come before NVML is shut down."""

    is_there: bool | None = None  # None: the GPU has not said yet
    _samples: list[ctypes.c_void_p] = field(default_factory=list)  # the newest first
    _at_ns: int | None = None  # when the newest was taken; None: there is none to count from
    _was_used: bool = False  # at the look before
    _failures: int = 0  # since the last rates

    def is_counting(self) -> bool:
        """Returns whether the bytes of this GPU come from here, and not from its counters."""
        return bool(self.is_there) and self._failures < FAILURES

    def moved(self, module: ModuleType, handle: object, now_ns: int, is_used: bool) -> int:
        """Returns the bytes, sent and received, since the last sample. Takes one if processes use the GPU
        (`is_used`) or did at the look before; never fails. What cannot be told is 0."""
        if self.is_there is None:
            self.is_there = _is_supported(module, handle)
        is_wanted, self._was_used = is_used or self._was_used, is_used
        if not self.is_there or not is_wanted:
            self._at_ns = None
            return 0
        if self._at_ns is not None and now_ns - self._at_ns < SHORTEST_NS:
            return 0
        if not self._allocate(module):
            return 0
        result = call(module, "nvmlGpmSampleGet", handle, self._samples[1])
        if result != module.NVML_SUCCESS:
            self._fail(module, result)
            return 0
        self._samples.reverse()
        before_ns, self._at_ns = self._at_ns, now_ns
        if before_ns is None or now_ns - before_ns > LONGEST_NS:
            return 0
        return sum([int(rate * MIB * (now_ns - before_ns) / 1e9) for rate in self._rates(module)])

    def forget(self) -> None:
        """Counts nothing up to the next sample: the GPU may have been reset."""
        self._at_ns = None

    def close(self, module: ModuleType) -> None:
        """Frees the buffers. The GPU is asked again whether it has GPM: the driver may be another one then."""
        for sample in self._samples:
            call(module, "nvmlGpmSampleFree", sample)
        self._samples.clear()
        self.is_there, self._at_ns, self._was_used, self._failures = None, None, False, 0

    def _allocate(self, module: ModuleType) -> bool:
        while len(self._samples) < 2:
            sample = ctypes.c_void_p()
            result = call(module, "nvmlGpmSampleAlloc", ctypes.byref(sample))
            if result != module.NVML_SUCCESS or not sample:
                self._fail(module, result)
                return False
            self._samples.append(sample)
        return True

    def _fail(self, module: ModuleType, result: int) -> None:
        """Notes a call that failed. A GPU that lacks what it said it has is not asked again; invalid samples are no
        sign of that, since those from before and after a reset may be called so."""
        if is_lacking(module, result) and result != module.NVML_ERROR_INVALID_ARGUMENT:
            self.is_there = False
        self._failures += 1
        if not self.is_counting():  # the counters have the bytes from now on
            self._at_ns = None

    def _rates(self, module: ModuleType) -> list[float]:
        """Returns the rates, MiB/s, between the two samples; without those that are no rate of a bus."""
        newer, older = self._samples
        asked = ctypes.create_string_buffer(_HEAD.size + ROWS * _METRIC.size)
        _HEAD.pack_into(asked, 0, VERSION, len(METRICS), older.value, newer.value)
        for row, number in enumerate(METRICS):
            _NUMBER.pack_into(asked, _HEAD.size + row * _METRIC.size, number)
        result = call(module, "nvmlGpmMetricsGet", asked)
        if result != module.NVML_SUCCESS:
            self._fail(module, result)
            return []
        rates = []
        for row in range(len(METRICS)):
            _number, row_result, rate, *_texts = _METRIC.unpack_from(asked, _HEAD.size + row * _METRIC.size)
            if row_result != module.NVML_SUCCESS:
                self._fail(module, row_result)
                return []
            if 0 <= rate <= MOST_PER_S / MIB:  # false for what is not a number
                rates.append(rate)
        self._failures = 0
        return rates


def _is_supported(module: ModuleType, handle: object) -> bool | None:
    """Returns whether a GPU has GPM; None where that failed for now."""
    asked = ctypes.create_string_buffer(_NUMBER.pack(VERSION), _SUPPORT.size)
    result = call(module, "nvmlGpmQueryDeviceSupport", handle, asked)
    if result != module.NVML_SUCCESS:
        return False if is_lacking(module, result) else None
    return bool(_SUPPORT.unpack(asked.raw)[1])
