# SPDX-License-Identifier: Apache-2.0
"""Bytes that a GPU moved over PCIe and NVLink: PCIe by GPM where the GPU has it (gpm.py), else from its counters, as
NVLink, through nvmlDeviceGetFieldValues.

nvml.h says of the PCIe counters that their value "can be wrapped". Where they have 32 bits, as on an H200, they wrap
each 0.1 s at full speed, and what they give is a lower bound. A driver that is loaded again starts all counters anew.
So a difference counts only if the bus could have moved as much in the time. nvmlDeviceGetPcieThroughput is not called:
each call takes 20 ms.
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from hami_hpc.agent.gpm import MOST_PER_S, Gpm, call, is_lacking

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


# NVLink 5 moves 900 GB/s each way, and twice that in the next.
FIELDS = (
    Field(197, 0, 1, MOST_PER_S, False),  # NVML_FI_DEV_PCIE_COUNT_TX_BYTES
    Field(198, 0, 1, MOST_PER_S, False),  # NVML_FI_DEV_PCIE_COUNT_RX_BYTES
    Field(138, ALL_LINKS, KIB, 2 * 10**12, True),  # NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, KiB
    Field(139, ALL_LINKS, KIB, 2 * 10**12, True),  # NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, KiB
)


@dataclass
class Traffic:
    """What one GPU moved. `pcie_bytes` and `nvlink_bytes` only grow; 0 where the GPU does not count."""

    pcie_bytes: int = 0
    nvlink_bytes: int = 0
    _gpm: Gpm = field(default_factory=Gpm)
    _lacking: set[int] = field(default_factory=set)  # fields that the GPU is known to lack
    _asked: tuple[Field, ...] = ()  # those in the rows
    _rows: Any = None  # of these: NVML reads what is asked, and writes the answers, in the same place
    _last: dict[int, tuple[int, int]] = field(default_factory=dict)  # by field: when, and the counter

    def update(self, module: ModuleType, handle: object, now_ns: int, is_used: bool) -> None:
        """Counts what was moved since the last look; never fails. `is_used`: processes use the GPU. What the GPU or
        its driver does not have is not asked for again."""
        self.pcie_bytes += self._gpm.moved(module, handle, now_ns, is_used)
        asked = tuple([one for one in FIELDS if one.number not in self._lacking])
        if self._gpm.is_counting():
            asked = tuple([one for one in asked if one.is_nvlink])
        if asked != self._asked:
            # A counter that was left out counts anew if it is asked again: GPM counted the bytes in between.
            self._last = {one.number: self._last[one.number] for one in asked if one.number in self._last}
            request = b"".join([_VALUE.pack(one.number, one.scope, 0, 0, 0, 0, b"") for one in asked])
            self._asked, self._rows = asked, ctypes.create_string_buffer(request, len(request))
        if asked:
            self._read(module, handle, now_ns)

    def forget(self) -> None:
        """Notes a look that the GPU did not answer: it may be reset before the next one."""
        self._gpm.forget()

    def close(self, module: ModuleType) -> None:
        """Gives back what NVML holds for it. Call it before NVML is shut down."""
        self._gpm.close(module)

    def _read(self, module: ModuleType, handle: object, now_ns: int) -> None:
        result = call(module, "nvmlDeviceGetFieldValues", handle, len(self._asked), self._rows)
        if result != module.NVML_SUCCESS:
            if is_lacking(module, result):
                self._lacking |= {one.number for one in self._asked}
            return
        for one, (_id, _scope, _at, _latency, kind, row_result, value) in zip(
            self._asked, _VALUE.iter_unpack(self._rows), strict=True
        ):
            width = UNSIGNED.get(kind)
            if row_result == module.NVML_SUCCESS and width:
                self._count(one, int.from_bytes(value[:width], "little"), now_ns)
            elif row_result == module.NVML_SUCCESS or is_lacking(module, row_result):
                self._lacking.add(one.number)

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
