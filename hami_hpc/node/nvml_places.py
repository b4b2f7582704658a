# SPDX-License-Identifier: Apache-2.0
"""Where NVML says that this node's GPUs are: NUMA node, CPUs, NVLinks; and whether MIG is on. Not for prologs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import TypeVar

from hami_hpc.core.cpu_cores import as_list
from hami_hpc.core.node_inventory import Surroundings
from hami_hpc.errors import NodeError
from hami_hpc.node.nvml import open_nvml

T = TypeVar("T")


def read_surroundings() -> dict[str, Surroundings]:
    """Returns by UUID where each GPU is in this node. Raises NodeError as read_devices."""
    nvml = open_nvml()
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        buses = {_bus(nvml, handle): str(nvml.nvmlDeviceGetUUID(handle)) for handle in handles}
        by_bus = {bus: uuid for bus, uuid in buses.items() if bus}
        return {str(nvml.nvmlDeviceGetUUID(handle)): _surroundings_of(nvml, handle, by_bus) for handle in handles}
    except nvml.NVMLError as error:
        raise NodeError(f"NVML failed while listing GPUs ({error}). Check with nvidia-smi and dmesg (Xid)") from error
    finally:
        nvml.nvmlShutdown()


def _surroundings_of(nvml: ModuleType, handle: object, by_bus: Mapping[str, str]) -> Surroundings:
    words = -(-(os.cpu_count() or 1) // 64)

    def asked(call: Callable[[], T]) -> T | None:
        """Returns None for what this driver, or this pynvml, does not have."""
        try:
            return call()
        except (nvml.NVMLError, AttributeError):
            return None

    def links() -> list[int]:
        return [link for link in range(nvml.NVML_NVLINK_MAX_LINKS) if _is_linked(nvml, handle, link)]

    def peers() -> dict[str, int]:
        """Returns by UUID how many links go to another GPU of this node; those to a switch go to none."""
        ends = [by_bus.get(_text(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId)) for link in up or ()]
        return {uuid: ends.count(uuid) for uuid in ends if uuid is not None}

    up = asked(links)
    mask = asked(lambda: nvml.nvmlDeviceGetCpuAffinity(handle, words))
    return Surroundings(
        numa_node=asked(lambda: int(nvml.nvmlDeviceGetNumaNodeId(handle))),
        cpus=None if mask is None else as_list(_bits(mask)),
        nvlinks=None if up is None else len(up),
        peers=None if up is None else asked(peers),
        is_mig=asked(lambda: int(nvml.nvmlDeviceGetMigMode(handle)[0]) == 1),
    )


def _bits(words: Iterable[int]) -> Iterator[int]:
    """Yields the CPUs of a mask, whose lowest word is the first."""
    for index, word in enumerate(words):
        yield from (index * 64 + bit for bit in range(64) if int(word) >> bit & 1)


def _bus(nvml: ModuleType, handle: object) -> str:
    try:
        return _text(nvml.nvmlDeviceGetPciInfo(handle).busId)
    except (nvml.NVMLError, AttributeError):
        return ""


def _text(bus: bytes | str) -> str:
    return (bus.decode("ascii", "replace") if isinstance(bus, bytes) else bus).lower()


def _is_linked(nvml: ModuleType, handle: object, link: int) -> bool:
    """Returns whether a link is up. A GPU with fewer links calls the others an invalid argument."""
    try:
        return bool(nvml.nvmlDeviceGetNvLinkState(handle, link) == nvml.NVML_FEATURE_ENABLED)
    except nvml.NVMLError_InvalidArgument:
        return False
