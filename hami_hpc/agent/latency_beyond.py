# SPDX-License-Identifier: Apache-2.0
"""Has latency-critical jobs that want more than their cores treated as any other (docs/adr/116): hears what the jobs of
each GPU with one of them and others say, and writes what core/latency_beyond.py decides into the jobs' records.

It reads the run directory alone, so it goes on where NVML does not answer. What a killed agent left stays: each job's
record says how it is treated. An agent that is told to end gives all their place back.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hami_hpc.agent.repeated import Repeated
from hami_hpc.agent.slices import Slices
from hami_hpc.contract import constants as c
from hami_hpc.core.grant import Grant
from hami_hpc.core.latency_beyond import OfGpu, Said
from hami_hpc.core.swap import OFF
from hami_hpc.core.turns import ALONE, cores_of_tenants, is_latency
from hami_hpc.errors import NodeError
from hami_hpc.node.config import Settings
from hami_hpc.stages import common

PERIOD_S = 0.5
_USED_AT, _MORE_AT = c.USAGE_FIELDS["time_used"][0], c.USAGE_FIELDS["more_unix_ns"][0]
_MOST_NS = 2**63 - 1
KEPT_MAX = 64  # jobs whose files stay open: the looks keep them, too, and a process may have 1024 open


@dataclass
class LatencyBeyond:
    """The clock is replaced in tests."""

    settings: Settings
    unix_ns: Callable[[], int] = time.time_ns
    _slices: Slices = field(init=False)
    _gpus: dict[str, OfGpu] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _has_begun: bool = False
    _problem: str = ""
    _has_ended: bool = False

    def __post_init__(self) -> None:
        self._slices = Slices(self.settings.run_dir, KEPT_MAX)

    def once(self) -> str:
        """Decides for each GPU, and writes what changes. Returns "", or what was wrong when it was last tried to write
        something. Raises NodeError when the run directory cannot be listed."""
        with self._lock:
            if self._has_ended:
                return ""
            by_gpu = self._shared()
            changes: dict[tuple[int, str], bool] = {}
            self._gpus = {uuid: self._gpus.get(uuid) or OfGpu() for uuid in by_gpu}
            for uuid, grants in by_gpu.items():
                cores = cores_of_tenants(grants, self.settings.mps_multi_user)
                said = [one for grant in grants if (one := self._said(grant, cores[grant.job_id])) is not None]
                changes |= {(job_id, uuid): to for job_id, to in self._gpus[uuid].decide(said, self.unix_ns()).items()}
            if changes or (by_gpu and not self._has_begun):  # a killed agent may have told some and not the others
                self._try_to_write(changes)
            return self._problem

    def end(self) -> str:
        """Has all jobs treated as they asked. Nothing is decided after it. Returns "", or what is wrong. Raises
        NodeError and OSError."""
        with self._lock:
            self._has_ended = True
            urgent = [grant for grants in self._shared().values() for grant in grants if is_latency(grant)]
            changes = {(grant.job_id, grant.gpu_uuid): False for grant in urgent}
            return self._write(changes) if changes else ""

    def _shared(self) -> dict[str, list[Grant]]:
        """Returns the jobs of the GPUs that have a latency-critical one, but for those with a MIG instance."""
        by_gpu: dict[str, list[Grant]] = {}
        for grant in self._slices.grants():
            if grant.mode not in ALONE:
                by_gpu.setdefault(grant.gpu_uuid, []).append(grant)
        return {uuid: grants for uuid, grants in by_gpu.items() if any(map(is_latency, grants))}

    def _said(self, grant: Grant, cores_percent: int) -> Said | None:
        """Returns what a job says, whose tenant has these cores: a client of an MPS server uses all of the server's
        time. None: it has ended, or its memory is off the GPU or waits for room there. It says nothing whose user took
        the file away."""
        if self._slices.order_of(grant) in OFF:
            return None
        try:
            beyond = is_latency(grant) and self._slices.is_beyond(grant)
        except OSError:
            return None
        try:
            head = self._slices.head_of(grant)
            (used_ns,) = struct.unpack_from("<Q", head, _USED_AT)
            (more_ns,) = struct.unpack_from("<Q", head, _MORE_AT)
        except (OSError, struct.error):
            used_ns = more_ns = 0
        more_ns, used_ns = min(more_ns, _MOST_NS), min(used_ns, _MOST_NS)
        return Said(grant.job_id, cores_percent, is_latency(grant), beyond, more_ns, used_ns)

    def _try_to_write(self, changes: Mapping[tuple[int, str], bool]) -> None:
        try:
            self._problem = self._write(changes)
            self._has_begun = True
        except (NodeError, OSError) as error:
            self._problem = str(error)

    def _write(self, changes: Mapping[tuple[int, str], bool]) -> str:
        ledger = common.open_ledger(self.settings)
        try:
            return "; ".join(common.update_neighbours(self.settings, ledger, changes))
        finally:
            ledger.close()


def make(beyond: LatencyBeyond, report: Callable[[str], None]) -> Repeated:
    """Returns the work."""
    return Repeated("latency-critical jobs that want more than their cores", PERIOD_S, beyond.once, report)
