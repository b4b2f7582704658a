# SPDX-License-Identifier: Apache-2.0
"""Receives NVML's events (Xid, ECC) in a thread of its own, so that waiting for them delays no look.

The thread must have ended before NVML is closed: the driver frees an event set under a thread that waits in it.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from hami_hpc.node.fault_table import XID_MAX

WAIT_MS = 500  # after which the thread looks whether it is to end
BURST, PAUSE_S = 64, 0.02  # of so many events at once the thread rests, whatever a program does
AGAIN_S, AGAIN_MAX_S = 1.0, 60.0  # after an error of NVML's
WAKE_S, KEYS_MAX = 5.0, 1000
ABANDON_S = 30.0  # a driver that does not return from waiting is left behind

Key = tuple[str, str]  # GPU and code


@dataclass
class _Run:
    """One opening of NVML: its thread, and whether it is to end."""

    end: threading.Event
    thread: threading.Thread
    ended_s: float = 0.0  # when it was told to end


@dataclass
class FaultEvents:
    """The events since they were taken last. `wake` is called when there is a new one. `problem` says what the driver
    lacks, "" for nothing."""

    wake: Callable[[], None] = lambda: None
    is_on: bool = True
    problem: str = ""
    _counts: dict[Key, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _woken_s: dict[Key, float] = field(default_factory=dict)
    _run: _Run | None = None

    def start(self, module: ModuleType, handles: Mapping[str, Any]) -> None:
        """Begins to wait for the events of these GPUs, by UUID."""
        if not self.is_on:
            return
        end = threading.Event()
        thread = threading.Thread(target=self._work, args=(module, dict(handles), end), name="faults", daemon=True)
        self._run = _Run(end, thread)
        thread.start()

    def stop(self) -> bool:
        """Tells the thread to end. Returns whether it has, so that NVML may be closed."""
        if self._run is None:
            return True
        if not self._run.end.is_set():
            self._run.end.set()
            self._run.ended_s = time.monotonic()
        if self._run.thread.is_alive():
            return False
        self._run = None
        return True

    def is_abandoned(self) -> bool:
        """Returns whether the thread does not end: NVML must stay open then, and is opened once more beside it."""
        return self._run is not None and self._run.end.is_set() and time.monotonic() - self._run.ended_s > ABANDON_S

    def abandon(self) -> None:
        self._run = None

    def take(self) -> dict[Key, int]:
        """Returns how many events of each GPU and code came since the last call."""
        with self._lock:
            counts, self._counts = self._counts, {}
        return counts

    def _count(self, key: Key) -> None:
        """Counts an event, and has the agent look soon where none like it came in the last WAKE_S."""
        with self._lock:
            self._counts[key] = self._counts.get(key, 0) + 1
        if len(self._woken_s) > KEYS_MAX:
            self._woken_s.clear()
        now_s = time.monotonic()
        if now_s - self._woken_s.get(key, -WAKE_S) >= WAKE_S:
            self._woken_s[key] = now_s
            self.wake()

    def _work(self, module: ModuleType, handles: dict[str, Any], end: threading.Event) -> None:
        try:
            self._wait(module, handles, end)
        except Exception as error:  # a driver or nvidia-ml-py of another time; the looks go on
            self.problem = self.problem or f"{type(error).__name__}: {error}"

    def _wait(self, module: ModuleType, handles: dict[str, Any], end: threading.Event) -> None:
        """Waits until told to end. After an error of NVML's, which a lost GPU is, it goes on with those GPUs that can
        still be registered; the old set is read to its end after the new one has begun, so that no event is missed."""
        names = {_address(handle): uuid for uuid, handle in handles.items()}
        events, registered = self._register(module, handles)
        pause_s = AGAIN_S
        try:
            while events is not None and not end.is_set():
                self._receive(module, events, names, end, WAIT_MS)
                fresh, now = self._register(module, handles)
                if fresh is not None and now != registered:
                    self._receive(module, events, names, end, 0)
                    events, fresh, registered, pause_s = fresh, events, now, AGAIN_S
                else:
                    end.wait(pause_s)
                    pause_s = min(2 * pause_s, AGAIN_MAX_S)
                if fresh is not None:
                    module.nvmlEventSetFree(fresh)
        finally:
            if events is not None:
                module.nvmlEventSetFree(events)

    def _register(self, module: ModuleType, handles: dict[str, Any]) -> tuple[Any, frozenset[str]]:
        """Returns an event set, with the GPUs that could be registered; None where the driver has no events."""
        wanted = module.nvmlEventTypeXidCriticalError
        wanted |= module.nvmlEventTypeSingleBitEccError | module.nvmlEventTypeDoubleBitEccError
        function = "nvmlEventSetCreate"
        events = None
        registered = []
        without = 0
        try:
            events = module.nvmlEventSetCreate()
            for uuid, handle in handles.items():
                try:
                    function = "nvmlDeviceGetSupportedEventTypes"
                    types = module.nvmlDeviceGetSupportedEventTypes(handle) & wanted
                    function = "nvmlDeviceRegisterEvents"
                    without += not types
                    if types:
                        module.nvmlDeviceRegisterEvents(handle, types, events)
                        registered.append(uuid)
                except module.NVMLError as error:
                    if error.value == module.NVML_ERROR_FUNCTION_NOT_FOUND:
                        raise
                    without += error.value == module.NVML_ERROR_NOT_SUPPORTED
        except module.NVMLError as error:
            self.problem = f"{function} failed: {error}"
        else:
            if without < len(handles):
                return events, frozenset(registered)
            self.problem = "no GPU of this node reports errors as NVML events"
        if events is not None:
            module.nvmlEventSetFree(events)
        return None, frozenset()

    def _receive(
        self, module: ModuleType, events: Any, names: Mapping[int, str], end: threading.Event, wait_ms: int
    ) -> None:
        """Counts events until an error of NVML's, or until told to end; with `wait_ms` 0 until none is left."""
        burst = 0
        while not end.is_set():
            try:
                data = module.nvmlEventSetWait_v2(events, wait_ms)
            except module.NVMLError as error:
                if error.value == module.NVML_ERROR_TIMEOUT and wait_ms:
                    burst = 0
                    continue
                if error.value == module.NVML_ERROR_FUNCTION_NOT_FOUND:
                    self.problem = f"nvmlEventSetWait_v2 failed: {error}"
                    end.set()
                return
            uuid = names.get(_address(data.device), "")
            code = _code(module, data)
            if uuid and code:
                self._count((uuid, code))
            burst += 1
            if burst % BURST == 0:
                time.sleep(PAUSE_S)


def _address(handle: Any) -> int:
    try:
        return ctypes.cast(handle, ctypes.c_void_p).value or 0
    except (ctypes.ArgumentError, TypeError):
        return id(handle)


def _code(module: ModuleType, data: Any) -> str:
    if data.eventType == module.nvmlEventTypeXidCriticalError:
        return str(min(int(data.eventData), XID_MAX))
    if data.eventType == module.nvmlEventTypeDoubleBitEccError:
        return "ecc_double"
    if data.eventType == module.nvmlEventTypeSingleBitEccError:
        return "ecc_single"
    return ""
