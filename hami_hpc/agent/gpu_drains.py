# SPDX-License-Identifier: Apache-2.0
"""Takes GPUs out of service for the agent, as `hami-hpc gpu drain` does, in a thread that no look waits for."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from hami_hpc.core.out_of_service import DrainedGpu
from hami_hpc.errors import HamiError
from hami_hpc.node import drained_gpus
from hami_hpc.node.config import Settings
from hami_hpc.slurm import placeholders
from hami_hpc.stages import gpu_service

AGAIN_S = 60.0  # after slurmctld did not do it


@dataclass
class GpuDrains:
    """The GPUs that are to be drained. First each is written into the file that prologs read, which needs no Slurm;
    what is free of it is filled then, again and again until that is done."""

    settings: Settings
    node: str
    report: Callable[[str], None]
    _marks: dict[str, tuple[str, int]] = field(default_factory=dict)  # by UUID: reason and Xid
    _late: dict[str, tuple[str, int]] = field(default_factory=dict)  # of those, what failed
    _fills: dict[str, DrainedGpu] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _thread: threading.Thread | None = None

    def drain(self, uuid: str, reason: str, xid: int) -> None:
        """Asks for a GPU to be drained. One that is out of service already stays so, with its own reason."""
        with self._changed:
            self._marks.setdefault(uuid, (reason, xid))
            self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="drains", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._marks:
                    self._changed.wait(AGAIN_S if self._late or self._fills else None)
                marks, self._marks, self._late = self._late | self._marks, {}, {}
            for uuid, (reason, xid) in marks.items():
                self._mark(uuid, reason, xid)
            if self._fills:
                self._fill()

    def _mark(self, uuid: str, reason: str, xid: int) -> None:
        try:
            self._fills[uuid] = gpu_service.mark(self.settings, uuid, reason, "agent", xid)
        except Exception as error:
            self.report(f"GPU {uuid} cannot be taken out of service: {_text(error)} (tried again in {AGAIN_S:.0f} s)")
            self._late[uuid] = (reason, xid)

    def _fill(self) -> None:
        try:
            node = placeholders.Node(self.node, placeholders.environment(os.environ))
            out = {gpu.uuid for gpu in drained_gpus.read(self.settings.state_dir)}
            for uuid in tuple(self._fills):
                if uuid in out:  # and was not resumed meanwhile
                    gpu_service.fill(self.settings, node, self._fills[uuid])
                del self._fills[uuid]
        except Exception as error:
            self.report(f"{_text(error)} (tried again in {AGAIN_S:.0f} s)")


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, HamiError) else f"unexpected {type(error).__name__}: {error}"
