# SPDX-License-Identifier: Apache-2.0
"""What it costs to measure the requests of a latency-critical job, and how exact it is, on the simulated driver.

    .venv/bin/python benchmarks/bench_latency.py [--rounds 5]

tests/native/compute/requests_take_time.c serves requests of a known length, as a latency-critical job and as another.
CPU time: of the whole process with all its threads, the median over the rounds of what the first took more.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/native")]

from conformance import BUILD, make_slice  # noqa: E402  after the paths to the checkout

from hami_hpc.contract import constants as c  # noqa: E402
from hami_hpc.core.delays import Delays, parse_delays  # noqa: E402

PROGRAM = str(BUILD / "compute/requests_take_time")
HOW = {"wait": "waits for the stream", "poll": "asks for an event", "leave": "sleeps, asks nobody"}
CASES = ((300, 3000, 200), (3000, 3000, 100), (30_000, 10_000, 20), (300, 0, 400))  # kernel us, gap us, requests


def serve(directory: Path, latency: int, how: str, us: int, gap_us: int, count: int) -> tuple[float, Delays]:
    """Returns the CPU time for each request, us, and what was measured."""
    machine = directory / "sim"
    subprocess.run([str(BUILD / "sim/sim-machine"), str(machine), "h200"], check=True, capture_output=True)
    words = (machine / "machine.conf").read_text().replace("=", " ").split()
    uuid = next(word for word in words if word.startswith("GPU-"))
    fields = {"latency": latency}
    made = make_slice(directory / "job", machine, uuid, job_mib=8192, policy="burst", fields=fields)
    done = made.run(PROGRAM, str(count), str(us), str(gap_us), how)
    if done.returncode:
        sys.exit(done.stderr)
    return float(done.stdout), parse_delays((made.directory / c.FILE_USAGE).read_bytes())


def case(how: str, us: int, gap_us: int, count: int, rounds: int) -> str:
    added, errors, found = [], [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
            without, _ = serve(Path(first), 0, how, us, gap_us, count)
            cost, delays = serve(Path(second), 1, how, us, gap_us, count)
        added.append(cost - without)
        found.append(100 * delays.request_count / count)
        errors.append(100 * (delays.latency_sum_ns / max(1, delays.request_count) / 1000 / us - 1))
    core = 100 * statistics.median(added) / (us + gap_us)
    row = (HOW[how], f"{us / 1000:g}", f"{gap_us / 1000:g}", f"{statistics.median(added):.0f}", f"{core:.1f}")
    return f"| {' | '.join(row)} | {statistics.median(found):.0f} | {statistics.median(errors):+.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    print(f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, {rounds} rounds\n")
    print("| the host | request, ms | gap, ms | CPU added, us/request | % of a core | found, % | mean time, error % |")
    print("|---|---|---|---|---|---|---|")
    for how in HOW:
        for numbers in CASES:
            print(case(how, *numbers, rounds), flush=True)


if __name__ == "__main__":
    main()
