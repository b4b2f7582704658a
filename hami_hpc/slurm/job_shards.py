# SPDX-License-Identifier: Apache-2.0
"""Asks slurmctld which GPUs of a node a job has: how many shards of each, and which of them whole."""

from __future__ import annotations

import subprocess
import time

from hami_hpc.core.contexts import suppress
from hami_hpc.core.shards_shown import any_whole_gpus_of_node, name_of_job, shards_of_node
from hami_hpc.errors import NodeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeVar

    T = TypeVar("T")

ANSWER_S = 5.0  # for one answer; a prolog waits for it
BOUND_S = 15.0  # for all of them
PAUSE_S = 0.5
UNKNOWN_JOB = "Invalid job id"


def read(
    scontrol: str, env: Mapping[str, str], job_id: int, node: str, silent_s: Callable[[], float] | None = None
) -> dict[int, int]:
    """Returns GPU index on `node` -> shards of the job, as slurmctld shows them. Asks again until BOUND_S have passed.

    `env` is the environment of Slurm's commands. `silent_s`, if given, returns for how many seconds to ask while no
    slurmctld answers at all; once one has answered, it has BOUND_S. Raises NodeError with the reason when slurmctld
    does not say.
    """
    return _read(scontrol, env, job_id, node, silent_s, shards_of_node)


def read_whole(scontrol: str, env: Mapping[str, str], job_id: int, node: str) -> frozenset[int]:
    """Returns the indices of the GPUs on `node` that the job holds whole, and perhaps others, if its user wrote so into
    its name or comment. Asks, and raises, as read() does."""
    return _read(scontrol, env, job_id, node, None, any_whole_gpus_of_node)


def _read(
    scontrol: str,
    env: Mapping[str, str],
    job_id: int,
    node: str,
    silent_s: Callable[[], float] | None,
    parse: Callable[[str, str, int], T],
) -> T:
    began = time.monotonic()
    name, is_named, has_answered, end = str(job_id), False, silent_s is None, began + BOUND_S
    while True:
        try:
            text = _answer(end, env, scontrol, "--all", "--local", "--details", "show", "job", name)
            return parse(text, node, job_id)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            problem = _reason(error)
            if not has_answered and (isinstance(error, ValueError) or UNKNOWN_JOB in problem):
                has_answered, end = True, time.monotonic() + BOUND_S
            if isinstance(error, ValueError) and not is_named:  # an array's id is also that of one of its tasks
                with suppress(NodeError):
                    is_named, name = True, exact_name(scontrol, env, job_id, end)
                if name != str(job_id):
                    continue
        if time.monotonic() + PAUSE_S >= end:
            if has_answered or silent_s is None:
                raise NodeError(problem)
            end, silent_s = began + silent_s(), None
            continue
        time.sleep(PAUSE_S)


def exact_name(scontrol: str, env: Mapping[str, str], job_id: int, end: float | None = None) -> str:
    """Returns what names exactly this job to scontrol, as an array's id means all of its tasks. Raises NodeError where
    squeue does not say it until `end` of the monotonic clock (None: ANSWER_S from now)."""
    squeue = f"{scontrol.rpartition('/')[0]}/squeue"
    options = ("--all", "--local", "--noheader", f"--jobs={job_id}", "--format=%A %F %K")
    try:
        return name_of_job(_answer(end or time.monotonic() + ANSWER_S, env, squeue, *options), job_id)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise NodeError(_reason(error)) from error


def _answer(end: float, env: Mapping[str, str], *command: str) -> str:
    """Returns what a command prints. Raises OSError, SubprocessError, and ValueError for text that is not UTF-8."""
    left_s = max(0.1, min(ANSWER_S, end - time.monotonic()))
    done = subprocess.run(command, env=dict(env), capture_output=True, timeout=left_s, check=True, cwd="/")
    return done.stdout.decode("utf-8", "replace")


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        text = error.stderr.decode("utf-8", "replace").strip() or f"status {error.returncode}"
        return "; ".join(text.splitlines())[:200]
    if isinstance(error, subprocess.TimeoutExpired):
        return f"no answer within {error.timeout:.0f} s"
    return str(error)
