# SPDX-License-Identifier: Apache-2.0
"""Puts modes that are out of this node's features back when their time is over, and keeps the others out, in a thread
that no look waits for: a restart or `scontrol reconfigure` of slurmctld gives a node all of its features again."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from hami_hpc.errors import HamiError
from hami_hpc.node import mode_outages
from hami_hpc.node.config import Settings
from hami_hpc.stages import mode_service

PERIOD_S = 30.0


@dataclass
class ModeReturns:
    """Settles the node each PERIOD_S while a mode is out. A problem is reported once until it is another one."""

    settings: Settings
    node: str
    report: Callable[[str], None]
    _end: threading.Event = field(default_factory=threading.Event)
    _problem: str = ""

    def start(self) -> None:
        threading.Thread(target=self._work, name="modes", daemon=True).start()

    def end(self) -> None:
        self._end.set()

    def settle(self) -> None:
        """Settles once, where a mode is out."""
        if not os.path.lexists(mode_outages.path_of(self.settings.state_dir)):
            return
        problem = ""
        try:
            mode_service.settle(self.settings, mode_service.slurm_of_command(self.node), "agent")
        except Exception as error:
            problem = str(error) if isinstance(error, HamiError) else f"unexpected {type(error).__name__}: {error}"
            if problem != self._problem:
                self.report(f"modes out of service: {problem} (tried again each {PERIOD_S:.0f} s)")
        self._problem = problem

    def _work(self) -> None:
        while True:
            self.settle()
            if self._end.wait(PERIOD_S):
                return
