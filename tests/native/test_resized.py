# SPDX-License-Identifier: Apache-2.0
"""A job that is resized (docs/adr/076): its running programs have the new memory and the new time at once."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from conformance import BUILD, REAL_GPU, Slice, make_slice, put, sanitizer
from test_compute import machine, measured, slice_of, start

from hami_hpc.contract import constants as c

__all__ = ["machine"]  # the fixture
pytestmark = pytest.mark.skipif(REAL_GPU, reason="these kernels exist on the simulation only")
SPIN = str(BUILD / "compute/spin_for")
Machine = tuple[Path, str]
MIB = 1 << 20

# Does what each line of its input says: KIND MIB; answers with CUDA's result.
PROGRAM = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
assert [cuda.cuInit(0), cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0)] == [0, 0]
held = []
for line in sys.stdin:
    kind, mib = line.split()
    if kind == "alloc":
        address = ctypes.c_uint64()
        result = cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(int(mib) << 20))
        held += [] if result else [address]
    elif kind == "free":
        result = cuda.cuMemFree_v2(held.pop())
    else:
        result = cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) or (free.value >> 20, total.value >> 20)
    print(result, flush=True)
"""


def change(made: Slice, **values: int) -> None:
    """Changes the job's record in place, as root does."""
    record = made.directory / c.FILE_JOB_LIMITS
    with record.open("r+b") as out:
        out.write(put(record.read_bytes(), values))


class Program:
    def __init__(self, made: Slice) -> None:
        command = [sys.executable, "-I", "-c", PROGRAM]
        environment = made.environment()
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def __call__(self, kind: str, mib: int = 0) -> str:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{kind} {mib}\n")
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        self.process.communicate(timeout=20)
        assert self.process.returncode == 0


@pytest.mark.skipif(bool(sanitizer()), reason="Python is not built with sanitizers")
def test_memory_grows_and_shrinks_under_a_running_program(tmp_path: Path, machine: Machine) -> None:
    made = make_slice(tmp_path / "job", *machine, job_mib=8192)
    program = Program(made)
    context = 8192 - int(program("info").strip("()").split(",")[0])
    assert program("alloc", 6000) == "0"
    assert program("alloc", 6000) == "2", "CUDA_ERROR_OUT_OF_MEMORY"
    change(made, mem_limit_bytes=16384 * MIB, asked_mem_bytes=8192 * MIB, asked_cores_percent=100)
    assert program("info") == f"({16384 - 6000 - context}, 16384)"
    assert program("alloc", 6000) == "0"
    change(made, mem_limit_bytes=8192 * MIB)  # below what it uses, which `resize` refuses
    assert program("info") == "(0, 8192)"
    assert program("alloc", 1) == "2"
    assert program("free") == "0"
    assert program("alloc", 1) == "0"
    program.end()


@pytest.mark.skipif(bool(sanitizer()), reason="Python is not built with sanitizers")
def test_a_change_that_was_killed_in_the_middle_stops_no_allocation(tmp_path: Path, machine: Machine) -> None:
    made = make_slice(tmp_path / "job", *machine, job_mib=8192)
    program = Program(made)
    change(made, sequence=1, mem_limit_bytes=16384 * MIB)
    begin = time.monotonic()
    assert program("alloc", 9000) == "0"
    assert program("alloc", 9000) == "2"
    assert time.monotonic() - begin < 10
    program.end()


@pytest.mark.skipif(bool(sanitizer()), reason="Python is not built with sanitizers")
def test_a_step_with_less_keeps_what_it_asked_for(tmp_path: Path, machine: Machine) -> None:
    made = make_slice(tmp_path / "job", *machine, job_mib=8192, step_mib=3072)
    program = Program(made)
    change(made, mem_limit_bytes=16384 * MIB)
    assert program("alloc", 2000) == "0"
    assert program("alloc", 2000) == "2"
    change(made, mem_limit_bytes=2048 * MIB)
    assert program("info").endswith(" 2048)")
    program.end()


@pytest.mark.parametrize(
    ("mechanism", "before", "after"),
    [
        ("auto", 20, 70),
        ("auto", 70, 20),
        ("auto", 100, 30),
        ("auto", 30, 100),
        ("gate", 20, 70),
        ("gate", 100, 30),
        ("gate", 30, 100),
    ],
)
def test_a_cap_follows_while_the_program_runs(
    mechanism: str, before: int, after: int, tmp_path: Path, machine: Machine
) -> None:
    names = iter("abcdefgh")

    def mean() -> float:
        made = slice_of(tmp_path, machine, before, "cap", next(names))
        made.limits.write_bytes(put(made.limits.read_bytes(), {"mechanism": c.MECHANISMS[mechanism]}))
        running = start(made, SPIN, 2000, 1000)
        time.sleep(1.05)  # half of the time that it works
        change(made, cores_percent=after, asked_cores_percent=before, asked_mem_bytes=8192 * MIB)
        out, err = running.communicate(timeout=30)
        assert running.returncode == 0, err
        return float(out)

    measured(mean, lambda share: abs(share - (before + after) / 2) < 12)
