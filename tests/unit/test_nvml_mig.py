# SPDX-License-Identifier: Apache-2.0
"""What prolog and epilog use in place of pynvml says and does what pynvml does, on a simulated machine."""

from __future__ import annotations

import ctypes
import inspect
import os
import subprocess
import sys
from pathlib import Path
from types import FunctionType
from typing import Any

import pynvml
import pytest
import sim_testbed
from mig_testbed import MigNode
from node_testbed import ROOT
from sim_testbed import SIM

from hami_hpc.node import mig, nvml, nvml_mig

FUNCTIONS = [name for name in dir(nvml_mig) if isinstance(getattr(nvml_mig, name), FunctionType) and name[0] != "_"]
STRUCTURES = [
    name for name in dir(nvml_mig) if name.startswith("c_nvml") and hasattr(getattr(nvml_mig, name), "_fields_")
]
NUMBERS = [name for name in dir(nvml_mig) if isinstance(getattr(nvml_mig, name), int) and name[:4].lower() == "nvml"]


def test_numbers_are_pynvmls() -> None:
    assert len(NUMBERS) == 13
    for name in NUMBERS:
        assert getattr(nvml_mig, name) == getattr(pynvml, name), name


@pytest.mark.parametrize("name", STRUCTURES)
def test_structures_are_laid_out_as_pynvmls(name: str) -> None:
    own, theirs = getattr(nvml_mig, name), getattr(pynvml, name)
    assert ctypes.sizeof(own) == ctypes.sizeof(theirs)
    assert [field for field, *_ in own._fields_] == [field for field, *_ in theirs._fields_]
    for field, *_ in own._fields_:
        places = [(getattr(kind, field).offset, getattr(kind, field).size) for kind in (own, theirs)]
        assert places[0] == places[1], field


def test_the_versions_of_structures_are_their_sizes() -> None:
    for kind, version in (
        (nvml_mig.c_nvmlGpuInstanceProfileInfo_v2_t, nvml_mig.nvmlGpuInstanceProfileInfo_v2),
        (nvml_mig.c_nvmlComputeInstanceProfileInfo_v2_t, nvml_mig.nvmlComputeInstanceProfileInfo_v2),
    ):
        assert version == ctypes.sizeof(kind) | 2 << 24


def test_node_mig_calls_nothing_that_only_pynvml_has() -> None:
    source = inspect.getsource(mig) + inspect.getsource(sys.modules["hami_hpc.node.mig_gpu"])
    words = source.replace("(", " ").replace(",", " ").replace(")", " ").replace(":", " ").replace("]", " ").split()
    used = {name for word in words if (name := word.partition("nvml.")[2]).lower()[:4] in ("nvml", "c_nv")}
    assert len(used) > 25
    missing = {name for name in used if not hasattr(nvml_mig, name)}
    assert missing == {"nvmlDeviceSetMigMode", "NVML_ERROR_RESET_REQUIRED"}, "of mig.set_mode, which no stage calls"


# Runs every function that reads, and those that make and destroy, by the module of argv[1]; prints what they answer.
TOUR = """
import importlib, json, sys
sys.path.append(sys.argv[2])
n = importlib.import_module(sys.argv[1])
said = []
def error(call, *arguments):
    try:
        call(*arguments)
    except n.NVMLError as error:
        said.append((call.__name__, error.value, str(error)))
    else:
        said.append((call.__name__, "no error", ""))
def fields(info):
    return {name: getattr(info, name) for name, *_ in info._fields_}
n.nvmlInit()
error(n.nvmlDeviceGetHandleByUUID, "GPU-none")
gpu = n.nvmlDeviceGetHandleByUUID(sys.argv[3])
said.append((n.nvmlDeviceGetUUID(gpu), n.nvmlDeviceGetMigMode(gpu), n.nvmlDeviceGetMaxMigDeviceCount(gpu)))
error(n.nvmlDeviceGetMigDeviceHandleByIndex, gpu, 0)
error(n.nvmlDeviceGetGpuInstanceProfileInfo, gpu, 63)
error(n.nvmlDeviceGetGpuInstanceById, gpu, 1)
info = n.nvmlDeviceGetGpuInstanceProfileInfo(gpu, 0)
said.append(fields(info))
count = n.c_uint(0)
n.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, info.id, None, n.byref(count))
room = (n.c_nvmlGpuInstancePlacement_t * count.value)()
n.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, info.id, room, n.byref(count))
said.append([(one.start, one.size) for one in room])
place = n.c_nvmlGpuInstancePlacement_t(room[0].start, room[0].size)
one = n.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, info.id, n.byref(place))
error(n.nvmlDeviceCreateGpuInstanceWithPlacement, gpu, info.id, n.byref(place))
of_gi = n.nvmlGpuInstanceGetInfo(one)
said.append((of_gi.id, of_gi.profileId, of_gi.placement.start, of_gi.placement.size))
compute_info = n.nvmlGpuInstanceGetComputeInstanceProfileInfo(one, 0, 0)
said.append(fields(compute_info))
compute = n.nvmlGpuInstanceCreateComputeInstance(one, compute_info.id)
said.append((n.nvmlComputeInstanceGetInfo(compute).id, n.nvmlComputeInstanceGetInfo(compute).profileId))
device = n.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)
ids = n.nvmlDeviceGetGpuInstanceId(device), n.nvmlDeviceGetComputeInstanceId(device)
said.append((n.nvmlDeviceGetUUID(device)[:4], ids))
error(n.nvmlGpuInstanceDestroy, one)
room, count = (n.c_nvmlGpuInstance_t * 8)(), n.c_uint(8)
n.nvmlDeviceGetGpuInstances(gpu, info.id, room, n.byref(count))
listed = list(room)[: count.value]
said.append([n.nvmlGpuInstanceGetInfo(each).id for each in listed])
room, count = (n.c_nvmlComputeInstance_t * 8)(), n.c_uint(8)
n.nvmlGpuInstanceGetComputeInstances(listed[0], compute_info.id, room, n.byref(count))
for each in list(room)[: count.value]:
    said.append(n.nvmlComputeInstanceDestroy(each))
said.append(n.nvmlGpuInstanceDestroy(n.nvmlDeviceGetGpuInstanceById(gpu, of_gi.id)))
said.append(n.nvmlShutdown())
print(json.dumps(said, default=lambda value: value.decode()))
"""


def tour(module: str, machine: sim_testbed.Machine, uuid: str, **environment: str) -> Any:
    command = [sys.executable, "-c", TOUR, module, str(ROOT), uuid]
    base = {"HAMI_SIM": str(machine.directory), "LD_LIBRARY_PATH": str(SIM), "PATH": os.environ["PATH"]}
    return subprocess.run(command, env=base | environment, capture_output=True, text=True, check=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="NVML lets only root divide a GPU")
def test_both_answer_the_same(tmp_path: Path) -> None:
    machine = sim_testbed.make(tmp_path)
    uuid = machine.ask("[n.nvmlDeviceGetUUID(d), n.nvmlDeviceSetMigMode(d, 1)]")[0]
    theirs, own = (tour(module, machine, uuid) for module in ("pynvml", "hami_hpc.node.nvml_mig"))
    assert (own.returncode, own.stderr) == (theirs.returncode, theirs.stderr) == (0, "")
    assert own.stdout == theirs.stdout
    assert "Insufficient Resources" in own.stdout


def test_a_library_that_is_not_there_is_said_as_pynvml_says_it() -> None:
    code = "import sys, importlib; sys.path.append(sys.argv[2]); n = importlib.import_module(sys.argv[1])\n"
    code += "try:\n    n.nvmlInit()\nexcept n.NVMLError as e:\n    print(e.value, e)"
    said = []
    for module in ("pynvml", "hami_hpc.node.nvml_mig"):
        command = [sys.executable, "-c", code, module, str(ROOT)]
        done = subprocess.run(command, env={"PATH": "/bin"}, capture_output=True, text=True, check=False)
        said.append((done.stdout, done.stderr))
    if said[0][0] == "":
        pytest.skip("a real NVML is on this machine")
    assert said[0] == said[1] == ("12 NVML Shared Library Not Found\n", "")


def test_a_function_that_the_driver_lacks_is_an_error_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    libc = ctypes.CDLL("libc.so.6")._handle  # which has no such function
    monkeypatch.setitem(nvml_mig._loaded, nvml_mig.LIBRARY, libc)
    with pytest.raises(nvml_mig.NVMLError, match="Function Not Found") as caught:
        nvml_mig.nvmlDeviceGetMaxMigDeviceCount(None)
    assert caught.value.value == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND


@pytest.mark.skipif(os.geteuid() != 0, reason="NVML lets only root divide a GPU")
def test_stages_work_with_pynvml_where_the_c_module_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bed = MigNode.make(tmp_path, monkeypatch)
    for is_usable in (True, False):
        monkeypatch.setattr(nvml_mig, "is_usable", is_usable)
        name = bed.run(lambda: nvml.open_for_mig().__name__)
        assert name == ("hami_hpc.node.nvml_mig" if is_usable else "pynvml")
        assert bed.prolog(7) == 0
        assert len(bed.instances()) == 1
        assert bed.epilog(7) == 0
        assert bed.instances() == ()
