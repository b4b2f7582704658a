# SPDX-License-Identifier: Apache-2.0
"""CuPy and JAX programs whose device memory is moved to the host and back, on a real GPU: they find it as it was.

Run by `make test-gpu`, as root; skipped where there is no GPU. A framework that is not installed there is skipped.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "native"))
from conformance import REAL_GPU
from swapped import Swapped
from test_frameworks import need
from test_swapped import gpu_used_mib, make

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not REAL_GPU, reason="needs a GPU: HAMI_TEST_GPU=1")]
MOVES = 3

# Each says "ready"; for each line of its input it compares what it holds, and works with it.
CUPY = """
import sys, cupy as cp
held = [cp.random.randint(0, 255, (n << 20,), dtype=cp.uint8) for n in (1, 3, 64, 700, 2048)]
sums = [int(a.sum(dtype=cp.uint64)) for a in held]
square = cp.ElementwiseKernel("float32 x", "float32 y", "y = x * x", "square")
x = cp.random.rand(2048, 2048, dtype=cp.float32)
first = [float((x @ x).sum()), float(cp.abs(cp.fft.fft(x)).sum()), float(square(x).sum())]
cp.cuda.Device().synchronize()
print("ready")
for n, line in enumerate(sys.stdin, 1):
    assert [int(a.sum(dtype=cp.uint64)) for a in held] == sums
    again = [float((x @ x).sum()), float(cp.abs(cp.fft.fft(x)).sum()), float(square(x).sum())]
    assert again == first, (again, first)
    held.append(cp.full((50 << 20,), n, dtype=cp.uint8))
    sums.append(n * (50 << 20))
    print(f"round {n}")
"""

JAX = """
import os, sys
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
import jax, jax.numpy as jnp, numpy as np
keys = jax.random.split(jax.random.PRNGKey(0), 4)
held = [jax.random.randint(key, (n << 18,), 0, 1 << 30, dtype=jnp.int32) for key, n in zip(keys, (1, 3, 64, 700))]
total = jax.jit(lambda a: jnp.bitwise_xor.reduce(a))
step = jax.jit(lambda w, x: jnp.tanh(w @ x) / 64)
w, x = jax.random.normal(keys[0], (2048, 2048)), jax.random.normal(keys[1], (2048, 2048))
def look():
    y = x
    for _ in range(20):
        y = step(w, y)
    return [int(total(a)) for a in held] + [np.asarray(y).tobytes()]
first = look()
print("ready")
for n, line in enumerate(sys.stdin, 1):
    assert look() == first
    print(f"round {n}")
"""


def moved(job: Swapped, code: str, least_mib: int) -> None:
    base = gpu_used_mib()
    with job.start(code) as program:
        held = gpu_used_mib() - base
        for n in range(1, MOVES + 1):
            out_s, state = job.move(out=True)
            assert state == "host"
            left = gpu_used_mib() - base
            program.tell()  # it waits
            time.sleep(0.2)
            in_s, state = job.move(out=False)
            assert state == "gpu"
            print(f"{held} MiB; out in {out_s:.2f} s, {left} MiB left, in again in {in_s:.2f} s")
            assert held - left >= least_mib
            assert program.answer() == f"round {n}"
        program.end()


def test_cupy_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    need("cupy")
    moved(make(tmp_path / "job"), CUPY, 2700)


@pytest.mark.parametrize("allocator", ["", "platform", "cuda_async"])
def test_jax_goes_on_as_if_nothing_had_been(allocator: str, tmp_path: Path) -> None:
    need("jax")
    job = make(tmp_path / "job")
    job.made.extra["XLA_PYTHON_CLIENT_ALLOCATOR"] = allocator or "default"
    moved(job, JAX, 700)


def test_jax_with_its_preallocated_memory_goes_on(tmp_path: Path) -> None:
    """By default it takes three quarters of what it sees, here of 8 GiB, at once."""
    need("jax")
    job = make(tmp_path / "job", mib=8192)
    job.made.extra["XLA_PYTHON_CLIENT_PREALLOCATE"] = "true"
    moved(job, JAX, 5000)


def test_a_program_whose_threads_call_at_every_moment_goes_on(tmp_path: Path) -> None:
    """Four threads copy, allocate, free, wait for events and replay a graph while memory moves ten times."""
    need("torch")
    job = make(tmp_path / "job")
    with job.start(THREADS, str(os.cpu_count() or 1)) as program:
        for _ in range(10):
            assert job.move(out=True)[1] == "host"
            time.sleep(0.05)
            assert job.move(out=False)[1] == "gpu"
            time.sleep(0.1)
        program.tell("end")
        assert program.end(120).split()[0] == "same"


THREADS = """
import sys, threading, torch
end = threading.Event()
x = torch.randint(0, 255, (64 << 20,), dtype=torch.uint8, device="cuda")
want = x.cpu()
static = torch.zeros(1 << 20, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    static += 1
torch.cuda.synchronize()
bad, rounds = [], [0] * 4
def copies():
    return bool((x.cpu() == want).all())
def allocations():
    a = torch.full((32 << 20,), 7, dtype=torch.uint8, device="cuda"); b = a.clone(); del a
    torch.cuda.empty_cache()
    return int(b[-1]) == 7 and int(b.to(torch.int64).sum()) == 7 * (32 << 20)
def events():
    e = torch.cuda.Event(); y = torch.ones(1 << 20, device="cuda") * 3; e.record(); e.synchronize()
    return float(y[5]) == 3
replayed = [0]
def graphs():
    graph.replay(); replayed[0] += 1
    return float(static[3]) == replayed[0]
def loop(i, what):
    with torch.cuda.stream(torch.cuda.Stream() if i != 3 else torch.cuda.current_stream()):
        while not end.is_set():
            if not what():
                bad.append(what.__name__)
            rounds[i] += 1
threads = [threading.Thread(target=loop, args=(i, w)) for i, w in enumerate((copies, allocations, events, graphs))]
for t in threads: t.start()
print("ready")
sys.stdin.readline()
end.set()
for t in threads: t.join()
print("CHANGED" if bad else "same", sorted(set(bad)), rounds)
"""
