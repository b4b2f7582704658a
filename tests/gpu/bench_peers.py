# SPDX-License-Identifier: Apache-2.0
"""The interposer beside HAMi-core on a real GPU, in one run: prints docs/benchmarks/peers.md's tables.

Usage: make bench-peers HAMI_CORE=/path/to/libvgpu.so, as root on a GPU node with nvcc and PyTorch. HAMi-core is
built by its own build.sh (its sources are not ours). Needs build/native (make build), about 25 minutes.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench_interposer import PROGRAMS, REPEATS, ROOT, numbers, spin, start, under

HAMI_CORE = Path(os.environ.get("HAMI_CORE", ""))
CAPS = (10, 25, 50, 75, 90)
LIMIT_MIB = 4096
MOST_MIB = 12288
Environment = Callable[[int, int], dict[str, str]]


def hami_core(cores: int, mem_mib: int = 30000) -> dict[str, str]:
    """The environment that HAMi's device plugin gives a container with such a slice; a region of its own."""
    region = Path(tempfile.mkdtemp(prefix="region-", dir=PROGRAMS)) / "cache"
    return os.environ | {
        "LD_PRELOAD": str(HAMI_CORE),
        "CUDA_DEVICE_MEMORY_LIMIT": f"{mem_mib}m",
        "CUDA_DEVICE_SM_LIMIT": str(cores),
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(region),
        "GPU_CORE_UTILIZATION_POLICY": "FORCE",
        "LIBCUDA_LOG_LEVEL": "0",
    }


def ours(cores: int, mem_mib: int = 30000) -> dict[str, str]:
    return under(cores, "cap", mem_mib)


PEERS: dict[str, Environment] = {"hami_hpc": ours, "HAMi-core": hami_core}


def kernels() -> None:
    caps("1 ms kernels (worst 100 ms windows of all runs)", spin("run", ms_loops(), 8, 0, 4), windows=True)


def graph() -> None:
    caps("CUDA graph of 100 kernels of 100 us", spin("run", ms_loops() // 10, 8, 100, 4))


def training() -> None:
    caps("PyTorch training loop", ["python3", str(ROOT / "tests/gpu/train.py"), "5"])


def ms_loops() -> int:
    return int(numbers(start(spin("calibrate", 1000)))[0])


def caps(name: str, command: list[str], *, windows: bool = False) -> None:
    print(f"\n## Cap: {name}, percent of native throughput\n")
    print("| | " + " | ".join(f"cap {c}" for c in CAPS) + " | mean abs. error | worst |")
    print("|---|" + "---|" * (len(CAPS) + 2))
    native = statistics.median(numbers(start(command))[0] for _ in range(REPEATS))
    for peer, environment in PEERS.items():
        print(f"| {peer} |", end="", flush=True)
        errors = []
        for cap in CAPS:
            runs = [numbers(start(command, environment(cap, 30000))) for _ in range(REPEATS)]
            got = 100 * statistics.median(run[0] for run in runs) / native
            errors.append(got - cap)
            print(f" {got:.1f}", end="")
            if windows:
                least, most = min(run[1] for run in runs), max(run[2] for run in runs)
                print(f" ({100 * least / native:.1f} to {100 * most / native:.1f})", end="")
            print(" |", end="", flush=True)
        print(f" {statistics.mean(map(abs, errors)):.2f} | {max(errors, key=abs):+.1f} |", flush=True)


def pairs() -> None:
    command = spin("run", ms_loops(), 3, 0, 2)
    native = statistics.median(numbers(start(command))[0] for _ in range(REPEATS))
    print("\n## Two tenants at once, 1 ms kernels, percent of native throughput\n\n| tenants | | each | total |")
    print("|---|---|---|---|")
    for tenants in ((50, 50), (75, 25)):
        for peer in PEERS:
            rows = []
            for _ in range(REPEATS):
                environments = (
                    [under(c, "cap", p) for c, p in zip(tenants, (0, tenants[0]), strict=True)]
                    if peer == "hami_hpc"
                    else [hami_core(c) for c in tenants]
                )
                running = [start(command, environment) for environment in environments]
                rows.append([100 * numbers(process)[0] / native for process in running])
            each = ", ".join(f"{statistics.median(column):.1f}" for column in zip(*rows, strict=True))
            total = statistics.median(sum(row) for row in rows)
            print(f"| {', '.join(map(str, tenants))} | {peer} | {each} | {total:.1f} |", flush=True)


def memory() -> None:
    ways = ("plain", "pitch", "async", "vmm", "array", "graph")
    print(f"\n## MiB that one process took under a limit of {LIMIT_MIB} (it asked for at most {MOST_MIB})\n")
    print("| | " + " | ".join(ways) + " | two processes, plain, together |\n|---|" + "---|" * (len(ways) + 1))
    for peer, environment in PEERS.items():
        cells = [one_taker(way, environment(100, LIMIT_MIB)) for way in ways]
        shared = environment(100, LIMIT_MIB)
        holding = subprocess.Popen([str(PROGRAMS / "take"), "plain", "2560"], env=shared | {"TAKE_HOLD_S": "4"},
                                   stdout=subprocess.PIPE, text=True)  # fmt: skip
        assert holding.stdout is not None
        first = holding.stdout.readline().strip()
        second = one_taker("plain", shared)
        holding.wait()
        print(f"| {peer} | {' | '.join(cells)} | {first} + {second} |", flush=True)


def one_taker(way: str, environment: dict[str, str]) -> str:
    done = subprocess.run([str(PROGRAMS / "take"), way, str(MOST_MIB)], env=environment, capture_output=True,
                          text=True, timeout=60, check=False)  # fmt: skip
    return done.stdout.split()[-1] if done.returncode == 0 and done.stdout else f"ended with {done.returncode}"


def starts() -> None:
    print("\n## Start to end of processes with a context, ms\n\n| | 1 | 20 at once |\n|---|---|---|")
    cells: dict[str, list[str]] = {"native": [], **{peer: [] for peer in PEERS}}
    for count, repeats in ((1, 3 * REPEATS), (20, REPEATS)):
        times: dict[str, list[float]] = {name: [] for name in cells}
        for _ in range(repeats):
            for name in cells:
                environment = PEERS[name](100, 120000) if name in PEERS else None
                begin = time.monotonic()
                running = [start([str(PROGRAMS / "launch"), "start"], environment) for _ in range(count)]
                for process in running:
                    numbers(process)
                times[name].append((time.monotonic() - begin) * 1e3)
        for name, taken in times.items():
            cells[name].append(f"{statistics.median(taken):.0f}")
    for name, row in cells.items():
        print(f"| {name} | {' | '.join(row)} |", flush=True)


def main() -> None:
    if not HAMI_CORE.is_file():
        raise SystemExit("set HAMI_CORE to HAMi-core's libvgpu.so (its build.sh makes build/libvgpu.so)")
    for name in ("spin", "launch", "take"):
        source = str(ROOT / f"tests/gpu/{name}.cu")
        subprocess.run(["nvcc", "-O3", "-arch=native", "-o", str(PROGRAMS / name), source, "-lcuda"], check=True)
    Path("/tmp/vgpulock").mkdir(exist_ok=True)  # HAMi-core's lock; it does not make the directory
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    machine = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    print(f"{machine}; {time.strftime('%Y-%m-%d')}; medians of {REPEATS}")
    parts = {"memory": memory, "starts": starts, "pairs": pairs}
    parts |= {"kernels": kernels, "graph": graph, "training": training}
    for name in sys.argv[1:] or parts:
        parts[name]()


if __name__ == "__main__":
    main()
