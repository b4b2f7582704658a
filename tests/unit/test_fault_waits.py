# SPDX-License-Identifier: Apache-2.0
"""hami_hpc/agent/fault_events.py: how its thread waits for NVML's events, with an NVML of the test's own."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pynvml
import pytest

from hami_hpc.agent import fault_events
from hami_hpc.agent.fault_events import BURST, PAUSE_S, WAIT_MS, FaultEvents


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
    coming = iter([("a", 31), ("b", 79), ("a", 31)])
    handles = {"a": object(), "b": object()}

    def wait(_events: object, _wait_ms: int) -> SimpleNamespace:
        for name, code in coming:
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
