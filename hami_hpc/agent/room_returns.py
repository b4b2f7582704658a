# SPDX-License-Identifier: Apache-2.0
"""Returns this node to service after its run directory was full. Asks slurmctld only when a stage has failed so."""

from __future__ import annotations

from collections.abc import Callable

from hami_hpc.agent.repeated import Repeated
from hami_hpc.node.config import Settings
from hami_hpc.stages import room_service

PERIOD_S = 30.0


def make(settings: Settings, node: str, report: Callable[[str], None]) -> Repeated:
    """Returns the work of looking for it."""

    def settle() -> str:
        done = room_service.settle(settings, node, "agent")
        if done:
            report(done)
        return ""

    return Repeated("a run directory that was full", PERIOD_S, settle, report)
