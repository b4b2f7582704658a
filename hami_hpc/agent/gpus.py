# SPDX-License-Identifier: Apache-2.0
"""What NVML shows of the GPUs at each look: memory, processes, time, power, energy.

NVML stays open between looks. A GPU that is lost, or that NVML fails on, is one GPU's state; when NVML as a whole fails
(a driver that is being replaced), it is opened again at a later look.
"""

from __future__ import annotations

import contextlib
import ctypes
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NamedTuple

from hami_hpc.agent.fault_events import FaultEvents
from hami_hpc.agent.traffic import Traffic
from hami_hpc.core.agent_state import FAILED, LOST, OK
from hami_hpc.core.inventory import Device, Gpu, make_inventory
from hami_hpc.errors import NodeError
from hami_hpc.node import nvml

OPEN_AGAIN_NS = 10_000_000_000
REOPEN_NS = 60_000_000_000  # while a GPU does not answer: after its reset only a newly opened NVML reaches it
SLOW_NS = 4_500_000_000  # how long power and temperature stay as they were read: nothing is judged by them
FIRST_WINDOW_US = 1_000_000  # how far back the first look at processes' time reaches
_PROCESS = struct.Struct("@IQII0Q")  # nvmlProcessInfo_t: pid, used memory, GPU instance, compute instance
_SAMPLE = struct.Struct("@IQIIII0Q")  # nvmlProcessUtilizationSample_t: pid, time stamp, sm, mem, enc, dec
NOT_AVAILABLE = (1 << 64) - 1
ROOM, ROOM_MAX = 128, 1 << 20  # rows; driver 580 on an H200 gives no sample to whom has room for fewer than 72


# Bits of nvmlClocksEventReason*: software and hardware thermal slowdown; power brake slowdown.
SLOWDOWNS = {"thermal_slowdown": 0x20 | 0x40, "power_brake": 0x80}
CLOCKS = "nvmlDeviceGetCurrentClocksEventReasons"
CLOCKS_OLD = "nvmlDeviceGetCurrentClocksThrottleReasons"  # its name before driver 535
FEATURE_ENABLED = 1  # NVML_FEATURE_ENABLED
NOT_SHOWN = "NVML does not show it"


class GpuProcess(NamedTuple):
    """One process on one GPU, as NVML shows it. `busy_ns` of the GPU's time since the last look."""

    pid: int
    used_bytes: int
    busy_ns: int


class GpuLook(NamedTuple):
    """One GPU at one look. Numbers that NVML does not have are 0."""

    gpu: Gpu
    state: str
    detail: str = ""
    total_bytes: int = 0
    used_bytes: int = 0
    busy_percent: float = 0.0
    power_mw: int = 0
    energy_mj: int = 0
    temperature_c: int = 0
    processes: tuple[GpuProcess, ...] = ()
    conditions: tuple[str, ...] = ()  # codes of node/xids.tsv that hold now
    pcie_bytes: int = 0  # since NVML was opened first; only grows
    nvlink_bytes: int = 0
    is_mig: bool = False  # Slurm's indices are then those of its parts


@dataclass
class _Opened:
    gpu: Gpu
    handle: Any
    last_sample_us: int
    asked_ns: int  # when the samples were asked for last
    slow_at_ns: int | None = None  # when power and temperature were read
    power_mw: int = 0
    temperature_c: int = 0
    pending: tuple[str, ...] = ()  # repairs that wait for a reset
    lacks: set[str] = field(default_factory=set)  # functions that this GPU does not support
    energy_mj: int = 0
    traffic: Traffic = field(default_factory=Traffic)
    is_mig: bool = False


@dataclass
class Gpus:
    """The node's GPUs through NVML. `now_ns` and `now_unix_us` are clocks; tests give their own."""

    models_mib: dict[str, int]
    now_ns: Callable[[], int] = time.monotonic_ns
    now_unix_us: Callable[[], int] = lambda: time.time_ns() // 1000
    fault_events: FaultEvents = field(default_factory=FaultEvents)
    missing: set[str] = field(default_factory=set)  # functions that the driver does not have
    _nvml: ModuleType | None = None
    _opened: list[_Opened] = field(default_factory=list)
    _seen: dict[str, Gpu] = field(default_factory=dict)  # by UUID, all that were ever opened
    _count: int = 0
    _opened_ns: int = 0
    _is_partial: bool = False  # a GPU does not answer
    _next_try_ns: int = 0
    _problem: str = ""
    _shut: ModuleType | None = None  # to be closed when no thread waits in it any more

    def look(self) -> tuple[GpuLook, ...]:
        """Returns all GPUs. Raises NodeError, at once after the first time, when NVML cannot be used."""
        is_due = self._nvml is not None and self._is_partial and self.now_ns() - self._opened_ns >= REOPEN_NS
        if is_due and (self.fault_events.stop() or self.fault_events.is_abandoned()):
            self._close("", 0)
        if self._shut is not None and not self._shut_down():
            raise NodeError(self._problem)
        if self._nvml is None:
            self._open()
        assert self._nvml is not None
        looks = tuple(self._look_at(self._nvml, one) for one in self._opened)
        if looks and all(one.state == FAILED for one in looks):  # the library, not a GPU
            self._close(f"NVML fails on each GPU ({looks[0].detail})", OPEN_AGAIN_NS)
        self._is_partial = not looks or len(looks) < self._count or any(one.state != OK for one in looks)
        shown = {one.gpu.uuid for one in looks}
        missing = (gpu for uuid, gpu in self._seen.items() if uuid not in shown)
        return looks + tuple(GpuLook(gpu, LOST, NOT_SHOWN) for gpu in missing)

    def opened(self, uuid: str) -> tuple[ModuleType, Any] | None:
        """Returns NVML and the handle of a GPU that it shows now."""
        handle = next((one.handle for one in self._opened if one.gpu.uuid == uuid), None)
        return None if self._nvml is None or handle is None else (self._nvml, handle)

    def lacking(self) -> tuple[str, ...]:
        """Returns what the driver lacks to tell of errors, one line each."""
        names = self.missing - ({CLOCKS} if CLOCKS_OLD not in self.missing else set())
        lines = [f"this driver or nvidia-ml-py has no {name}" for name in sorted(names)]
        return (*lines, *([self.fault_events.problem] if self.fault_events.problem else []))

    def _open(self) -> None:
        if self.now_ns() < self._next_try_ns:
            raise NodeError(self._problem)
        try:
            module = self._nvml = nvml.open_nvml()
        except NodeError as error:
            self._problem, self._next_try_ns = str(error), self.now_ns() + OPEN_AGAIN_NS
            raise
        try:
            self._list(module)
        except module.NVMLError as error:
            problem = f"NVML failed while listing GPUs ({error}). Check with nvidia-smi and dmesg (Xid)"
            self._close(problem, OPEN_AGAIN_NS)
            raise NodeError(problem) from error

    def _list(self, module: ModuleType) -> None:
        devices: list[tuple[Device, Any]] = []
        count = int(module.nvmlDeviceGetCount())
        for index in range(count):
            with contextlib.suppress(module.NVMLError):  # a GPU that is lost at this moment has no handle
                handle = module.nvmlDeviceGetHandleByIndex(index)
                devices.append((nvml.device_of(module, handle), handle))
        if count and not devices:
            self._close(f"NVML shows none of its {count} GPUs", OPEN_AGAIN_NS)
            raise NodeError(self._problem)
        handles = {device.uuid: handle for device, handle in devices}
        inventory = make_inventory((device for device, _ in devices), self.models_mib)
        if len(devices) < count:  # those that are there keep Slurm's numbers
            inventory = tuple(gpu._replace(slurm_index=gpu.minor) for gpu in inventory)
        start_us = self.now_unix_us() - FIRST_WINDOW_US
        last = {one.gpu.uuid: one for one in self._opened}
        opened = []
        for gpu in inventory:
            one = _Opened(gpu, handles[gpu.uuid], start_us, self.now_ns(), is_mig=_is_mig(module, handles[gpu.uuid]))
            if gpu.uuid in last:
                one.last_sample_us = max(start_us, last[gpu.uuid].last_sample_us)
                one.energy_mj, one.traffic = last[gpu.uuid].energy_mj, last[gpu.uuid].traffic
            opened.append(one)
        self._opened = opened
        self._seen |= {gpu.uuid: gpu for gpu in inventory}
        self._count, self._opened_ns = count, self.now_ns()
        self.fault_events.start(module, {one.gpu.uuid: one.handle for one in self._opened})

    def _close(self, problem: str, again_ns: int) -> None:
        """Closes NVML. Keeps up to when each GPU's time was counted, for the next opening."""
        assert self._nvml is not None
        for one in self._opened:
            one.traffic.close(self._nvml)
        self._shut, self._nvml = self._nvml, None
        self._problem, self._next_try_ns = problem, self.now_ns() + again_ns
        self._shut_down()

    def _shut_down(self) -> bool:
        """Closes the library. Returns False while a thread still waits in it; one that never ends keeps it open."""
        assert self._shut is not None
        if not self.fault_events.stop() and not self.fault_events.is_abandoned():
            return False
        if self.fault_events.is_abandoned():
            self.fault_events.abandon()
        else:
            with contextlib.suppress(self._shut.NVMLError):
                self._shut.nvmlShutdown()
        self._shut = None
        return True

    def _look_at(self, module: ModuleType, one: _Opened) -> GpuLook:
        try:
            memory = module.nvmlDeviceGetMemoryInfo(one.handle, version=module.nvmlMemory_v2)
            used = _processes(module, one.handle)
        except module.NVMLError as error:
            one.traffic.forget()
            is_lost = error.value == module.NVML_ERROR_GPU_IS_LOST
            return GpuLook(one.gpu, LOST if is_lost else FAILED, str(error))
        busy = self._busy(module, one)

        def number(name: str, *arguments: object, otherwise: int = 0) -> int:
            try:
                return int(getattr(module, name)(one.handle, *arguments))
            except module.NVMLError:
                return otherwise

        if one.slow_at_ns is None or self.now_ns() - one.slow_at_ns >= SLOW_NS:
            one.slow_at_ns = self.now_ns()
            one.power_mw = number("nvmlDeviceGetPowerUsage")
            one.temperature_c = number("nvmlDeviceGetTemperature", module.NVML_TEMPERATURE_GPU)
            one.pending = self._pending(module, one)
        one.energy_mj = number("nvmlDeviceGetTotalEnergyConsumption", otherwise=one.energy_mj)
        one.traffic.update(module, one.handle, self.now_ns(), bool(used))
        try:
            busy_percent = float(module.nvmlDeviceGetUtilizationRates(one.handle).gpu)
        except module.NVMLError:
            busy_percent = 0.0
        return GpuLook(
            gpu=one.gpu,
            state=OK,
            total_bytes=int(memory.total - memory.reserved),
            used_bytes=int(memory.used),
            busy_percent=busy_percent,
            power_mw=one.power_mw,
            energy_mj=one.energy_mj,
            temperature_c=one.temperature_c,
            processes=tuple(GpuProcess(pid, used[pid], busy.get(pid, 0)) for pid in sorted(used)),
            conditions=(*self._slowdowns(module, one), *one.pending),
            pcie_bytes=one.traffic.pcie_bytes,
            nvlink_bytes=one.traffic.nvlink_bytes,
            is_mig=one.is_mig,
        )

    def _ask(self, module: ModuleType, one: _Opened, name: str) -> Any:
        """Returns the answer of an NVML function that not every driver and GPU has; None without."""
        if name in self.missing or name in one.lacks:
            return None
        try:
            return getattr(module, name)(one.handle)
        except module.NVMLError as error:
            if error.value == module.NVML_ERROR_FUNCTION_NOT_FOUND:
                self.missing.add(name)
            elif error.value == module.NVML_ERROR_NOT_SUPPORTED:
                one.lacks.add(name)
        except AttributeError:  # an nvidia-ml-py without it
            self.missing.add(name)
        return None

    def _slowdowns(self, module: ModuleType, one: _Opened) -> Iterator[str]:
        reasons = self._ask(module, one, CLOCKS)
        if reasons is None:
            reasons = self._ask(module, one, CLOCKS_OLD)
        for code, mask in SLOWDOWNS.items():
            if reasons is not None and reasons & mask:
                yield code

    def _pending(self, module: ModuleType, one: _Opened) -> tuple[str, ...]:
        rows = self._ask(module, one, "nvmlDeviceGetRemappedRows")  # corrected, uncorrected, pending, failed
        found = ["row_remap_pending"] if isinstance(rows, list | tuple) and rows[2] else []
        if self._ask(module, one, "nvmlDeviceGetRetiredPagesPendingStatus") == FEATURE_ENABLED:
            found.append("pages_pending")
        return tuple(found)

    def _busy(self, module: ModuleType, one: _Opened) -> dict[int, int]:
        """Returns the GPU's time, ns, of each process that ran since the last look.

        NVML gives a percentage of the time from the time stamp that it is asked with to the sample's.
        """
        now_us = self.now_unix_us()
        if one.last_sample_us > now_us:  # the clock was set back
            one.last_sample_us = now_us - FIRST_WINDOW_US
        # The clock may have been set forward: no sample is longer than the time since the last look and a second.
        longest_us = (self.now_ns() - one.asked_ns) // 1000 + FIRST_WINDOW_US
        one.asked_ns = self.now_ns()
        try:
            samples = _rows(
                module,
                "nvmlDeviceGetProcessUtilization",
                _SAMPLE,
                lambda function, room, count: function(one.handle, room, count, ctypes.c_ulonglong(one.last_sample_us)),
            )
        except module.NVMLError:  # NOT_FOUND: nobody ran
            samples = []
        busy: dict[int, int] = {}
        newest_us = 0
        for pid, time_us, percent, *_others in samples:
            length_us = time_us - one.last_sample_us
            if length_us > 0:
                busy[pid] = min(length_us, longest_us) * 10 * min(100, percent)
                newest_us = max(newest_us, time_us)
        # Without a sample nobody ran, but the driver's latest one may still be to come.
        one.last_sample_us = max(newest_us, one.last_sample_us, now_us - FIRST_WINDOW_US if not busy else 0)
        return busy


def _is_mig(module: ModuleType, handle: object) -> bool:
    """Returns whether a GPU is divided by MIG now."""
    try:
        return bool(module.nvmlDeviceGetMigMode(handle)[0])
    except module.NVMLError:  # a GPU without MIG
        return False


def _processes(module: ModuleType, handle: object) -> dict[int, int]:
    """Returns the bytes that each process holds. One that computes and draws is in both of NVML's lists, with the same
    number."""
    used: dict[int, int] = {}
    for name in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3"):
        try:
            rows = _rows(module, name, _PROCESS, lambda function, room, count: function(handle, count, room))
        except module.NVMLError as error:
            if error.value not in (module.NVML_ERROR_NOT_SUPPORTED, module.NVML_ERROR_FUNCTION_NOT_FOUND):
                raise
            continue
        for pid, used_bytes, _gpu_instance, _compute_instance in rows:
            used[pid] = max(used.get(pid, 0), 0 if used_bytes == NOT_AVAILABLE else used_bytes)
    return used


def _rows(
    module: ModuleType, name: str, row: struct.Struct, call: Callable[[Any, Any, Any], int]
) -> list[tuple[int, ...]]:
    """Returns the rows that an NVML function writes. Raises NVMLError.

    pynvml asks for the number first, and makes a Python object of each row: twice the calls, and most of the time.
    """
    function = getattr(module.nvmlLib, name, None)
    if function is None:
        raise module.NVMLError(module.NVML_ERROR_FUNCTION_NOT_FOUND)
    count = ROOM
    while True:
        room, written = ctypes.create_string_buffer(count * row.size), ctypes.c_uint(count)
        result = call(function, room, ctypes.byref(written))
        if result == module.NVML_SUCCESS:
            return list(row.iter_unpack(room.raw[: min(written.value, count) * row.size]))
        if result != module.NVML_ERROR_INSUFFICIENT_SIZE or count > ROOM_MAX:
            raise module.NVMLError(result)
        count = 2 * max(count, written.value)
