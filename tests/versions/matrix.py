# SPDX-License-Identifier: Apache-2.0
"""Runs test files on the Slurm at hand, each alone, and keeps what passed: `make test-matrix`.

    matrix.py run RESULTS FILE...     runs the files, and writes a line for each to RESULTS
    matrix.py table RESULTS...        prints one table of the results of several releases

A daemon of Slurm's that ends in one file disturbs no other, since each file starts a cluster of its own.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

LIMIT_S = 1800
COUNTS = re.compile(r"(\d+) (passed|failed|errors?|skipped|deselected)")
NOTHING_RAN = 5  # pytest's status where all tests are for other releases


def run(results: Path, files: Sequence[str]) -> int:
    """Returns 1 where a file failed."""
    results.parent.mkdir(parents=True, exist_ok=True)
    version = subprocess.run(("/usr/sbin/slurmd", "-V"), capture_output=True, text=True, check=True).stdout.split()[-1]
    lines = [f"slurm\t{version}"]
    results.write_text(lines[0] + "\n")  # not those of an earlier run
    is_bad = False
    for file in files:
        begin = time.monotonic()
        status, said = _pytest(file, results.with_suffix(".log"))
        counts = {name.removesuffix("s"): int(count) for count, name in COUNTS.findall(said)}
        bad = counts.get("failed", 0) + counts.get("error", 0)
        bad = bad or int(status not in (0, NOTHING_RAN))
        is_bad |= bool(bad)
        lines.append(f"{file}\t{counts.get('passed', 0)}\t{bad}\t{time.monotonic() - begin:.0f}")
        print(lines[-1], flush=True)
        results.write_text("\n".join(lines) + "\n")
    return int(is_bad)


def _pytest(file: str, log: Path) -> tuple[int, str]:
    """Returns the status and the last line. All that was printed is added to the log."""
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file)
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
        status, text = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired as error:
        status, text = 1, f"{error}\n"
    with log.open("a") as kept:
        kept.write(f"=== {file}\n{text}")
    return status, next((line for line in reversed(text.splitlines()) if COUNTS.search(line)), "")


def table(results: Sequence[Path]) -> str:
    """Returns the table: `14` passed, `13, 1 failed`; `none` is for that release; a dash where a file was not run."""
    versions: list[str] = []
    rows: dict[str, list[str]] = {}
    for index, path in enumerate(results):
        head, *lines = path.read_text().splitlines()
        versions.append(head.split("\t")[1])
        for line in lines:
            file, passed, bad, _ = line.split("\t")
            cells = rows.setdefault(Path(file).stem.removeprefix("test_"), ["-"] * len(results))
            good = "none" if passed == "0" else passed
            cells[index] = f"{passed}, {bad} failed" if int(bad) else good
    head = f"| tests | {' | '.join(versions)} |\n|---|{'---|' * len(versions)}\n"
    return head + "".join(f"| {name} | {' | '.join(cells)} |\n" for name, cells in sorted(rows.items()))


def main(words: Sequence[str]) -> int:
    if len(words) > 2 and words[0] == "run":
        return run(Path(words[1]), words[2:])
    if len(words) > 1 and words[0] == "table":
        print(table([Path(word) for word in words[1:]]), end="")
        return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
