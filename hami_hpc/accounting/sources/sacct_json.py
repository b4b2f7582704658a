# SPDX-License-Identifier: Apache-2.0
"""Converts ``sacct --json`` to the lines of ``sacct -P``, so that only one format is parsed.

Slurm 22.05 writes plain numbers and null; later versions write some numbers as {"set": …, "infinite": …, "number": …},
and the state as a list. A value that is missing or of another type becomes an empty field, which ingest reports.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hami_hpc.accounting.errors import AccountingError, printable
from hami_hpc.accounting.sources import input_files
from hami_hpc.accounting.sources.sacct import ASKED, DELIMITER, Export, open_export

_MOST_BYTES = 512 << 20
_ONE_LINE = str.maketrans({DELIMITER: "?", "\n": "?", "\r": "?", "\0": "?"})
_UNKNOWN_COUNTS = (None, -2)  # 22.05 writes null, later versions slurm.h's NO_VAL64 as a signed number
_NO_TIMES = ("", "0", "4294967294")  # the last is NO_VAL: the start of a job that was cancelled before it started
_STATES_LATER = ("REQUEUED", "RESIZING", "SPECIAL_EXIT", "REQUEUE_HOLD")  # flags that say more than the base state


def open_input(path: Path, scratch: Path) -> Export:
    """Opens a file of ``sacct -P`` lines or of ``sacct --json``. Raises AccountingError when it is neither."""
    name = input_files.shown(path)
    plain = input_files.prepare(path, scratch)
    if not input_files.is_json(plain):
        return open_export(plain, name)
    jobs = _jobs(plain, name)
    target = scratch / "from-json"
    with target.open("w", encoding="utf-8", errors="replace") as out:
        out.write(DELIMITER.join(ASKED) + "\n")
        for job in jobs:
            fields = job_fields(job)
            out.write(DELIMITER.join(fields[field].translate(_ONE_LINE) for field in ASKED) + "\n")
    return open_export(target, name)


def _jobs(path: Path, name: str) -> list[Mapping[str, Any]]:
    """Returns the jobs of a JSON document. A text that is not UTF-8 is no fault: a user may name a job so."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise AccountingError(f"{name} is larger than {_MOST_BYTES >> 20} MiB of JSON; export it month by month")
        document = json.loads(path.read_text(encoding="utf-8", errors="replace"), strict=False)
    except OSError as error:
        raise AccountingError(f"cannot read {name}: {error.strerror}") from error
    except ValueError as error:
        raise AccountingError(f"{name} is not a complete JSON document: {error}") from error
    except RecursionError:
        raise AccountingError(f"{name} is JSON of too many levels, which sacct does not write") from None
    jobs = document.get("jobs")
    if not isinstance(jobs, list) or not all(isinstance(job, dict) for job in jobs):
        raise AccountingError(f"{name} has no list of jobs{_complaint(document)}; make it with sacct -a -D --json")
    return jobs


def job_fields(job: Mapping[str, Any]) -> dict[str, str]:
    """Returns a job's fields as sacct -P prints them."""
    times = _table(job, "time")
    return {
        "JobIDRaw": _number(job.get("job_id")),
        "JobID": _display_id(job),
        # Not from "association": 22.05 finds that by its number only, and it may be another cluster's.
        "Account": _text(job.get("account")),
        "User": _text(job.get("user")),
        "UID": "",
        "Partition": _text(job.get("partition")),
        "QOS": _text(job.get("qos")) or "Unknown",
        "State": _state(_table(job, "state").get("current")),
        "Submit": _time(times.get("submission")),
        "Eligible": _time(times.get("eligible")),
        "Start": _time(times.get("start")),
        "End": _time(times.get("end")),
        "ElapsedRaw": _number(times.get("elapsed")),
        "Suspended": _number(times.get("suspended")),
        "AllocTRES": _tres(_table(job, "tres").get("allocated")),
        "Cluster": _text(job.get("cluster")),
        "NodeList": _text(job.get("nodes")),
        "Constraints": _text(job.get("constraints")),
    }


def _complaint(document: Mapping[str, Any]) -> str:
    """Returns the errors that sacct wrote instead of jobs."""
    errors = document.get("errors")
    listed = [error for error in errors if isinstance(error, dict)] if isinstance(errors, list) else []
    descriptions = [str(error.get("description") or error.get("error")) for error in listed]
    return f" (sacct says: {printable('; '.join(descriptions))[:200]})" if descriptions else ""


def _table(job: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = job.get(name)
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Any) -> str:
    """Returns a number, plain or in the form of later versions, as text; empty when it is unset."""
    if isinstance(value, dict):
        return _number(value.get("number")) if value.get("set") and not value.get("infinite") else ""
    return str(value) if type(value) is int else ""


def _time(value: Any) -> str:
    number = _number(value)
    return number if number not in _NO_TIMES else "Unknown"


def _state(value: Any) -> str:
    """Returns the state: in a list the flag that says how the run ended (_STATES_LATER), else the first entry."""
    states = [entry for entry in value if isinstance(entry, str)] if isinstance(value, list) else [_text(value)]
    return next((state for state in states if state in _STATES_LATER), states[0] if states else "")


def _display_id(job: Mapping[str, Any]) -> str:
    number, array, het = _number(job.get("job_id")), _table(job, "array"), _table(job, "het")
    task = _number(array.get("task_id"))
    if _number(array.get("job_id")) not in ("", "0") and task:
        return f"{_number(array.get('job_id'))}_{task}"
    if _number(het.get("job_id")) not in ("", "0"):
        return f"{_number(het.get('job_id'))}+{_number(het.get('job_offset')) or '0'}"
    return number


def _tres(entries: Any) -> str:
    """Returns the entries as AllocTRES prints them, without counts unknown to Slurm (energy without a meter)."""
    if not isinstance(entries, list):
        return ""
    parts = []
    for entry in entries:
        if not isinstance(entry, dict) or entry.get("count") in _UNKNOWN_COUNTS:
            continue
        name = f"{_text(entry.get('type'))}/{_text(entry.get('name'))}".rstrip("/")
        parts.append(f"{name}={_number(entry.get('count'))}")
    return ",".join(parts)
