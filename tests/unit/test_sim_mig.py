# SPDX-License-Identifier: Apache-2.0
"""MIG of the simulated driver, through nvidia-ml-py and libcuda: NVML's documented answers, placements, who may open
what, and what a restart leaves. No hardware has been asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sim_testbed
from sim_testbed import SIM, Machine

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="NVML lets only root divide a GPU")

# `d` is the H200, `a` the A100. make() returns the ids of a new GPU instance and of the compute instance that fills it.
PRELUDE = """
import ctypes, json, os, subprocess, sys
import pynvml as n
n.nvmlInit()
d, a = (n.nvmlDeviceGetHandleByIndex(index) for index in (0, 1))
SLICES = {19: 0, 15: 0, 14: 1, 9: 2, 5: 3, 0: 4}
def on(gpu=d):
    return n.nvmlDeviceSetMigMode(gpu, 1)
def error(f, *arguments):
    try:
        f(*arguments)
    except n.NVMLError as e:
        return type(e).__name__.replace("NVMLError_", "")
def starts(profile, gpu=d):
    rows, count = (n.c_nvmlGpuInstancePlacement_t * 16)(), ctypes.c_uint(16)
    n.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, profile, rows, ctypes.byref(count))
    return [(row.start, row.size) for row in rows[: count.value]]
def at(profile, start, gpu=d):
    size = starts(profile, gpu)[0][1]
    place = n.c_nvmlGpuInstancePlacement_t(start, size)
    return n.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, profile, ctypes.byref(place))
def make(profile, start, gpu=d):
    instance = at(profile, start, gpu)
    compute = n.nvmlGpuInstanceCreateComputeInstance(instance, SLICES[profile])
    return n.nvmlGpuInstanceGetInfo(instance).id, n.nvmlComputeInstanceGetInfo(compute).id
def devices(gpu=d):
    found = []
    for index in range(n.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            found.append(n.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index))
        except n.NVMLError_NotFound:
            pass
    return found
def uuids(gpu=d):
    return [n.nvmlDeviceGetUUID(one) for one in devices(gpu)]
"""

# Prints the CUDA devices that a process has: memory, multiprocessors, name and UUID of each.
CUDA = """
import ctypes, json, os, sys
if len(sys.argv) > 1:
    os.setuid(int(sys.argv[1]))
cuda = ctypes.CDLL("libcuda.so.1")
if cuda.cuInit(0):
    print("[]"), sys.exit()
count, found = ctypes.c_int(), []
assert cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
for index in range(count.value):
    size, units = ctypes.c_size_t(), ctypes.c_int()
    name, uuid = ctypes.create_string_buffer(96), (ctypes.c_ubyte * 16)()
    assert cuda.cuDeviceTotalMem_v2(ctypes.byref(size), index) == 0
    assert cuda.cuDeviceGetAttribute(ctypes.byref(units), 16, index) == 0
    assert cuda.cuDeviceGetName(name, 96, index) == 0
    assert cuda.cuDeviceGetUuid_v2(uuid, index) == 0
    found.append([size.value >> 20, units.value, name.value.decode(), bytes(uuid).hex()])
context, address = ctypes.c_void_p(), ctypes.c_void_p()
if "hold" in sys.argv:
    assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
    print("ready", flush=True), sys.stdin.read()
elif "fill" in sys.argv:
    assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
    mib = 0
    while cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(256 << 20)) == 0:
        mib += 256
    print(json.dumps(mib))
else:
    print(json.dumps(found))
"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return sim_testbed.make(tmp_path / "machine")


def ask(machine: Machine, program: str, *, uid: int = 0) -> Any:
    """What `program` leaves in `answer`; as another user with `uid`."""
    change = f"os.setuid({uid})\n" if uid else ""
    run = subprocess.run(
        [sys.executable, "-c", f"{PRELUDE}\n{change}{program}\nprint(json.dumps(answer))"],
        env=machine.env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def cuda(machine: Machine, *arguments: object, visible: str | None = None) -> Any:
    env = machine.env if visible is None else {**machine.env, "CUDA_VISIBLE_DEVICES": visible}
    command = [sys.executable, "-c", CUDA, *map(str, arguments)]
    run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(run.stdout)


def test_profiles_and_placements_are_those_of_the_user_guide(machine: Machine) -> None:
    program = """
def profile(gpu, number):
    try:
        p = n.nvmlDeviceGetGpuInstanceProfileInfo(gpu, number)
    except (n.NVMLError_NotSupported, n.NVMLError_InvalidArgument):
        return None
    return [p.name.removeprefix("MIG "), p.id, p.sliceCount, p.instanceCount, starts(p.id, gpu)]
answer = [[one for one in map(lambda number: profile(gpu, number), range(n.NVML_GPU_INSTANCE_PROFILE_COUNT)) if one]
          for gpu in (d, a)]
"""
    h200, a100 = ask(machine, program)
    assert [(row[0], row[1], row[2], row[3]) for row in h200] == [
        ("1g.18gb", 19, 1, 7),
        ("2g.35gb", 14, 2, 3),
        ("3g.71gb", 9, 3, 2),
        ("4g.71gb", 5, 4, 1),
        ("7g.141gb", 0, 7, 1),
        ("1g.35gb", 15, 1, 4),
    ]
    assert {row[1]: row[4] for row in h200} == {
        19: [[start, 1] for start in range(7)],
        15: [[0, 2], [2, 2], [4, 2], [6, 2]],
        14: [[0, 2], [2, 2], [4, 2]],
        9: [[0, 4], [4, 4]],
        5: [[0, 4]],
        0: [[0, 8]],
    }
    assert [row[1:] for row in a100] == [row[1:] for row in h200]
    assert a100[0][0] == "1g.5gb"


def test_errors_are_those_that_nvml_documents(machine: Machine) -> None:
    program = """
answer = {"off": error(at, 19, 0), "list off": error(n.nvmlDeviceGetGpuInstanceById, d, 7)}
answer["on"] = on()
answer["again"] = on()
first = make(19, 2)
answer["overlap"] = error(at, 14, 2)
answer["illegal start"] = error(at, 14, 1)
answer["unknown profile"] = error(n.nvmlDeviceCreateGpuInstance, d, 77)
answer["not found"] = error(n.nvmlDeviceGetGpuInstanceById, d, 3)
instance = n.nvmlDeviceGetGpuInstanceById(d, first[0])
answer["with compute instances"] = error(n.nvmlGpuInstanceDestroy, instance)
answer["full"] = error(n.nvmlGpuInstanceCreateComputeInstance, instance, 0)
answer["too large"] = error(n.nvmlGpuInstanceCreateComputeInstance, instance, 1)
answer["switched off"] = n.nvmlDeviceSetMigMode(d, 0)
answer["mode then"] = n.nvmlDeviceGetMigMode(d)
compute = n.nvmlGpuInstanceGetComputeInstanceById(instance, 0)
n.nvmlComputeInstanceDestroy(compute)
answer["compute handle of the past"] = error(n.nvmlComputeInstanceDestroy, compute)
n.nvmlGpuInstanceDestroy(instance)
answer["handle of the past"] = error(n.nvmlGpuInstanceDestroy, instance)
answer["off at last"] = [n.nvmlDeviceSetMigMode(d, 0), n.nvmlDeviceGetMigMode(d)]
"""
    assert ask(machine, program) == {
        "off": "NotSupported",
        "list off": "NotSupported",
        "on": 0,
        "again": 0,
        "overlap": "InsufficientResources",
        "illegal start": "InvalidArgument",
        "unknown profile": "InvalidArgument",
        "not found": "NotFound",
        "with compute instances": "InUse",
        "full": "InsufficientResources",
        "too large": "NotSupported",
        "switched off": 19,  # NVML_ERROR_IN_USE, as the status of the activation
        "mode then": [1, 1],
        "compute handle of the past": "InvalidArgument",
        "handle of the past": "InvalidArgument",
        "off at last": [0, [0, 0]],
    }


def test_only_root_divides_a_gpu(machine: Machine) -> None:
    ask(machine, "on(); make(19, 0); answer = 0")
    program = """
answer = [error(n.nvmlDeviceSetMigMode, d, 0), error(n.nvmlDeviceCreateGpuInstance, d, 19),
          error(n.nvmlDeviceGetGpuInstanceById, d, 7)]
"""
    assert ask(machine, program, uid=65534) == ["NoPermission"] * 3


@pytest.mark.parametrize(("profile", "count"), [(19, 7), (15, 4), (14, 3), (9, 2), (5, 1), (0, 1)])
def test_a_gpu_holds_as_many_instances_of_a_profile_as_the_user_guide_says(
    machine: Machine, profile: int, count: int
) -> None:
    program = f"""
on()
answer = [n.nvmlDeviceGetGpuInstanceRemainingCapacity(d, {profile}), 0]
while error(n.nvmlDeviceCreateGpuInstance, d, {profile}) is None:
    answer[1] += 1
answer.append(n.nvmlDeviceGetGpuInstanceRemainingCapacity(d, {profile}))
"""
    assert ask(machine, program) == [count, count, 0]


def test_a_mig_device_says_what_it_is_and_its_id_comes_back_with_another_uuid(machine: Machine) -> None:
    program = """
on()
old = make(14, 2), uuids()
one = devices()[0]
answer = {"name": n.nvmlDeviceGetName(one), "mib": n.nvmlDeviceGetMemoryInfo(one).total >> 20,
          "slices": n.nvmlDeviceGetAttributes(one).gpuInstanceSliceCount,
          "ids": [n.nvmlDeviceGetGpuInstanceId(one), n.nvmlDeviceGetComputeInstanceId(one)],
          "by uuid": n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByUUID(old[1][0])) == old[1][0],
          "gpu": n.nvmlDeviceGetIndex(n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(one))}
instance = n.nvmlDeviceGetGpuInstanceById(d, old[0][0])
n.nvmlComputeInstanceDestroy(n.nvmlGpuInstanceGetComputeInstanceById(instance, 0))
n.nvmlGpuInstanceDestroy(instance)
answer["gone"] = error(n.nvmlDeviceGetName, one)
new = make(14, 0), uuids()
answer["new"] = [old[0] == new[0], old[1] == new[1]]
"""
    assert ask(machine, program) == {
        "name": "NVIDIA H200 MIG 2g.35gb",
        "mib": 33280,
        "slices": 2,
        "ids": [3, 0],
        "by uuid": True,
        "gpu": 0,
        "gone": "NotFound",
        "new": [True, False],
    }


def test_a_program_sees_the_instance_that_it_names_and_no_more_memory_than_its(machine: Machine) -> None:
    first, second = ask(machine, "on(); make(9, 0); make(19, 4); answer = uuids()")
    by_name = {name: cuda(machine, visible=name) for name in (first, second)}
    assert {tuple(rows[0][:3]) for rows in by_name.values()} == {
        (71424, 60, "NVIDIA H200 MIG 3g.71gb"),
        (16384, 16, "NVIDIA H200 MIG 1g.18gb"),
    }
    for name, rows in by_name.items():
        assert name.replace("-", "").removeprefix("MIG") == rows[0][3]
    small = next(name for name, rows in by_name.items() if rows[0][0] == 16384)
    filled = cuda(machine, 0, "fill", visible=small)
    assert 16384 - 1024 <= filled < 16384
    assert len(cuda(machine)) == 1, "the other GPU, which is whole; divided ones are left out beside it"
    assert cuda(machine, visible="MIG-00000000-0000-0000-0000-000000000000") == []


def test_a_user_opens_only_the_instances_whose_devices_may_be_read(machine: Machine) -> None:
    ids = ask(machine, "on(); on(a); answer = [make(19, 0), make(19, 1)]")
    names = dict(zip((tuple(one) for one in ids), ask(machine, "answer = uuids()"), strict=True))
    caps = machine.directory / "dev/nvidia-caps"
    capabilities = machine.directory / "proc/driver/nvidia/capabilities/gpu0/mig"
    for gi, ci in ids[:1]:
        for access in (f"gi{gi}/access", f"gi{gi}/ci{ci}/access"):
            minor = (capabilities / access).read_text().split()[1]
            (caps / f"nvidia-cap{minor}").chmod(0o400)
    fenced, open_to_all = (names[tuple(one)] for one in ids)
    machine.directory.chmod(0o755)
    for folder in machine.directory.parents:
        if folder.stat().st_uid == os.geteuid() and len(folder.parts) > 2:
            folder.chmod(0o755)
    assert cuda(machine, 65534, visible=fenced) == []
    assert cuda(machine, 65534, visible=open_to_all)[0][0] == 16384
    hidden = cuda(machine, 65534, visible="0")
    assert hidden[0][3] == open_to_all.replace("-", "").removeprefix("MIG"), "the first that it may open"
    assert cuda(machine, 65534) == hidden


def test_what_a_process_uses_is_in_use(machine: Machine) -> None:
    (name,) = ask(machine, "on(); make(19, 0); answer = uuids()")
    process = subprocess.Popen(
        [sys.executable, "-c", CUDA, "0", "hold"],
        env={**machine.env, "CUDA_VISIBLE_DEVICES": name},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        program = """
instance = n.nvmlDeviceGetGpuInstanceById(d, 7)
rows = n.nvmlDeviceGetComputeRunningProcesses_v3(d)
answer = [error(n.nvmlComputeInstanceDestroy, n.nvmlGpuInstanceGetComputeInstanceById(instance, 0)),
          error(n.nvmlGpuInstanceDestroy, instance), n.nvmlDeviceSetMigMode(d, 0),
          [[row.pid, row.gpuInstanceId, row.computeInstanceId] for row in rows],
          error(n.nvmlDeviceGetUtilizationRates, d)]
"""
        assert ask(machine, program) == ["InUse", "InUse", 19, [[process.pid, 7, 0]], "NotSupported"]
    finally:
        process.kill()
        process.communicate(timeout=10)


def test_a_restart_leaves_no_instance_and_the_mode_only_before_hopper(machine: Machine) -> None:
    ask(machine, "on(); on(a); make(19, 0); make(14, 0, a); answer = 0")
    subprocess.run([str(SIM / "sim-state"), str(machine.directory), "--restart"], check=True, timeout=10)
    assert ask(machine, "answer = [n.nvmlDeviceGetMigMode(d), n.nvmlDeviceGetMigMode(a), uuids(), uuids(a)]") == [
        [0, 0],
        [1, 1],
        [],
        [],
    ]
    assert list((machine.directory / "dev/nvidia-caps").iterdir()) == []


def test_before_hopper_the_mode_waits_for_the_last_process(machine: Machine) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", CUDA, "0", "hold"],
        env={**machine.env, "CUDA_VISIBLE_DEVICES": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert ask(machine, "answer = [on(a), n.nvmlDeviceGetMigMode(a)]") == [19, [0, 1]]
    finally:
        process.kill()
        process.communicate(timeout=10)
    assert ask(machine, "answer = [on(a), n.nvmlDeviceGetMigMode(a)]") == [0, [1, 1]]
