# SPDX-License-Identifier: Apache-2.0
"""What people run, in a slice of a real GPU: PyTorch with each of its allocators, CuPy, JAX, and the debugging tools.

Run by `make test-gpu` on a GPU node, as root. A framework that is not installed there is skipped with that reason.
"""

from __future__ import annotations

import csv
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "native"))
from conformance import PROGRAMS, REAL_GPU, Slice, make_slice

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not REAL_GPU, reason="needs a GPU: HAMI_TEST_GPU=1")]
LIMIT_MIB = 8192


def first_gpu() -> str:
    query = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]


@pytest.fixture
def job(tmp_path: Path) -> Slice:
    return make_slice(tmp_path / "job", None, first_gpu(), job_mib=LIMIT_MIB, cores_percent=50)


def python(job: Slice, code: str, **more: str) -> str:
    command = [shutil.which("python3") or sys.executable, "-c", code]
    result = subprocess.run(
        command, env=job.environment() | more, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr[-2000:]
    return result.stdout


def need(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed on this machine")


PYTORCH = """
import torch
free, total = torch.cuda.mem_get_info()
assert total == 8192 << 20, total
assert torch.cuda.get_device_properties(0).total_memory == total
held = []
try:
    while True:
        held.append(torch.empty(256 << 20, dtype=torch.uint8, device="cuda"))
except torch.OutOfMemoryError as error:
    print(error)
assert 28 <= len(held) <= 31, len(held)
del held
torch.cuda.empty_cache()
x = torch.randn(1000, 1000, device="cuda")
(x @ x).sort()
torch.linalg.svd(x[:200, :200])
torch.nn.Conv2d(16, 32, 3).cuda()(torch.randn(4, 16, 64, 64, device="cuda")).sum().backward()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x @ x + 1
for _ in range(10):
    graph.replay()
torch.cuda.synchronize()
assert torch.cuda.mem_get_info()[1] == total
"""


@pytest.mark.parametrize("allocator", ["", "expandable_segments:True", "backend:cudaMallocAsync"])
def test_pytorch_fills_the_slice_and_goes_on(allocator: str, job: Slice) -> None:
    need("torch")
    python(job, PYTORCH, PYTORCH_CUDA_ALLOC_CONF=allocator)


def test_what_is_charged_is_what_nvml_sees(job: Slice) -> None:
    """After kernels, libraries and workspaces were loaded, the account is the driver's own, to the byte."""
    need("torch")
    out = python(
        job,
        """
import ctypes, os, torch
x = torch.randn(2000, 2000, device="cuda")
(x @ x).sort(); torch.linalg.svd(x[:200, :200]); torch.fft.fft2(x); torch.cuda.synchronize()
free, total = torch.cuda.mem_get_info()
print(total - free)
print(os.getpid(), flush=True)
import subprocess, sys
code = '''
import pynvml
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
print(*(f"{p.pid}:{p.usedGpuMemory}" for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)))
'''
outside = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
print(subprocess.run([sys.executable, "-c", code], env=outside, capture_output=True, text=True, check=True).stdout)
""",
    )
    charged, pid, listed = out.split("\n")[:3]
    assert f"{pid}:{charged}" in listed.split()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_pytorch_workers_share_the_slice(method: str, job: Slice) -> None:
    need("torch")
    code = f"""
import torch, torch.multiprocessing as mp
def work(pipe):
    x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    pipe.send(torch.cuda.mem_get_info()[0])
    pipe.recv()
if __name__ == "__main__":
    context = mp.get_context("{method}")
    pipes = [context.Pipe() for _ in range(2)]
    workers = [context.Process(target=work, args=(theirs,)) for _, theirs in pipes]
    for w in workers: w.start()
    for ours, _ in pipes: ours.recv()
    free, total = torch.cuda.mem_get_info()
    assert total - free > 3 * (1 << 30), (free, total)   # two tensors and three contexts
    for ours, _ in pipes: ours.send(0)
    for w in workers: w.join()
    assert all(w.exitcode == 0 for w in workers)
    assert torch.cuda.mem_get_info()[0] > total - (1 << 30)
"""
    script = job.directory / "workers.py"
    script.write_text(code)
    result = subprocess.run(
        [shutil.which("python3") or sys.executable, str(script)],
        env=job.environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]


def test_cupy_sees_the_slice(job: Slice) -> None:
    need("cupy")
    out = python(
        job,
        """
import cupy
print(cupy.cuda.Device().mem_info[1] >> 20)
x = cupy.random.rand(1000, 1000)
assert float((x @ x).sum()) > 0
try:
    cupy.empty(9 << 30, dtype="u1")
except cupy.cuda.memory.OutOfMemoryError:
    print("full")
""",
    )
    assert out.split() == [str(LIMIT_MIB), "full"]


def test_jax_sees_the_slice(job: Slice) -> None:
    need("jax")
    out = python(
        job,
        """
import jax, jax.numpy as np
x = np.ones((2000, 2000))
assert float((x @ x).sum()) > 0
print(jax.devices()[0].memory_stats()["bytes_limit"] >> 20)
""",
    )
    assert int(out.split()[-1]) <= LIMIT_MIB


def test_nvidia_smi_shows_the_slice(job: Slice) -> None:
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    result = subprocess.run(query, env=job.environment(), capture_output=True, text=True, check=True)
    assert result.stdout.split() == [str(LIMIT_MIB)]


def test_compute_sanitizer_works_in_a_slice(job: Slice) -> None:
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        pytest.skip("compute-sanitizer is not installed on this machine")
    result = job.run(tool, "--error-exitcode", "9", str(PROGRAMS / "memory_ends_at_the_limit"), timeout_s=300)
    assert "COMPUTE-SANITIZER" in result.stdout
    assert result.returncode in (0, 9), result.stdout[-1000:]  # 9: it reports the refused allocations, which is its job


def test_cuda_gdb_works_in_a_slice(job: Slice) -> None:
    tool = shutil.which("cuda-gdb")
    if tool is None:
        pytest.skip("cuda-gdb is not installed on this machine")
    program = str(PROGRAMS / "memory_ends_at_the_limit")
    result = job.run(tool, "--batch", "-ex", "run", "-ex", "info threads", program, timeout_s=300)
    assert "exited normally" in result.stdout, result.stdout[-1000:] + result.stderr[-1000:]


PROFILED = """
import torch
from torch.profiler import ProfilerActivity, profile
x = torch.randn(4096, 4096, device="cuda")
torch.cuda.synchronize()
with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
    for _ in range(200):
        y = x @ x
    torch.cuda.synchronize()
kernels = [event for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA]
products = [event for event in kernels if event.device_time > 100]
assert len(products) == 200, (len(products), len(kernels))
print(sum(event.device_time for event in products) / len(products))
"""


def test_a_profiler_by_cupti_sees_each_kernel_of_a_capped_job(job: Slice) -> None:
    """Nsight Systems and Nsight Compute attach by CUPTI's interfaces, as PyTorch's profiler does."""
    need("torch")
    assert float(python(job, PROFILED)) > 100


# Each kernel takes about 0.7 ms, so that a cap of 10 pauses the job between many of them.
COUNTED = """
import torch
x = torch.arange(1 << 28, dtype=torch.float32, device="cuda")
for _ in range(12):
    x = x * 0.5
torch.cuda.synchronize()
print("sum", int(x.view(torch.int32)[:: 1 << 12].sum()))
"""
METRIC = "smsp__inst_executed.sum"


def counted(job: Slice, *, preload: bool) -> tuple[list[int], str]:
    """The instructions that Nsight Compute counts in each multiplication of COUNTED, and the program's own result."""
    tool = shutil.which("ncu")
    assert tool
    options = ("--clock-control", "none", "--target-processes", "all", "--metrics", METRIC, "--csv", "--page", "raw")
    chosen = ("--kernel-name", "regex:vectorized_elementwise")
    command = (tool, *options, *chosen, shutil.which("python3") or sys.executable, "-c", COUNTED)
    result = job.run(*command, preload=preload, timeout_s=300)
    assert result.returncode == 0, result.stdout[-1500:] + result.stderr[-1500:]
    lines = result.stdout.splitlines()
    table = csv.DictReader(line for line in lines if line.startswith('"'))
    counts = [int(float(row[METRIC].replace(",", ""))) for row in table if row["ID"].isdigit()]
    return counts, next(line for line in lines if line.startswith("sum"))


@pytest.mark.parametrize("cores", [10, 50])
def test_nsight_compute_counts_in_a_capped_job_what_it_counts_without(cores: int, tmp_path: Path) -> None:
    need("torch")
    if shutil.which("ncu") is None:
        pytest.skip("Nsight Compute (ncu) is not installed on this machine")
    job = make_slice(tmp_path / "job", None, first_gpu(), job_mib=LIMIT_MIB, cores_percent=cores)
    native, capped = counted(job, preload=False), counted(job, preload=True)
    assert len(native[0]) >= 12
    assert min(native[0]) > 0
    assert capped == native


def find_nsys() -> str | None:
    """Nsight Systems' program: on the PATH, or the one that comes with Nsight Compute."""
    inside = sorted(Path("/opt/nvidia").glob("nsight-compute/*/host/target-linux-x64/nsys"))
    return shutil.which("nsys") or (str(inside[-1]) if inside else None)


@pytest.mark.parametrize("cores", [10, 50])
def test_nsight_systems_writes_a_trace_of_a_capped_job(cores: int, tmp_path: Path) -> None:
    need("torch")
    tool = find_nsys()
    if tool is None:
        pytest.skip("Nsight Systems (nsys) is not installed on this machine")
    job = make_slice(tmp_path / "job", None, first_gpu(), job_mib=LIMIT_MIB, cores_percent=cores)
    sizes, results = [], []
    for preload in (False, True):
        trace, said = tmp_path / f"trace{preload}", tmp_path / f"said{preload}"
        options = ("profile", "--trace=cuda", "--sample=none", "--cpuctxsw=none", f"--output={trace}")
        command = (tool, *options, shutil.which("python3") or sys.executable, "-c", COUNTED)
        with said.open("w") as out:  # no pipe: a daemon of nsys stays, and would keep it open
            environment = job.environment(preload=preload)
            subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=out, timeout=120, check=True)
        results.append(next(line for line in said.read_text().splitlines() if line.startswith("sum")))
        sizes.append(sum(path.stat().st_size for path in tmp_path.glob(f"trace{preload}*")))
    print("bytes of the traces, without and with the limits:", sizes)
    assert results[0] == results[1]
    assert sizes[1] > 0.5 * sizes[0] > 0
