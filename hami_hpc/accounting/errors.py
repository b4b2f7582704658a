# SPDX-License-Identifier: Apache-2.0
"""The error that accounting raises, and what its messages quote."""

from __future__ import annotations

from hami_hpc.errors import HamiError


class AccountingError(HamiError):
    """An error that the operator must fix. The message says what failed and what to do."""

    code = "E_ACCOUNTING"


def command_failed(command: str, status: int, errors: str) -> AccountingError:
    """Returns the error of a command of Slurm's that failed: the last line that it wrote, and what to do."""
    lines = errors.strip().splitlines() or ["it said nothing"]
    return AccountingError(f"{command} failed ({status}): {printable(lines[-1][:200])}. Is slurmdbd up?")


def printable(text: str) -> str:
    """Returns a text from outside for one line of a message: a '?' for each character that cannot be printed."""
    return "".join(character if character.isprintable() else "?" for character in text)
