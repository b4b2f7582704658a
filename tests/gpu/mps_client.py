# SPDX-License-Identifier: Apache-2.0
"""One CUDA process that says what it got, in one line of JSON.

Usage: python3 mps_client.py sms | take MIB | hold MIB SECONDS | fault

Needs the standard library and libcuda.so.1 only, the simulated one too.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time

STEP = 64 << 20
SM_COUNT = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
# Stores to address 16, which is nobody's.
BAD = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry bad()
{
	.reg .b64 %a;
	.reg .b32 %v;
	mov.u64 %a, 16;
	mov.u32 %v, 1;
	st.global.u32 [%a], %v;
	ret;
}
"""


class Cuda:
    """libcuda.so.1; a call that fails ends the program with what it says."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")

    def __getattr__(self, name: str) -> object:
        function = getattr(self.library, name)

        def call(*arguments: object) -> None:
            code = function(*arguments)
            if code:
                print(json.dumps({"error": f"{name}: CUDA error {code}", "status": code}), flush=True)
                sys.exit(1)

        return call


def take(cuda: Cuda, mib: int) -> int:
    """Takes up to so much memory, and returns the MiB that it got."""
    taken = 0
    while taken < mib << 20:
        address = ctypes.c_uint64()
        if cuda.library.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(STEP)):
            break
        taken += STEP
    return taken >> 20


def fault(cuda: Cuda) -> int:
    """Makes the GPU store to an illegal address, and returns the error that the next call has."""
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    cuda.cuModuleLoadData(ctypes.byref(module), BAD)  # type: ignore[operator]
    cuda.cuModuleGetFunction(ctypes.byref(function), module, b"bad")  # type: ignore[operator]
    cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None)  # type: ignore[operator]
    return int(cuda.library.cuCtxSynchronize())


def main() -> None:
    begin = time.monotonic()
    cuda = Cuda()
    cuda.cuInit(0)  # type: ignore[operator]
    context, sms = ctypes.c_void_p(), ctypes.c_int()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)  # type: ignore[operator]
    cuda.cuCtxSetCurrent(context)  # type: ignore[operator]
    init_ms = 1000 * (time.monotonic() - begin)
    cuda.cuDeviceGetAttribute(ctypes.byref(sms), SM_COUNT, 0)  # type: ignore[operator]
    cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))  # type: ignore[operator]
    numbers: dict[str, float] = {"sms": sms.value, "init_ms": round(init_ms, 1)}
    numbers |= {"total_mib": total.value >> 20, "free_mib": free.value >> 20}
    if sys.argv[1] in ("take", "hold"):
        numbers["taken_mib"] = take(cuda, int(sys.argv[2]))
    if sys.argv[1] == "hold":
        time.sleep(float(sys.argv[3]))
        cuda.cuCtxSynchronize()  # type: ignore[operator]
    if sys.argv[1] == "fault":
        numbers["fault"] = fault(cuda)
    print(json.dumps(numbers))


if __name__ == "__main__":
    main()
