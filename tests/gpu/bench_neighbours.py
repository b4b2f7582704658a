# SPDX-License-Identifier: Apache-2.0
"""Latency-critical requests on a real GPU beside best-effort work of every kind: docs/benchmarks/neighbours.md.

Usage: make bench-neighbours, as root on a GPU node with nvcc. Needs build/native (make build). In the environment:
LOADS ("a b"), WORK ("4 contexts,memsets": these alone), STOCK=1 (each also without hami_hpc), SECONDS (3, of each).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/native"), str(ROOT / "tests/gpu")]

from bench_time import BURSTS, KINDS  # noqa: E402
from tenants import (  # noqa: E402
    KERNELS,
    LC,
    LC_A,
    LC_B,
    SECONDS,
    Numbers,
    Tenant,
    alone,
    answer,
    prepare,
    row,
    together,
    told,
    work_command,
)

LOADS = {"a": ("(a) 1 MiB H2D + 100 us, 250/s", LC_A), "b": ("(b) 20 x 100 us, 50/s", LC_B)}
IDLE = ("requests", "us=100", "every=1000000")
# What the GPU does besides kernels, and what the driver does besides work.
OTHERS = KINDS | {
    "copies from the host": ("transfers", "out=0"),
    "copies to the host": ("transfers", "in=0"),
    "copies both ways": ("transfers",),
    "copies both ways, 1 GiB each": ("transfers", f"bytes={1 << 30}"),
    "copies both ways, 64 KiB each": ("transfers", f"bytes={64 << 10}"),
    "memory allocated and freed": ("memory",),
    "contexts made and destroyed": ("making",),
    "programs started and ended": ("starting",),
    "10 us, launched and waited for": ("steps", "us=10", "gap=0"),
    "3 ms, 2 ms without": ("steps", "us=3000", "gap=2000"),
}
PATIENCE_S = 15  # with the end of a program that has hardly anything
PROCESSES = (2, 4)  # of one job, each with kernels of 1 ms


@cache
def native(work: tuple[str, ...]) -> float:
    return alone(Tenant(KERNELS if work in (BURSTS, ("contexts",)) else work))["rate"]


def beside(load: tuple[str, ...], other: tuple[str, ...], count: int = 1, stock: bool = False) -> tuple[Numbers, float]:
    """Returns the requests' numbers beside one job of `count` processes, and what these do, percent of one alone."""
    per_second = native(other)
    request, job = told([Tenant(load, 40, "burst", LC), Tenant(other, 60, "burst")])
    environments = [dict(os.environ)] * 2 if stock else [t.environment() for t in (request, job)]
    begin = time.time() + 1.5 + 0.5 * count
    command = work_command(other[0], SECONDS + 1, *other[1:], f"begin={begin:.3f}")
    busy = [subprocess.Popen(command, env=environments[1], stdout=subprocess.PIPE, text=True) for _ in range(count)]
    time.sleep(begin - time.time())
    command = work_command(load[0], SECONDS, *load[1:])
    mine = answer(subprocess.Popen(command, env=environments[0], stdout=subprocess.PIPE, text=True))
    return mine, 100 * sum(map(rate_of, busy)) / per_second


def rate_of(process: subprocess.Popen[str]) -> float:
    """Returns the rate; 0 of one that does not get its work done."""
    try:
        out, _ = process.communicate(timeout=SECONDS + PATIENCE_S)
    except subprocess.TimeoutExpired:
        print(f"{process.args!r} did not end in {PATIENCE_S} s", flush=True)
        process.kill()
        process.communicate()
        return 0.0
    return float(json.loads(out)["rate"]) if not process.returncode else 0.0


def main() -> None:
    prepare()
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    print(subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip())
    chosen = os.environ["WORK"].split(",") if "WORK" in os.environ else list(OTHERS)
    cases = [(name, OTHERS[name], 1) for name in chosen]
    if "WORK" not in os.environ:
        cases += [(f"{count} processes of one job", KERNELS, count) for count in PROCESSES]
    for key in os.environ.get("LOADS", "a b").split():
        title, load = LOADS[key]
        runs = [alone(Tenant(load)) for _ in range(3)]
        base = {q: statistics.median(r[q] for r in runs) for q in ("p50", "p99")}
        print(f"\n## {title}: alone p50 {base['p50']:.0f}, p99 {base['p99']:.0f} us\n")
        row("beside", "p50 us", "p99 us", "max us", "p50 over alone", "p99 over alone", "best effort, % of alone")
        row(*["---"] * 7)
        for name, other, count in cases:
            for stock in (True, False) if os.environ.get("STOCK") else (False,):
                mine, its = beside(load, other, count, stock)
                over = [mine[q] / base[q] for q in ("p50", "p99")]
                waits = (f"{mine[q]:.0f}" for q in ("p50", "p99", "max"))
                row(f"{name}, stock" if stock else name, *waits, *over, f"{its:.1f}")
    several = [case for case in cases if case[2] > 1 or "contexts" in case[0]]
    print("\nBeside an idle latency-critical job, % of one alone:")
    for name, other, count in [("1 process", KERNELS, 1), *several]:
        print(f"{name}: {beside(IDLE, other, count)[1]:.1f}", flush=True)
    print("\nFour contexts beside one of another job with burst 50, % of native:")
    for policy in ("burst", "cap", "none"):
        jobs = [Tenant(("contexts",), 50, policy), Tenant(KERNELS, 50, "burst")]
        shares = [100 * numbers["rate"] / native(KERNELS) for numbers in together(jobs)]
        print(f"{policy} 50: " + ", ".join(f"{share:.1f}" for share in shares), flush=True)


if __name__ == "__main__":
    main()
