# SPDX-License-Identifier: Apache-2.0
"""Accounting where there is much of one kind: accounts in a bill, invoices of a month, distinct AllocTRES texts.

    python benchmarks/bench_accounts.py --directory build/bench-accounts

Prints a table and exits 1 when a target is missed: a bill of 200,000 accounts in 2 s of wall time, 20,000 invoices in
10 s (drafts, and issued), an ingest of a million distinct texts in 5 s. Medians of three; each is a process of its own.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
from pathlib import Path

from accounting_jobs import write_export
from bench_accounting import CHECKOUT, RATES, SITE, Measured, run

MONTH = "2025-01"
REPEATS = 3
ACCOUNTS, INVOICES, TEXTS = 200_000, 20_000, 1_000_000
TARGETS_S = {"bill": 2.0, "drafts": 10.0, "invoices": 10.0, "ingest": 5.0}


def measure(directory: Path) -> dict[str, list[Measured]]:
    """What was measured, by the name of its target."""
    config = directory / "hami-hpc.toml"
    config.write_text(SITE + '[partitions.mig]\ngpu_models = ["h200"]\n', encoding="utf-8")
    config.chmod(0o644)
    (directory / "rates.toml").write_text(RATES, encoding="utf-8")
    environment = {**os.environ, "HAMI_HPC_CONFIG": str(config), "PYTHONPATH": str(CHECKOUT)}
    hami = [sys.executable, "-m", "hami_hpc.cli"]
    export, store, copy = (directory / name for name in ("export", "store", "copy"))

    def ingested(jobs: int, accounts: int, distinct_tres: bool) -> Measured:
        shutil.rmtree(store, ignore_errors=True)
        command = [*hami, "ingest", "--quiet", "--input", str(export), "--store", str(store)]
        write_export(export, jobs, months=1, accounts=accounts, distinct_tres=distinct_tres)
        return run("ingest", jobs, command, environment)

    def timed(what: str, count: int, *words: str, root: Path = store) -> Measured:
        return run(what, count, [*hami, *words, "--month", MONTH, "--store", str(root)], environment)

    found = {"ingest": [ingested(TEXTS, 0, True) for _ in range(REPEATS)]}
    ingested(5 * ACCOUNTS, ACCOUNTS, False)
    found["bill"] = [timed("bill", ACCOUNTS, "bill", "--by", "account") for _ in range(REPEATS)]
    ingested(20 * INVOICES, INVOICES, False)
    found["drafts"] = [timed("drafts", INVOICES, "invoice", "--draft") for _ in range(REPEATS)]
    found["invoices"] = []
    for _ in range(REPEATS):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(store, copy)
        found["invoices"].append(timed("invoices", INVOICES, "invoice", root=copy))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=CHECKOUT / "build" / "bench-accounts")
    directory = parser.parse_args().directory
    directory.mkdir(parents=True, exist_ok=True)
    found = measure(directory)
    shutil.rmtree(directory)
    print("| | count | wall, s | target, s | resident, MiB |\n|---|--:|--:|--:|--:|")
    missed = False
    for name, entries in found.items():
        seconds = statistics.median(entry.seconds for entry in entries)
        resident = max(entry.resident_mib for entry in entries)
        missed |= seconds > TARGETS_S[name]
        print(f"| {name} | {entries[0].records:,} | {seconds:.2f} | {TARGETS_S[name]:g} | {resident:,.0f} |")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
