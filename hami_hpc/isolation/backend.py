# SPDX-License-Identifier: Apache-2.0
"""The interface of a mode of isolation. Each module that table.py lists has these functions.

`grants` are the slices of one job in their order; more than one only in the modes of table.py's WITH_SEVERAL_SLICES.

Prolog, epilog and reconcile call them as root, in this order for one job:

    admit      pure; within the ledger's transaction
    prepare    after the grant is in the ledger
    release    before the job's usage is written and its grant leaves the ledger

Each may be killed at any line and is then called again with the same grant; `release` may come without a `prepare`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from hami_hpc.core.finding import Finding
    from hami_hpc.core.grant import Grant
    from hami_hpc.core.records import Usage
    from hami_hpc.node.config import Settings


class Backend(Protocol):
    """One mode of isolation."""

    def admit(self, new: Grant, live: tuple[Grant, ...], memory_scaling: float) -> Grant:
        """Returns the grant to enter beside the node's `live` ones. Raises NodeError when it does not fit."""

    def prepare(self, settings: Settings, grants: tuple[Grant, ...], live: tuple[Grant, ...]) -> None:
        """Sets up what the job's steps need, and publishes the job's directory. `live`: all grants of the node, these
        among them, read after they were entered.

        Raises NodeError when that fails, and JobError, with nothing left behind, when this job cannot have it.
        """

    def describe(self, grant: Grant) -> bytes:
        """Returns the limits record of one slice, from which SPANK and the interposer read it."""

    def release(self, settings: Settings, directory: str, grants: tuple[Grant, ...], end_unix_ns: int) -> Usage:
        """Takes the slices back and returns what the job used, read from `directory` and the GPU.

        Raises NodeError when that fails: the directory is then set aside, and reconcile calls this again.
        """

    def check(self, settings: Settings) -> Iterator[Finding]:
        """Yields the findings of `hami-hpc doctor` for this mode on this node. Changes nothing."""
