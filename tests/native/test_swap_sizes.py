# SPDX-License-Identifier: Apache-2.0
"""What a program allocated leaves the GPU whatever its size, and arrays do; libcuda copies to nobody beyond an
allocation's end, nor from an array by its address (docs/adr/105)."""

from __future__ import annotations

from pathlib import Path

import pytest
from conformance import REAL_GPU
from swapped import STACK_MIB, Swapped
from test_compute import machine
from test_swap import Machine

from hami_hpc.contract import constants as c

__all__ = ["machine"]  # the fixture
pytestmark = pytest.mark.skipif(REAL_GPU, reason="on a real GPU: tests/gpu/test_swapped.py")

# For each pair of arguments, "plain BYTES", "pitch BYTES", "vmm BYTES" or "array BYTES", takes so much and fills it.
# Says "ready", then for each line of its input compares it, and changes the last byte of each.
TAKES = """
import sys, ctypes
cu = ctypes.CDLL("libcuda.so.1")
def ok(result):
    assert result == 0, result
P, S, U64 = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64
ctx, pitch = P(), S()
ok(cu.cuInit(0)); ok(cu.cuCtxCreate_v2(ctypes.byref(ctx), 0, 0))
def plain(n):
    a = U64(); ok(cu.cuMemAlloc_v2(ctypes.byref(a), S(n))); return a
def pitched(n):
    a = U64(); ok(cu.cuMemAllocPitch_v2(ctypes.byref(a), ctypes.byref(pitch), S(n // 1024), S(1024), 4))
    assert pitch.value == n // 1024; return a
def vmm(n):
    a, h, p = U64(), U64(), (ctypes.c_int * 8)(1, 0, 1, 0)
    ok(cu.cuMemAddressReserve(ctypes.byref(a), S(n), S(0), U64(0), U64(0)))
    ok(cu.cuMemCreate(ctypes.byref(h), S(n), p, U64(0))); ok(cu.cuMemMap(a, S(n), S(0), h, U64(0)))
    ok(cu.cuMemRelease(h)); ok(cu.cuMemSetAccess(a, S(n), (ctypes.c_int * 3)(1, 0, 3), S(1))); return a
def array(n):
    a, desc = P(), (ctypes.c_size_t * 3)(n, 0, 1 << 32 | 1)
    ok(cu.cuArrayCreate_v2(ctypes.byref(a), desc)); return a
held = []
for kind, n in zip(sys.argv[1::2], map(int, sys.argv[2::2])):
    data = (bytes([(len(held) * 37 + 11 * k) % 256 for k in range(251)]) * (n // 251 + 1))[:n]
    held.append((kind, dict(plain=plain, pitch=pitched, vmm=vmm, array=array)[kind](n), data))
def put(kind, a, data):
    n = S(len(data))
    ok(cu.cuMemcpyHtoA_v2(a, S(0), data, n) if kind == "array" else cu.cuMemcpyHtoD_v2(a, data, n))
def get(kind, a, n):
    out = ctypes.create_string_buffer(n)
    ok(cu.cuMemcpyAtoH_v2(out, a, S(0), S(n)) if kind == "array" else cu.cuMemcpyDtoH_v2(out, a, S(n)))
    return out.raw
for one in held:
    put(*one)
print("ready")
for n, line in enumerate(sys.stdin, 1):
    for i, (kind, a, data) in enumerate(held):
        assert get(kind, a, len(data)) == data, (kind, len(data))
        held[i] = kind, a, data[:-1] + bytes([n])
        put(*held[i])
    print(f"round {n}")
"""
MIB = 1 << 20


@pytest.mark.parametrize("pinned_mib", [0, 500])
@pytest.mark.parametrize(
    ("takes", "moved_mib"),
    [
        ("plain 2097152", 2),
        ("plain 2097153", 4),
        ("plain 3000000", 4),
        ("plain 104857601", 102),
        ("plain 5243392 plain 7340028 plain 6291456", 6 + 8 + 6),
        ("pitch 5242880", 6),
        ("vmm 2097152 vmm 4194304", 6),
        ("array 65536", 2),
        ("array 5242880 array 1048576", 6 + 2),
        ("plain 1048576 plain 65536", 2),  # pieces of one page
        ("plain 1500000 plain 4 plain 300000 plain 1048576 plain 1048575 plain 1", 2 + 4),
        ("plain 1000 " * 40 + "plain 3000000", 2 + 4),
    ],
)
def test_all_of_it_leaves_and_comes_back(
    takes: str, moved_mib: int, pinned_mib: int, tmp_path: Path, machine: Machine
) -> None:
    job = Swapped.make(tmp_path / "job", *machine, pinned_mib=pinned_mib)
    job.made.extra[c.ENV_CHECKSUMS] = "1"
    with job.start(TAKES, *takes.split()) as program:
        for n in range(1, 4):
            assert job.move(out=True)[1] == "host"
            assert job.slot()["swapped_bytes"] >> 20 == STACK_MIB + moved_mib
            assert job.move(out=False)[1] == "gpu"
            assert program.ask() == f"round {n}"
        program.end()


@pytest.mark.parametrize("faults", ["cuModuleLoadData=221", "cuCtxGetId=801", "cuLaunchKernel=2"])
def test_without_the_kernel_whole_pages_leave_and_the_rest_stays(faults: str, tmp_path: Path, machine: Machine) -> None:
    job = Swapped.make(tmp_path / "job", *machine)
    job.made.extra["HAMI_SIM_FAULTS"] = faults
    with job.start(TAKES, *["plain", "104857600", "plain", "3000000", "array", "5242880", "plain", "1000"]) as program:
        for n in range(1, 3):
            assert job.move(out=True)[1] == "host"
            assert job.slot()["swapped_bytes"] >> 20 == STACK_MIB + 100
            assert job.move(out=False)[1] == "gpu"
            assert program.ask() == f"round {n}"
        program.end()


def test_what_the_kernel_cannot_bring_back_for_want_of_room_is_tried_again(tmp_path: Path, machine: Machine) -> None:
    job = Swapped.make(tmp_path / "job", *machine)
    job.made.extra["HAMI_SIM_FAULTS"] = "cuLaunchKernel=2:after=2:times=3"
    with job.start(TAKES, *["plain", "30000001", "array", "5242880"]) as program:
        assert job.move(out=True)[1] == "host"
        assert job.slot()["swapped_bytes"] >> 20 == STACK_MIB + 30 + 6
        assert job.move(out=False)[1] == "gpu"
        assert program.ask() == "round 1"
        program.end()
