# SPDX-License-Identifier: Apache-2.0
"""Accounting at scale: ingest and monthly bill of a generated export, beside the script that a site would write.

    python benchmarks/bench_accounting.py --jobs 10000000 --directory build/bench-accounting

Prints a table and exits 1 when a target is missed: ingest at least 20 times the speed of pandas.read_csv with a plain
per-row parse (both measured in this run, on this machine), a monthly bill in under 2 s of wall time, both in at most
2 GiB resident. Generation and the removal of files are not timed. Each measured step is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from accounting_jobs import ZONE, write_export

CHECKOUT = Path(__file__).resolve().parent.parent
MONTH = "2025-11"
FORMS = ("plain", "careful")  # of plain_pandas.py
RATIO, BILL_S, RESIDENT_MIB = 20.0, 2.0, 2048.0
SITE = """version = 1
[gpu_models.h200]
total_mib = 143156
[gpu_models.a100]
total_mib = 40337
[partitions.h200]
gpu_models = ["h200"]
[partitions.a100]
gpu_models = ["a100"]
"""
RATES = f"""version = 1
timezone = "{ZONE}"
[[rates]]
model = "h200"
per_gpu_hour = 2.50
[[rates]]
model = "a100"
per_gpu_hour = 1.00
[[factors]]
class = "lc"
factor = 1.25
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """One process: wall time, CPU time of all its threads, and the most memory that it had resident."""

    what: str
    records: int
    seconds: float
    cpu_s: float
    resident_mib: float

    @property
    def per_second(self) -> float:
        """Records a second."""
        return self.records / self.seconds


def run(what: str, records: int, command: list[str], environment: dict[str, str]) -> Measured:
    """Run a command to its end; its output goes nowhere."""
    with tempfile.TemporaryFile("w+") as said:
        began = time.perf_counter()
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=said)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            raise SystemExit(f"{' '.join(command)} failed ({process.returncode}): {said.read()[-2000:]}")
    return Measured(what, records, seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def middle(entries: list[Measured]) -> Measured:
    """The medians of several processes that did the same, with the most memory of all."""
    return Measured(
        entries[0].what,
        entries[0].records,
        statistics.median(entry.seconds for entry in entries),
        statistics.median(entry.cpu_s for entry in entries),
        max(entry.resident_mib for entry in entries),
    )


def site(directory: Path, partitions: str = "") -> dict[str, str]:
    """Write the settings and rates; return the environment for hami-hpc, with compiled modules as an installation has
    them, whatever the caller's environment says."""
    config = directory / "hami-hpc.toml"
    config.write_text(SITE + partitions, encoding="utf-8")
    config.chmod(0o644)
    (directory / "rates.toml").write_text(RATES, encoding="utf-8")
    own = {
        "HAMI_HPC_CONFIG": str(config),
        "PYTHONPATH": str(CHECKOUT),
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": str(directory / "pycache"),
    }
    environment = {**os.environ, **own}
    run("start", 0, [sys.executable, "-m", "hami_hpc.cli", "bill", "--help"], environment)
    return environment


def head(source: Path, target: Path, records: int) -> Path:
    """The first ``records`` of an export, and its header."""
    with source.open("rb") as lines, target.open("wb") as out:
        for _ in range(records + 1):
            out.write(lines.readline())
    return target


def measure(directory: Path, jobs: int, users: int, plain_records: int) -> list[Measured]:
    """All steps; the pandas script before and after the ingest of the whole, so that drift shows."""
    environment = site(directory)
    export = directory / "export"
    print(f"generating {jobs:,} jobs", file=sys.stderr)
    write_export(export, jobs, users)
    hami = [sys.executable, "-m", "hami_hpc.cli"]
    part = head(export, directory / "part", plain_records)
    plain = [sys.executable, str(Path(__file__).with_name("plain_pandas.py")), str(part)]
    found = [run(f"pandas, {form}", plain_records, [*plain, form], environment) for form in FORMS]
    for share in (100, 10, 3, 1):
        records = jobs // share
        source = export if share == 1 else directory / "some"
        if share != 1:
            write_export(source, records, users)
        store = directory / "store"
        shutil.rmtree(store, ignore_errors=True)
        command = [*hami, "ingest", "--quiet", "--input", str(source), "--store", str(store)]
        found.append(run("ingest", records, command, environment))
        bill = [*hami, "bill", "--month", MONTH, "--store", str(store)]
        found.append(middle([run("monthly bill", records, bill, environment) for _ in range(5)]))
    found.append(
        run(
            "ingest again",
            jobs,
            [*hami, "ingest", "--quiet", "--input", str(export), "--store", str(store)],
            environment,
        )
    )
    found += [run(f"pandas, {form}", plain_records, [*plain, form], environment) for form in FORMS]
    return found


def judge(found: list[Measured], jobs: int) -> list[str]:
    """Targets that were missed."""
    plain = max(entry.per_second for entry in found if entry.what == "pandas, plain")
    missed = []
    for entry in found:
        if entry.what == "ingest" and entry.records == jobs and entry.per_second < RATIO * plain:
            missed.append(f"ingest is {entry.per_second / plain:.1f} times the pandas script; the target is {RATIO:g}")
        if entry.what == "monthly bill" and entry.seconds >= BILL_S:
            missed.append(
                f"a monthly bill of {entry.records:,} records took {entry.seconds:.2f} s; the target is {BILL_S}"
            )
        if not entry.what.startswith("pandas") and entry.resident_mib > RESIDENT_MIB:
            missed.append(f"{entry.what} of {entry.records:,} records had {entry.resident_mib:.0f} MiB resident")
    return missed


def table(found: list[Measured]) -> str:
    """What was measured, as Markdown."""
    plain = max(entry.per_second for entry in found if entry.what == "pandas, plain")
    lines = ["| step | records in file or store | wall, s | CPU, s | records/s | times plain pandas | resident, MiB |"]
    lines.append("|---|--:|--:|--:|--:|--:|--:|")
    for entry in found:
        rate, times = f"{entry.per_second:,.0f}", f"{entry.per_second / plain:.1f}"
        if entry.what == "monthly bill":
            rate, times = "", ""
        lines.append(
            f"| {entry.what} | {entry.records:,} | {entry.seconds:.2f} | {entry.cpu_s:.2f} | {rate} | {times} "
            f"| {entry.resident_mib:,.0f} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000_000)
    parser.add_argument("--users", type=int, default=2000)
    parser.add_argument("--plain", type=int, default=200_000, help="records that the pandas script reads")
    parser.add_argument("--directory", type=Path, default=CHECKOUT / "build" / "bench-accounting")
    parser.add_argument("--keep", action="store_true", help="leave the export and the store there")
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    found = measure(arguments.directory, arguments.jobs, arguments.users, min(arguments.plain, arguments.jobs))
    print(table(found))
    (arguments.directory / "measured.json").write_text(json.dumps([asdict(entry) for entry in found], indent=1))
    from hami_hpc.accounting.formats import charts

    ingests = [entry for entry in found if entry.what == "ingest"]
    labels = [f"{entry.records / 1e6:g} million" for entry in ingests]
    drawn = charts.bars(
        "CPU time of ingest by number of records", "s", labels, [("", [entry.cpu_s for entry in ingests])]
    )
    (arguments.directory / "growth.svg").write_text(drawn, encoding="utf-8")
    if not arguments.keep:
        for name in ("export", "part", "some", "store", "pycache"):
            path = arguments.directory / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    missed = judge(found, arguments.jobs)
    for target in missed:
        print(f"MISSED: {target}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
