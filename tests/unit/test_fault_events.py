# SPDX-License-Identifier: Apache-2.0
"""hami_hpc/agent/fault_events.py and gpus.py on the simulated NVML: errors are received, and missing functions said."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sim_testbed
from nvml_testbed import Bench as FakeNvmlBench
from sim_testbed import ROOT, Machine

# Answers each line with the events and conditions since the last one, as JSON: after so many seconds.
WATCH = """
import json, sys, threading, time
sys.path.insert(0, sys.argv[1])
from hami_hpc.agent.gpus import Gpus
from hami_hpc.agent.fault_events import FaultEvents
woken = threading.Event()
gpus = Gpus({}, fault_events=FaultEvents(woken.set))
looks = gpus.look()
print("ready", flush=True)
for line in sys.stdin:
    if woken.wait(float(line)):
        time.sleep(0.3)
    woken.clear()
    begin = time.monotonic()
    looks = gpus.look()
    took = time.monotonic() - begin
    counts = {f"{uuid[4:5]}-{code}": n for (uuid, code), n in gpus.fault_events.take().items()}
    print(json.dumps({"counts": counts, "conditions": [one.conditions for one in looks],
        "states": [one.state for one in looks], "lacking": gpus.lacking(), "took": took}), flush=True)
"""


class Watch:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        command = [sys.executable, "-c", WATCH, str(ROOT)]
        self.process = subprocess.Popen(
            command, env=machine.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"
        time.sleep(0.2)  # the thread has its set

    def ask(self, wait_s: float = 2.0) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{wait_s}\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return sim_testbed.make(tmp_path / "machine")


@pytest.fixture
def watch(machine: Machine) -> Iterator[Watch]:
    made = Watch(machine)
    yield made
    sim_testbed.end(made.process)


def uuid_marks(machine: Machine) -> list[str]:
    """Returns the first character of each GPU's UUID."""
    return [gpu["uuid"][4:5] for gpu in json.loads(machine.state())["gpus"]]


def test_xid_and_ecc_errors_are_received_at_once_and_counted(machine: Machine, watch: Watch) -> None:
    machine.state("--xid", 1, 79)
    machine.state("--xid", 0, 31)
    machine.state("--ecc", 0, 1)
    machine.state("--ecc", 0, 2)
    counts: dict[str, int] = {}
    for _ in range(4):
        counts |= watch.ask(1.0)["counts"]
    first, second = uuid_marks(machine)
    assert counts == {f"{second}-79": 1, f"{first}-31": 1, f"{first}-ecc_single": 1, f"{first}-ecc_double": 1}


def test_waiting_for_events_delays_no_look(watch: Watch) -> None:
    assert max(watch.ask(0.01)["took"] for _ in range(20)) < 0.15


def test_a_storm_is_counted(machine: Machine, watch: Watch) -> None:
    for _ in range(60):
        machine.state("--xid", 0, 31)
    total = 0
    for _ in range(6):
        total += sum(watch.ask(0.3)["counts"].values())
    assert total == 60


def test_a_lost_gpu_does_not_keep_the_others_events_away(machine: Machine, watch: Watch) -> None:
    machine.state("--fail", 0, 15)
    machine.state("--xid", 1, 48)
    assert any(code.endswith("-48") for code in watch.ask()["counts"])
    time.sleep(1.5)
    machine.state("--xid", 1, 95)
    answer = watch.ask(4.0)
    assert any(code.endswith("-95") for code in answer["counts"]), answer
    assert answer["states"] == ["lost", "ok"]


def test_reduced_clocks_and_pending_repairs_are_conditions(machine: Machine) -> None:
    machine.state("--clocks", 0, 0x40 | 0x80)
    machine.state("--pending", 1, 1)
    watch = Watch(machine)
    assert watch.ask(0.0)["conditions"] == [["thermal_slowdown", "power_brake"], ["row_remap_pending"]]
    machine.state("--clocks", 0, 0)
    assert watch.ask(0.0)["conditions"][0] == []
    sim_testbed.end(watch.process)


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("nvmlEventSetCreate=13", "nvmlEventSetCreate failed"),
        ("nvmlDeviceGetSupportedEventTypes=13", "nvmlDeviceGetSupportedEventTypes failed"),
        ("nvmlDeviceRegisterEvents=13", "nvmlDeviceRegisterEvents failed"),
        ("nvmlDeviceRegisterEvents=3", "no GPU of this node reports errors as NVML events"),
        ("nvmlEventSetWait_v2=13", "nvmlEventSetWait_v2 failed"),
        ("nvmlDeviceGetRemappedRows=13", "has no nvmlDeviceGetRemappedRows"),
    ],
)
def test_a_driver_that_lacks_a_function_is_watched_without_it(machine: Machine, fault: str, text: str) -> None:
    machine.env["HAMI_SIM_FAULTS"] = fault
    watch = Watch(machine)
    answer = watch.ask(0.3)
    assert text in "; ".join(answer["lacking"]), answer
    assert answer["states"] == ["ok", "ok"]
    sim_testbed.end(watch.process)


def test_the_older_name_of_the_clocks_reasons_is_enough(machine: Machine) -> None:
    machine.env["HAMI_SIM_FAULTS"] = "nvmlDeviceGetCurrentClocksEventReasons=13"
    watch = Watch(machine)
    answer = watch.ask(0.0)
    assert answer["lacking"] == []
    machine.state("--clocks", 0, 0x20)
    assert watch.ask(0.0)["conditions"][0] == ["thermal_slowdown"]
    sim_testbed.end(watch.process)


def test_pages_that_wait_for_a_reset_are_a_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = FakeNvmlBench(monkeypatch, "GPU-0")
    for status, conditions in ((0, ()), (1, ("pages_pending",))):
        monkeypatch.setattr(
            bench.nvml, "nvmlDeviceGetRetiredPagesPendingStatus", lambda _gpu, s=status: s, raising=False
        )
        bench.gpus = type(bench.gpus)({}, bench.gpus.now_ns, bench.gpus.now_unix_us)
        assert bench.gpus.look()[0].conditions == conditions
