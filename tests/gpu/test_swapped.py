# SPDX-License-Identifier: Apache-2.0
"""Device memory that is moved to the host and back under running programs, on a real GPU: nothing of it changes.

Run by `make test-gpu`, as root; skipped where there is no GPU.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "native"))
from conformance import REAL_GPU
from swapped import FAMILIES, POOLS, SHARE, Program, Swapped
from test_frameworks import need

from hami_hpc.contract import constants as c

GPU = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]  # by its number
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not REAL_GPU, reason="needs a GPU: HAMI_TEST_GPU=1")]

# Says "ready", then for each line of its input does one round of work and prints what it found.
TORCH = """
import sys, torch
torch.manual_seed(0)
held = [torch.randint(0, 255, (n << 20,), dtype=torch.uint8, device="cuda") for n in (1, 3, 64, 700, 2048)]
sums = [int(t.to(torch.int64).sum()) for t in held[:4]]
x = torch.randn(2048, 2048, device="cuda")
static = torch.zeros(1 << 20, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    static += 1
torch.cuda.synchronize()
print("ready")
for n, line in enumerate(sys.stdin, 1):
    graph.replay()
    assert float(static[7]) == n, (float(static[7]), n)
    assert [int(t.to(torch.int64).sum()) for t in held[:4]] == sums
    y = (x @ x).sum()
    held.append(torch.full((50 << 20,), n, dtype=torch.uint8, device="cuda"))
    assert all(int(t[-1]) == i for i, t in enumerate(held[5:], 1))
    print(f"round {n} {float(y)}")
"""


SMALL = """
import sys, torch
held = [torch.full((n % 60000 + 1,), float(n), device="cuda") for n in range(0, 4000000, 73)]
print("ready")
for n, line in enumerate(sys.stdin, 1):
    ends = torch.stack([t[-1] for t in held])
    assert torch.equal(ends, torch.arange(0, 4000000, 73, dtype=torch.float, device="cuda"))
    print(f"round {n}")
"""


# Each tensor has an allocation of its own: 20 of 100,000,000 bytes or a little more, or 20,000 below a page of the GPU.
OWN = """
import sys, torch
large = [25_000_000 + 128 * (i % 3) for i in range(20)]
small = [1 + i * 7919 % (450_000 if i % 10 == 0 else 30_000) for i in range(20_000)]
held = [torch.full((n,), float(i), device="cuda") for i, n in enumerate(large if sys.argv[1] == "large" else small)]
held = [None if i > 20 and i % 3 == 0 else t for i, t in enumerate(held)]
print("ready")
for n, line in enumerate(sys.stdin, 1):
    right = [(t == float(i)).all() for i, t in enumerate(held) if t is not None]
    assert bool(torch.stack(right).all())
    print(f"round {n}")
"""


def gpu_used_mib() -> int:
    query = ["nvidia-smi", "-i", GPU, "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0])


def make(directory: Path, *, mib: int = 120_000, pinned_mib: int = 0) -> Swapped:
    query = ["nvidia-smi", "-i", GPU, "--query-gpu=uuid", "--format=csv,noheader"]
    uuid = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    return Swapped.make(directory, None, uuid, mib=mib, pinned_mib=pinned_mib)


def goes_and_comes(job: Swapped, program: Program, name: str, *, base: int, times: int, most_mib: int) -> None:
    """Moves it so often, and lets it look at all of its memory each time. `most_mib`: may be left on the GPU."""
    held = gpu_used_mib() - base
    for n in range(1, times + 1):
        assert job.move(out=True)[1] == "host"
        left, moved = gpu_used_mib() - base, job.slot()["swapped_bytes"] >> 20
        print(f"{name}: {held} MiB, {left} left, {moved} MiB moved")
        assert left <= most_mib
        assert job.move(out=False)[1] == "gpu"
        assert program.ask() == f"round {n}"
    program.end()


def tables_mib(pinned_mib: int, held_mib: int) -> int:
    """What the GPU needs at most to reach the host's page-locked memory."""
    return min(pinned_mib, 16 + held_mib // 512)


@pytest.mark.parametrize("pinned_mib", [0, 200_000])
@pytest.mark.parametrize("allocator", ["", "backend:cudaMallocAsync", "expandable_segments:True"])
def test_pytorch_goes_on_as_if_nothing_had_been(allocator: str, pinned_mib: int, tmp_path: Path) -> None:
    need("torch")
    base = gpu_used_mib()
    job = make(tmp_path / "job", pinned_mib=pinned_mib)
    if allocator:
        job.made.extra["PYTORCH_CUDA_ALLOC_CONF"] = allocator
    with job.start(TORCH) as program:
        held = gpu_used_mib() - base
        for n in range(1, 4):
            seconds, state = job.move(out=True)
            left = gpu_used_mib() - base
            print(f"{allocator or 'native'}: {held} MiB; {state} in {seconds:.2f} s, {left} MiB left")
            assert state == "host"
            assert left <= 500 + tables_mib(pinned_mib, held)
            back, state = job.move(out=False)
            assert state == "gpu"
            print(f"in again in {back:.2f} s; {program.ask()}")
            assert job.slot()["swap_count"] == n
        program.end()


@pytest.mark.parametrize("pinned_mib", [0, 128, 200_000])
def test_memory_of_each_family_keeps_its_content(pinned_mib: int, tmp_path: Path) -> None:
    base = gpu_used_mib()
    job = make(tmp_path / "job", pinned_mib=pinned_mib)
    with job.start(FAMILIES) as program:
        goes_and_comes(job, program, "families", base=base, times=3, most_mib=500 + tables_mib(pinned_mib, 1000))


@pytest.mark.parametrize("pinned_mib", [0, 128, 200_000])
def test_segments_of_pools_move_whatever_of_them_is_free(
    pinned_mib: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    base = gpu_used_mib()
    job = make(tmp_path / "job", pinned_mib=pinned_mib)
    job.made.extra[c.ENV_LOG] = "1"
    with job.start(POOLS) as program:
        goes_and_comes(job, program, "pools", base=base, times=5, most_mib=500 + tables_mib(pinned_mib, 800))
    log = capfd.readouterr()
    print(log.out, *(line for line in log.err.splitlines() if "kernel" in line), sep="\n")
    for where in "host", "GPU":
        assert log.err.count(f" MiB copied to the {where} by a kernel") == 5


@pytest.mark.parametrize("pinned_mib", [0, 200_000])
def test_arrays_variables_stacks_and_odd_sizes_keep_their_content(pinned_mib: int, tmp_path: Path) -> None:
    source, program = Path(__file__).with_name("arrays.cu"), tmp_path / "arrays"
    subprocess.run(["nvcc", "-O2", "-std=c++17", "-arch=native", source, "-o", program, "-lcuda"], check=True)
    base = gpu_used_mib()
    job = make(tmp_path / "job", pinned_mib=pinned_mib)
    with Program([str(program)], job.made.environment()) as running:
        most = 290 + tables_mib(pinned_mib, 4300)
        goes_and_comes(job, running, "arrays.cu", base=base, times=3, most_mib=most)


def test_many_small_tensors_leave(tmp_path: Path) -> None:
    """55,000 of up to 240 KiB, which PyTorch has in segments of one page of the GPU."""
    need("torch")
    base = gpu_used_mib()
    job = make(tmp_path / "job")
    with job.start(SMALL) as program:
        goes_and_comes(job, program, "small tensors", base=base, times=2, most_mib=500)


@pytest.mark.parametrize("sizes", ["large", "small"])
def test_allocations_of_odd_sizes_leave(sizes: str, tmp_path: Path) -> None:
    need("torch")
    base = gpu_used_mib()
    job = make(tmp_path / "job")
    job.made.extra["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    with job.start(OWN, sizes) as program:
        goes_and_comes(job, program, f"{sizes} allocations", base=base, times=2, most_mib=500)


def test_a_program_waits_while_its_memory_is_away_and_goes_on(tmp_path: Path) -> None:
    job = make(tmp_path / "job")
    with job.start(FAMILIES) as program:
        assert job.move(out=True)[1] == "host"
        program.tell()
        time.sleep(2)
        assert job.move(out=False)[1] == "gpu"
        assert program.answer() == "round 1"
        program.end()


@pytest.mark.parametrize("kills", [False, True])
def test_a_program_whose_memory_is_away_can_end_and_be_killed(kills: bool, tmp_path: Path) -> None:
    base = gpu_used_mib()
    job = make(tmp_path / "job")
    with job.start(FAMILIES) as program:
        assert job.move(out=True)[1] == "host"
        if not kills:
            program.end()
    time.sleep(1)
    assert gpu_used_mib() - base < 50


def test_a_program_that_ends_while_its_memory_is_away_needs_no_room(tmp_path: Path) -> None:
    """Each of 20 ends within seconds, at its own exit, with memory of every family and a graph that is not there."""
    need("torch")
    base = gpu_used_mib()
    ends = TORCH.replace(
        "for n, line in", "sys.stdin.readline(); import ctypes; ctypes.CDLL(None).exit(0)\nfor n, line in"
    )
    for n in range(20):
        job = make(tmp_path / f"job{n}")
        with job.start(FAMILIES if n % 4 else ends) as program:
            assert job.move(out=True)[1] == "host"
            begun = time.monotonic()
            program.end()
            took = time.monotonic() - begun
        assert took < 5
        time.sleep(0.5)
        assert gpu_used_mib() - base < 50
        print(f"ended in {took:.2f} s")


def test_a_program_that_has_not_begun_waits_for_its_turn(tmp_path: Path) -> None:
    job = make(tmp_path / "job")
    job.order(c.SWAP_TURN)
    base = gpu_used_mib()
    code = TORCH.replace("import sys, torch", 'print("ready"); import sys, torch')
    with job.start(code) as program:
        end = time.monotonic() + 60
        while job.slot()["swap_state"] != c.SWAP_STATES["wanted"]:
            assert time.monotonic() < end
            time.sleep(0.01)
        time.sleep(1)
        assert gpu_used_mib() - base < 10
        job.order(c.SWAP_IN)
        assert program.answer() == "ready"  # its second
        assert gpu_used_mib() - base > 2800
        assert program.ask().startswith("round 1")
        assert job.move(out=True)[1] == "host"
        assert job.move(out=False)[1] == "gpu"
        assert program.ask().startswith("round 2")
        program.end()


LOSSES = """
import sys, hashlib, torch
torch.manual_seed(0)
layers = [layer for _ in range(6) for layer in (torch.nn.Linear(2048, 2048), torch.nn.GELU(), torch.nn.Dropout(0.1))]
model = torch.nn.Sequential(*layers).cuda()
optimizer = torch.optim.AdamW(model.parameters())
data = torch.randn(4096, 2048, device="cuda")
ballast = torch.randint(0, 255, (8 << 30,), dtype=torch.uint8, device="cuda")
digest = hashlib.sha256()
print("ready")
for _ in range(int(sys.argv[1])):
    optimizer.zero_grad(set_to_none=True)
    loss = model(data).square().mean()
    loss.backward()
    optimizer.step()
    digest.update(loss.detach().cpu().numpy().tobytes())
print(digest.hexdigest(), int(ballast[:: 4096].to(torch.int64).sum()))
"""


def test_losses_of_a_training_that_is_moved_at_random_are_bit_identical(tmp_path: Path) -> None:
    need("torch")
    found = []
    for number, moves in enumerate((0, 20)):
        job = make(tmp_path / f"job{number}")
        with job.start(LOSSES, "800") as program:
            chance = random.Random(7)
            states = []
            for _ in range(moves):
                time.sleep(chance.random() / 10)
                states += [job.move(out=True)[1], job.move(out=False)[1]]
            assert states == ["host", "gpu"] * moves
            found.append(program.end(200))
            print(moves, job.slot()["swap_count"], found[-1].strip()[:30])
    assert found[0] == found[1]


def test_a_program_that_shares_its_memory_is_not_moved(tmp_path: Path) -> None:
    job = make(tmp_path / "job")
    with job.start(FAMILIES.replace('print("ready")', SHARE + 'print("ready")')) as program:
        assert job.move(out=True, patience_s=1)[1] == "shared"
        assert program.ask() == "round 1"
        program.end()


# A context, and no memory but libcuda's own and 1 MiB.
CONTEXT = """
import ctypes, sys
cu = ctypes.CDLL("libcuda.so.1")
ctx, a = ctypes.c_void_p(), ctypes.c_uint64()
assert not cu.cuInit(0) and not cu.cuCtxCreate_v2(ctypes.byref(ctx), 0, 0)
assert not cu.cuMemAlloc_v2(ctypes.byref(a), ctypes.c_size_t(1 << 20))
print("ready")
for line in sys.stdin:
    assert not cu.cuMemcpyHtoD_v2(a, b"same", ctypes.c_size_t(4)); print("same")
"""


def test_a_program_whose_only_large_memory_is_libcudas_is_in_nobodys_way(tmp_path: Path) -> None:
    job = make(tmp_path / "job")
    with job.start(CONTEXT) as program:
        assert job.move(out=True)[1] == "host"
        assert job.move(out=False)[1] == "gpu"
        assert program.ask() == "same"
        program.end()
