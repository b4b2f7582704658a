# SPDX-License-Identifier: Apache-2.0
"""Device memory that is in use and that NVML shows of no process: a handle for other GPUs keeps it (docs/adr/103), or a
fault of the driver. Nobody else can have it, so turns count it, and an administrator is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from hami_hpc.agent.gpus import GpuLook
from hami_hpc.core.agent_state import OK

SLACK_BYTES = 256 << 20  # the driver's own, and what came or went between NVML's two answers
LEAST_BYTES = 1 << 30  # of which people are told
LASTS_NS = 30_000_000_000  # when it is there for so long


@dataclass
class Unseen:
    """Since when each GPU has had so much of it; 0: people were told."""

    _since_ns: dict[str, int] = field(default_factory=dict)

    def look(
        self, gpu_looks: Iterable[GpuLook], boot_ns: int, event: Callable[[str, str, int, str], object]
    ) -> Mapping[str, int]:
        """Returns the bytes of each GPU that has such memory. Makes one event of it where it lasts."""
        found = {one.gpu.uuid: one for one in gpu_looks if one.state == OK and _bytes(one) > SLACK_BYTES}
        lasting = [uuid for uuid, one in found.items() if _bytes(one) >= LEAST_BYTES]
        self._since_ns = {uuid: self._since_ns.get(uuid, boot_ns) for uuid in lasting}
        for uuid, since_ns in self._since_ns.items():
            if since_ns and boot_ns - since_ns >= LASTS_NS:
                one = found[uuid]
                text = (
                    f"GPU {one.gpu.minor} ({uuid}): {_bytes(one) >> 20} MiB are in use that NVML shows of no process; "
                    "jobs that take turns go without them. If they stay when no process is on the GPU, reset it"
                )
                event("memory_unseen", text, 0, uuid)
                self._since_ns[uuid] = 0
        return {uuid: _bytes(one) for uuid, one in found.items()}


def _bytes(one: GpuLook) -> int:
    """Returns them; of a GPU that MIG divides NVML's numbers are not about the same."""
    return 0 if one.is_mig else one.used_bytes - sum(process.used_bytes for process in one.processes)
