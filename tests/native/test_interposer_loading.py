# SPDX-License-Identifier: Apache-2.0
"""Programs that load and close the driver's libraries in ways of their own, and threads that load others meanwhile."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conformance import MIB, REAL_GPU, Slice, compiled
from test_interposer_manners import made

__all__ = ["made"]
pytestmark = pytest.mark.skipif(REAL_GPU, reason="shown on the simulation; tests/gpu has the frameworks")

# As a library that looks whether there is a driver (hwloc, MPI), and closes it again before the program begins.
LOADS_IT_TWICE = """
import _ctypes, ctypes, mmap, sys

def closed(name, function):
    library = ctypes.CDLL(name)
    getattr(library, function)
    _ctypes.dlclose(library._handle)

closed("libcuda.so.1", "cuInit")
closed("libnvidia-ml.so.1", "nvmlInit_v2")
taken = [mmap.mmap(-1, size << 12) for size in range(1, 1024)]  # so that they do not come back to where they were
cuda, nvml = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1")
context, device = ctypes.c_void_p(), ctypes.c_void_p()
free, total, memory = ctypes.c_size_t(), ctypes.c_size_t(), (ctypes.c_uint64 * 3)()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
assert nvml.nvmlInit_v2() == 0
assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
assert nvml.nvmlDeviceGetMemoryInfo(device, memory) == 0
print(total.value, memory[0])
"""


def test_libraries_that_were_closed_and_are_loaded_again_are_hooked(made: Slice) -> None:
    command = [sys.executable, "-I", "-c", LOADS_IT_TWICE]
    result = subprocess.run(command, env=made.environment(), capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == [str(made.limit_mib * MIB)] * 2


SLOW_LOOKUPS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
void *dlsym(void *handle, const char *name)
{
	void *(*next)(void *, const char *) = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
	void *function = next(handle, name);
	usleep(1000);
	return function;
}
"""
LOOKS_WHEN_LOADED = """
#include <dlfcn.h>
__attribute__((constructor)) static void look(void)
{
	dlsym(dlopen("libcuda.so.1", RTLD_LAZY), "cuInit");
}
"""
LOADS_BESIDE_A_LOOKUP = """
import ctypes, sys, threading, time
cuda = ctypes.CDLL("libcuda.so.1")
first = threading.Thread(target=lambda: ctypes.CDLL(None).dlsym(ctypes.c_void_p(cuda._handle), b"cuInit"))
first.start()
time.sleep(0.05)
ctypes.CDLL(sys.argv[1])
first.join()
"""


def test_a_library_that_looks_for_cuda_as_it_is_loaded_hangs_nobody(made: Slice, tmp_path: Path) -> None:
    """Another thread has begun to use CUDA, and the loader waits: between two lookups, which a tool makes long."""
    names = tmp_path / "names"
    names.write_text("GLIBC_2.34 { global: dlsym; };")
    slow = compiled(SLOW_LOOKUPS, tmp_path / "libslow.so", f"-Wl,--version-script={names}")
    looks = compiled(LOOKS_WHEN_LOADED, tmp_path / "liblooks.so")
    environment = made.environment()
    environment["LD_PRELOAD"] += f" {slow}"
    command = [sys.executable, "-I", "-c", LOADS_BESIDE_A_LOOKUP, str(looks)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=30)
    assert result.returncode == 0, result.stderr
