# SPDX-License-Identifier: Apache-2.0
"""Device memory that is moved to the host and back under a running program (docs/adr/077), on the simulation."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from conformance import BUILD, REAL_GPU, make_slice, sanitizer
from swapped import FAMILIES, WORDS, Swapped
from test_compute import machine

from hami_hpc.contract import constants as c

__all__ = ["machine"]  # the fixture
pytestmark = [
    pytest.mark.skipif(REAL_GPU, reason="on a real GPU: tests/gpu/test_swapped.py"),
]
Machine = tuple[Path, str]
KILLS = int(os.environ.get("HAMI_SWAP_KILLS", "8"))


@pytest.mark.parametrize("pinned_mib", [0, 63, 128, 100_000])
def test_memory_of_each_family_keeps_its_content(pinned_mib: int, tmp_path: Path, machine: Machine) -> None:
    job = Swapped.make(tmp_path / "job", *machine, pinned_mib=pinned_mib)
    with job.start(FAMILIES) as program:
        for n in range(1, 4):
            assert job.move(out=True)[1] == "host"
            assert job.slot()["swap_count"] == n
            assert job.slot()["swapped_bytes"] > 200 << 20
            assert job.move(out=False)[1] == "gpu"
            assert job.slot()["swapped_bytes"] == 0
            assert program.ask() == f"round {n}"
        program.end()


def test_a_program_says_while_its_memory_is_copied(tmp_path: Path, machine: Machine) -> None:
    job = Swapped.make(tmp_path / "job", *machine)
    job.made.extra["HAMI_SIM_FAULTS"] = "cuMemcpyDtoHAsync=0:delay_us=20000"
    with job.start(HOLDER, "1024") as program:
        job.order(c.SWAP_OUT)
        seen = set()
        while (word := WORDS[job.slot()["swap_state"]]) != "host":
            seen.add(word)
            time.sleep(0.001)
        assert seen == {"gpu", "leaving"}
        assert job.move(out=False)[1] == "gpu"
        assert program.ask() == "freed"
        program.end()


def test_calls_wait_while_memory_is_away_and_go_on(tmp_path: Path, machine: Machine) -> None:
    job = Swapped.make(tmp_path / "job", *machine)
    with job.start(FAMILIES) as program:
        assert job.move(out=True)[1] == "host"
        program.tell()
        with pytest.raises(subprocess.TimeoutExpired):
            program.process.wait(1)
        assert job.move(out=False)[1] == "gpu"
        assert program.answer() == "round 1"
        program.end()


START = """
import ctypes, sys, threading
cu = ctypes.CDLL("libcuda.so.1")
P, S, U64 = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64
def ok(result):
    assert result == 0, result
ctx = P()
ok(cu.cuInit(0)); ok(cu.cuCtxCreate_v2(ctypes.byref(ctx), 0, 0))
def alloc(mib):
    a = U64(); return cu.cuMemAlloc_v2(ctypes.byref(a), S(mib << 20)) or a
"""
# Copies there and back on four threads, each its own number; says how often when it is asked.
THREADS = (
    START
    + """
counts = [0] * 4
def work(i):
    ok(cu.cuCtxSetCurrent(ctx))
    while True:
        a = alloc(4); value = (counts[i] * 4 + i).to_bytes(8, "little") * (4 << 17)
        ok(cu.cuMemcpyHtoD_v2(a, value, S(4 << 20)))
        back = ctypes.create_string_buffer(4 << 20)
        ok(cu.cuMemcpyDtoH_v2(back, a, S(4 << 20)))
        assert back.raw == value
        ok(cu.cuMemFree_v2(a))
        counts[i] += 1
for i in range(4):
    threading.Thread(target=work, args=(i,), daemon=True).start()
print("ready")
for line in sys.stdin:
    print(*counts)
"""
)
# Holds MiB, and frees them when told.
HOLDER = (
    START
    + """
held = [alloc(256) for _ in range(int(sys.argv[1]) // 256)]
assert all(isinstance(a, U64) for a in held), held
print("ready")
sys.stdin.readline()
for a in held:
    ok(cu.cuMemFree_v2(a))
print("freed")
sys.stdin.readline()
"""
)
# A kernel of MS.
KERNEL = (
    START
    + """
module, kernel, stream = P(), P(), P()
ok(cu.cuModuleLoadData(ctypes.byref(module), b"sim"))
ok(cu.cuModuleGetFunction(ctypes.byref(kernel), module, b"sim_spin_ns"))
a = alloc(64)
ns = U64(int(sys.argv[1]) * 1000000)
params = (P * 1)(ctypes.cast(ctypes.byref(ns), P))
ok(cu.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, params, None))
print("ready")
ok(cu.cuCtxSynchronize())
print("done")
sys.stdin.readline()
"""
)


def used_mib(machine: Machine) -> int:
    out = subprocess.run([BUILD / "sim/sim-state", str(machine[0])], check=True, capture_output=True, text=True).stdout
    return int(json.loads(out)["gpus"][0]["used_bytes"]) >> 20


def test_threads_that_use_their_memory_all_the_time_notice_nothing(tmp_path: Path, machine: Machine) -> None:
    job = Swapped.make(tmp_path / "job", *machine)
    with job.start(THREADS) as program:
        before = [0] * 4
        for n in range(10):
            assert job.move(out=True)[1] == "host"
            assert job.move(out=False)[1] == "gpu"
            counts = [int(word) for word in program.ask().split()]
            assert all(now >= then for now, then in zip(counts, before, strict=True)), n
            before = counts
        assert min(before) > 0
        program.end()


def test_killed_at_any_moment_nothing_of_it_is_left(tmp_path: Path, machine: Machine) -> None:
    """Out and in, stopped and continued as Slurm does, each at random, and killed at some moment of it."""
    chance = random.Random(3)
    for n in range(KILLS):
        job = Swapped.make(tmp_path / f"job{n}", *machine, pinned_mib=n % 2 * 256)
        with job.start(HOLDER, "512") as program:
            for order in chance.choices((c.SWAP_OUT, c.SWAP_SUSPENDED, c.SWAP_IN), k=chance.randrange(1, 4)):
                job.order(order)
                time.sleep(chance.random() / 4)
                if chance.random() < 0.5:
                    program.process.send_signal(signal.SIGSTOP)
                    time.sleep(chance.random() / 50)
                    program.process.send_signal(signal.SIGCONT)
            if chance.random() < 0.3:
                program.process.send_signal(signal.SIGSTOP)
            program.process.kill()
            program.process.wait(10)
        assert used_mib(machine) == 0, n


def test_memory_that_is_said_to_be_away_stays_away(tmp_path: Path, machine: Machine) -> None:
    """Who says `out` while the memory comes back, and reads `host`, can rely on it: the process may be stopped."""
    job = Swapped.make(tmp_path / "a", *machine)
    chance = random.Random(7)
    with job.start(HOLDER, "256") as program:
        held = used_mib(machine)
        for n in range(30):
            assert job.move(out=True)[1] == "host"
            assert used_mib(machine) <= held - 256, n
            time.sleep(0.03)
            assert used_mib(machine) <= held - 256, n
            job.order(c.SWAP_IN)
            time.sleep(chance.random() * 0.06)
        assert job.move(out=False)[1] == "gpu"
        assert program.ask() == "freed"
        program.end()


def test_memory_waits_for_room_on_the_gpu_and_comes_back(tmp_path: Path, machine: Machine) -> None:
    job, other = (Swapped.make(tmp_path / name, *machine, mib=143_000) for name in "ab")
    with job.start(HOLDER, "512") as program:
        assert job.move(out=True, patience_s=60)[1] == "host"
        with other.start(HOLDER, "141824") as taker:
            assert job.move(out=False, patience_s=1)[1] == "returning"
            assert job.move(out=True, patience_s=10)[1] == "host", "it is told to stay after all"
            assert job.move(out=False, patience_s=1)[1] == "returning"
            assert taker.ask() == "freed"
            assert job.move(out=False, patience_s=60)[1] == "gpu"
            taker.end()
        assert program.ask() == "freed"
        program.end()


def test_a_process_that_ends_while_its_memory_is_away_needs_no_room(tmp_path: Path, machine: Machine) -> None:
    job, other = (Swapped.make(tmp_path / name, *machine, mib=143_000) for name in "ab")
    with job.start(KERNEL.replace("alloc(64)", "alloc(512)"), "1") as program:
        assert program.answer() == "done"
        assert job.move(out=True, patience_s=60)[1] == "host"
        with other.start(HOLDER, "141824") as taker:
            program.end()
            assert used_mib(machine) > 141_824
            assert taker.ask() == "freed"
            taker.end()
    assert used_mib(machine) == 0


def test_a_kernel_that_does_not_end_leaves_the_program_as_it_was(tmp_path: Path, machine: Machine) -> None:
    job = Swapped.make(tmp_path / "job", *machine)
    with job.start(KERNEL, "4000") as program:
        assert job.move(out=True, patience_s=3)[1] == "busy"
        assert program.answer() == "done"
        assert job.move(out=True)[1] == "host"
        assert job.move(out=False)[1] == "gpu"
        program.tell()
        program.end()


@pytest.mark.parametrize(
    ("more", "state"),
    [
        ("ok(cu.cuCtxCreate_v2(ctypes.byref(P()), 0, 0))", "contexts"),
        ("h = (ctypes.c_char * 64)(); ok(cu.cuIpcGetMemHandle(ctypes.byref(h), alloc(8)))", "shared"),
        ("s = P(); ok(cu.cuStreamCreate(ctypes.byref(s), 1)); ok(cu.cuStreamBeginCapture_v2(s, 0))", "busy"),
    ],
)
def test_what_cannot_be_moved_says_why_and_goes_on(more: str, state: str, tmp_path: Path, machine: Machine) -> None:
    job = Swapped.make(tmp_path / "job", *machine)
    code = HOLDER.replace('print("ready")', f'{more}\nprint("ready")')
    with job.start(code, "256") as program:
        assert job.move(out=True, patience_s=3 if state == "busy" else 0.5)[1] == state
        assert program.ask() == "freed"
        program.end()


def test_a_job_whose_record_does_not_allow_it_is_never_moved(tmp_path: Path, machine: Machine) -> None:
    job = Swapped(make_slice(tmp_path / "job", *machine, job_mib=8192))
    with job.start(HOLDER, "256") as program:
        assert job.move(out=True, patience_s=1)[1] == "gpu"
        assert program.ask() == "freed"
        program.end()


FORKS = (
    START
    + """
import os
held = alloc(256)
print("ready")
sys.stdin.readline()
child = os.fork() or os._exit(7)
print(os.waitpid(child, 0)[1] >> 8)
sys.stdin.readline()
"""
)


def test_a_child_of_a_program_whose_memory_is_away_is_free(tmp_path: Path, machine: Machine) -> None:
    job = Swapped.make(tmp_path / "job", *machine)
    with job.start(FORKS) as program:
        assert job.move(out=True)[1] == "host"
        assert program.ask() == "7"
        assert job.move(out=False)[1] == "gpu"
        program.tell()
        program.end()


CONTEXT = (
    START
    + """
a = alloc(64)
print("ready")
sys.stdin.readline()
ok(cu.cuCtxCreate_v2(ctypes.byref(P()), 0, 0))
print("made")
sys.stdin.readline()
"""
)


def test_a_context_that_is_made_while_memory_is_away_waits(tmp_path: Path, machine: Machine) -> None:
    job = Swapped.make(tmp_path / "job", *machine)
    with job.start(CONTEXT) as program:
        assert job.move(out=True)[1] == "host"
        program.tell()
        with pytest.raises(subprocess.TimeoutExpired):
            program.process.wait(0.5)
        assert job.move(out=False)[1] == "gpu"
        assert program.answer() == "made"
        program.tell()
        program.end()


def has_state(job: Swapped, word: str) -> None:
    end = time.monotonic() + 20
    while job.slot()["swap_state"] != c.SWAP_STATES[word]:
        assert time.monotonic() < end, f"{word}: {job.slot()}"
        time.sleep(0.01)


def test_a_program_says_when_a_call_of_it_waits_for_its_memory(tmp_path: Path, machine: Machine) -> None:
    job = Swapped.make(tmp_path / "job", *machine)
    with job.start(FAMILIES) as program:
        assert job.move(out=True)[1] == "host"
        time.sleep(0.2)
        has_state(job, "host")
        program.tell()
        has_state(job, "wanted")
        assert job.slot()["swap_count"] == 1
        assert job.move(out=False)[1] == "gpu"
        assert program.answer() == "round 1"
        assert job.slot()["swap_count"] == 1
        program.end()


BEGIN = (
    START.replace("ok(cu.cuInit(0))", 'print("ready"); sys.stdin.readline(); ok(cu.cuInit(0))')
    + """
a = alloc(64)
print("made")
sys.stdin.readline()
"""
)


@pytest.mark.parametrize("order", ["OUT", "SUSPENDED", "TURN", "WAIT"])
def test_a_program_that_has_not_begun_waits_for_its_turn(
    order: str, tmp_path: Path, machine: Machine, capfd: pytest.CaptureFixture[str]
) -> None:
    job = Swapped.make(tmp_path / "job", *machine, swap=getattr(c, f"SWAP_{order}"))
    with job.start(BEGIN) as program:
        program.tell()
        has_state(job, "wanted")
        assert used_mib(machine) == 0
        time.sleep(1.2)
        job.order(c.SWAP_NEVER if order == "WAIT" else c.SWAP_IN)
        assert program.answer() == "made"
        has_state(job, "gpu")
        assert job.slot()["swap_count"] == 0
        assert used_mib(machine) > 64
        if order == "WAIT":
            job.order(c.SWAP_TURN)  # nobody gives this order to such a job, and it is not followed
            time.sleep(0.3)
            has_state(job, "gpu")
        else:
            assert job.move(out=True)[1] == "host"
            assert job.move(out=False)[1] == "gpu"
        program.tell()
        program.end()
    assert capfd.readouterr().err.count("waiting for the job's turn on the GPU") == 1


REMADE = """
import ctypes, time
cu = ctypes.CDLL("libcuda.so.1")
def ok(result):
    assert result == 0, result
P, S, U64 = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64
n, rounds, end = 8 << 20, 0, time.monotonic() + 3
want, got = bytes(range(256)) * (n // 256), ctypes.create_string_buffer(n)
ok(cu.cuInit(0))
print("ready")
while time.monotonic() < end:
    ctx, a = P(), U64()
    ok(cu.cuCtxCreate_v2(ctypes.byref(ctx), 0, 0))
    ok(cu.cuMemAlloc_v2(ctypes.byref(a), S(n)))
    ok(cu.cuMemcpyHtoD_v2(a, want, S(n)))
    ok(cu.cuMemcpyDtoH_v2(got, a, S(n)))
    assert got.raw == want
    ok(cu.cuCtxDestroy_v2(ctx))
    rounds += 1
print(rounds)
"""


def test_a_context_is_destroyed_and_made_again_while_its_memory_is_moved(tmp_path: Path, machine: Machine) -> None:
    job, away = Swapped.make(tmp_path / "job", *machine), 0
    with job.start(REMADE) as program:
        while program.process.poll() is None:
            for order in (c.SWAP_OUT, c.SWAP_IN):
                job.order(order)
                time.sleep(random.uniform(0, 0.02))
                away += job.slot()["swap_state"] == c.SWAP_STATES["host"]
        assert int(program.end()) > (0 if sanitizer() else 5)
    assert away > 0
