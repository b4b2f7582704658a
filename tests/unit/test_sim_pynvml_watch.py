# SPDX-License-Identifier: Apache-2.0
"""What a program that watches GPUs for long reads by nvidia-ml-py: use over time, energy, lost GPUs, events."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest
import sim_testbed
from sim_testbed import SIM, Machine, end


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return sim_testbed.make(tmp_path / "machine")


@pytest.fixture
def tenant(machine: Machine) -> Iterator[subprocess.Popen[str]]:
    process = machine.tenant()
    yield process
    end(process)


def spin(tenant: subprocess.Popen[str], milliseconds: int) -> None:
    """Runs a kernel of so long, and waits for its end."""
    assert tenant.stdin is not None
    assert tenant.stdout is not None
    tenant.stdin.write(f"{milliseconds}\n")
    tenant.stdin.flush()
    assert tenant.stdout.readline() == "done\n"


# Asks with each answer's time stamp, every `period` seconds, until the tenant has been idle for two answers; prints the
# milliseconds that all answers together say.
COUNT_TIME = """
import json, sys, time, pynvml as n
n.nvmlInit()
d = n.nvmlDeviceGetHandleByIndex(0)
last, idle, busy_ms, answers = int(time.time() * 1e6), 0, 0.0, 0
print("ready", flush=True)
while idle < 2 or not busy_ms:
    time.sleep(float(sys.argv[1]))
    try:
        sample, = n.nvmlDeviceGetProcessUtilization(d, last)
    except n.NVMLError_NotFound:
        idle += busy_ms > 0
        continue
    busy_ms += sample.smUtil / 100 * (sample.timeStamp - last) / 1000
    last, answers = sample.timeStamp, answers + 1
print(json.dumps([busy_ms, answers]))
"""


@pytest.mark.parametrize("period", [0.2, 1.0, 1.7])
def test_every_moment_of_a_process_is_counted_once(
    period: float, machine: Machine, tenant: subprocess.Popen[str]
) -> None:
    """However often one asks. An answer is in whole percent of its time, so it is off by half a percent of it."""
    command = [sys.executable, "-c", COUNT_TIME, str(period)]
    with subprocess.Popen(command, env=machine.env, stdout=subprocess.PIPE, text=True) as counter:
        assert counter.stdout is not None
        assert counter.stdout.readline() == "ready\n"
        begin = time.monotonic()
        for _ in range(4):
            spin(tenant, 600)
        busy_ms, answers = json.loads(counter.stdout.read())
        spent_ms = (time.monotonic() - begin) * 1000
    assert answers >= 2
    assert abs(busy_ms - 2400) <= 0.005 * spent_ms + 1


def test_samples_are_newer_than_the_time_asked_for(machine: Machine, tenant: subprocess.Popen[str]) -> None:
    asked = "[s.pid for s in n.nvmlDeviceGetProcessUtilization(d, 0)]"
    assert machine.ask_after(lambda: spin(tenant, 100), asked) == [tenant.pid]
    assert machine.ask("error(n.nvmlDeviceGetProcessUtilization, d, 1 << 62)") == "NVMLError_NotFound"


def test_energy_is_the_power_over_all_time(machine: Machine, tenant: subprocess.Popen[str]) -> None:
    """70 W idle and 700 W busy; between two looks as much as lies between those, and the kernel's at least."""
    look = "[__import__('time').monotonic(), n.nvmlDeviceGetTotalEnergyConsumption(d), __import__('time').monotonic()]"
    first = machine.ask(look)
    spin(tenant, 500)
    last = machine.ask(look)
    energy_mj, most_s, least_s = last[1] - first[1], last[2] - first[0], last[0] - first[2]
    kernel_mj = 0.5 * 630_000
    assert least_s * 70_000 + kernel_mj - 2 <= energy_mj <= most_s * 70_000 + kernel_mj + 2
    steps = machine.ask("[n.nvmlDeviceGetTotalEnergyConsumption(d) for _ in range(200)]")
    assert steps == sorted(steps)
    assert steps[0] >= last[1]


def test_a_gpu_is_lost_and_comes_back_while_a_program_runs(machine: Machine) -> None:
    program = (
        "import subprocess, sys, pynvml as n\nn.nvmlInit()\n"
        "lost, other = (n.nvmlDeviceGetHandleByIndex(i) for i in (1, 0))\nuuid = n.nvmlDeviceGetUUID(lost)\n"
        "calls = [(n.nvmlDeviceGetMemoryInfo, lost), (n.nvmlDeviceGetUUID, lost), (n.nvmlDeviceGetPowerUsage, lost),\n"
        "         (n.nvmlDeviceGetComputeRunningProcesses, lost), (n.nvmlDeviceGetFanSpeed, lost),\n"
        "         (n.nvmlDeviceGetHandleByIndex, 1), (n.nvmlDeviceGetHandleByUUID, uuid)]\n"
        "def names():\n    for f, a in calls:\n        try:\n            f(a)\n            yield 'works'\n"
        "        except n.NVMLError as e:\n            yield type(e).__name__\n"
        "def fail(code):\n    subprocess.run([*sys.argv[1:], '--fail', '1', str(code)], check=True)\n"
        "    print(' '.join(names()), n.nvmlDeviceGetCount(), n.nvmlDeviceGetMemoryInfo(other).used >> 20)\n"
        "for code in (0, n.NVML_ERROR_GPU_IS_LOST, n.NVML_ERROR_UNKNOWN, 0):\n    fail(code)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, str(SIM / "sim-state"), str(machine.directory)],
        env=machine.env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    works = "works works works works NVMLError_NotSupported works works 2 615"
    lost, unknown = (" ".join([name] * 7) + " 2 615" for name in ("NVMLError_GpuIsLost", "NVMLError_Unknown"))
    assert run.stdout.splitlines() == [works, lost, unknown, works]


def test_a_fault_of_one_gpu_leaves_the_other_alone(machine: Machine) -> None:
    (machine.directory / "faults").write_text("nvmlDeviceGetMemoryInfo=15:gpu=1:after=1:times=1\n")
    second = "n.nvmlDeviceGetHandleByIndex(1)"
    calls = ", ".join(f"error(n.nvmlDeviceGetMemoryInfo, {device})" for device in ("d", "d", second, second, second))
    assert machine.ask(f"[{calls}]") == [None, None, None, "NVMLError_GpuIsLost", None]


def test_the_state_names_a_wrong_gpu(machine: Machine) -> None:
    for arguments in (["--xid", "2", "31"], ["--xid", "0"], ["--fail", "0", "x"]):
        command = [str(SIM / "sim-state"), str(machine.directory), *arguments]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert run.returncode == 2
        assert "GPU CODE" in run.stderr
    assert [gpu["nvml_error"] for gpu in json.loads(machine.state())["gpus"]] == [0, 0]


# Registers a set for the GPUs named in the first argument, says so, and prints what each line's wait (in ms) gives.
EVENTS = """
import sys, pynvml as n
n.nvmlInit()
events = n.nvmlEventSetCreate()
for i in sys.argv[1]:
    n.nvmlDeviceRegisterEvents(n.nvmlDeviceGetHandleByIndex(int(i)), n.nvmlEventTypeXidCriticalError, events)
print("ready", flush=True)
for line in sys.stdin:
    try:
        e = n.nvmlEventSetWait_v2(events, int(line))
        print(n.nvmlDeviceGetIndex(e.device), e.eventType, e.eventData, hex(e.gpuInstanceId), flush=True)
    except n.NVMLError as e:
        print(type(e).__name__, flush=True)
n.nvmlEventSetFree(events)
"""


class Listener:
    """A process with an event set."""

    def __init__(self, machine: Machine, gpus: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", EVENTS, gpus],
            env=machine.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.answer() == "ready"

    def ask(self, timeout_ms: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{timeout_ms}\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def wait(self, timeout_ms: int) -> str:
        self.ask(timeout_ms)
        return self.answer()


@pytest.fixture
def listen(machine: Machine) -> Iterator[Callable[[str], Listener]]:
    listeners = []

    def make(gpus: str) -> Listener:
        listeners.append(Listener(machine, gpus))
        return listeners[-1]

    yield make
    for listener in listeners:
        end(listener.process)


def test_each_set_gets_each_xid_once_that_came_after_it(machine: Machine, listen: Callable[[str], Listener]) -> None:
    machine.state("--xid", 0, 13)
    both, second = listen("01"), listen("1")
    assert both.wait(0) == "NVMLError_Timeout"
    machine.state("--xid", 0, 31)
    machine.state("--xid", 1, 79)
    late = listen("0")
    machine.state("--xid", 0, 48)
    assert [both.wait(0) for _ in range(4)] == [
        "0 8 31 0xffffffff",
        "1 8 79 0xffffffff",
        "0 8 48 0xffffffff",
        "NVMLError_Timeout",
    ]
    assert [second.wait(0) for _ in range(2)] == ["1 8 79 0xffffffff", "NVMLError_Timeout"]
    assert [late.wait(0) for _ in range(2)] == ["0 8 48 0xffffffff", "NVMLError_Timeout"]


def test_a_wait_ends_with_its_event_or_its_time(machine: Machine, listen: Callable[[str], Listener]) -> None:
    listener = listen("0")
    begin = time.monotonic()
    assert listener.wait(300) == "NVMLError_Timeout"
    assert time.monotonic() - begin >= 0.3
    listener.ask(600_000)
    machine.state("--xid", 1, 13)
    machine.state("--xid", 0, 94)
    assert listener.answer() == "0 8 94 0xffffffff"
    listener.ask(600_000)
    machine.state("--fail", 0, 15)
    assert listener.answer() == "NVMLError_GpuIsLost"


def test_of_many_xids_the_last_are_kept(machine: Machine, listen: Callable[[str], Listener]) -> None:
    listener = listen("0")
    for code in range(300):
        machine.state("--xid", 0, code)
    answers = [listener.wait(0) for _ in range(257)]
    assert answers[0] == "0 8 44 0xffffffff"
    assert answers[255:] == ["0 8 299 0xffffffff", "NVMLError_Timeout"]


def test_only_supported_events_can_be_registered(machine: Machine) -> None:
    assert machine.ask("n.nvmlDeviceGetSupportedEventTypes(d)") == 1 | 2 | 8
    register = "error(n.nvmlDeviceRegisterEvents, d, {}, n.nvmlEventSetCreate())"
    assert machine.ask(f"[{register.format(8)}, {register.format(8 | 4)}, {register.format(1 << 40)}]") == [
        None,
        "NVMLError_NotSupported",
        "NVMLError_InvalidArgument",
    ]


# Copies 3 MiB to the first GPU, 1 MiB back, and 2 MiB to the second.
COPIES = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *arguments):
    result = getattr(cuda, name)(*arguments)
    assert result == 0, (name, result)
contexts, addresses = [ctypes.c_void_p() for _ in range(2)], [ctypes.c_void_p() for _ in range(2)]
host = ctypes.create_string_buffer(4 << 20)
call("cuInit", 0)
for gpu in (1, 0):
    call("cuCtxCreate_v2", ctypes.byref(contexts[gpu]), 0, gpu)
    call("cuMemAlloc_v2", ctypes.byref(addresses[gpu]), ctypes.c_size_t(4 << 20))
call("cuMemcpyHtoD_v2", addresses[0], host, ctypes.c_size_t(3 << 20))
call("cuMemcpyDtoH_v2", host, addresses[0], ctypes.c_size_t(1 << 20))
call("cuMemcpyDtoD_v2", addresses[0], addresses[0], ctypes.c_size_t(1 << 20))
call("cuMemsetD8_v2", addresses[0], 7, ctypes.c_size_t(1 << 20))
call("cuMemcpyPeer", addresses[1], contexts[1], addresses[0], contexts[0], ctypes.c_size_t(2 << 20))
"""


def test_copies_are_counted_by_the_buses_that_they_take(machine: Machine) -> None:
    """PCIe in bytes, NVLink in KiB; what a GPU copies within its own memory takes none."""
    fields = "[n.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, n.NVML_FI_DEV_PCIE_COUNT_RX_BYTES"
    fields += ", *((f, 0xffffffff) for f in (n.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, "
    fields += "n.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX))]"
    both = f"[[v.value.ullVal for v in n.nvmlDeviceGetFieldValues(n.nvmlDeviceGetHandleByIndex(i), {fields})]"
    both += " for i in (0, 1)]"
    assert machine.ask(both) == [[0] * 4, [0] * 4]
    subprocess.run([sys.executable, "-c", COPIES], env=machine.env, check=True, timeout=60)
    assert machine.ask(both) == [[1 << 20, 3 << 20, 2 << 10, 0], [0, 0, 0, 2 << 10]]


def test_a_field_that_is_not_simulated_says_so_in_its_own_row(machine: Machine) -> None:
    fields = "[n.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, 1, (n.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, 0)]"
    assert machine.ask(f"[v.nvmlReturn for v in n.nvmlDeviceGetFieldValues(d, {fields})]") == [0, 3, 3]
    assert machine.ask("error(n.nvmlDeviceGetFieldValues, d, [])") == "NVMLError_InvalidArgument"


# Asks about the GPU of argument 1 for the rates of PCIe's metrics, of NVLink's and of one that is not simulated, before
# and after the program on standard input; prints the bytes.
RATES = """
import json, subprocess, sys, time, pynvml as n
n.nvmlInit()
d = n.nvmlDeviceGetHandleByIndex(int(sys.argv[1]))
samples = [n.nvmlGpmSampleAlloc(), n.nvmlGpmSampleAlloc()]
begin = time.monotonic()
n.nvmlGpmSampleGet(d, samples[0])
subprocess.run([sys.executable, "-c", sys.stdin.read()], check=True, timeout=60)
n.nvmlGpmSampleGet(d, samples[1])
asked = n.c_nvmlGpmMetricsGet_t(version=n.NVML_GPM_METRICS_GET_VERSION, numMetrics=5)
asked.sample1, asked.sample2 = samples
for row, metric in zip(asked.metrics, (20, 21, 61, 60, 1)):
    row.metricId = metric
n.nvmlGpmMetricsGet(asked)
seconds = time.monotonic() - begin
for one in samples:
    n.nvmlGpmSampleFree(one)
print(json.dumps([[row.nvmlReturn, row.value * seconds] for row in asked.metrics[:5]]))
"""


def test_performance_monitoring_has_the_rates_of_the_buses(machine: Machine) -> None:
    command = [sys.executable, "-c", RATES, "0"]
    run = subprocess.run(command, env=machine.env, input=COPIES, capture_output=True, text=True, timeout=60, check=True)
    *buses, other = json.loads(run.stdout)
    assert [result for result, _mib in buses] == [0, 0, 0, 0]
    assert [mib for _result, mib in buses] == pytest.approx([1, 3, 2, 0], rel=0.3)
    assert other[0] == pynvml.NVML_ERROR_NOT_SUPPORTED


def test_gpus_before_hopper_have_no_performance_monitoring(machine: Machine) -> None:
    supports = "[n.nvmlGpmQueryDeviceSupport(n.nvmlDeviceGetHandleByIndex(i)).isSupportedDevice for i in (0, 1)]"
    assert machine.ask(supports) == [1, 0]
    sample = "error(n.nvmlGpmSampleGet, n.nvmlDeviceGetHandleByIndex(1), n.nvmlGpmSampleAlloc())"
    assert machine.ask(sample) == "NVMLError_NotSupported"


def test_samples_that_were_not_read_give_no_rates(machine: Machine) -> None:
    asked = "n.c_nvmlGpmMetricsGet_t(version=1, numMetrics=1, "
    asked += "sample1=n.nvmlGpmSampleAlloc(), sample2=n.nvmlGpmSampleAlloc())"
    assert machine.ask(f"error(n.nvmlGpmMetricsGet, {asked})") == "NVMLError_InvalidArgument"


def test_the_counters_of_pcie_wrap_at_32_bits(machine: Machine) -> None:
    copies = COPIES + (
        'for _ in range(1024):\n    call("cuMemcpyHtoD_v2", addresses[0], host, ctypes.c_size_t(4 << 20))\n'
    )
    subprocess.run([sys.executable, "-c", copies], env=machine.env, check=True, timeout=60)
    fields = "n.nvmlDeviceGetFieldValues(d, [n.NVML_FI_DEV_PCIE_COUNT_RX_BYTES])"
    assert machine.ask(f"[(v.valueType, v.value.ullVal) for v in {fields}]") == [[1, 3 << 20]]
