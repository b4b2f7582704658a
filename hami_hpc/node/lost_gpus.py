# SPDX-License-Identifier: Apache-2.0
"""Says which GPUs keep NVML from listing a node's. Imported when that has failed."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

DRIVERS = "/proc/driver/nvidia/gpus"  # a directory for each GPU of the driver's, also a lost one, by PCI address
PCI_CHARACTERS = 12  # of 0000:4b:00.0; NVML's domain has eight digits


def named(nvml: ModuleType, folder: str | None = None) -> str:
    """Returns which GPUs of an opened NVML do not answer, by index and PCI address as far as the driver tells it, and
    what to do: a clause after its error; "" where all answer now."""
    lost: list[int] = []
    answering: set[str] = set()
    try:
        count = int(nvml.nvmlDeviceGetCount())
    except nvml.NVMLError:
        return ""
    for index in range(count):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            nvml.nvmlDeviceGetUUID(handle)
            bus = nvml.nvmlDeviceGetPciInfo(handle).busId
        except nvml.NVMLError:
            lost.append(index)
            continue
        text = bus.decode(errors="replace") if isinstance(bus, bytes) else str(bus)
        answering.add(text.lower()[-PCI_CHARACTERS:])
    if not lost:
        return ""
    try:
        present = {name.lower() for name in os.listdir(DRIVERS if folder is None else folder)}
    except OSError:
        present = set()
    silent = sorted(name for name in present if name[-PCI_CHARACTERS:] not in answering)
    where = f", by PCI address {', '.join(silent)}" if silent else ""
    return (
        f"; of {count} GPUs one or more do not answer: by NVML's index {', '.join(map(str, lost))}{where}. Drain the "
        "node (scontrol update nodename=... state=drain reason=...), then restart it or have the GPU repaired"
    )
