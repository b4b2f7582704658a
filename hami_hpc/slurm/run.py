# SPDX-License-Identifier: Apache-2.0
"""Runs one of Slurm's commands to its end. Not for prologs, whose PATH may have none."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

from hami_hpc.errors import NodeError
from hami_hpc.slurm.failure import failed

TIMEOUT_S = 60


def completed(
    command: Sequence[str], env: Mapping[str, str] | None = None, daemon: str = "slurmctld"
) -> subprocess.CompletedProcess[str]:
    """Runs a command. What is not UTF-8 is replaced: users write any bytes into a job's name. Raises NodeError."""
    try:
        return subprocess.run(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:  # ValueError: a zero byte in a word
        raise NodeError(f"{command[0]} cannot be run ({error}). Is Slurm installed here and {daemon} up?") from error


def output(command: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    """Returns a command's standard output. Raises NodeError with the command and its error message when it fails."""
    done = completed(command, env)
    if done.returncode != 0:
        raise failed(command, done.stderr or done.stdout)
    return done.stdout


def not_understood(command: str, printed: str) -> NodeError:
    """Returns the error of a command that printed text of another form than the one asked for."""
    return NodeError(f"{command} printed {printed.strip()[:80]!r}, which is not understood; run it by hand to see why")
