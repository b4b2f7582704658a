# SPDX-License-Identifier: Apache-2.0
"""The exit statuses of all hami-hpc commands, defined once for the commands, their help, the man pages and the docs."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit statuses with the same meaning in every command, so that scripts can distinguish an error from a finding."""

    DONE = 0
    FAILED = 1
    USAGE = 2  # click's own, too
    FOUND = 3


DONE, FOUND = "done", "done, and something was found that a person has to look at"
FAILED, USAGE = "not done; why is on standard error", "the command line is wrong"


def meanings(done: str = DONE, found: str = FOUND) -> list[tuple[ExitCode, str]]:
    """Returns the meaning of each status, by number. Pass `found` as "" for a command without findings."""
    rows = [(ExitCode.DONE, done), (ExitCode.FAILED, FAILED), (ExitCode.USAGE, USAGE), (ExitCode.FOUND, found)]
    return [(code, meaning) for code, meaning in rows if meaning]
