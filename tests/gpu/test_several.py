# SPDX-License-Identifier: Apache-2.0
"""One process with slices on two real GPUs: PyTorch, peer copies, NCCL, caps.

Run by `make test-gpu` on a node with two GPUs, as root; skipped on others.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "native"))
from conformance import REAL_GPU
from several_slices import Job, Machine, make_job
from test_frameworks import need

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not REAL_GPU, reason="needs a GPU: HAMI_TEST_GPU=1")]


@pytest.fixture
def two() -> Machine:
    query = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    uuids = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()
    if len(uuids) < 2:
        pytest.skip("needs two GPUs")
    return Machine(None, tuple(uuids[:2]))


def python(job: Job, code: str, *, preload: bool = True, visible: tuple[int, int] = (0, 1)) -> str:
    environment = job.environment(visible)
    if not preload:
        del environment["LD_PRELOAD"]
    command = [shutil.which("python3") or sys.executable, "-c", code]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


FILL = """
import os, torch
limits = [int(word) << 20 for word in os.environ["LIMITS_MIB"].split(",")]
for device in range(2):
    torch.zeros(1, device=f"cuda:{device}")
for device, limit in enumerate(limits):
    other = torch.cuda.mem_get_info(1 - device)
    free, total = torch.cuda.mem_get_info(device)
    assert total == limit == torch.cuda.get_device_properties(device).total_memory, (device, total)
    held = []
    try:
        while True:
            held.append(torch.empty(128 << 20, dtype=torch.uint8, device=f"cuda:{device}"))
    except torch.OutOfMemoryError:
        pass
    assert free - len(held) * (128 << 20) < 160 << 20, (device, free, len(held))
    assert torch.cuda.mem_get_info(1 - device) == other
    del held
    torch.cuda.empty_cache()
a = torch.arange(1 << 20, device="cuda:0")
assert (a.to("cuda:1").cpu() == a.cpu()).all()
x = [torch.randn(500, 500, device=f"cuda:{device}") for device in range(2)]
(x[0] @ x[0] + (x[1] @ x[1]).to("cuda:0")).sum().item()
"""


@pytest.mark.parametrize("visible", [(0, 1), (1, 0)])
def test_pytorch_fills_each_slice_to_its_own_limit(visible: tuple[int, int], tmp_path: Path, two: Machine) -> None:
    need("torch")
    job = make_job(tmp_path, two, [0, 1], limits_mib=(8192, 4096), cores=50)
    python(job, FILL, visible=visible)


PEERS = """
import torch
a = torch.zeros(256 << 20, dtype=torch.uint8, device="cuda:0")
b = torch.zeros(256 << 20, dtype=torch.uint8, device="cuda:1")
torch.cuda.synchronize(0); torch.cuda.synchronize(1)
before = [torch.cuda.mem_get_info(device)[0] for device in range(2)]
for _ in range(3):
    b.copy_(a)
    a.copy_(b)
torch.cuda.synchronize(0); torch.cuda.synchronize(1)
print(*[before[device] - torch.cuda.mem_get_info(device)[0] for device in range(2)])
"""


def test_peer_copies_are_charged_nothing(tmp_path: Path, two: Machine) -> None:
    need("torch")
    job = make_job(tmp_path, two, [0, 1], limits_mib=8192, cores=50)
    assert all(int(word) <= 64 << 20 for word in python(job, PEERS).split())


NCCL = """
import torch
from torch.cuda import nccl
tensors = [torch.full((1 << 22,), float(device + 1), device=f"cuda:{device}") for device in range(2)]
for _ in range(20):
    nccl.all_reduce(tensors)
for device in range(2):
    torch.cuda.synchronize(device)
assert tensors[0][0].item() == tensors[1][7].item() == 3.0 * 2**19
"""


def test_nccl_in_one_process(tmp_path: Path, two: Machine) -> None:
    need("torch")
    job = make_job(tmp_path, two, [0, 1], limits_mib=8192, cores=50, policy="burst")
    python(job, NCCL)


SPIN = """
import threading, time, torch
shares = [0.0, 0.0]
def spin(device):
    with torch.cuda.device(device):
        done, events = 0, []
        start = time.monotonic()
        while time.monotonic() - start < 3:
            if len(events) >= 4:
                events.pop(0).synchronize()
            torch.cuda._sleep(2_000_000)
            event = torch.cuda.Event()
            event.record()
            events.append(event)
            done += 1
        torch.cuda.synchronize(device)
        shares[device] = done / (time.monotonic() - start)
threads = [threading.Thread(target=spin, args=(device,)) for device in range(2)]
for device in range(2):
    torch.zeros(1, device=f"cuda:{device}")
for thread in threads: thread.start()
for thread in threads: thread.join()
print(*shares)
"""


def test_each_gpu_has_its_own_cap(tmp_path: Path, two: Machine) -> None:
    """Of the rate that each has without limits."""
    need("torch")
    job = make_job(tmp_path, two, [0, 1], limits_mib=8192, cores=(25, 60))
    alone = [float(word) for word in python(job, SPIN, preload=False).split()]
    capped = [float(word) for word in python(job, SPIN).split()]
    percent = [100 * b / a for a, b in zip(alone, capped, strict=True)]
    assert 20 < percent[0] < 30, (alone, capped)
    assert 54 < percent[1] < 66, (alone, capped)
    assert job.usage(0)["time_used"] > 0
    assert job.usage(1)["time_used"] > job.usage(0)["time_used"]
