# SPDX-License-Identifier: Apache-2.0
"""The exit status of every hami-hpc command, defined once: for the commands, their help, the man pages and the docs."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """A status means the same in every command, so that a script can tell an error from an answer."""

    DONE = 0
    FAILED = 1
    USAGE = 2  # click's own, too
    FOUND = 3


DONE, FOUND = "done", "done, and something was found that a person has to look at"
FAILED, USAGE = "not done; why is on standard error", "the command line is wrong"


def meanings(done: str = DONE, found: str = FOUND) -> list[tuple[ExitCode, str]]:
    """What each status means, by number. A command that finds nothing gives `found` as ""."""
    rows = [(ExitCode.DONE, done), (ExitCode.FAILED, FAILED), (ExitCode.USAGE, USAGE), (ExitCode.FOUND, found)]
    return [(code, meaning) for code, meaning in rows if meaning]
