# SPDX-License-Identifier: Apache-2.0
"""NCCL on two real GPUs, in a job of a class that may be moved: ordered away it stays, and all sums are right.

A job with several slices is not moved: `hami-hpc swap out` and a suspension say so in words
(tests/unit/test_slices_of_a_job.py).

Run by `make test-gpu` on a node with two GPUs, as root; skipped on others.
"""

from __future__ import annotations

import shutil
import socket
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "native"))
from conformance import REAL_GPU
from several_slices import Job, Machine, make_job
from swapped import WORDS, Program, slots
from test_frameworks import need
from test_several import two

from hami_hpc.contract import constants as c

__all__ = ["two"]
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not REAL_GPU, reason="needs a GPU: HAMI_TEST_GPU=1")]

# Both GPUs in one process.
ONE = """
import sys, torch
from torch.cuda import nccl
held = [torch.randint(0, 255, (1 << 30,), dtype=torch.uint8, device=f"cuda:{device}") for device in range(2)]
sums = [int(t.view(torch.int64).sum()) for t in held]
tensors = [torch.full((1 << 24,), float(device + 1), device=f"cuda:{device}") for device in range(2)]
def work():
    for device in range(2):
        tensors[device].fill_(device + 1.0)
    nccl.all_reduce(tensors)
    assert [float(t[k]) for t in tensors for k in (0, -1)] == [3.0] * 4
    assert [int(t.view(torch.int64).sum()) for t in held] == sums
work()
print("ready")
for n, line in enumerate(sys.stdin, 1):
    work(); print(f"round {n}")
"""

# One rank: a GPU for each.
RANK = """
import sys, torch, torch.distributed as dist
rank, port = int(sys.argv[1]), int(sys.argv[2])
torch.cuda.set_device(0)
dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", world_size=2, rank=rank)
held = torch.randint(0, 255, (1 << 30,), dtype=torch.uint8, device="cuda")
total, data = int(held.view(torch.int64).sum()), torch.ones(1 << 24, device="cuda")
def work():
    data.fill_(rank + 1.0)
    dist.all_reduce(data)
    assert float(data[0]) == float(data[-1]) == 3.0 and int(held.view(torch.int64).sum()) == total
work()
print("ready")
for n, line in enumerate(sys.stdin, 1):
    work(); print(f"round {n}")
"""


def make(directory: Path, two: Machine) -> Job:
    job = make_job(directory, two, [0, 1], limits_mib=8192, policy="none")
    for index in range(2):
        job.change(index, {"swap": c.SWAP_IN})
    return job


def start(job: Job, visible: tuple[int, ...], code: str, *arguments: object) -> Program:
    python = shutil.which("python3") or sys.executable
    return Program([python, "-u", "-c", code, *map(str, arguments)], job.environment(visible))


def states(job: Job, *, out: bool) -> list[str]:
    """Orders the memory of both slices away or back; returns what their processes say of it 3 s later."""
    for index in range(2):
        job.change(index, {"swap": c.SWAP_OUT if out else c.SWAP_IN}, ["job"])
    time.sleep(3)
    return [WORDS[slot["swap_state"]] for index in range(2) for slot in slots(job.path("usage", index))]


def test_one_process_with_both_gpus_stays(tmp_path: Path, two: Machine) -> None:
    need("torch")
    job = make(tmp_path, two)
    with start(job, (0, 1), ONE) as program:
        for n in range(1, 4):
            assert {*states(job, out=True)} == {"gpu"}
            assert program.ask() == f"round {n}"
            states(job, out=False)
        program.end()


def test_two_ranks_stay(tmp_path: Path, two: Machine) -> None:
    need("torch")
    job = make(tmp_path, two)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    ranks = [start(job, (gpu,), RANK, gpu, port) for gpu in range(2)]
    with ranks[0], ranks[1]:
        for n in range(1, 4):
            assert {*states(job, out=True)} == {"gpu"}
            for rank in ranks:
                rank.tell()
            assert [rank.answer() for rank in ranks] == [f"round {n}"] * 2
            states(job, out=False)
        for rank in ranks:
            rank.end()
