# SPDX-License-Identifier: Apache-2.0
"""Runs commands, submits jobs and waits for states on a private cluster, as its users and its administrator."""

from __future__ import annotations

import os
import pwd
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .config import driver_environment, simulated_kernel
from .daemons import log_tail
from .layout import CHECKOUT, ClusterError, Layout

_WAITED = re.compile(r"^srun: (Job \S+ step creation temporarily disabled\b|Step created for ).*\n", re.MULTILINE)
_PATH = "/usr/local/bin:/usr/bin:/bin"
ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"})


@dataclass(frozen=True, slots=True)
class Done:
    """A command's exit status and output."""

    status: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err


def user_environment(layout: Layout, user: str) -> dict[str, str]:
    """Returns a login shell's environment for a user of the cluster, with the simulated driver."""
    return {
        "PATH": f"{layout.bin}:{_PATH}",
        "HOME": str(layout.home / user),
        "USER": user,
        "LOGNAME": user,
        "LC_ALL": "C.UTF-8",
        "SLURM_CONF": str(layout.slurm_conf),
        **driver_environment(layout),
    }


def run_as(
    layout: Layout,
    user: str,
    command: Sequence[str],
    extra: Mapping[str, str] | None = None,
    stdin: str | None = None,
    timeout_s: float = 60.0,
) -> Done:
    """Runs a command as a user in their home directory, with all privileges dropped."""
    entry = pwd.getpwnam(user)
    done = subprocess.run(
        tuple(command),
        env=user_environment(layout, user) | dict(extra or {}),
        cwd=layout.home / user,
        user=entry.pw_uid,
        group=entry.pw_gid,
        extra_groups=[],
        input=stdin if stdin is not None else "",
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def admin(layout: Layout, *command: str, timeout_s: float = 60.0, allowed: tuple[int, ...] = (0,)) -> str:
    """Runs a command as the administrator and returns what it printed. Raises ClusterError for another status than
    those allowed."""
    environment = user_environment(layout, "root") | {
        "PATH": f"{CHECKOUT}/.venv/bin:/usr/local/sbin:/usr/sbin:/sbin:{_PATH}",
        "HAMI_HPC_CONFIG": str(layout.site_config),
    }
    done = subprocess.run(
        command,
        env=environment,
        cwd="/",
        input="",
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=False,
    )
    if done.returncode not in allowed:
        raise ClusterError(f"{' '.join(command)} ended with status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def submit(layout: Layout, user: str, *options: str, script: str) -> int:
    """Submits a script's text by sbatch; returns the job id. Raises ClusterError with sbatch's message."""
    done = run_as(layout, user, ("sbatch", "--parsable", *options), stdin=f"#!/bin/sh\n{script}\n")
    if done.status != 0:
        raise ClusterError(f"sbatch {' '.join(options)} was refused: {done.err.strip()}")
    return int(done.out.strip().partition(";")[0])


def job_facts(layout: Layout, job: int | str) -> dict[str, str]:
    """Returns the values of `scontrol show job -d` for one job, by key.

    TRES is what it holds, or asks for while it is pending. From 23.02 on Slurm shows both, as AllocTRES and ReqTRES.
    """
    text = admin(layout, "scontrol", "show", "job", "-d", str(job))
    facts = dict(re.findall(r"(?:^|\s)([A-Za-z_:/]+)=(\S*)", text))
    if "ReqTRES" in facts:
        facts["TRES"] = facts["ReqTRES"] if facts["AllocTRES"] in ("", "(null)") else facts["AllocTRES"]
    return facts


def state(layout: Layout, job: int | str) -> str:
    """Returns the job's state in capitals: PENDING, RUNNING, COMPLETED…"""
    return job_facts(layout, job)["JobState"]


def wait_for_state(layout: Layout, job: int | str, *wanted: str, timeout_s: float = 60.0) -> str:
    """Waits until the job is in one of these states. Raises ClusterError with the ends of the logs after the timeout,
    or at once when the job has ended in another state."""

    def reached() -> bool:
        current = state(layout, job)
        if current in ENDED and current not in wanted:
            raise ClusterError(f"job {job} is {current}, not {' or '.join(wanted)}\n{evidence(layout, job)}")
        return current in wanted

    wait(layout, reached, f"job {job} to be {' or '.join(wanted)}", timeout_s, job)
    return state(layout, job)


def wait(
    layout: Layout,
    condition: Callable[[], bool],
    what: str,
    timeout_s: float = 60.0,
    job: int | str | None = None,
    detail: Callable[[], str] = str,
) -> None:
    """Polls until the condition holds. Raises ClusterError, which names the condition and has the ends of the logs."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise ClusterError(f"waited {timeout_s:.0f} s in vain for {what}\n{detail()}\n{evidence(layout, job)}")
        time.sleep(0.2)


def pass_a_second() -> None:
    """Slurm's records count seconds, and have no part of a job that begins and ends in one."""
    time.sleep(1.1)


def wait_until_recorded(layout: Layout, *numbers: int, runs: int = 0) -> None:
    """Waits until slurmdbd has every run of these jobs whole: at least ``runs`` runs, at least one of each job.

    Until some seconds after a short job it may know its end and neither its nodes nor when it was eligible, and a query
    by time does not find it.
    """
    columns = ("JobIDRaw", "End", "Eligible")
    command = ("sacct", "-n", "-P", "-X", "-D", "-j", ",".join(map(str, numbers)), "-o", ",".join(columns))

    def recorded() -> bool:
        rows = [line.split("|") for line in admin(layout, *command).splitlines()]
        found = len({row[0] for row in rows}) >= len(numbers) and len(rows) >= runs
        return found and not any("Unknown" in row for row in rows)

    wait(layout, recorded, f"slurmdbd to have jobs {', '.join(map(str, numbers))}", 60)


def wait_until_known(layout: Layout, job: int) -> None:
    """Waits until slurmdbd has the job's start: of what changes before, it keeps the last state alone."""
    words = ("sacct", "-n", "-P", "-X", "-j", str(job), "-o", "state,nnodes")
    wait(layout, lambda: admin(layout, *words).split() == ["RUNNING|2"], "slurmdbd to know the job", 60, job)


def evidence(layout: Layout, job: int | str | None = None) -> str:
    """Returns the ends of the logs, which can show why something did not happen."""
    parts = [log_tail(layout.log / f"{name}.log") for name in ("slurmctld", "slurmd")]
    if job is not None:
        shown = run_as(layout, "root", ("scontrol", "show", "job", "-d", str(job)))
        parts.insert(0, f"--- scontrol show job -d {job}\n{shown.text}")
        parts += [log_tail(path) for path in sorted(layout.home.glob(f"*/slurm-{job}.out"))]
    return "\n".join(parts)


def output(layout: Layout, user: str, job: int | str) -> str:
    """Returns the job's output so far, without what srun says of a step that waited for the one before it."""
    return _WAITED.sub("", whole_output(layout, user, job))


def whole_output(layout: Layout, user: str, job: int | str) -> str:
    path = layout.home / user / f"slurm-{job}.out"
    return path.read_text(errors="replace") if path.exists() else ""


def without_simulation(layout: Layout, text: str) -> str:
    """Returns a job's environment as it is on a real node, without the preload of the simulated kernel."""
    kernel = str(simulated_kernel(layout))
    for alone in (kernel, f"{layout.interposer}:{kernel}"):
        text = text.replace(f"LD_PRELOAD={alone}\n", "")
    return text.replace(f":{kernel}", "")


def write_script(layout: Layout, user: str, name: str, text: str) -> Path:
    """Writes a job script in the user's home, owned by the user, and returns its path."""
    entry = pwd.getpwnam(user)
    path = layout.home / user / name
    path.write_text(text)
    os.chown(path, entry.pw_uid, entry.pw_gid)
    path.chmod(0o755)
    return path
