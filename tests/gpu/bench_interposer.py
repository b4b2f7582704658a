# SPDX-License-Identifier: Apache-2.0
"""The interposer on a real GPU, side by side with native in one run: prints docs/benchmarks/interposer.md's tables.

Usage: make bench-gpu, as root on a GPU node with nvcc and PyTorch. Needs build/native (make build), about 10 minutes.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/native")]

from conformance import INTERPOSER, make_slice  # noqa: E402

CAPS = (5, 10, 25, 50, 75, 90, 95)
REPEATS = int(os.environ.get("REPEATS", "3"))
PROGRAMS = Path(tempfile.mkdtemp(prefix="hami-bench-"))
UUID = subprocess.run(
    ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"], capture_output=True, text=True, check=True
).stdout.split()[0]
serial = 0


def under(cores: int, policy: str, mem_mib: int = 30000) -> dict[str, str]:
    """The environment of a job of its own with such a share."""
    global serial
    serial += 1
    return make_slice(
        PROGRAMS / f"job{serial}", None, UUID, job_mib=mem_mib, cores_percent=cores, policy=policy
    ).environment()


def start(command: Sequence[str], environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(command, env=environment or dict(os.environ), stdout=subprocess.PIPE, text=True)


def numbers(process: subprocess.Popen[str]) -> list[float]:
    out, _ = process.communicate(timeout=120)
    if process.returncode:
        raise SystemExit(f"{process.args!r} ended with {process.returncode}")
    return [float(word) for word in out.split()]


def spin(*arguments: object) -> list[str]:
    return [str(PROGRAMS / "spin"), *map(str, arguments)]


def caps() -> None:
    loops = {us: int(numbers(start(spin("calibrate", us)))[0]) for us in (10, 1000, 50000)}
    kinds = {
        "10 us": (loops[10], 1.5, 0),
        "1 ms": (loops[1000], 2.0, 0),
        "50 ms": (loops[50000], 4.0, 0),
        "graph of 100 x 100 us": (loops[1000] // 10, 2.0, 100),
    }
    print("\n## Cap: share of native throughput, percent (median of the runs; worst 100 ms windows of all runs)\n")
    print("| kernels | " + " | ".join(f"cap {c}" for c in CAPS) + " | mean abs. error | worst |")
    print("|---|" + "---|" * (len(CAPS) + 2))
    for name, (count, seconds, graph) in kinds.items():
        cells, errors = [], []
        natives = []
        measured = {}
        for cap in CAPS:
            natives.append(numbers(start(spin("run", count, seconds, graph)))[0])
            measured[cap] = [
                numbers(start(spin("run", count, seconds, graph), under(cap, "cap"))) for _ in range(REPEATS)
            ]
        native = statistics.median(natives)
        for cap, runs in measured.items():
            got = 100 * statistics.median(r[0] for r in runs) / native
            errors.append(got - cap)
            cell = f"{got:.2f}"
            if name == "1 ms":
                least, most = min(r[1] for r in runs), max(r[2] for r in runs)
                cell += f" ({100 * least / native:.1f} to {100 * most / native:.1f})"
            cells.append(cell)
        mean = statistics.mean(map(abs, errors))
        print(f"| {name} | {' | '.join(cells)} | {mean:.2f} | {max(errors, key=abs):+.2f} |", flush=True)


def shares() -> None:
    loops = int(numbers(start(spin("calibrate", 1000)))[0])
    native = statistics.median(numbers(start(spin("run", loops, 3, 0, 2)))[0] for _ in range(REPEATS))
    print("\n## Several tenants at once, 1 ms kernels, percent of native throughput (medians)\n")
    print("| tenants | policy | each | total |\n|---|---|---|---|")
    for policy, tenants in (
        ("burst", (75, 25)),
        ("burst", (50, 30, 20)),
        ("burst", (25, 25, 25, 25)),
        ("cap", (50, 50)),
        ("cap", (75, 25)),
        ("cap", (25, 25, 25, 25)),
    ):
        rows = []
        for _ in range(REPEATS):
            running = [start(spin("run", loops, 3, 0, 2), under(c, policy)) for c in tenants]
            rows.append([100 * numbers(p)[0] / native for p in running])
        each = [statistics.median(column) for column in zip(*rows, strict=True)]
        total = statistics.median(sum(row) for row in rows)
        print(f"| {tenants} | {policy} | {', '.join(f'{x:.2f}' for x in each)} | {total:.2f} |", flush=True)


def launches() -> None:
    print("\n## Launch and start\n\n| what | native | with the interposer | ratio |\n|---|---|---|---|")
    command = [str(PROGRAMS / "launch"), "launches", "300"]
    for cores, policy in ((100, "cap"), (100, "burst"), (50, "cap")):
        what = f"cores={cores}, {policy}"
        pairs = [
            (numbers(start(command))[0], numbers(start(command, under(cores, policy)))[0])
            for _ in range(4 * REPEATS + 1)
        ]
        native, limited = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(b / a for a, b in pairs)
        print(f"| null-kernel launch, {what} | {native:.0f} ns | {limited:.0f} ns | {ratio:.3f} |", flush=True)

    def timed(count: int, environment: dict[str, str] | None) -> float:
        begin = time.monotonic()
        running = [start([str(PROGRAMS / "launch"), "start"], environment) for _ in range(count)]
        for process in running:
            numbers(process)
        return (time.monotonic() - begin) * 1e3

    for count, mem_mib in ((1, 30000), (100, 120000)):
        repeats = 5 * REPEATS if count == 1 else 1
        pairs = [(timed(count, None), timed(count, under(100, "cap", mem_mib))) for _ in range(repeats)]
        native, limited = (statistics.median(column) for column in zip(*pairs, strict=True))
        what = f"start to end of {count} process(es) with a context"
        print(f"| {what} | {native:.0f} ms | {limited:.0f} ms | {limited / native:.3f} |", flush=True)


def training() -> None:
    command = ["python3", str(ROOT / "tests/gpu/train.py"), "5"]
    native = [numbers(start(command))[0] for _ in range(REPEATS)]
    base = statistics.median(native)
    print("\n## PyTorch training loop, percent of native steps/s (medians)\n")
    print("| " + " | ".join(["native steps/s", "cores=100", *(f"cap {c}" for c in CAPS)]) + " |")
    print("|" + "---|" * (len(CAPS) + 2))
    print(f"| {base:.1f} |", end="", flush=True)
    for cores in (100, *CAPS):
        got = statistics.median(numbers(start(command, under(cores, "cap")))[0] for _ in range(REPEATS))
        print(f" {100 * got / base:.2f} |", end="", flush=True)
    print()


def main() -> None:
    if not INTERPOSER.exists():
        raise SystemExit(f"{INTERPOSER} is missing; run `make build` first")
    for name in ("spin", "launch"):
        subprocess.run(
            ["nvcc", "-O3", "-arch=native", "-o", str(PROGRAMS / name), str(ROOT / f"tests/gpu/{name}.cu")], check=True
        )
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    machine = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    print(f"{machine}; {time.strftime('%Y-%m-%d')}; medians of {REPEATS}")
    parts = {"caps": caps, "shares": shares, "launches": launches, "training": training}
    for name in sys.argv[1:] or parts:
        parts[name]()


if __name__ == "__main__":
    main()
