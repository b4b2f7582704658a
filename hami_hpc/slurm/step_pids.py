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


def run_command(command: tuple[str, ...], timeout_s: float) -> str | None:
    """Returns a command's standard output; None when it fails. That no step runs here is an answer of listpids."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=timeout_s, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return None
    has_no_steps = done.stderr.startswith(NO_STEPS.encode())
    if done.returncode != 0 and not has_no_steps:
        return None
    text = done.stdout.decode("utf-8", "replace")  # a user can write any bytes into a job's name
    return HEAD if has_no_steps and not text else text


def run_past_dead_steps(command: tuple[str, ...], timeout_s: float) -> str | None:
    """Returns a command's standard output as run_command does, also where steps refuse: sockets of steps that a power
    cut ended stay for ten minutes. One that begins may refuse for a moment too."""
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=timeout_s, check=False, stdin=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    others = set(done.stderr.decode("utf-8", "replace").splitlines()) - {REFUSED}
    if done.returncode != 0 and others and not all(line.startswith(NO_STEPS) for line in others):
        return None
    return done.stdout.decode("utf-8", "replace") or HEAD


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
