# SPDX-License-Identifier: Apache-2.0
"""Work that the agent does again and again beside its looks, which never wait for it: it may ask slurmctld."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from hami_hpc.errors import HamiError


@dataclass
class Repeated:
    """Does `work` at once and then each `period_s`, in a thread. What it returns (unless it is empty) or raises is a
    problem with `what` it is about, and is reported once until it is another one."""

    what: str
    period_s: float
    work: Callable[[], str]
    report: Callable[[str], None]
    _end: threading.Event = field(default_factory=threading.Event)
    _problem: str = ""

    def start(self) -> None:
        threading.Thread(target=self._run, name=self.what, daemon=True).start()

    def end(self) -> None:
        self._end.set()

    def once(self) -> None:
        try:
            problem = self.work()
        except Exception as error:
            problem = str(error) if isinstance(error, HamiError) else f"unexpected {type(error).__name__}: {error}"
        if problem and problem != self._problem:
            self.report(f"{self.what}: {problem} (tried again each {self.period_s:g} s)")
        self._problem = problem

    def _run(self) -> None:
        while True:
            self.once()
            if self._end.wait(self.period_s):
                return
