# SPDX-License-Identifier: Apache-2.0
"""Runs sacct and checks its exports. The only module that knows sacct's fields and options."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hami_hpc.accounting.errors import AccountingError, command_failed, printable
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
    "ConsumedEnergyRaw",
)
# AllocTRES has a job's energy too.
ASKED = tuple(name for name in REQUIRED + OPTIONAL if name not in ("Elapsed", "ConsumedEnergyRaw"))
# Not '|', because a constraint may contain it (h200|a100). No column in SAFE contains this character.
DELIMITER = "\x1f"
# Columns whose text Slurm or an administrator writes. In any other one (JobName, Comment, WorkDir, SubmitLine, ...) a
# user may write delimiters and newlines, and so lines of other jobs: sacct -P quotes nothing. Not here are also columns
# that this hami_hpc does not know.
_SAFE = (
    "account alloccpus allocnodes alloctres associd cluster constraints consumedenergy consumedenergyraw cputime "
    "cputimeraw dbindex derivedexitcode elapsed elapsedraw eligible end exitcode flags gid group jobid jobidraw ncpus "
    "nnodes nodelist ntasks partition planned plannedcpu plannedcpuraw priority qos qosraw reqcpus reqmem reqnodes "
    "reqtres reserved restarts resvcpu resvcpuraw sluid start state submit suspended systemcpu timelimit timelimitraw "
    "totalcpu uid user usercpu"
)
SAFE = frozenset(_SAFE.split())
# Optional columns -> what an amount lacks without all of them.
_AMOUNTS = {
    ("Suspended",): "time for which jobs were suspended is billed, or those jobs are left out",
    ("ElapsedRaw", "Elapsed"): "runs that had not ended count until the export was made",
    ("Cluster",): "prices of a cluster are not applied",
    ("QOS",): "prices of a QoS are not applied",
    ("NodeList",): "no model of a GPU is known by its node",
    ("Constraints",): "no model of a slice is known by its constraint",
}
EXPORT = (
    "sacct -a -D --json -S FIRST_DAY -E LAST_DAY, or "
    "SLURM_TIME_FORMAT=%s sacct -a -D -X -P --noconvert --delimiter=$'\\x1f' -S FIRST_DAY -E LAST_DAY "
    f"-o {','.join(ASKED)}"
)
_LINE_MAX_BYTES = 65536
_CHUNK_BYTES = 1 << 20
_SAMPLE_LINES = 100


@dataclass(frozen=True, slots=True)
class Export:
    """A file of ``sacct -P`` lines. columns: its header, in sacct's spelling; unknown columns keep their name.

    delimiter: '|', sacct's default, or DELIMITER in our own calls. epoch_times: its times are seconds since 1970.
    is_empty: it has only a header. cut_line: the last line if it has no newline, so that more may have followed; else
    empty.
    """

    path: Path
    columns: tuple[str, ...]
    delimiter: str
    epoch_times: bool
    is_empty: bool
    cut_line: str

    @property
    def has_local_times(self) -> bool:
        """Whether the zone in which it is read matters."""
        return not (self.epoch_times or self.is_empty)

    def gaps(self, name: str) -> list[str]:
        """Returns a note if the export lacks columns that change amounts; else an empty list. name: the input's."""
        lacks = [
            f"{columns[0]} ({effect})"
            for columns, effect in _AMOUNTS.items()
            if not any(column in self.columns for column in columns)
        ]
        return [f"{name} lacks columns that amounts depend on: {'; '.join(lacks)}"] if lacks else []


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
    # --local: in a federation with FederationParameters=fed_display sacct would list all clusters.
    return call + (["-M", clusters] if clusters else ["--local"])


def _run(call: list[str], target: Path) -> Export:
    """Runs sacct with times as seconds since 1970, so that no hour is printed twice when the clocks change.

    Raises AccountingError when it fails, and for output that was cut off: what is missing would not be asked for again.
    """
    environment = {**os.environ, "SLURM_TIME_FORMAT": "%s", "TZ": "UTC", "LC_ALL": "C"}
    try:
        with target.open("wb") as out:
            process = subprocess.run(call, stdout=out, stderr=subprocess.PIPE, env=environment, check=False)
    except OSError as error:
        raise AccountingError(f"cannot run {call[0]}: {error.strerror}; install slurm-client or use --input") from error
    if process.returncode:
        raise command_failed("sacct", process.returncode, process.stderr.decode(errors="replace"))
    _replace_returns(target)
    export = open_export(target, "what sacct printed")
    if export.cut_line:
        raise AccountingError(
            f"what sacct printed ends within a line, so records are missing: it does not notice a full disk. Make room "
            f"in {target.parent}, and run this again"
        )
    return export


def _replace_returns(path: Path) -> None:
    """Replaces carriage returns, which end no line of sacct's: DuckDB would not read any line of a file with them.

    A user can write one into the account of a job where associations are not enforced.
    """
    with path.open("r+b") as file:
        while chunk := file.read(_CHUNK_BYTES):
            if b"\r" in chunk:
                file.seek(-len(chunk), os.SEEK_CUR)
                file.write(chunk.replace(b"\r", b"?"))


def open_export(path: Path, name: str = "") -> Export:
    """Reads an export's header and first lines. Raises AccountingError when the file is not an export.

    name: what messages call it, if that is not its path.
    """
    try:
        with path.open("rb") as file:
            header = file.readline(_LINE_MAX_BYTES).decode(errors="replace").rstrip("\r\n")
            sample = [file.readline(_LINE_MAX_BYTES).decode(errors="replace") for _ in range(_SAMPLE_LINES)]
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LINE_MAX_BYTES))
            cut_line = file.read().rpartition(b"\n")[2].decode(errors="replace")
    except OSError as error:
        raise AccountingError(f"cannot read {path}: {error.strerror}") from error
    known = {column.lower(): column for column in REQUIRED + OPTIONAL}
    delimiter = DELIMITER if DELIMITER in header else "|"
    columns = tuple(known.get(column.lower(), column or "_end") for column in header.split(delimiter))
    if fault := _header_fault(columns):
        raise AccountingError(f"{name or path} {fault}; export it again: {EXPORT}")
    rows = [cells for line in sample if len(cells := line.split(delimiter)) == len(columns)]
    epoch_times = _has_epoch_times(rows, columns.index("Submit"))
    return Export(path, columns, delimiter, epoch_times, not any(line.strip() for line in sample), cut_line)


def _header_fault(columns: tuple[str, ...]) -> str:
    """Returns what is wrong with a header, or an empty text."""
    if len(columns) == 1 and all(column.lower() in columns[0].lower() for column in REQUIRED):
        return "has fields that are separated by another character than | or \\x1f"
    if missing := [column for column in REQUIRED if column not in columns]:
        return f"has no column {', '.join(missing)}"
    if doubled := sorted({column for column in columns if columns.count(column) > 1}):
        return f"has the column {printable(', '.join(doubled))} twice"
    if unsafe := [column for column in columns if column.lower() not in SAFE and column != "_end"]:
        return (
            f"has the column {printable(', '.join(unsafe))[:200]}, in which users may write lines of jobs that are "
            "not theirs"
        )
    return ""


def _has_epoch_times(rows: Sequence[Sequence[str]], submit: int) -> bool:
    """Returns whether most of the first complete lines have times as seconds since 1970. A few lines may be broken."""
    return sum(cells[submit].isdigit() for cells in rows) * 2 > len(rows)


def _slurm_time(instant_s: int) -> str:
    """Returns a time as Slurm accepts it since 17.02: ``uts`` and seconds since 1970."""
    return f"uts{instant_s}"
