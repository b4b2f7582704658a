# SPDX-License-Identifier: Apache-2.0
"""hami_hpc/agent/fault_events.py: how its thread waits for NVML's events, with an NVML of the test's own."""

from __future__ import annotations

import ctypes
import threading
from types import SimpleNamespace
from typing import Any, cast

import pynvml
import pytest

from hami_hpc.agent import fault_events
from hami_hpc.agent.fault_events import ABANDON_S, AGAIN_MAX_S, BURST, PAUSE_S, WAIT_MS, WAKE_S, FaultEvents
from hami_hpc.node.fault_table import XID_MAX


def nvml(**functions: object) -> Any:
    constants = {name: value for name, value in vars(pynvml).items() if name.startswith(("NVML", "nvmlEventType"))}
    return cast(Any, SimpleNamespace(**constants | functions))


def raising(code: int) -> Any:
    def fail(*_arguments: object) -> None:
        raise pynvml.NVMLError(code)

    return fail


def test_a_driver_without_event_sets_is_named_by_the_function_that_failed() -> None:
    waiting = FaultEvents()
    module = nvml(nvmlEventSetCreate=raising(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND))
    assert waiting._register(module, {"GPU-a": 1}) == (None, frozenset())
    assert waiting.problem == f"nvmlEventSetCreate failed: {pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)}"


@pytest.mark.parametrize(
    ("events", "rests"),
    [("e" * (BURST - 1), 0), ("e" * BURST, 1), ("e" * (2 * BURST), 2), ("e-" + "e" * (BURST - 1), 0)],
)
def test_after_many_events_without_a_pause_the_thread_rests(
    monkeypatch: pytest.MonkeyPatch, events: str, rests: int
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(fault_events.time, "sleep", pauses.append)  # type: ignore[attr-defined]
    coming = iter(events)

    def wait(_events: object, _wait_ms: int) -> SimpleNamespace:
        what = next(coming, "")
        if what == "e":
            return SimpleNamespace(device=None, eventType=0, eventData=0)
        raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT if what else pynvml.NVML_ERROR_GPU_IS_LOST)

    FaultEvents()._receive(nvml(nvmlEventSetWait_v2=wait), "set", {}, threading.Event(), WAIT_MS)
    assert pauses == [PAUSE_S] * rests


def test_errors_are_counted_by_gpu_and_code_until_they_are_taken() -> None:
    xid = pynvml.nvmlEventTypeXidCriticalError
    coming = iter([("a", 31), ("", 0), ("b", 79), ("a", 31)])  # one after a time without any
    handles = {"a": object(), "b": object()}

    def wait(_events: object, _wait_ms: int) -> SimpleNamespace:
        for name, code in coming:
            if not name:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
            return SimpleNamespace(device=handles[name], eventType=xid, eventData=code)
        raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)

    waiting = FaultEvents()
    names = {id(handle): f"GPU-{name}" for name, handle in handles.items()}
    waiting._receive(nvml(nvmlEventSetWait_v2=wait), "set", names, threading.Event(), WAIT_MS)
    assert waiting.take() == {("GPU-a", "31"): 2, ("GPU-b", "79"): 1}
    assert waiting.take() == {}


def test_when_other_gpus_can_be_registered_the_old_set_is_read_to_its_end_and_freed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    end, freed = threading.Event(), list[str]()
    sets = iter([("first", {"a"}), ("second", {"a", "b"}), ("third", {"a", "b"})])
    received: list[tuple[str, int]] = []

    def receive(_self: object, _module: object, events: str, names: object, _end: object, wait_ms: int) -> None:
        received.append((events, wait_ms))
        if events == "second":
            end.set()

    monkeypatch.setattr(FaultEvents, "_register", lambda *_arguments: next(sets))
    monkeypatch.setattr(FaultEvents, "_receive", receive)
    FaultEvents()._wait(nvml(nvmlEventSetFree=freed.append), {}, end)
    assert received == [("first", WAIT_MS), ("first", 0), ("second", WAIT_MS)]
    assert freed == ["first", "third", "second"]


class Handle(ctypes.Structure):
    """A GPU, of which NVML hands out another pointer at each call."""


def pointer(gpu: Handle) -> object:
    return ctypes.pointer(gpu)


XID, SINGLE, DOUBLE = (
    pynvml.nvmlEventTypeXidCriticalError,
    pynvml.nvmlEventTypeSingleBitEccError,
    pynvml.nvmlEventTypeDoubleBitEccError,
)


def test_each_kind_of_error_is_counted_for_the_gpu_that_a_pointer_stands_for() -> None:
    first, second, other = Handle(), Handle(), Handle()
    coming = iter(
        [
            *((first, SINGLE, 0), (first, SINGLE, 0), (second, DOUBLE, 0), (second, XID, 79)),
            *((first, 1 << 40, 31), (other, XID, 31), (first, XID, 1 << 62)),
        ]
    )

    def wait(_events: object, _wait_ms: int) -> SimpleNamespace:
        for gpu, kind, code in coming:
            return SimpleNamespace(device=pointer(gpu), eventType=kind, eventData=code)
        raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)

    waiting = FaultEvents()
    names = {fault_events._address(pointer(first)): "GPU-a", fault_events._address(pointer(second)): "GPU-b"}
    waiting._receive(nvml(nvmlEventSetWait_v2=wait), "set", names, threading.Event(), WAIT_MS)
    assert waiting.take() == {
        ("GPU-a", "ecc_single"): 2,
        ("GPU-b", "ecc_double"): 1,
        ("GPU-b", "79"): 1,
        ("GPU-a", str(XID_MAX)): 1,
    }


def test_a_driver_that_cannot_wait_is_named_and_not_asked_again() -> None:
    waiting, end = FaultEvents(), threading.Event()
    module = nvml(nvmlEventSetWait_v2=raising(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND))
    waiting._receive(module, "set", {}, end, WAIT_MS)
    assert end.is_set()
    assert waiting.problem == f"nvmlEventSetWait_v2 failed: {pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)}"


def test_a_set_that_is_read_to_its_end_is_not_waited_for() -> None:
    asked: list[tuple[object, int]] = []

    def wait(events: object, wait_ms: int) -> None:
        asked.append((events, wait_ms))
        raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)

    FaultEvents()._receive(nvml(nvmlEventSetWait_v2=wait), "set", {}, threading.Event(), 0)
    assert asked == [("set", 0)]


class Driver:
    """Supports the event types of `types` by GPU; registering those of `errors` fails with that error."""

    def __init__(self, types: dict[str, int], errors: dict[str, int] | None = None) -> None:
        self.types, self.errors = types, errors or {}
        self.registered: list[tuple[str, int, str]] = []
        self.freed: list[str] = []

    def register(self, gpu: str, types: int, events: str) -> None:
        if gpu in self.errors:
            raise pynvml.NVMLError(self.errors[gpu])
        self.registered.append((gpu, types, events))

    def module(self, **more: object) -> Any:
        functions: dict[str, object] = {
            "NVMLError": pynvml.NVMLError,
            "nvmlEventSetCreate": lambda: "set",
            "nvmlDeviceGetSupportedEventTypes": self.types.__getitem__,
            "nvmlDeviceRegisterEvents": self.register,
            "nvmlEventSetFree": self.freed.append,
        }
        return nvml(**functions | more)


def test_gpus_without_events_and_those_that_are_lost_are_not_waited_for() -> None:
    gpus = ("none", "xid", "lost", "all", "unsupported")
    unsupported, lost = pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_GPU_IS_LOST
    types = dict(zip(gpus, (1 << 40, XID | 1 << 40, XID, XID | SINGLE | DOUBLE, XID), strict=True))
    driver, waiting = Driver(types, {"lost": lost, "unsupported": unsupported}), FaultEvents()
    handles = {f"GPU-{name}": name for name in gpus}
    assert waiting._register(driver.module(), handles) == ("set", frozenset({"GPU-xid", "GPU-all"}))
    assert driver.registered == [("xid", XID, "set"), ("all", XID | SINGLE | DOUBLE, "set")]
    assert (waiting.problem, driver.freed) == ("", [])
    assert waiting._register(driver.module(), {"GPU-lost": "lost", "GPU-none": "none"}) == ("set", frozenset())
    assert waiting._register(driver.module(), {"GPU-none": "none", "GPU-u": "unsupported"}) == (None, frozenset())
    assert waiting.problem == "no GPU of this node reports errors as NVML events"
    assert driver.freed == ["set"]


@pytest.mark.parametrize("function", ["nvmlDeviceGetSupportedEventTypes", "nvmlDeviceRegisterEvents"])
def test_a_driver_without_a_function_for_gpus_is_named_by_it_and_its_set_freed(function: str) -> None:
    driver, waiting = Driver({"a": XID, "b": XID}), FaultEvents()
    module = driver.module(**{function: raising(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)})
    assert waiting._register(module, {"GPU-a": "a", "GPU-b": "b"}) == (None, frozenset())
    assert waiting.problem.startswith(f"{function} failed: ")
    assert driver.freed == ["set"]


def test_the_agent_is_woken_for_the_first_error_of_a_kind_in_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now, woken = [0.0], list[float]()  # s since the machine began
    monkeypatch.setattr(fault_events.time, "monotonic", lambda: now[0])  # type: ignore[attr-defined]
    waiting = FaultEvents(lambda: woken.append(now[0]))
    for seconds in (0.0, 1.0, WAKE_S - 0.5, WAKE_S, WAKE_S + 1):
        now[0] = seconds
        waiting._count(("GPU-a", "31"))
    assert woken == [0, WAKE_S]
    waiting._count(("GPU-a", "79"))
    assert len(woken) == 3
    assert waiting.take() == {("GPU-a", "31"): 5, ("GPU-a", "79"): 1}


def test_events_of_gpus_that_can_be_registered_later_and_of_the_old_set_are_counted() -> None:
    """GPU b was lost at first. An event of GPU a comes while the new set is made."""
    gpus, end = {"a": Handle(), "b": Handle()}, threading.Event()
    driver = Driver({"a": XID, "b": XID}, {"b": pynvml.NVML_ERROR_GPU_IS_LOST})
    sets = iter(["first", "second"])
    coming: dict[str, list[str | None]] = {"first": [None, "a", "a", None], "second": ["b", "end"]}

    def create() -> str:
        name = next(sets, "third")
        driver.errors = driver.errors if name == "first" else {}
        return name

    def wait(events: str, wait_ms: int) -> SimpleNamespace:
        what = coming[events].pop(0)
        if what is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST if wait_ms else pynvml.NVML_ERROR_TIMEOUT)
        if what == "end":
            end.set()
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return SimpleNamespace(device=pointer(gpus[what]), eventType=XID, eventData=31)

    names = {ctypes.addressof(gpu): name for name, gpu in gpus.items()}

    def by_gpu(function: Any) -> Any:
        return lambda handle, *more: function(names[ctypes.addressof(handle.contents)], *more)

    waiting = FaultEvents()
    module = driver.module(
        nvmlEventSetCreate=create,
        nvmlEventSetWait_v2=wait,
        nvmlDeviceGetSupportedEventTypes=by_gpu(driver.types.__getitem__),
        nvmlDeviceRegisterEvents=by_gpu(driver.register),
    )
    waiting._wait(module, {f"GPU-{name}": pointer(gpu) for name, gpu in gpus.items()}, end)
    assert waiting.take() == {("GPU-a", "31"): 2, ("GPU-b", "31"): 1}
    assert sorted(driver.freed) == ["first", "second", "third"]


def test_after_errors_the_thread_asks_ever_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    class End(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout or 0)
            if len(pauses) == 9:
                self.set()
            return self.is_set()

    driver = Driver({"a": XID})
    monkeypatch.setattr(FaultEvents, "_receive", lambda *_arguments: None)
    FaultEvents()._wait(driver.module(), {"GPU-a": "a"}, End())
    assert pauses == [1, 2, 4, 8, 16, 32, AGAIN_MAX_S, AGAIN_MAX_S, AGAIN_MAX_S]
    assert len(driver.freed) == 10, "each set"


def test_the_thread_ends_when_it_is_told_to_and_nvml_may_be_closed_then(monkeypatch: pytest.MonkeyPatch) -> None:
    waits, go_on = threading.Event(), threading.Event()

    def wait(_events: object, _wait_ms: int) -> None:
        waits.set()
        go_on.wait()
        raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)

    now = [1000.0]
    monkeypatch.setattr(fault_events.time, "monotonic", lambda: now[0])  # type: ignore[attr-defined]
    events = FaultEvents()
    assert events.stop(), "it never began"
    events.start(Driver({"a": XID}).module(nvmlEventSetWait_v2=wait), {"GPU-a": "a"})
    run = events._run
    assert run is not None
    assert (run.thread.name, run.thread.daemon) == ("faults", True), (
        "a driver that does not return keeps no agent from ending"
    )
    assert waits.wait(10)
    assert not events.is_abandoned()
    now[0] += 2 * ABANDON_S
    assert not events.is_abandoned(), "it was not told to end"
    assert not events.stop()
    now[0] += ABANDON_S
    assert not events.stop()
    assert not events.is_abandoned()
    now[0] += 1
    assert events.is_abandoned()
    go_on.set()
    run.thread.join(10)
    assert events.stop()
    assert not events.is_abandoned()


def test_events_that_are_turned_off_are_not_waited_for() -> None:
    events = FaultEvents(is_on=False)
    events.start(nvml(), {"GPU-a": "a"})
    assert events._run is None


def test_what_nobody_expected_ends_the_thread_with_a_word() -> None:
    """Of a driver, or of an nvidia-ml-py of another time."""
    events = FaultEvents()
    events._work(nvml(), {"GPU-a": "a"}, threading.Event())
    assert events.problem == "AttributeError: 'types.SimpleNamespace' object has no attribute 'nvmlEventSetCreate'"
    events.problem = "nvmlEventSetCreate failed"
    events._work(nvml(), {"GPU-a": "a"}, threading.Event())
    assert events.problem == "nvmlEventSetCreate failed", "the first one"
