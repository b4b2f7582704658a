# SPDX-License-Identifier: Apache-2.0
"""The stacks of a context's threads on the GPU leave it with what is moved, and are there again before the program goes
on (native/interposer/limits/stack.h)."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from conformance import REAL_GPU
from swapped import STACK_MIB, Swapped
from test_compute import machine
from test_swap import Machine, used_mib

from hami_hpc.contract import constants as c

__all__ = ["machine"]  # the fixture
pytestmark = pytest.mark.skipif(REAL_GPU, reason="on a real GPU: tests/gpu/test_swapped.py")

# Asks for stacks of so many bytes. For each line of its input allocates as many MiB, or says how large the stacks are.
STACKS = """
import sys, ctypes
cu = ctypes.CDLL("libcuda.so.1")
ctx, size = ctypes.c_void_p(), ctypes.c_size_t(int(sys.argv[1]))
assert cu.cuInit(0) == 0 and cu.cuCtxCreate_v2(ctypes.byref(ctx), 0, 0) == 0
assert cu.cuCtxSetLimit(0, size) == 0
print("ready")
for line in sys.stdin:
    if line.strip():
        print(cu.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(int(line) << 20)))
        continue
    assert cu.cuCtxGetLimit(ctypes.byref(size), 0) == 0
    print(size.value)
"""


@pytest.mark.parametrize("size", [0, 1024, 8192])
def test_they_leave_and_come_back_at_their_size(size: int, tmp_path: Path, machine: Machine) -> None:
    job = Swapped.make(tmp_path / "job", *machine)
    mib = STACK_MIB * size // 1024
    with job.start(STACKS, str(size)) as program:
        assert program.ask("64") == "0"
        held = used_mib(machine)
        for _ in range(3):
            assert job.move(out=True)[1] == "host"
            assert used_mib(machine) == held - 64 - mib
            assert (job.slot()["swapped_bytes"] >> 20, job.slot()["used_bytes"] >> 20) == (64 + mib, held)
            assert job.move(out=False)[1] == "gpu"
            assert (used_mib(machine), job.slot()["used_bytes"] >> 20) == (held, held)
            assert program.ask() == str(size)
        program.end()


def test_a_program_that_asks_for_their_size_meanwhile_waits(tmp_path: Path, machine: Machine) -> None:
    """Else it would see 0, and might set it."""
    job = Swapped.make(tmp_path / "job", *machine)
    with job.start(STACKS, "2048") as program:
        assert job.move(out=True)[1] == "host"
        program.tell()
        with pytest.raises(subprocess.TimeoutExpired):
            program.process.wait(0.3)
        assert job.move(out=False)[1] == "gpu"
        assert program.answer() == "2048"
        program.end()


def test_they_stay_charged_so_that_no_other_process_of_the_job_has_their_place(
    tmp_path: Path, machine: Machine
) -> None:
    job = Swapped.make(tmp_path / "job", *machine, mib=2048)
    with job.start(STACKS, "8192") as program:
        assert job.move(out=True)[1] == "host"
        assert job.slot()["used_bytes"] >> 20 == 384 + 8 * STACK_MIB
        assert job.move(out=False)[1] == "gpu"
        assert program.ask("1024") == "2", "out of memory"
        assert program.ask("600") == "0"
        program.end()


@pytest.mark.parametrize("times", [1, 5])
def test_the_program_waits_until_the_gpu_has_room_for_them(times: int, tmp_path: Path, machine: Machine) -> None:
    job = Swapped.make(tmp_path / "job", *machine)
    job.made.extra["HAMI_SIM_FAULTS"] = f"cuCtxSetLimit=2:after=2:times={times}"  # after the program's, and 0
    with job.start(STACKS, "8192") as program:
        assert program.ask("64") == "0"
        held = used_mib(machine)
        assert job.move(out=True)[1] == "host"
        begun = time.monotonic()
        assert job.move(out=False)[1] == "gpu"
        assert time.monotonic() - begun > 0.2 * times - 0.1
        assert (used_mib(machine), job.slot()["used_bytes"] >> 20) == (held, held)
        assert program.ask() == "8192"
        program.end()


@pytest.mark.parametrize("faults", ["cuCtxSetLimit=999:after=1", "cuCtxGetLimit=999:times=1"])
def test_where_libcuda_keeps_them_the_rest_moves(faults: str, tmp_path: Path, machine: Machine) -> None:
    job = Swapped.make(tmp_path / "job", *machine)
    job.made.extra["HAMI_SIM_FAULTS"] = faults
    with job.start(STACKS, "1024") as program:
        assert program.ask("64") == "0"
        assert job.move(out=True)[1] == "host"
        assert job.slot()["swapped_bytes"] >> 20 == 64
        assert job.move(out=False)[1] == "gpu"
        assert program.ask() == "1024"
        program.end()


def test_a_move_that_comes_to_nothing_leaves_them(tmp_path: Path, machine: Machine) -> None:
    job = Swapped.make(tmp_path / "job", *machine)
    job.made.extra["HAMI_SIM_FAULTS"] = "cuMemcpyDtoHAsync=700"
    with job.start(STACKS, "4096") as program:
        assert program.ask("64") == "0"
        held = used_mib(machine)
        assert job.move(out=True, patience_s=1)[1] == "driver"
        assert job.move(out=False)[1] == "gpu"
        assert (used_mib(machine), job.slot()["used_bytes"] >> 20) == (held, held)
        assert program.ask() == "4096"
        program.end()


@pytest.mark.parametrize("kills", [False, True])
def test_a_program_that_ends_meanwhile_leaves_nothing(kills: bool, tmp_path: Path, machine: Machine) -> None:
    job = Swapped.make(tmp_path / "job", *machine)
    with job.start(STACKS, "8192") as program:
        assert program.ask("64") == "0"
        assert job.move(out=True)[1] == "host"
        if kills:
            program.process.kill()
            program.process.wait(10)
        else:
            program.end()
    deadline = time.monotonic() + 10
    while used_mib(machine) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert used_mib(machine) == 0
    job.order(c.SWAP_IN)
    with job.start(STACKS, "1024") as program:
        assert program.ask() == "1024"
        program.end()
