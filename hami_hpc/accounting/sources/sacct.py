# SPDX-License-Identifier: Apache-2.0
"""Runs sacct and checks its exports. The only module that knows sacct's fields and options."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.times import Period

# A record without one of these cannot be billed. JobIDRaw and Submit are slurmdbd's own unique key of a job's run.
REQUIRED = ("JobIDRaw", "Account", "User", "Partition", "State", "Submit", "Start", "End", "AllocTRES")
# A record without one of these can be billed, but labels are missing or times are less certain.
OPTIONAL = (
    "Cluster",
    "JobID",
    "UID",
    "QOS",
    "Eligible",
    "ElapsedRaw",
    "Elapsed",
    "Suspended",
    "NodeList",
    "Constraints",
)
ASKED = tuple(name for name in REQUIRED + OPTIONAL if name != "Elapsed")
# Not '|', because a constraint may contain it (h200|a100). Nothing that Slurm stores contains this character.
DELIMITER = "\x1f"
_LINE_MAX_BYTES = 65536
_SAMPLE_LINES = 100


@dataclass(frozen=True, slots=True)
class Export:
    """A file of ``sacct -P`` lines. columns: its header, in sacct's spelling; unknown columns keep their name.

    delimiter: '|', sacct's default, or DELIMITER in our own calls. cut_line: the last line if it has no newline, so
    that more may have followed; else empty.
    """

    path: Path
    columns: tuple[str, ...]
    delimiter: str
    epoch_times: bool
    cut_line: str


def command(period: Period, clusters: str = "", sacct: str = "sacct") -> list[str]:
    """Returns the sacct call for every run (-D) of every user's jobs (-a) active in the period, without steps (-X)."""
    return [*_base(clusters, sacct), "-S", _slurm_time(period.start_s), "-E", _slurm_time(period.end_s)]


def fetch(period: Period, target: Path, clusters: str = "", sacct: str = "sacct") -> Export:
    """Runs sacct for the period and writes its output to ``target``. Raises AccountingError when it fails."""
    return _run(command(period, clusters, sacct), target)


def fetch_jobs(jobs: Sequence[int], target: Path, clusters: str = "", sacct: str = "sacct") -> Export:
    """Runs sacct for all runs of these jobs and writes its output to ``target``. Raises AccountingError on failure."""
    return _run([*_base(clusters, sacct), "-j", ",".join(map(str, jobs))], target)


def _base(clusters: str, sacct: str) -> list[str]:
    call = [sacct, "-a", "-D", "-X", "-P", "--noconvert", f"--delimiter={DELIMITER}", "-o", ",".join(ASKED)]
    return call + (["-M", clusters] if clusters else [])


def _run(call: list[str], target: Path) -> Export:
    """Runs sacct with times as seconds since 1970, so that no hour is printed twice when the clocks change."""
    environment = {**os.environ, "SLURM_TIME_FORMAT": "%s", "TZ": "UTC", "LC_ALL": "C"}
    try:
        with target.open("wb") as out:
            process = subprocess.run(call, stdout=out, stderr=subprocess.PIPE, env=environment, check=False)
    except OSError as error:
        raise AccountingError(f"cannot run {call[0]}: {error.strerror}; install slurm-client or use --input") from error
    if process.returncode:
        message = process.stderr.decode(errors="replace").strip().splitlines()
        raise AccountingError(f"sacct failed ({process.returncode}): {message[-1] if message else 'no message'}")
    return open_export(target)


def open_export(path: Path) -> Export:
    """Reads an export's header and first lines. Raises AccountingError when the file is not an export."""
    try:
        with path.open("rb") as file:
            header = file.readline(_LINE_MAX_BYTES).decode(errors="replace").rstrip("\r\n")
            sample = [file.readline(_LINE_MAX_BYTES).decode(errors="replace") for _ in range(_SAMPLE_LINES)]
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LINE_MAX_BYTES))
            cut_line = file.read().rpartition(b"\n")[2].decode(errors="replace")
    except OSError as error:
        raise AccountingError(f"cannot read {path}: {error.strerror}") from error
    known = {name.lower(): name for name in REQUIRED + OPTIONAL}
    delimiter = DELIMITER if DELIMITER in header else "|"
    columns = tuple(known.get(name.lower(), name or "_end") for name in header.split(delimiter))
    doubled = sorted({name for name in columns if columns.count(name) > 1})
    missing = [name for name in REQUIRED if name not in columns]
    if missing or doubled:
        fault = f"has no column {', '.join(missing)}" if missing else f"has the column {', '.join(doubled)} twice"
        raise AccountingError(
            f"{path} {fault}; export it with its header line: sacct -a -D -X -P --noconvert -o {','.join(ASKED)}"
        )
    rows = [cells for line in sample if len(cells := line.split(delimiter)) == len(columns)]
    return Export(path, columns, delimiter, _has_epoch_times(rows, columns.index("Submit")), cut_line)


def _has_epoch_times(rows: Sequence[Sequence[str]], submit: int) -> bool:
    """Returns whether most of the first complete lines have times as seconds since 1970. A few lines may be broken."""
    return sum(cells[submit].isdigit() for cells in rows) * 2 > len(rows)


def _slurm_time(instant_s: int) -> str:
    """Returns a time as Slurm accepts it since 17.02: ``uts`` and seconds since 1970."""
    return f"uts{instant_s}"
