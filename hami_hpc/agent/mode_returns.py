# SPDX-License-Identifier: Apache-2.0
"""Puts modes that are out of this node's features back when their time is over, and keeps the others out: a restart or
`scontrol reconfigure` of slurmctld gives a node all of its features again."""

from __future__ import annotations

import os
from collections.abc import Callable

from hami_hpc.agent.repeated import Repeated
from hami_hpc.node import mode_outages
from hami_hpc.node.config import Settings
from hami_hpc.stages import mode_service

PERIOD_S = 30.0


def make(settings: Settings, node: str, report: Callable[[str], None]) -> Repeated:
    """Returns the work of settling the node while a mode is out."""

    def settle() -> str:
        if os.path.lexists(mode_outages.path_of(settings.state_dir)):
            mode_service.settle(settings, mode_service.slurm_of_command(node), "agent")
        return ""

    return Repeated("modes out of service", PERIOD_S, settle, report)
