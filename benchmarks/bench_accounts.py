# SPDX-License-Identifier: Apache-2.0
"""Accounting where there is much of one kind: accounts in a bill, invoices of a month, distinct AllocTRES texts.

    python benchmarks/bench_accounts.py --directory build/bench-accounts

Prints a table and exits 1 when a target is missed: a bill of 200,000 accounts in 2 s of wall time, 20,000 invoices in
10 s (drafts, and issued), an ingest of a million distinct texts in 5 s, whether they differ in what is billed or in the
memory of a slice. Medians of three; each is a process of its own.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from accounting_jobs import write_export
from bench_accounting import CHECKOUT, Measured, middle, run, site

MONTH = "2025-01"
REPEATS = 3
ACCOUNTS, INVOICES, TEXTS = 200_000, 20_000, 1_000_000
TARGETS_S = {"ingest": 5.0, "ingest, slices": 5.0, "bill": 2.0, "drafts": 10.0, "invoices": 10.0}


def measure(directory: Path) -> dict[str, list[Measured]]:
    """What was measured, by the name of its target."""
    environment = site(directory, '[partitions.mig]\ngpu_models = ["h200"]\n')
    hami = [sys.executable, "-m", "hami_hpc.cli"]
    export, store = directory / "export", directory / "store"

    def ingested(jobs: int, accounts: int, distinct: str = "", what: str = "ingest") -> Measured:
        shutil.rmtree(store, ignore_errors=True)
        command = [*hami, "ingest", "--quiet", "--input", str(export), "--store", str(store)]
        write_export(export, jobs, months=1, accounts=accounts, distinct=distinct)
        return run(what, jobs, command, environment)

    def timed(what: str, count: int, *words: str, root: Path = store) -> Measured:
        return run(what, count, [*hami, *words, "--month", MONTH, "--store", str(root)], environment)

    found = {"ingest": [ingested(TEXTS, 0, "billing") for _ in range(REPEATS)]}
    found["ingest, slices"] = [ingested(TEXTS, 0, "slices", "ingest, slices") for _ in range(REPEATS)]
    ingested(5 * ACCOUNTS, ACCOUNTS)
    found["bill"] = [timed("bill", ACCOUNTS, "bill", "--by", "account") for _ in range(REPEATS)]
    ingested(20 * INVOICES, INVOICES)
    found["drafts"] = [timed("drafts", INVOICES, "invoice", "--draft") for _ in range(REPEATS)]
    # A store for each, all removed at the end: ext4 makes files slowly for a while after as many were removed.
    copies = [shutil.copytree(store, directory / f"copy-{number}") for number in range(REPEATS)]
    found["invoices"] = [timed("invoices", INVOICES, "invoice", root=copy) for copy in copies]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=CHECKOUT / "build" / "bench-accounts")
    directory = parser.parse_args().directory
    directory.mkdir(parents=True, exist_ok=True)
    found = measure(directory)
    shutil.rmtree(directory)
    print("| | count | wall, s | target, s | CPU, s | resident, MiB |\n|---|--:|--:|--:|--:|--:|")
    missed = False
    for name, target_s in TARGETS_S.items():
        entry = middle(found[name])
        missed |= entry.seconds > target_s
        print(
            f"| {name} | {entry.records:,} | {entry.seconds:.2f} | {target_s:g} | {entry.cpu_s:.2f} "
            f"| {entry.resident_mib:,.0f} |"
        )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
