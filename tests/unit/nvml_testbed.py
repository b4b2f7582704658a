# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: N802, N815  (the names are NVML's)
"""pynvml with GPUs that tests make up."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pynvml
import pytest

from hami_hpc.agent.gpus import Gpus

MIB = 1 << 20
SECOND, SECOND_US = 1_000_000_000, 1_000_000
COMPUTE, GRAPHICS = "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3"
SAMPLES = "nvmlDeviceGetProcessUtilization"
FIELDS = "nvmlDeviceGetFieldValues"
ERRORS = [name for name in dir(pynvml) if name.startswith("NVML_ERROR_")]


@dataclass
class FakeGpu:
    """One GPU of the fake, and what it answers. `errors`: NVML error by function."""

    uuid: str
    compute: list[tuple[int, int]] = field(default_factory=list)
    graphics: list[tuple[int, int]] = field(default_factory=list)
    samples: list[tuple[int, int, int]] = field(default_factory=list)  # pid, time stamp, percent
    errors: dict[str, int] = field(default_factory=dict)
    is_mig: bool = False
    # by field and scope: the type of the value (nvmlValueType_t) and the value, or None and an NVML error
    counters: dict[tuple[int, int], tuple[int | None, int]] = field(default_factory=dict)


class FakeNvml:
    """In place of pynvml, with the part of it that gpus.py uses; its lists are written as the library writes them."""

    NVMLError = pynvml.NVMLError
    nvmlMemory_v2, NVML_SUCCESS, NVML_TEMPERATURE_GPU = 2, 0, 0

    def __init__(self, *uuids: str) -> None:
        for name in ERRORS:
            setattr(self, name, getattr(pynvml, name))
        self.gpus = [FakeGpu(uuid) for uuid in uuids]
        self.errors: dict[str, int] = {}  # of all GPUs, and of functions without a GPU
        self.calls: list[str] = []
        self.asked_us: list[int] = []
        self.asked_fields: list[int] = []
        self.nvmlLib = SimpleNamespace(
            **{COMPUTE: self._lister(COMPUTE), GRAPHICS: self._lister(GRAPHICS), SAMPLES: self._samples},
            **{FIELDS: self._fields},
        )

    def __getattr__(self, name: str) -> Any:
        values = {
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=12),
            "nvmlDeviceGetPowerUsage": 300_000,
            "nvmlDeviceGetTotalEnergyConsumption": 5_000,
            "nvmlDeviceGetTemperature": 40,
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=143_771 * MIB, reserved=615 * MIB, used=7 * MIB),
            "nvmlDeviceGetName": "NVIDIA H200",
        }
        if name not in values:
            raise AttributeError(name)

        def call(gpu: FakeGpu, *_arguments: object, **_more: object) -> Any:
            self.check(name, gpu)
            return values[name]

        return call

    def check(self, name: str, gpu: FakeGpu | None = None) -> None:
        self.calls.append(name)
        code = (gpu.errors if gpu else {}).get(name) or (gpu.errors.get("*") if gpu else 0) or self.errors.get(name)
        if code:
            raise pynvml.NVMLError(code)

    def nvmlInit(self) -> None:
        self.check("nvmlInit")

    def nvmlShutdown(self) -> None:
        self.check("nvmlShutdown")

    def nvmlDeviceGetCount(self) -> int:
        self.check("nvmlDeviceGetCount")
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        self.check("nvmlDeviceGetHandleByIndex", self.gpus[index])
        return self.gpus[index]

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str:
        return gpu.uuid

    def nvmlDeviceGetMinorNumber(self, gpu: FakeGpu) -> int:
        return self.gpus.index(gpu)

    def _rows(self, name: str, gpu: FakeGpu, room: Any, count: Any, rows: list[bytes]) -> int:
        try:
            self.check(name, gpu)
        except pynvml.NVMLError as error:
            return int(error.value)
        most, count._obj.value = count._obj.value, len(rows)
        if len(rows) > most:
            return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
        ctypes.memmove(room, b"".join(rows), sum(map(len, rows)))
        return 0

    def _lister(self, name: str) -> Any:
        def call(gpu: FakeGpu, count: Any, room: Any) -> int:
            processes = gpu.compute if name == COMPUTE else gpu.graphics
            rows = [struct.pack("=I4xQII", pid, used, 0xFFFFFFFF, 0xFFFFFFFF) for pid, used in processes]
            return self._rows(name, gpu, room, count, rows)

        return call

    def nvmlDeviceGetMigMode(self, gpu: FakeGpu) -> list[int]:
        self.check("nvmlDeviceGetMigMode", gpu)
        return [int(gpu.is_mig), int(gpu.is_mig)]

    def _fields(self, gpu: FakeGpu, count: int, room: Any) -> int:
        try:
            self.check(FIELDS, gpu)
        except pynvml.NVMLError as error:
            return int(error.value)
        row = struct.Struct("=IIqqII8s")
        rows = list(row.iter_unpack(room.raw))
        assert len(rows) == count
        for index, (number, scope, *_rest) in enumerate(rows):
            kind, value = gpu.counters.get((number, scope), (None, pynvml.NVML_ERROR_NOT_SUPPORTED))
            self.asked_fields.append(number)
            answer = (0, value, b"") if kind is None else (kind, 0, value.to_bytes(8, "little"))
            row.pack_into(room, index * row.size, number, scope, 0, 0, *answer)
        return 0

    def _samples(self, gpu: FakeGpu, room: Any, count: Any, since_us: Any) -> int:
        self.asked_us.append(since_us.value)
        rows = [struct.pack("=I4xQIIII", pid, at, percent, 1, 2, 3) for pid, at, percent in gpu.samples]
        if not rows:
            gpu.errors.setdefault(SAMPLES, pynvml.NVML_ERROR_NOT_FOUND)
        elif gpu.errors.get(SAMPLES) == pynvml.NVML_ERROR_NOT_FOUND:
            del gpu.errors[SAMPLES]
        return self._rows(SAMPLES, gpu, room, count, rows)


class Bench:
    """GPUs on a fake NVML, with clocks of their own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *uuids: str) -> None:
        self.nvml = FakeNvml(*uuids)
        self.now_ns, self.unix_us = 100 * SECOND, 1_000_000 * SECOND_US
        self.gpus = Gpus({"h200": 143156}, lambda: self.now_ns, lambda: self.unix_us)
        monkeypatch.setattr("hami_hpc.node.nvml._pynvml", lambda: cast(ModuleType, self.nvml))

    def wait(self, seconds: float) -> None:
        self.now_ns += int(seconds * SECOND)
        self.unix_us += int(seconds * SECOND_US)

    def states(self) -> list[str]:
        return [one.state for one in self.gpus.look()]

    def opened(self) -> int:
        return self.nvml.calls.count("nvmlInit") - self.nvml.calls.count("nvmlShutdown")
