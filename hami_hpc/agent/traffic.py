# SPDX-License-Identifier: Apache-2.0
"""Bytes that a GPU moved over PCIe and NVLink, from its counters through nvmlDeviceGetFieldValues.

nvml.h says of the PCIe counters that their value "can be wrapped", and a driver that is loaded again starts all of them
anew. So a difference counts only if the bus could have moved as much in the time. nvmlDeviceGetPcieThroughput is not
called: each call takes 20 ms.
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

# nvmlFieldValue_t: field, scope, time stamp, latency, type of the value, result, value
_VALUE = struct.Struct("@IIqqII8s")
ALL_LINKS = 0xFFFFFFFF
UNSIGNED = {1: 4, 2: 8, 3: 8}  # nvmlValueType_t: unsigned int, long, long long -> bytes
KIB = 1024


@dataclass(frozen=True, slots=True)
class Field:
    """One counter of nvml.h. `most_per_s`: bytes that no bus of its kind moves in a second, in one direction."""

    number: int
    scope: int
    unit: int
    most_per_s: int
    is_nvlink: bool


# PCIe 7.0 with 16 lanes moves 242 GB/s each way; NVLink 5 900 GB/s, and twice that in the next.
FIELDS = (
    Field(197, 0, 1, 250 * 10**9, False),  # NVML_FI_DEV_PCIE_COUNT_TX_BYTES
    Field(198, 0, 1, 250 * 10**9, False),  # NVML_FI_DEV_PCIE_COUNT_RX_BYTES
    Field(138, ALL_LINKS, KIB, 2 * 10**12, True),  # NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, KiB
    Field(139, ALL_LINKS, KIB, 2 * 10**12, True),  # NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, KiB
)


def _is_lacking(module: ModuleType, result: int) -> bool:
    """Returns whether a result says that the GPU or its driver does not have what was asked for."""
    return result in (
        module.NVML_ERROR_NOT_SUPPORTED,
        module.NVML_ERROR_INVALID_ARGUMENT,
        module.NVML_ERROR_FUNCTION_NOT_FOUND,
        module.NVML_ERROR_NO_PERMISSION,
    )


@dataclass
class Traffic:
    """The counters of one GPU. `pcie_bytes` and `nvlink_bytes` only grow; 0 where the GPU does not count."""

    pcie_bytes: int = 0
    nvlink_bytes: int = 0
    _asked: tuple[Field, ...] = FIELDS  # those that the GPU is not known to lack
    _rows: Any = None  # of these: NVML reads what is asked, and writes the answers, in the same place
    _last: dict[int, tuple[int, int]] = field(default_factory=dict)  # by field: when, and the counter

    def update(self, module: ModuleType, handle: object, now_ns: int) -> None:
        """Reads the counters. What the GPU or its driver does not have is not asked for again; never fails."""
        if not self._asked:
            return
        if self._rows is None:
            request = b"".join([_VALUE.pack(one.number, one.scope, 0, 0, 0, 0, b"") for one in self._asked])
            self._rows = ctypes.create_string_buffer(request, len(request))
        function = getattr(module.nvmlLib, "nvmlDeviceGetFieldValues", None)
        result = module.NVML_ERROR_FUNCTION_NOT_FOUND
        if function is not None:
            result = function(handle, len(self._asked), self._rows)
        if result != module.NVML_SUCCESS:
            self._asked = () if _is_lacking(module, result) else self._asked
            return
        gone = []
        for one, (_id, _scope, _at, _latency, kind, row_result, value) in zip(
            self._asked, _VALUE.iter_unpack(self._rows), strict=True
        ):
            width = UNSIGNED.get(kind)
            if row_result == module.NVML_SUCCESS and width:
                self._count(one, int.from_bytes(value[:width], "little"), now_ns)
            elif row_result == module.NVML_SUCCESS or _is_lacking(module, row_result):
                gone.append(one)
        if gone:
            self._asked, self._rows = tuple(one for one in self._asked if one not in gone), None

    def _count(self, one: Field, value: int, now_ns: int) -> None:
        before = self._last.get(one.number)
        self._last[one.number] = (now_ns, value)
        if before is None:
            return
        moved = (value - before[1]) * one.unit
        if not 0 <= moved <= one.most_per_s * (now_ns - before[0]) / 1e9:
            return
        if one.is_nvlink:
            self.nvlink_bytes += moved
        else:
            self.pcie_bytes += moved
