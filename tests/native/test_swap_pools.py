# SPDX-License-Identifier: Apache-2.0
"""Segments of stream-ordered pools that are free in part, of which libcuda copies not all (docs/adr/107)."""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path

import pytest
from conformance import REAL_GPU
from swapped import FAMILIES, POOLS, STACK_MIB, Program, Swapped
from test_compute import machine
from test_swap import Machine, used_mib
from test_swap_host import FAKE, GROW

from hami_hpc.contract import constants as c

__all__ = ["machine"]  # the fixture
pytestmark = pytest.mark.skipif(REAL_GPU, reason="on a real GPU: tests/gpu/test_swapped.py")
CONTEXT_MIB = 512  # of the simulated H200
LEFT_MIB = CONTEXT_MIB - STACK_MIB
SEGMENTS = 7  # in which something is allocated
BY_KERNEL = SEGMENTS - 1  # where the first byte of one of four parts is free


def make(tmp_path: Path, machine: Machine, faults: str = "", pinned_mib: int = 0, swap: int = c.SWAP_IN) -> Swapped:
    job = Swapped.make(tmp_path / "job", *machine, pinned_mib=pinned_mib, swap=swap)
    job.made.extra.update({"HAMI_SIM_FAULTS": faults, c.ENV_LOG: "1"})
    return job


@pytest.mark.parametrize("pinned_mib", [0, 64, 1000])
def test_segments_move_whatever_of_them_is_free(
    pinned_mib: int, tmp_path: Path, machine: Machine, capfd: pytest.CaptureFixture[str]
) -> None:
    job = make(tmp_path, machine, pinned_mib=pinned_mib)
    with job.start(POOLS) as program:
        for n in range(1, 4):
            assert job.move(out=True)[1] == "host"
            assert used_mib(machine) == LEFT_MIB
            if n == 1:
                assert job.slot()["swapped_bytes"] >> 20 == STACK_MIB + SEGMENTS * 32, (
                    "free ones were given back before"
                )
            assert job.move(out=False)[1] == "gpu"
            assert program.ask() == f"round {n}"
        program.end()
    log = capfd.readouterr().err
    for where in "host", "GPU":
        assert log.count(f" MiB copied to the {where} by a kernel") == 3
        assert f"{BY_KERNEL * 32} MiB copied to the {where} by a kernel" in log


@pytest.mark.parametrize(
    "faults",
    [
        "cuModuleLoadData=221",  # no compiler
        "cuModuleLoadData=2",
        "cuModuleGetFunction=500",
        "cuCtxGetId=801",
        "cuLaunchKernel=2",
        "cuMemHostGetDevicePointer=1",
    ],
)
def test_without_the_kernel_such_segments_stay(
    faults: str, tmp_path: Path, machine: Machine, capfd: pytest.CaptureFixture[str]
) -> None:
    job = make(tmp_path, machine, faults)
    with job.start(POOLS) as program:
        for n in range(1, 4):
            assert job.move(out=True)[1] == "host"
            if n == 1:
                assert job.slot()["swapped_bytes"] >> 20 == STACK_MIB + (SEGMENTS - BY_KERNEL) * 32
                assert used_mib(machine) == LEFT_MIB + BY_KERNEL * 32
            assert job.move(out=False)[1] == "gpu"
            assert program.ask() == f"round {n}"
        program.end()
    assert "by a kernel" not in capfd.readouterr().err


@pytest.mark.parametrize("times", [1, 3])
def test_what_is_refused_on_the_way_back_only_comes_back(times: int, tmp_path: Path, machine: Machine) -> None:
    """An allocation whose free came to its end meanwhile; the GPU has no room for the kernel at first."""
    full = POOLS.replace("for i in hole:", "for i in ():").replace("for a in small[:50]:", "for a in ():")
    job = make(tmp_path, machine, f"cuMemcpyHtoDAsync=1:times=1;cuModuleLoadData=2:times={times}")
    with job.start(full) as program:
        assert job.move(out=True)[1] == "host"
        assert job.slot()["swapped_bytes"] >> 20 == STACK_MIB + 8 * 32, "all that need no kernel"
        assert job.move(out=False)[1] == "gpu"
        assert program.ask() == "round 1"
        program.end()


def test_segments_stay_where_not_all_pools_are_known(tmp_path: Path, machine: Machine) -> None:
    """One that is not trimmed may give back a segment while the kernel copies it."""
    many = (
        "for _ in range(64): ok(cu.cuMemPoolCreate(ctypes.byref(gone), properties))\nfor pool in device, own:\n    ok("
    )
    job = make(tmp_path, machine)
    with job.start(POOLS.replace("for pool in device, own:\n    ok(", many, 1)) as program:
        assert job.move(out=True)[1] == "host"
        assert job.slot()["swapped_bytes"] >> 20 == STACK_MIB + (SEGMENTS - BY_KERNEL) * 32
        assert job.move(out=False)[1] == "gpu"
        assert program.ask() == "round 1"
        program.end()


def test_segments_come_back_when_the_gpu_has_room_for_the_kernel_again(tmp_path: Path, machine: Machine) -> None:
    out = BY_KERNEL * 4
    job = make(tmp_path, machine, f"cuLaunchKernel=2:after={out}:times=3")
    with job.start(POOLS) as program:
        assert job.move(out=True)[1] == "host"
        assert job.move(out=False)[1] == "gpu"
        assert program.ask() == "round 1"
        program.end()


def test_page_locked_memory_that_the_kernel_does_not_reach_is_copied_by_a_buffer(
    tmp_path: Path, machine: Machine
) -> None:
    out = BY_KERNEL * 4  # copies to the host, by buffers as nothing is page-locked yet
    job = make(tmp_path, machine, f"cuMemHostGetDevicePointer=1:after={out}:times=1", pinned_mib=1000)
    with job.start(POOLS) as program:
        for n in range(1, 3):
            assert job.move(out=True)[1] == "host"
            assert used_mib(machine) == LEFT_MIB
            assert job.move(out=False)[1] == "gpu"
            assert program.ask() == f"round {n}"
        program.end()


@pytest.mark.parametrize("code", [POOLS, GROW], ids=["pools", "whole pages"])
@pytest.mark.parametrize("swap", ["IN", "NEVER"])
def test_what_does_not_need_the_kernel_has_none(
    code: str, swap: str, tmp_path: Path, machine: Machine, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is compiled at the first move that needs it, and never in a job that is not moved."""
    job = make(tmp_path, machine, "cuModuleLoadData=221", swap=getattr(c, f"SWAP_{swap}"))
    needs = code == POOLS and swap == "IN"
    with job.start(code) as program:
        assert "no kernel that copies" not in capfd.readouterr().err
        if swap == "IN":
            assert job.move(out=True)[1] == "host"
            assert job.move(out=False)[1] == "gpu"
        else:
            assert job.move(out=True, patience_s=0.5)[1] == "gpu"
        assert program.ask() in ("round 1", "same")
        program.end()
    assert ("no kernel that copies (error 221)" in capfd.readouterr().err) == needs


@pytest.mark.skipif(os.geteuid() != 0, reason="needs mounts")
@pytest.mark.parametrize("faults", ["", "cuModuleLoadData=221"])
def test_segments_move_where_the_host_has_room_for_nothing_else(faults: str, tmp_path: Path, machine: Machine) -> None:
    """300 MiB, where the segments and libcuda's own memory are 736: what nothing copies needs no room."""
    (tmp_path / "cgroup").write_text("4:memory:/job\n")
    (tmp_path / "memory.limit_in_bytes").write_text(f"{1 << 30}\n")
    (tmp_path / "memory.usage_in_bytes").write_text(f"{(1 << 30) - (300 << 20)}\n")
    (tmp_path / "memory.stat").write_text("anon 5\ntotal_inactive_file 0\ntotal_active_file 0\n")
    job = make(tmp_path, machine, faults)
    command = ["unshare", "--mount", "sh", "-c", FAKE, "sh", "memory/job", str(tmp_path), sys.executable, "-u", "-c"]
    with Program([*command, POOLS], job.made.environment()) as program:
        assert job.move(out=True)[1] == "host"
        assert job.slot()["swapped_bytes"] >> 20 == STACK_MIB + (SEGMENTS - BY_KERNEL if faults else SEGMENTS) * 32
        assert job.move(out=False)[1] == "gpu"
        assert program.ask() == "round 1"
        program.end()


# Runs a graph that allocates 64 MiB for itself and frees it, at each line of its input.
GRAPH = """
import sys, ctypes, struct
cu = ctypes.CDLL("libcuda.so.1")
def ok(result):
    assert result == 0, result
P, S = ctypes.c_void_p, ctypes.c_size_t
ctx, stream, graph, made, freed, ran = P(), P(), P(), P(), P(), P()
ok(cu.cuInit(0)); ok(cu.cuCtxCreate_v2(ctypes.byref(ctx), 0, 0)); ok(cu.cuStreamCreate(ctypes.byref(stream), 1))
ok(cu.cuGraphCreate(ctypes.byref(graph), 0))
properties = struct.pack("iiiiPNH54x", 1, 0, 1, 0, 0, 0, 0)
wanted = ctypes.create_string_buffer(properties + struct.pack("PNNQ", 0, 0, 64 << 20, 0))
ok(cu.cuGraphAddMemAllocNode(ctypes.byref(made), graph, None, S(0), wanted))
address = struct.unpack_from("Q", wanted, len(properties) + 24)[0]
ok(cu.cuGraphAddMemFreeNode(ctypes.byref(freed), graph, ctypes.byref(made), S(1), ctypes.c_uint64(address)))
ok(cu.cuGraphInstantiateWithFlags(ctypes.byref(ran), graph, ctypes.c_uint64(0)))
def run():
    ok(cu.cuGraphLaunch(ran, stream)); ok(cu.cuStreamSynchronize(stream))
run()
print("ready")
for n, line in enumerate(sys.stdin, 1):
    run(); print(f"round {n}")
"""


def test_what_a_graph_allocated_for_itself_is_given_back(tmp_path: Path, machine: Machine) -> None:
    job = make(tmp_path, machine)
    with job.start(GRAPH) as program:
        for n in range(1, 3):
            assert used_mib(machine) == CONTEXT_MIB + 64
            assert job.move(out=True)[1] == "host"
            assert used_mib(machine) == LEFT_MIB
            assert job.slot()["swapped_bytes"] >> 20 == STACK_MIB, "not moved: the next launch has it made anew"
            assert job.move(out=False)[1] == "gpu"
            assert program.ask() == f"round {n}"
        program.end()


def test_what_stays_is_counted_with_its_reason(
    tmp_path: Path, machine: Machine, capfd: pytest.CaptureFixture[str]
) -> None:
    """libcuda's own and managed memory."""
    job = make(tmp_path, machine)
    with job.start(FAMILIES) as program:
        assert job.move(out=True)[1] == "host"
        stays = (job.slot()["used_bytes"] - job.slot()["swapped_bytes"]) >> 20
        program.end()
    managed = 72  # 1, 6, 24 and 40 MiB, in the driver's unit
    assert stays == LEFT_MIB + managed
    assert (
        f"{stays} MiB stay on the GPU: {LEFT_MIB} are libcuda's own, 0 in objects below 4 MiB, "
        f"0 mapped for the CPU or shared, {managed} of other kinds (managed memory)\n"
    ) in capfd.readouterr().err


CAPTURE = """
import sys, ctypes
cu = ctypes.CDLL("libcuda.so.1")
def ok(result):
    assert result == 0, result
P, S, U64 = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64
ctx, stream, graph, a = P(), P(), P(), U64()
ok(cu.cuInit(0)); ok(cu.cuCtxCreate_v2(ctypes.byref(ctx), 0, 0)); ok(cu.cuStreamCreate(ctypes.byref(stream), 1))
ok(cu.cuMemAlloc_v2(ctypes.byref(a), S(64 << 20)))
print("ready")
for n, line in enumerate(sys.stdin, 1):
    ok(cu.cuStreamBeginCapture_v2(stream, 0)); print("captures")
    ok(cu.cuStreamEndCapture(stream, ctypes.byref(graph))); ok(cu.cuGraphDestroy(graph)); print(f"round {n}")
"""


def test_no_capture_begins_while_memory_is_away(tmp_path: Path, machine: Machine) -> None:
    """A driver refuses, and spoils a capture of the whole process by, some calls that a move back has to make."""
    job = make(tmp_path, machine)
    with job.start(CAPTURE) as program:
        for n in range(1, 3):
            assert job.move(out=True)[1] == "host"
            program.tell()
            assert program.process.stdout
            assert not select.select([program.process.stdout], [], [], 0.5)[0], "it waits"
            assert job.move(out=False)[1] == "gpu"
            assert program.answer() == "captures"
            assert program.answer() == f"round {n}"
        program.end()


LONG_CAPTURE = (
    CAPTURE.split("for n, line")[0]
    + """
ok(cu.cuStreamBeginCapture_v2(stream, 0))
for n, line in enumerate(sys.stdin, 1):
    other = P(); ok(cu.cuStreamCreate(ctypes.byref(other), 1)); ok(cu.cuStreamDestroy_v2(other)); print(f"call {n}")
"""
)


def test_a_capture_is_not_held_up_by_a_move_that_has_to_wait_for_it(tmp_path: Path, machine: Machine) -> None:
    """It can only end by calls that would be held; each attempt to move would hold them for two seconds."""
    job = make(tmp_path, machine)
    with job.start(LONG_CAPTURE) as program:
        assert job.move(out=True, patience_s=0.5)[1] == "busy"
        for n in range(1, 300):
            assert program.ask() == f"call {n}"
            assert job.slot()["swap_state"] == c.SWAP_STATES["busy"]
        assert job.move(out=False)[1] == "gpu"
        program.end()
