# SPDX-License-Identifier: Apache-2.0
"""Reads when the steps of a job's start were, on the node where it runs or ran: of a running job from its directory, of
an ended one from its usage record, until accounting collects that."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from typing import Any

from hami_hpc.contract import constants as c
from hami_hpc.core.delays import INT64_MAX
from hami_hpc.core.start_trace import OF_NODE
from hami_hpc.errors import HamiError
from hami_hpc.node import job_dirs, stage_times, usage_files, usage_spool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_BYTES = 65536
LONGEST_EPILOG_NS = 3600 * 1_000_000_000
PRIVATE = "only root and the job's user can read its record on this node"
RUNS_STILL = "the job has not ended"


@dataclass(frozen=True, slots=True)
class NodeRun:
    """One run of a job on this node: `unix_ns` has the known times and `reasons` why others are not, by key of
    core/start_trace.py. `start_unix_ns` is when its grant was made."""

    start_unix_ns: int
    uid: int
    is_running: bool
    unix_ns: Mapping[str, int]
    reasons: Mapping[str, str]


def read_node_runs(run_dir: str, state_dir: str, job_id: int, now_unix_ns: int) -> tuple[list[NodeRun], str]:
    """Returns the runs of a job that this node knows and the caller may read, the oldest first, and why there may be
    more: "" when there are none."""
    runs = []
    paths, is_private = _records(run_dir, state_dir, job_id)
    hidden = PRIVATE if is_private else ""
    for path in paths:
        record = _read_record(path, job_id)
        if record is None:
            hidden = PRIVATE if not os.access(path, os.R_OK) else f"{path} is no usage record"
        elif os.geteuid() in (0, record["uid"]):
            runs.append(_ended(record, path))
        else:
            hidden = PRIVATE
    directory = job_dirs.job_dir(run_dir, job_id)
    grants = job_dirs.read_grants(directory, owner=0)
    grant = grants[0] if grants else None
    if grant is not None and os.geteuid() not in (0, grant.uid):
        hidden = PRIVATE
    elif grant is not None and grant.created_unix_ns not in (run.start_unix_ns for run in runs):
        usage = usage_files.read_total(directory, grants, now_unix_ns)
        times = {**stage_times.read_times(directory)._asdict(), **usage._asdict()}
        reasons = {"epilog_began": RUNS_STILL, "epilog_done": RUNS_STILL}
        runs.append(NodeRun(grant.created_unix_ns, grant.uid, True, _known(times), reasons))
    return sorted(runs, key=lambda run: run.start_unix_ns), hidden


def why_no_slice(run_dir: str, job_id: int) -> str:
    """Returns what the prolog wrote about a job that has no slice on this node; "" for nothing."""
    for name in (c.FILE_REFUSED, c.FILE_WHOLE):
        data = job_dirs.read_bounded(f"{job_dirs.job_dir(run_dir, job_id)}/{name}", 4096, want_uid=0)
        if data:
            return data.decode(errors="replace").strip()
    return ""


def _records(run_dir: str, state_dir: str, job_id: int) -> tuple[list[str], bool]:
    """Returns the paths of a job's records, and whether there may be more where the caller cannot look."""
    paths: list[str] = []
    is_private = False
    name = re.compile(rf"{job_id}(-[0-9]+)?\.json")
    for directory in (f"{state_dir}/{usage_spool.DIRECTORY}", usage_spool.waiting_dir(run_dir)):
        try:
            names = os.listdir(directory)
        except FileNotFoundError:
            continue
        except PermissionError:
            is_private = True
            continue
        except OSError as error:
            raise HamiError(f"{directory} cannot be read: {error.strerror}") from error
        paths += [f"{directory}/{found}" for found in sorted(names) if name.fullmatch(found)]
    return paths, is_private


def _read_record(path: str, job_id: int) -> dict[str, Any] | None:
    data = job_dirs.read_bounded(path, MOST_BYTES, want_uid=0)
    try:
        record = json.loads(data or b"")
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or record.get("job_id") != job_id:
        return None
    numbers = (record.get("uid"), record.get("start_unix_ns"), record.get("end_unix_ns"))
    return record if all(type(number) is int and 0 <= number <= INT64_MAX for number in numbers) else None


def _ended(record: Mapping[str, Any], path: str) -> NodeRun:
    """Returns an ended run. The epilog sets the record's time of change when it is done (usage_spool.note_done)."""
    times = _known(record)
    try:
        done = os.stat(path).st_mtime_ns
    except OSError:  # collected meanwhile
        done = 0
    if "epilog_began" in times and 0 <= done - record["end_unix_ns"] <= LONGEST_EPILOG_NS:
        times["epilog_done"] = done
    return NodeRun(record["start_unix_ns"], record["uid"], False, times, {})


def _known(values: Mapping[str, Any]) -> dict[str, int]:
    """Returns the times of a record that are known, by key."""
    times = {key: values.get(f"{key}_unix_ns", 0) for key in OF_NODE}
    return {key: at for key, at in times.items() if type(at) is int and 0 < at <= INT64_MAX}
