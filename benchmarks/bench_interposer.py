# SPDX-License-Identifier: Apache-2.0
"""What the interposer adds to a program's calls and start, on the simulated driver.

    .venv/bin/python benchmarks/bench_interposer.py [--rounds 15]

With and without the interposer take turns in every round, and the simulated kernel is preloaded in both, so that the
difference is the interposer's alone. Nanoseconds: the median over the rounds of each process's best batch.
Instructions: valgrind's callgrind, the difference between two lengths of the same run, which leaves the start out.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/native")]

from conformance import BUILD, Slice, make_slice  # noqa: E402  after the paths to the checkout

PROGRAM = str(BUILD / "bench/interposer_calls")
TOTAL_MIB = 1 << 20  # of the simulated GPU: room for all the blocks and 100 contexts at once
AT_ONCE = 100
LIVE = 60_000  # blocks of 2 MiB: about all that a real GPU has room for
FLAT_NS = 150.0  # of a difference between one and very many live allocations, what is still called flat


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of call. `bar_ns`: the most that the interposer may add to it; None: shown, not judged."""

    name: str
    arguments: tuple[str, ...]
    calls: int
    live: int
    bar_ns: float | None


CASES = (
    Case("launch of an empty kernel", ("launch",), 2000, 0, 15.0),
    Case("alloc + free, 64 KiB", ("alloc:65536",), 2000, 0, 300.0),
    Case("alloc + free, 2 MiB", ("alloc:2097152",), 2000, 0, 300.0),
    Case("alloc + free, 64 KiB, in a block that is there", ("alloc:65536",), 2000, 1, 300.0),
    Case(f"alloc + free, 2 MiB, {LIVE:,} live", ("alloc:2097152",), 2000, LIVE, 300.0),
)


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the result: medians without and with, the median of the rounds' differences, and the bar."""

    name: str
    unit: str
    without: float
    added: float
    instructions: float | None
    bar: float | None

    @property
    def kept(self) -> bool:
        return self.bar is None or self.added <= self.bar


def make_job(folder: Path) -> Slice:
    """A slice of nearly all of one simulated GPU that has far more memory than a real one."""
    machine, model = folder / "sim", folder / "models"
    model.mkdir()
    text = (BUILD / "sim/models/h200.conf").read_text()
    shutil.copy(BUILD / "sim/models/mig-placements.tsv", model)
    (model / "large.conf").write_text(re.sub(r"(?m)^total_mib=\d+", f"total_mib={TOTAL_MIB}", text))
    environment = os.environ | {"HAMI_SIM_MODELS": str(model)}
    subprocess.run([str(BUILD / "sim/sim-machine"), str(machine), "large"], env=environment, check=True)
    found = re.search(r"uuid=(GPU-\S+)", (machine / "machine.conf").read_text())
    assert found is not None
    return make_slice(folder / "job", machine, found[1], job_mib=TOTAL_MIB - 4096, gpu_total_mib=TOTAL_MIB)


def output(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True)


def nanoseconds(case: Case, environment: dict[str, str]) -> float:
    command = [PROGRAM, *case.arguments, "12", str(case.calls), str(case.live)]
    return float(output(command, environment).stdout)


def instructions(case: Case, environment: dict[str, str]) -> float:
    """Instructions of one call, all threads."""
    counted = []
    for batches in (1, 3):
        tool = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
        command = [*tool, PROGRAM, *case.arguments, str(batches), "500", str(min(case.live, 1000))]
        found = re.search(r"Collected : (\d+)", output(command, environment).stderr)
        assert found is not None, "callgrind said nothing; is valgrind installed?"
        counted.append(int(found[1]))
    return (counted[1] - counted[0]) / 1000


def call_rows(job: Slice, rounds: int) -> list[Row]:
    without, with_it = job.environment(preload=False), job.environment()
    pairs: dict[str, list[tuple[float, float]]] = {case.name: [] for case in CASES}
    for _ in range(rounds):
        for case in CASES:
            pairs[case.name].append((nanoseconds(case, without), nanoseconds(case, with_it)))
    rows = []
    for case in CASES:
        base, added = medians(pairs[case.name])
        counted = instructions(case, with_it) - instructions(case, without)
        rows.append(Row(case.name, "ns", base, added, counted, case.bar_ns))
    return rows


def medians(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    """Median without, and the median of what each round's pair differs by."""
    return statistics.median(a for a, _ in pairs), statistics.median(b - a for a, b in pairs)


def wall_ms(command: list[str], environment: dict[str, str], count: int) -> float:
    """From the first start to the last end of `count` processes started at once."""
    begin = time.perf_counter()
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) for _ in range(count)]
    for process in running:
        if process.wait() != 0:
            raise RuntimeError(f"{command} failed with {process.returncode}; see above")
    return (time.perf_counter() - begin) * 1000


def start_rows(job: Slice, rounds: int) -> list[Row]:
    without, with_it = job.environment(preload=False), job.environment()
    kinds = [
        ("start of a program without CUDA (true)", ["/bin/true"], 1, 4 * rounds, 5.0),
        ("start, cuInit, context, end", [PROGRAM, "start"], 1, 4 * rounds, 5.0),
        (f"the same, {AT_ONCE} at once, each", [PROGRAM, "start"], AT_ONCE, max(3, rounds // 3), 5.0),
    ]
    rows = []
    for name, command, count, times, bar in kinds:
        pairs = []
        for _ in range(times):
            a, b = wall_ms(command, without, count), wall_ms(command, with_it, count)
            pairs.append((a / count, b / count))
        rows.append(Row(name, "ms", *medians(pairs), None, bar))
    return rows


def flat(rows: list[Row]) -> bool:
    by_name = {row.name: row.added for row in rows}
    few = "alloc + free, 2 MiB"
    return by_name[f"{few}, {LIVE:,} live"] - by_name[few] < FLAT_NS


def table(rows: list[Row]) -> str:
    lines = ["| what | without | added | instructions added | bar | |", "|---|---|---|---|---|---|"]
    for row in rows:
        digits = 1 if row.unit == "ns" else 2
        counted = "" if row.instructions is None else f"{row.instructions:.0f}"
        bar = "" if row.bar is None else f"{row.bar:.0f} {row.unit}"
        cells = f"{row.without:.{digits}f} {row.unit} | {row.added:+.{digits}f} {row.unit} | {counted} | {bar}"
        lines.append(f"| {row.name} | {cells} | {'kept' if row.kept else 'MISSED'} |")
    return "\n".join(lines)


def machine_line(rounds: int) -> str:
    names = re.findall(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    today = datetime.datetime.now(datetime.UTC).date()
    load = os.getloadavg()[0]
    return f"{today}, {names[0] if names else 'CPU'}, {os.cpu_count()} CPUs, load {load:.1f}, {rounds} rounds"


def main() -> int:
    """Prints the table; 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="hami-bench-", dir="/dev/shm") as folder:
        job = make_job(Path(folder))
        rows = call_rows(job, rounds) + start_rows(job, rounds)
    print(f"{machine_line(rounds)}\n\n{table(rows)}\n\ncost flat in live allocations: {flat(rows)}")
    return 0 if flat(rows) and all(row.kept for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
