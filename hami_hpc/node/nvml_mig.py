# SPDX-License-Identifier: Apache-2.0
"""The part of pynvml that a prolog or epilog with mode=mig calls, by the C module of ctypes alone: pynvml and what it
imports take longer than all the rest of such a stage (docs/adr/021).

Names, arguments, results and errors are pynvml's (tests/unit/test_nvml_mig.py compares them), so that node/mig.py
takes either. `is_usable` says whether the C module has what is used here: CPython does not document it. Structures and
versions are those of nvml.h. Not for threads.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

try:
    import _ctypes as c_types
except ImportError:
    c_types = None  # type: ignore[assignment]

NVML_SUCCESS = 0
NVML_ERROR_INVALID_ARGUMENT = 2
NVML_ERROR_NOT_SUPPORTED = 3
NVML_ERROR_NO_PERMISSION = 4
NVML_ERROR_NOT_FOUND = 6
NVML_ERROR_LIBRARY_NOT_FOUND = 12
NVML_ERROR_FUNCTION_NOT_FOUND = 13
NVML_ERROR_IN_USE = 19
NVML_ERROR_INSUFFICIENT_RESOURCES = 23
NVML_DEVICE_UUID_V2_BUFFER_SIZE = 96
NVML_DEVICE_NAME_V2_BUFFER_SIZE = 96
nvmlGpuInstanceProfileInfo_v2 = 0x2000098  # the size, and the version in the upper byte
nvmlComputeInstanceProfileInfo_v2 = 0x2000088
LIBRARY = "libnvidia-ml.so.1"
USED = ("CFuncPtr", "FUNCFLAG_CDECL", "Structure", "_SimpleCData", "byref", "dlopen", "dlsym")

is_usable = all(hasattr(c_types, name) for name in USED)

_texts = {
    NVML_ERROR_LIBRARY_NOT_FOUND: "NVML Shared Library Not Found",
    NVML_ERROR_FUNCTION_NOT_FOUND: "Function Not Found",
}
_loaded: dict[str, int] = {}
_functions: dict[str, Any] = {}


class NVMLError(Exception):
    """A status that is not NVML_SUCCESS."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        if self.value not in _texts and _loaded:
            text = _pointer("nvmlErrorString", _TextFunction)(self.value)
            _texts[self.value] = text.decode(errors="replace") if text else ""
        return _texts.get(self.value) or f"NVML Error with code {self.value}"


if TYPE_CHECKING:
    from ctypes import c_char, c_uint, c_ulonglong
    from ctypes import c_char_p as _Text
    from ctypes import c_int as _Int
    from ctypes import c_void_p as _Pointer
elif is_usable:

    class c_uint(c_types._SimpleCData):
        _type_ = "I"

    class c_ulonglong(c_types._SimpleCData):
        _type_ = "Q"

    class c_char(c_types._SimpleCData):
        _type_ = "c"

    class _Int(c_types._SimpleCData):
        _type_ = "i"

    class _Text(c_types._SimpleCData):
        _type_ = "z"

    class _Pointer(c_types._SimpleCData):
        _type_ = "P"


if is_usable:

    class c_nvmlDevice_t(_Pointer):  # derived once more, so that arrays give it and not a number
        pass

    class c_nvmlGpuInstance_t(_Pointer):
        pass

    class c_nvmlComputeInstance_t(_Pointer):
        pass

    class _Function(c_types.CFuncPtr):
        _flags_ = c_types.FUNCFLAG_CDECL
        _restype_ = _Int

    class _TextFunction(c_types.CFuncPtr):
        _flags_ = c_types.FUNCFLAG_CDECL
        _restype_ = _Text

    byref = c_types.byref
    _Name = c_char * NVML_DEVICE_NAME_V2_BUFFER_SIZE
    _Uuid = c_char * NVML_DEVICE_UUID_V2_BUFFER_SIZE

    class c_nvmlGpuInstancePlacement_t(c_types.Structure):
        _fields_ = (("start", c_uint), ("size", c_uint))

    class c_nvmlGpuInstanceInfo_t(c_types.Structure):
        _fields_ = (
            *(("device", c_nvmlDevice_t), ("id", c_uint), ("profileId", c_uint)),
            ("placement", c_nvmlGpuInstancePlacement_t),
        )

    class c_nvmlComputeInstanceInfo_t(c_types.Structure):
        _fields_ = (
            *(("device", c_nvmlDevice_t), ("gpuInstance", c_nvmlGpuInstance_t), ("id", c_uint), ("profileId", c_uint)),
            ("placement", c_nvmlGpuInstancePlacement_t),  # of a compute instance: the same two numbers
        )

    class c_nvmlGpuInstanceProfileInfo_v2_t(c_types.Structure):
        _fields_ = (
            *((name, c_uint) for name in ("version", "id", "isP2pSupported", "sliceCount", "instanceCount")),
            *(
                (f"{name}Count", c_uint)
                for name in ("multiprocessor", "copyEngine", "decoder", "encoder", "jpeg", "ofa")
            ),
            *(("memorySizeMB", c_ulonglong), ("name", _Name)),
        )

    class c_nvmlComputeInstanceProfileInfo_v2_t(c_types.Structure):
        _fields_ = (
            *((name, c_uint) for name in ("version", "id", "sliceCount", "instanceCount", "multiprocessorCount")),
            *((f"shared{name}Count", c_uint) for name in ("CopyEngine", "Decoder", "Encoder", "Jpeg", "Ofa")),
            ("name", _Name),
        )


def _pointer(name: str, kind: Any) -> Any:
    """Returns a function of the library. Raises NVMLError when the driver does not have it."""
    if name not in _functions:
        try:
            _functions[name] = kind(c_types.dlsym(_loaded[LIBRARY], name))
        except OSError:
            raise NVMLError(NVML_ERROR_FUNCTION_NOT_FOUND) from None
    return _functions[name]


def _call(name: str, *arguments: Any) -> int:
    status = int(_pointer(name, _Function)(*arguments))
    if status != NVML_SUCCESS:
        raise NVMLError(status)
    return status


def _number(name: str, device: Any) -> int:
    value = c_uint()
    _call(name, device, byref(value))
    return int(value.value)


def nvmlInit() -> None:
    if LIBRARY not in _loaded:
        try:
            _loaded[LIBRARY] = c_types.dlopen(LIBRARY, 0)
        except OSError:
            raise NVMLError(NVML_ERROR_LIBRARY_NOT_FOUND) from None
    _call("nvmlInitWithFlags", 0)


def nvmlShutdown() -> None:
    _call("nvmlShutdown")


def nvmlDeviceGetHandleByUUID(uuid: str) -> Any:
    device = c_nvmlDevice_t()
    _call("nvmlDeviceGetHandleByUUID", uuid.encode(), byref(device))
    return device


def nvmlDeviceGetUUID(device: Any) -> str:
    text = _Uuid()
    _call("nvmlDeviceGetUUID", device, text, NVML_DEVICE_UUID_V2_BUFFER_SIZE)
    return bytes(text.value).decode()


def nvmlDeviceGetMigMode(device: Any) -> list[int]:
    current, pending = c_uint(), c_uint()
    _call("nvmlDeviceGetMigMode", device, byref(current), byref(pending))
    return [current.value, pending.value]


def nvmlDeviceGetMaxMigDeviceCount(device: Any) -> int:
    return _number("nvmlDeviceGetMaxMigDeviceCount", device)


def nvmlDeviceGetMigDeviceHandleByIndex(device: Any, index: int) -> Any:
    found = c_nvmlDevice_t()
    _call("nvmlDeviceGetMigDeviceHandleByIndex", device, index, byref(found))
    return found


def nvmlDeviceGetGpuInstanceId(device: Any) -> int:
    return _number("nvmlDeviceGetGpuInstanceId", device)


def nvmlDeviceGetComputeInstanceId(device: Any) -> int:
    return _number("nvmlDeviceGetComputeInstanceId", device)


def nvmlDeviceGetGpuInstanceProfileInfo(device: Any, profile: int) -> Any:
    info = c_nvmlGpuInstanceProfileInfo_v2_t(version=nvmlGpuInstanceProfileInfo_v2)
    _call("nvmlDeviceGetGpuInstanceProfileInfoV", device, profile, byref(info))
    return info


def nvmlDeviceGetGpuInstancePossiblePlacements(device: Any, profile_id: int, placements: Any, count: Any) -> int:
    return _call("nvmlDeviceGetGpuInstancePossiblePlacements_v2", device, profile_id, placements, count)


def nvmlDeviceGetGpuInstances(device: Any, profile_id: int, instances: Any, count: Any) -> int:
    return _call("nvmlDeviceGetGpuInstances", device, profile_id, instances, count)


def nvmlDeviceGetGpuInstanceById(device: Any, gi_id: int) -> Any:
    found = c_nvmlGpuInstance_t()
    _call("nvmlDeviceGetGpuInstanceById", device, gi_id, byref(found))
    return found


def nvmlDeviceCreateGpuInstanceWithPlacement(device: Any, profile_id: int, placement: Any) -> Any:
    made = c_nvmlGpuInstance_t()
    _call("nvmlDeviceCreateGpuInstanceWithPlacement", device, profile_id, placement, byref(made))
    return made


def nvmlGpuInstanceGetInfo(instance: Any) -> Any:
    info = c_nvmlGpuInstanceInfo_t()
    _call("nvmlGpuInstanceGetInfo", instance, byref(info))
    return info


def nvmlGpuInstanceDestroy(instance: Any) -> int:
    return _call("nvmlGpuInstanceDestroy", instance)


def nvmlGpuInstanceGetComputeInstanceProfileInfo(instance: Any, profile: int, engine_profile: int) -> Any:
    info = c_nvmlComputeInstanceProfileInfo_v2_t(version=nvmlComputeInstanceProfileInfo_v2)
    _call("nvmlGpuInstanceGetComputeInstanceProfileInfoV", instance, profile, engine_profile, byref(info))
    return info


def nvmlGpuInstanceCreateComputeInstance(instance: Any, profile_id: int) -> Any:
    made = c_nvmlComputeInstance_t()
    _call("nvmlGpuInstanceCreateComputeInstance", instance, profile_id, byref(made))
    return made


def nvmlGpuInstanceGetComputeInstances(instance: Any, profile_id: int, instances: Any, count: Any) -> int:
    return _call("nvmlGpuInstanceGetComputeInstances", instance, profile_id, instances, count)


def nvmlComputeInstanceGetInfo(instance: Any) -> Any:
    info = c_nvmlComputeInstanceInfo_t()
    _call("nvmlComputeInstanceGetInfo_v2", instance, byref(info))
    return info


def nvmlComputeInstanceDestroy(instance: Any) -> int:
    return _call("nvmlComputeInstanceDestroy", instance)
