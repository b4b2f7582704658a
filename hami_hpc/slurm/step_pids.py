# SPDX-License-Identifier: Apache-2.0
"""Which processes belong to a job: the steps' daemons on this node say it at once, and slurmctld is not asked."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable

LOCAL_TIMEOUT_S = 1.0
NO_STEPS = "No job steps exist"
HEAD = "PID JOBID STEPID LOCALID GLOBALID\n"  # which 26.05 leaves out where it has no process to show
REFUSED = "Unable to connect to slurmstepd: Connection refused"
# PID JOBID STEPID LOCALID GLOBALID, STEPID being a number or a name.
_LISTED = re.compile(r"^[ \t]*([0-9]{1,10})[ \t]+([0-9]{1,10})(?=\s|$)", re.MULTILINE)

Run = Callable[[tuple[str, ...], float], str | None]


def _done(command: tuple[str, ...], timeout_s: float) -> tuple[int, str, str] | None:
    """Returns a command's status, standard output and standard error; None when it cannot be run, or not in time."""
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=timeout_s, check=False, stdin=subprocess.DEVNULL, env=environment
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    # a user can write any bytes into a job's name
    return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")


def run_command(command: tuple[str, ...], timeout_s: float) -> str | None:
    """Returns a command's standard output; None when it fails. That no step runs here is an answer of listpids."""
    done = _done(command, timeout_s)
    if done is None:
        return None
    status, text, errors = done
    has_no_steps = errors.startswith(NO_STEPS)
    if status != 0 and not has_no_steps:
        return None
    return HEAD if has_no_steps and not text else text


def run_past_dead_steps(command: tuple[str, ...], timeout_s: float) -> str | None:
    """Returns a command's standard output as run_command does, also where steps refuse: sockets of steps that a power
    cut ended stay for ten minutes. One that begins may refuse for a moment too."""
    done = _done(command, timeout_s)
    if done is None:
        return None
    status, text, errors = done
    lines = errors.splitlines()
    if status != 0 and not (lines and all(line == REFUSED or line.startswith(NO_STEPS) for line in lines)):
        return None
    return text or HEAD


def parse_listpids(text: str) -> dict[int, int] | None:
    """Returns pid -> job id of `scontrol listpids`; None for a text without its headline."""
    if text.split(None, 2)[:2] != ["PID", "JOBID"]:
        return None
    return {int(pid): int(job_id) for pid, job_id in _LISTED.findall(text)}


def listed_pids(node: str, run: Run = run_command, timeout_s: float = LOCAL_TIMEOUT_S) -> dict[int, int] | None:
    """Returns the processes of all steps on this node, pid -> job id; None when slurmstepd does not say all of them (a
    step that does not answer, no scontrol)."""
    # By name, since a host with several slurmds is several nodes; without it for a --node that Slurm has not.
    pids = parse_listpids(run(("scontrol", "listpids", "*", node), timeout_s) or "")
    return parse_listpids(run(("scontrol", "listpids"), timeout_s) or "") if pids == {} else pids
