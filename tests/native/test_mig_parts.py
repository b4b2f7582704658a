# SPDX-License-Identifier: Apache-2.0
"""Steps that have a part of their job's MIG instance: the interposer limits them on the instance (docs/adr/068). On the
simulated driver; no hardware has seen it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from conformance import BUILD, MIB, REAL_GPU, Slice, make_slice

from hami_hpc.contract import constants as c

pytestmark = pytest.mark.skipif(REAL_GPU, reason="no GPU in MIG mode is here: the simulation has one")
SPIN = str(BUILD / "compute/spin_for")
INSTANCE_MIB, JOB_CORES = 16384, 14  # of a 1g.18gb: what the settings say of it
ATTEMPTS = 3
MAKE = """
import ctypes, sys
import pynvml as n
n.nvmlInit()
gpu = n.nvmlDeviceGetHandleByIndex(0)
n.nvmlDeviceSetMigMode(gpu, 1)
for start in range(int(sys.argv[1])):
    place = n.c_nvmlGpuInstancePlacement_t(start, 1)
    one = n.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, 19, ctypes.byref(place))
    n.nvmlGpuInstanceCreateComputeInstance(one, 0)
devices = [n.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index) for index in range(int(sys.argv[1]))]
print(n.nvmlDeviceGetUUID(gpu), *map(n.nvmlDeviceGetUUID, devices))
"""


@dataclass(frozen=True)
class Divided:
    """A simulated H200 in MIG mode with two instances 1g.18gb."""

    directory: Path
    gpu_uuid: str
    instances: tuple[str, ...]

    def step(self, folder: Path, *, step_mib: int, percent: int, step_id: int = 0, policy: str = "cap") -> Slice:
        """A step of a job that has the first instance, as SPANK gives it: `percent` is of the instance's time."""
        made = make_slice(
            folder,
            self.directory,
            self.gpu_uuid,
            job_mib=INSTANCE_MIB,
            step_mib=step_mib,
            step_id=step_id,
            cores_percent=JOB_CORES,
            step_cores_percent=max(1, JOB_CORES * percent // 100),
            policy=policy,
            mode="mig",
            step_fields={"device_uuid": self.instances[0], "device_percent": percent},
        )
        return replace(made, extra={"CUDA_VISIBLE_DEVICES": self.instances[0]})


@pytest.fixture(scope="module")
def divided(tmp_path_factory: pytest.TempPathFactory) -> Divided:
    directory = tmp_path_factory.mktemp("divided")
    subprocess.run([str(BUILD / "sim/sim-machine"), str(directory), "h200"], check=True, capture_output=True)
    environment = {"HAMI_SIM": str(directory), "LD_LIBRARY_PATH": str(BUILD / "sim"), "PATH": os.environ["PATH"]}
    if BUILD.name != "native":  # the simulation's NVML is the same in the plain build
        environment["LD_LIBRARY_PATH"] = str(BUILD.parent / "native/sim")
    made = subprocess.run(
        [sys.executable, "-c", MAKE, "2"], env=environment, capture_output=True, text=True, check=True
    )
    gpu_uuid, *instances = made.stdout.split()
    assert [uuid[:4] for uuid in (gpu_uuid, *instances)] == ["GPU-", "MIG-", "MIG-"]
    return Divided(directory, gpu_uuid, tuple(instances))


def finished(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 0, result.stderr
    return result.stdout


def measured(measure: Callable[[], list[float]], is_right: Callable[[list[float]], bool]) -> None:
    """Fails when none of some measurements is right. With sanitizers, which slow all down, they only run."""
    seen = []
    for _attempt in range(ATTEMPTS):
        seen.append(measure())
        if is_right(seen[-1]) or BUILD.name != "native":
            return
    pytest.fail(f"not once: {seen}")


def together(*steps: Slice, milliseconds: int = 2000) -> list[float]:
    """What steps get that run kernels of 1 ms at the same time, percent of the simulated engine."""
    running = [
        subprocess.Popen(
            [SPIN, str(milliseconds), "1000"], env=step.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for step in steps
    ]
    ended = [process.communicate(timeout=60) for process in running]
    assert all(process.returncode == 0 for process in running), ended
    return [float(out) for out, _error in ended]


# ------------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize("step_mib", [2048, 8192, INSTANCE_MIB - 1])
def test_a_part_ends_at_its_own_limit_to_the_byte(step_mib: int, tmp_path: Path, divided: Divided) -> None:
    step = divided.step(tmp_path, step_mib=step_mib, percent=100)
    finished(step.run("memory_ends_at_the_limit"))
    assert step_mib - 16 < step.usage()["peak_bytes"] / MIB <= step_mib


def test_cuda_and_nvml_show_the_part(tmp_path: Path, divided: Divided) -> None:
    step = divided.step(tmp_path, step_mib=4096, percent=50)
    finished(step.run(str(BUILD / "conformance/nvml_shows_the_part_of_an_instance")))


def test_two_parts_have_their_memory_beside_each_other(tmp_path: Path, divided: Divided) -> None:
    """One fills its part; the other has all of its own, although the first asks for more."""
    first = divided.step(tmp_path, step_mib=12288, percent=50, step_id=1)
    second = divided.step(tmp_path, step_mib=4096, percent=50, step_id=2)
    holder = subprocess.Popen(
        [BUILD / "conformance/processes_share_one_limit", "child"], env=first.environment(), stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.read(1) == b"f"  # it has filled its part
        finished(second.run("memory_ends_at_the_limit"))
    finally:
        holder.kill()
        holder.communicate()


def test_another_instance_of_the_same_user_stays_closed(tmp_path: Path, divided: Divided) -> None:
    step = divided.step(tmp_path, step_mib=4096, percent=50)
    result = replace(step, extra={"CUDA_VISIBLE_DEVICES": divided.instances[1]}).run("memory_ends_at_the_limit")
    assert result.returncode == 1
    assert "cuDevicePrimaryCtxRetain(&context, device) gave 800" in result.stderr  # CUDA_ERROR_NOT_PERMITTED
    assert f"the GPU of this job, {divided.instances[0]}, is not among the 1 that CUDA shows here" in result.stderr
    assert step.usage()["peak_bytes"] == 0


@pytest.mark.parametrize(
    "fields",
    [{"device_uuid": ""}, {"device_uuid": "M" * 48}, {"mode": c.MODES["share"]}],
    ids=["no instance", "no end", "another mode"],
)
def test_a_record_without_its_instance_opens_nothing(
    fields: dict[str, int | str], tmp_path: Path, divided: Divided
) -> None:
    made = divided.step(tmp_path, step_mib=4096, percent=50)
    text = made.limits.read_bytes()
    for name, value in fields.items():
        offset, size, _kind = c.LIMITS_FIELDS[name]
        raw = value.encode().ljust(size, b"\0") if isinstance(value, str) else value.to_bytes(size, "little")
        text = text[:offset] + raw + text[offset + size :]
    made.limits.write_bytes(text)
    result = made.run("memory_ends_at_the_limit")
    assert result.returncode == 1
    assert "the record is damaged or of another version of hami_hpc" in result.stderr


def test_the_jobs_own_record_is_no_steps(tmp_path: Path, divided: Divided) -> None:
    """Who points the interposer to job.limits, to have all of the job's memory, has nothing."""
    step = divided.step(tmp_path, step_mib=4096, percent=50)
    job = step.environment() | {c.ENV_LIMITS: str(step.directory / c.FILE_JOB_LIMITS)}
    command = [str(BUILD / "conformance/memory_ends_at_the_limit")]
    result = subprocess.run(command, env=job, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 1
    assert "so the GPU stays closed" in result.stderr


# --------------------------------------------------------------------------------------------- time


def test_a_part_has_its_share_of_the_instances_time(tmp_path: Path, divided: Divided) -> None:
    """14 % of a GPU are all of a 1g: half of it is half of the instance's time, and not 7 % of it."""
    half = divided.step(tmp_path, step_mib=4096, percent=50)
    measured(lambda: together(half), lambda got: 44 < got[0] < 57)


def test_all_of_the_time_with_a_part_of_the_memory_is_not_held_back(tmp_path: Path, divided: Divided) -> None:
    step = divided.step(tmp_path, step_mib=4096, percent=100)
    measured(lambda: together(step, milliseconds=500), lambda got: got[0] > 85)


def test_parts_with_caps_add_up(tmp_path: Path, divided: Divided) -> None:
    parts = [divided.step(tmp_path, step_mib=4096, percent=p, step_id=i) for i, p in enumerate((70, 30))]
    measured(lambda: together(*parts), lambda got: 60 < got[0] < 78 and 22 < got[1] < 38)


def test_parts_with_burst_share_by_their_percent(tmp_path: Path, divided: Divided) -> None:
    parts = [
        divided.step(tmp_path, step_mib=4096, percent=p, step_id=i, policy="burst") for i, p in enumerate((75, 25))
    ]
    measured(lambda: together(*parts, milliseconds=2500), lambda got: 1.8 < got[0] / got[1] < 4.5)


def test_a_killed_part_gives_its_memory_back(tmp_path: Path, divided: Divided) -> None:
    step = divided.step(tmp_path, step_mib=4096, percent=50)
    for _round in range(2):
        holder = subprocess.Popen(
            [BUILD / "conformance/processes_share_one_limit", "child"], env=step.environment(), stdout=subprocess.PIPE
        )
        assert holder.stdout is not None
        assert holder.stdout.read(1) == b"f"
        holder.kill()
        holder.communicate()
        time.sleep(0.05)
        finished(step.run("memory_ends_at_the_limit"))
