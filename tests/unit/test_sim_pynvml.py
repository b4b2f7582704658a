# SPDX-License-Identifier: Apache-2.0
"""The real nvidia-ml-py, unmodified, on the simulated driver."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sim_testbed
from sim_testbed import MIB, Machine, end


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return sim_testbed.make(tmp_path / "machine")


@pytest.fixture
def tenant(machine: Machine) -> Iterator[subprocess.Popen[str]]:
    process = machine.tenant()
    yield process
    end(process)


def test_the_machine_is_the_one_that_was_made(machine: Machine) -> None:
    assert machine.ask("[n.nvmlDeviceGetCount(), n.nvmlDeviceGetName(d), n.nvmlSystemGetDriverVersion()]") == [
        2,
        "NVIDIA H200",
        "580.159.04",
    ]
    names = "[n.nvmlDeviceGetName(n.nvmlDeviceGetHandleByIndex(i)) for i in range(n.nvmlDeviceGetCount())]"
    assert machine.ask(names) == ["NVIDIA H200", "NVIDIA A100-SXM4-40GB"]
    assert machine.ask("n.nvmlSystemGetCudaDriverVersion()") == 13000


def test_a_device_is_found_by_uuid_and_by_bus_id(machine: Machine) -> None:
    by_uuid = "n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(d)))"
    by_bus = "n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByPciBusId(n.nvmlDeviceGetPciInfo(d).busId))"
    assert machine.ask(f"[{by_uuid}, {by_bus}, n.nvmlDeviceGetMinorNumber(d)]") == [0, 0, 0]
    assert machine.ask("error(n.nvmlDeviceGetHandleByUUID, 'GPU-0')") == "NVMLError_NotFound"
    assert machine.ask("error(n.nvmlDeviceGetHandleByIndex, 2)") == "NVMLError_InvalidArgument"


def test_memory_is_the_boards_in_both_versions(machine: Machine) -> None:
    v1 = machine.ask("[(lambda m: [m.total, m.free, m.used])(n.nvmlDeviceGetMemoryInfo(d))][0]")
    assert v1 == [143771 * MIB, 143156 * MIB, 615 * MIB]
    v2 = machine.ask(
        "[(lambda m: [m.total, m.reserved, m.free, m.used])(n.nvmlDeviceGetMemoryInfo(d, n.nvmlMemory_v2))][0]"
    )
    assert v2 == [143771 * MIB, 615 * MIB, 143156 * MIB, 0]


def test_a_process_is_listed_with_its_memory(machine: Machine, tenant: subprocess.Popen[str]) -> None:
    listing = "[[p.pid, p.usedGpuMemory] for p in n.nvmlDeviceGetComputeRunningProcesses(d)]"
    assert machine.ask(listing) == [[tenant.pid, (8192 + 512) * MIB]]
    assert machine.ask("n.nvmlDeviceGetMemoryInfo(d).used") == (8192 + 512 + 615) * MIB
    assert machine.ask("n.nvmlDeviceGetGraphicsRunningProcesses(d)") == []
    second = machine.ask("len(n.nvmlDeviceGetComputeRunningProcesses(n.nvmlDeviceGetHandleByIndex(1)))")
    assert second == 0


def test_many_processes_fit_the_list(machine: Machine) -> None:
    tenants = [machine.tenant() for _ in range(5)]
    try:
        pids = machine.ask("[p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(d)]")
        assert sorted(pids) == sorted(t.pid for t in tenants)
    finally:
        for process in tenants:
            end(process)
    assert machine.ask("n.nvmlDeviceGetComputeRunningProcesses(d)") == []


def test_a_killed_process_is_gone_at_the_next_look(machine: Machine, tenant: subprocess.Popen[str]) -> None:
    tenant.send_signal(signal.SIGKILL)
    tenant.wait(timeout=10)
    assert machine.ask("n.nvmlDeviceGetComputeRunningProcesses(d)") == []
    assert machine.ask("n.nvmlDeviceGetMemoryInfo(d).used") == 615 * MIB


def test_utilisation_is_what_the_kernels_took(machine: Machine, tenant: subprocess.Popen[str]) -> None:
    assert machine.ask("n.nvmlDeviceGetUtilizationRates(d).gpu") == 0
    orders, answers = tenant.stdin, tenant.stdout
    assert orders is not None
    assert answers is not None

    def work() -> None:
        orders.write("400\n")
        orders.flush()
        assert answers.readline() == "done\n"

    rate = "n.nvmlDeviceGetUtilizationRates(d).gpu"
    samples = "[[s.pid, s.smUtil] for s in n.nvmlDeviceGetProcessUtilization(d, 0)]"
    percent, rows = machine.ask_after(work, f"[{rate}, {samples}]")
    assert 10 <= percent <= 40, "of the last second"
    assert [pid for pid, _ in rows] == [tenant.pid]


@pytest.mark.parametrize(
    "function",
    ["FanSpeed", "VbiosVersion", "AccountingMode", "BoardPartNumber", "CurrPcieLinkWidth"],
)
def test_what_the_board_lacks_is_not_supported(machine: Machine, function: str) -> None:
    assert machine.ask(f"error(n.nvmlDeviceGet{function}, d)") == "NVMLError_NotSupported"


def test_mig_is_off(machine: Machine) -> None:
    assert machine.ask("n.nvmlDeviceGetMigMode(d)") == [0, 0]
    assert machine.ask("error(n.nvmlDeviceGetMigDeviceHandleByIndex, d, 0)") == "NVMLError_NotFound"
    profile = "n.nvmlDeviceGetGpuInstanceProfileInfo(d, n.NVML_GPU_INSTANCE_PROFILE_1_SLICE)"
    assert machine.ask(f"[{profile}.memorySizeMB, {profile}.name]") == [16384, "MIG 1g.18gb"]


def test_the_listing_of_nvidia_smi_can_be_made(machine: Machine) -> None:
    row = machine.ask(
        "[n.nvmlDeviceGetPersistenceMode(d), n.nvmlDeviceGetDisplayActive(d), n.nvmlDeviceGetComputeMode(d),"
        " n.nvmlDeviceGetTemperature(d, n.NVML_TEMPERATURE_GPU), n.nvmlDeviceGetPerformanceState(d),"
        " n.nvmlDeviceGetPowerUsage(d), n.nvmlDeviceGetEnforcedPowerLimit(d),"
        " n.nvmlDeviceGetClockInfo(d, n.NVML_CLOCK_SM), n.nvmlDeviceGetMaxClockInfo(d, n.NVML_CLOCK_SM),"
        " n.nvmlDeviceGetCudaComputeCapability(d), n.nvmlDeviceGetEccMode(d)]"
    )
    assert row == [1, 0, 0, 28, 0, 70000, 700000, 345, 1980, [9, 0], [1, 1]]


def test_without_a_machine_the_driver_is_not_loaded(machine: Machine) -> None:
    env = {**machine.env, "HAMI_SIM": "/nonexistent"}
    program = "import pynvml as n\ntry:\n    n.nvmlInit()\nexcept n.NVMLError as e:\n    print(type(e).__name__)"
    run = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=30, check=True
    )
    assert run.stdout == "NVMLError_DriverNotLoaded\n"
    assert "make it anew with sim-machine" in run.stderr


def test_a_fault_in_the_machines_file_reaches_pynvml(machine: Machine) -> None:
    (machine.directory / "faults").write_text("nvmlDeviceGetMemoryInfo=15:times=1\n")
    assert machine.ask("[error(n.nvmlDeviceGetMemoryInfo, d), n.nvmlDeviceGetMemoryInfo(d).used]") == [
        "NVMLError_GpuIsLost",
        615 * MIB,
    ]
