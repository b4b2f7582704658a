# SPDX-License-Identifier: Apache-2.0
"""hami_hpc/agent/gpus.py: what is read of NVML, and what happens when NVML or a GPU fails."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pynvml
import pytest
import sim_testbed
from nvml_testbed import COMPUTE, GRAPHICS, MIB, SECOND, SECOND_US, Bench, FakeGpu
from sim_testbed import SIM, end

from hami_hpc.agent import gpus as agent_gpus
from hami_hpc.agent.gpus import OPEN_AGAIN_NS, REOPEN_NS, ROOM, GpuProcess
from hami_hpc.core.agent_state import FAILED, LOST, OK
from hami_hpc.errors import NodeError


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch, "GPU-a", "GPU-b")


def test_a_gpu_as_nvml_shows_it(bench: Bench) -> None:
    bench.nvml.gpus[0].compute = [(7, 100), (5, 200)]
    first, second = bench.gpus.look()
    assert (first.gpu.uuid, first.gpu.minor, first.gpu.slurm_index, first.gpu.model) == ("GPU-a", 0, 0, "h200")
    assert (first.state, first.total_bytes, first.used_bytes) == (OK, 143156 * MIB, 7 * MIB)
    assert (first.busy_percent, first.power_mw, first.energy_mj, first.temperature_c) == (12.0, 300_000, 5_000, 40)
    assert first.processes == (GpuProcess(5, 200, 0), GpuProcess(7, 100, 0))
    assert (second.gpu.minor, second.processes) == (1, ())


def test_power_and_temperature_are_read_every_few_seconds(bench: Bench) -> None:
    for _ in range(11):
        look = bench.gpus.look()[0]
        assert (look.power_mw, look.temperature_c) == (300_000, 40)
        bench.wait(1)
    assert bench.nvml.calls.count("nvmlDeviceGetPowerUsage") == 3 * 2
    assert bench.nvml.calls.count("nvmlDeviceGetTotalEnergyConsumption") == 11 * 2
    bench.nvml.gpus[0].errors["nvmlDeviceGetPowerUsage"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    bench.wait(5)
    assert bench.gpus.look()[0].power_mw == 0


def test_the_rows_are_as_pynvml_declares_them() -> None:
    assert agent_gpus._PROCESS.size == ctypes.sizeof(pynvml.c_nvmlProcessInfo_v3_t)
    assert agent_gpus._SAMPLE.size == ctypes.sizeof(pynvml.c_nvmlProcessUtilizationSample_t)
    process = pynvml.c_nvmlProcessInfo_v3_t(pid=1, usedGpuMemory=2, gpuInstanceId=3, computeInstanceId=4)
    assert agent_gpus._PROCESS.unpack(bytes(process)) == (1, 2, 3, 4)
    sample = pynvml.c_nvmlProcessUtilizationSample_t(pid=1, timeStamp=2, smUtil=3, memUtil=4, encUtil=5, decUtil=6)
    assert agent_gpus._SAMPLE.unpack(bytes(sample)) == (1, 2, 3, 4, 5, 6)


def test_a_process_in_both_lists_counts_once(bench: Bench) -> None:
    gpu = bench.nvml.gpus[0]
    gpu.compute, gpu.graphics = [(5, 200), (6, 10)], [(5, 200), (8, 30)]
    used = {one.pid: one.used_bytes for one in bench.gpus.look()[0].processes}
    assert used == {5: 200, 6: 10, 8: 30}


def test_memory_that_nvml_does_not_know_is_none(bench: Bench) -> None:
    bench.nvml.gpus[0].compute = [(5, (1 << 64) - 1)]
    assert bench.gpus.look()[0].processes == (GpuProcess(5, 0, 0),)


@pytest.mark.parametrize("count", [ROOM - 1, ROOM, ROOM + 1, 10 * ROOM])
def test_all_processes_are_listed_however_many(bench: Bench, count: int) -> None:
    gpu = bench.nvml.gpus[0]
    gpu.compute = [(pid, pid * 10) for pid in range(1, count + 1)]
    gpu.samples = [(pid, bench.unix_us, 1) for pid in range(1, count + 1)]
    found = bench.gpus.look()[0].processes
    assert found == tuple(GpuProcess(pid, pid * 10, SECOND // 100) for pid in range(1, count + 1))


def test_a_function_that_the_driver_or_its_library_lacks_is_asked_for_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def lacking(handle: object) -> None:
        asked.append(handle)
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

    monkeypatch.setattr(bench.nvml, agent_gpus.CLOCKS, lacking, raising=False)
    for _ in range(3):
        bench.gpus.look()
        bench.wait(30)
    assert len(asked) == 1
    # The testbed's library has no function of the older name.
    assert {agent_gpus.CLOCKS, agent_gpus.CLOCKS_OLD} <= bench.gpus.missing


def test_a_list_that_is_never_long_enough_is_the_gpus_failure(bench: Bench) -> None:
    bench.nvml.gpus[0].errors[COMPUTE] = pynvml.NVML_ERROR_INSUFFICIENT_SIZE
    assert bench.states() == [FAILED, OK]


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND])
def test_a_gpu_without_a_list_of_graphics_processes_is_ok(bench: Bench, code: int) -> None:
    gpu = bench.nvml.gpus[0]
    gpu.compute, gpu.errors[GRAPHICS] = [(5, 200)], code
    assert bench.gpus.look()[0].processes == (GpuProcess(5, 200, 0),)
    del gpu.errors[GRAPHICS]
    delattr(bench.nvml.nvmlLib, GRAPHICS)  # an older library
    assert bench.gpus.look()[0].processes == (GpuProcess(5, 200, 0),)


@pytest.mark.parametrize("name", ["nvmlDeviceGetMemoryInfo", COMPUTE, GRAPHICS])
@pytest.mark.parametrize(
    ("code", "state"), [(pynvml.NVML_ERROR_GPU_IS_LOST, LOST), (pynvml.NVML_ERROR_UNKNOWN, FAILED)]
)
def test_a_gpu_that_fails_leaves_the_others_alone(bench: Bench, name: str, code: int, state: str) -> None:
    bench.nvml.gpus[1].compute = [(5, 200)]
    assert bench.states() == [OK, OK]
    bench.nvml.gpus[0].errors[name] = code
    failed, other = bench.gpus.look()
    assert (failed.state, failed.detail, failed.used_bytes) == (state, str(pynvml.NVMLError(code)), 0)
    assert (other.state, len(other.processes)) == (OK, 1)
    bench.nvml.gpus[0].errors.clear()
    bench.wait(1)
    assert bench.states() == [OK, OK]
    assert bench.nvml.calls.count("nvmlInit") == 1


def test_numbers_that_nvml_does_not_have_are_0(bench: Bench) -> None:
    for name in ("UtilizationRates", "PowerUsage", "TotalEnergyConsumption", "Temperature"):
        bench.nvml.gpus[0].errors[f"nvmlDeviceGet{name}"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    look = bench.gpus.look()[0]
    assert (look.state, look.busy_percent, look.power_mw, look.energy_mj, look.temperature_c) == (OK, 0.0, 0, 0, 0)


def test_nvml_that_fails_as_a_whole_is_opened_again_after_a_while_and_not_before(bench: Bench) -> None:
    assert bench.states() == [OK, OK]
    bench.nvml.errors["nvmlDeviceGetMemoryInfo"] = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    bench.nvml.errors["nvmlShutdown"] = pynvml.NVML_ERROR_UNINITIALIZED
    assert bench.states() == [FAILED, FAILED]
    assert bench.opened() == 0
    bench.nvml.errors = {"nvmlInit": pynvml.NVML_ERROR_DRIVER_NOT_LOADED}
    for _ in range(9):
        bench.wait(1)
        with pytest.raises(NodeError, match="Driver Not Loaded"):
            bench.gpus.look()
    assert bench.nvml.calls.count("nvmlInit") == 1
    bench.wait(1)
    with pytest.raises(NodeError, match=r"NVML cannot be used \(Driver Not Loaded\)"):
        bench.gpus.look()
    assert bench.nvml.calls.count("nvmlInit") == 2
    bench.nvml.errors = {}
    bench.now_ns += OPEN_AGAIN_NS - 1
    with pytest.raises(NodeError, match="NVML cannot be used"):
        bench.gpus.look()
    bench.now_ns += 1
    assert bench.states() == [OK, OK]


def test_a_gpus_handle_is_given_while_nvml_is_open_and_shows_the_gpu(bench: Bench) -> None:
    assert bench.gpus.opened("GPU-b") is None, "nothing was opened yet"
    bench.gpus.look()
    assert bench.gpus.opened("GPU-b") == (cast(ModuleType, bench.nvml), bench.nvml.gpus[1])
    assert bench.gpus.opened("GPU-c") is None
    bench.nvml.errors["nvmlDeviceGetMemoryInfo"] = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    bench.gpus.look()
    assert bench.gpus.opened("GPU-b") is None, "a handle of a closed NVML is of no use"


def test_gpus_that_are_all_lost_are_no_failure_of_nvml(bench: Bench) -> None:
    bench.gpus.look()
    for gpu in bench.nvml.gpus:
        gpu.errors["*"] = pynvml.NVML_ERROR_GPU_IS_LOST
    assert bench.states() == [LOST, LOST]
    assert bench.states() == [LOST, LOST]
    assert bench.opened() == 1


def test_nvml_that_cannot_list_its_gpus_is_a_fault_of_the_node(bench: Bench) -> None:
    bench.nvml.errors["nvmlDeviceGetCount"] = pynvml.NVML_ERROR_UNKNOWN
    for _ in range(3):
        with pytest.raises(NodeError, match=r"NVML failed while listing GPUs \(Unknown Error\)"):
            bench.gpus.look()
    assert bench.nvml.calls.count("nvmlInit") == 1
    assert bench.opened() == 0
    bench.nvml.errors = {}
    bench.wait(10)
    assert bench.states() == [OK, OK]


@pytest.mark.parametrize("name", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetName"])
def test_a_gpu_that_was_lost_at_first_appears_later(bench: Bench, name: str) -> None:
    bench.nvml.gpus[0].errors[name] = pynvml.NVML_ERROR_GPU_IS_LOST
    gpu = bench.nvml.gpus[1]
    gpu.compute, gpu.samples = [(5, 200)], [(5, bench.unix_us, 50)]
    assert [one.gpu.uuid for one in bench.gpus.look()] == ["GPU-b"]
    bench.nvml.gpus[0].errors.clear()
    bench.now_ns += REOPEN_NS - 1
    assert len(bench.gpus.look()) == 1
    bench.now_ns += 1
    bench.unix_us += SECOND_US // 2
    gpu.samples = [(5, bench.unix_us, 50)]
    looks = bench.gpus.look()
    assert [one.gpu.uuid for one in looks] == ["GPU-a", "GPU-b"]
    assert looks[1].processes[0].busy_ns == SECOND // 4, "no moment is counted twice"
    assert bench.opened() == 1
    bench.now_ns += REOPEN_NS
    bench.gpus.look()
    assert bench.nvml.calls.count("nvmlInit") == 2, "nothing is missing any more"


def test_a_machine_without_gpus_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    assert bench.gpus.look() == ()
    bench.nvml.gpus.append(FakeGpu("GPU-a"))
    assert bench.gpus.look() == ()
    bench.now_ns += REOPEN_NS
    assert bench.states() == [OK]


def busy_ms(bench: Bench, *samples: tuple[int, int, int]) -> dict[int, int]:
    """Looks at the first GPU with these samples: pid, age in ms, percent."""
    gpu = bench.nvml.gpus[0]
    gpu.samples = [(pid, bench.unix_us - age * 1000, percent) for pid, age, percent in samples]
    gpu.compute = [(5, 0), (6, 0)]
    return {one.pid: one.busy_ns // 1_000_000 for one in bench.gpus.look()[0].processes}


def test_the_first_look_counts_the_last_second(bench: Bench) -> None:
    assert busy_ms(bench, (5, 0, 30), (6, 0, 100)) == {5: 300, 6: 1000}
    assert bench.nvml.asked_us[0] == bench.unix_us - SECOND_US


def test_time_is_counted_once_at_irregular_looks(bench: Bench) -> None:
    busy_ms(bench, (5, 0, 50))
    for seconds in (0.2, 1, 10, 0.2, 2):
        bench.wait(seconds)
        assert busy_ms(bench, (5, 0, 50)) == {5: int(seconds * 500), 6: 0}
        bench.wait(0.001)
        assert busy_ms(bench, (5, 1, 50))[5] == 0, "the same sample again"


def test_the_next_look_goes_on_where_the_driver_was_not_where_the_clock_is(bench: Bench) -> None:
    busy_ms(bench, (5, 300, 50))
    stamp = bench.unix_us - 300_000
    bench.wait(1)
    assert busy_ms(bench, (5, 100, 100)) == {5: 1200, 6: 0}
    assert stamp in bench.nvml.asked_us


def test_who_is_idle_and_then_busy_has_no_time_of_before(bench: Bench) -> None:
    for seconds in (1, 10, 0.2, 10):
        bench.wait(seconds)
        assert busy_ms(bench) == {5: 0, 6: 0}
    bench.wait(1)
    assert busy_ms(bench, (5, 0, 20)) == {5: 400, 6: 0}, "one second for a sample that came late, and this one"


def test_more_than_all_of_the_time_is_all_of_it(bench: Bench) -> None:
    assert busy_ms(bench, (5, 0, 250)) == {5: 1000, 6: 0}


def test_a_process_that_is_no_longer_listed_has_no_time(bench: Bench) -> None:
    assert busy_ms(bench, (4711, 0, 100)) == {5: 0, 6: 0}


@pytest.mark.parametrize("step", [-3600, 3600])
def test_a_clock_that_is_set_takes_one_look_and_no_more(bench: Bench, step: int) -> None:
    busy_ms(bench, (5, 0, 50))
    bench.unix_us += step * SECOND_US
    bench.wait(1)
    first = busy_ms(bench, (5, 0, 50))[5]
    assert first == (500 if step < 0 else 1000), "at most the time since the last look and a second"
    for _ in range(3):
        bench.wait(1)
        assert busy_ms(bench, (5, 0, 50))[5] == 500


# Looks as often as the arguments say, with a pause of so many seconds before each; after each prints the states,
# the processes' memory in MiB, and all of their time in ms so far, as JSON.
LOOKS = """
import json, sys, time
from hami_hpc.agent.gpus import Gpus
gpus, busy = Gpus({"h200": 143156}), {}
gpus.look()
print("ready", flush=True)
for pause in sys.stdin:
    time.sleep(float(pause))
    looks = gpus.look()
    for process in (process for one in looks for process in one.processes):
        busy[process.pid] = busy.get(process.pid, 0) + process.busy_ns / 1e6
    used = {process.pid: process.used_bytes >> 20 for process in looks[0].processes}
    print(json.dumps([[one.state for one in looks], used, busy]), flush=True)
"""


class Looker:
    """A process that looks at a simulated machine when it is told to."""

    def __init__(self, machine: sim_testbed.Machine) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", LOOKS], env=machine.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def look(self, pause_s: float = 0) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{pause_s}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def test_on_the_simulated_library(tmp_path: Path) -> None:
    """Memory and time of a process at irregular looks, and a GPU that is lost and comes back."""
    machine = sim_testbed.make(tmp_path / "machine")
    tenant = machine.tenant()
    looker = Looker(machine)
    try:
        pid = str(tenant.pid)
        states, used, _ = looker.look()
        assert states == [OK, OK]
        assert used == {pid: 8192 + 512}
        assert tenant.stdin is not None
        assert tenant.stdout is not None
        for pause in (0.2, 1.0, 0.2, 1.5):
            tenant.stdin.write("300\n")
            tenant.stdin.flush()
            assert tenant.stdout.readline() == "done\n"
            _, _, busy = looker.look(pause)
        looker.look(0.2)
        assert abs(busy[pid] - 1200) <= 40, "whole percents of some 4 s"
        subprocess.run([str(SIM / "sim-state"), str(machine.directory), "--fail", "1", "15"], check=True, timeout=60)
        assert looker.look()[0] == [OK, LOST]
        subprocess.run([str(SIM / "sim-state"), str(machine.directory), "--fail", "1", "0"], check=True, timeout=60)
        assert looker.look()[0] == [OK, OK]
    finally:
        end(tenant)
        end(looker.process)


def test_an_energy_counter_that_fails_for_a_look_is_as_it_was(bench: Bench) -> None:
    """With 0 for it, the next look would show all energy since the driver was loaded."""
    assert bench.gpus.look()[0].energy_mj == 5_000
    bench.nvml.gpus[0].errors["nvmlDeviceGetTotalEnergyConsumption"] = pynvml.NVML_ERROR_UNKNOWN
    assert bench.gpus.look()[0].energy_mj == 5_000


def test_mig_is_seen_where_it_is_on_and_a_gpu_without_it_is_none(bench: Bench) -> None:
    bench.nvml.gpus[0].is_mig = True
    bench.nvml.gpus[1].errors["nvmlDeviceGetMigMode"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    assert [one.is_mig for one in bench.gpus.look()] == [True, False]
