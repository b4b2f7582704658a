# SPDX-License-Identifier: Apache-2.0
"""Opens NVML and lists the GPUs. Imports pynvml only when it is called: the prolog needs it once a boot.

What the GPUs do is read by hami_hpc/agent/gpus.py.
"""

from __future__ import annotations

import sys

from hami_hpc.core.inventory import Device
from hami_hpc.errors import NodeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

MIB = 1 << 20


def _pynvml() -> ModuleType:
    """Imports nvidia-ml-py, also under `python3 -S`, which starts without site-packages."""
    try:
        import pynvml
    except ModuleNotFoundError:
        import site

        site.main()  # adds site-packages, as the interpreter does without -S
        try:
            import pynvml
        except ModuleNotFoundError as error:
            raise NodeError(
                f"nvidia-ml-py is not installed for {sys.executable}: install hami-hpc's requirements"
            ) from error
    module: ModuleType = pynvml
    return module


def open_nvml() -> ModuleType:
    """Returns pynvml, initialised; call its nvmlShutdown() at the end. Raises NodeError with advice."""
    return _initialised(_pynvml())


def open_for_mig() -> ModuleType:
    """As open_nvml, with what the stages of node/mig.py and mig_gpu.py call alone, which is there sooner; pynvml where
    the C module of ctypes is not what it was."""
    from hami_hpc.node import nvml_mig

    return _initialised(nvml_mig if nvml_mig.is_usable else _pynvml())


def _initialised(nvml: ModuleType) -> ModuleType:
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise NodeError(
            f"NVML cannot be used ({error}): the NVIDIA driver is not loaded or its libnvidia-ml.so.1 is missing. "
            "Check with nvidia-smi on this node",
        ) from error
    return nvml


def read_devices() -> tuple[Device, ...]:
    """Returns all GPUs that the driver shows. Raises NodeError with advice when NVML is missing or fails."""
    nvml = open_nvml()
    try:
        handles = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
        return tuple(device_of(nvml, handle) for handle in handles)
    except nvml.NVMLError as error:
        from hami_hpc.node import lost_gpus

        which = lost_gpus.named(nvml)
        raise NodeError(
            f"NVML failed while listing GPUs ({error}){which}. Check with nvidia-smi and dmesg (Xid)"
        ) from error
    finally:
        nvml.nvmlShutdown()


def device_of(nvml: ModuleType, handle: object) -> Device:
    """Returns one GPU. Raises NVMLError."""
    # Version 2 reports the driver's reserve separately; total minus reserve is what cuDeviceTotalMem shows.
    memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    return Device(
        minor=int(nvml.nvmlDeviceGetMinorNumber(handle)),
        uuid=str(nvml.nvmlDeviceGetUUID(handle)),
        name=str(nvml.nvmlDeviceGetName(handle)),
        total_mib=int(memory.total - memory.reserved) // MIB,
    )
