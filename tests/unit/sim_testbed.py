# SPDX-License-Identifier: Apache-2.0
"""A simulated machine of two GPUs, for programs that use nvidia-ml-py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SIM = ROOT / "build" / "native" / "sim"
MIB = 1 << 20

# Holds 8 GiB on device 0, and runs a kernel of `spin_ms` when told to, until its standard input ends.
TENANT = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *arguments):
    result = getattr(cuda, name)(*arguments)
    assert result == 0, (name, result)
context, address, module, function = (ctypes.c_void_p() for _ in range(4))
call("cuInit", 0)
call("cuCtxCreate_v2", ctypes.byref(context), 0, 0)
call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(8 << 30))
call("cuModuleLoadData", ctypes.byref(module), b"image")
call("cuModuleGetFunction", ctypes.byref(function), module, b"sim_spin_ns")
print("ready", flush=True)
for line in sys.stdin:
    ns = ctypes.c_uint64(int(line) * 1000000)
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(ns))
    call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, arguments, None)
    call("cuCtxSynchronize")
    print("done", flush=True)
"""


@dataclass(frozen=True, slots=True)
class Machine:
    directory: Path
    env: dict[str, str]

    def ask(self, program: str) -> Any:
        """What `program`, with pynvml as n and its first device as d, prints as JSON."""
        return self.ask_after(lambda: None, program)

    def ask_after(self, act: Callable[[], object], program: str) -> Any:
        """The same of right after `act`: Python and NVML have started before it."""
        prelude = (
            "import json, pynvml as n\nn.nvmlInit()\nd = n.nvmlDeviceGetHandleByIndex(0)\n"
            "def error(f, *a):\n    try:\n        f(*a)\n"
            "    except n.NVMLError as e:\n        return type(e).__name__\n"
            "print('ready', flush=True)\ninput()\n"
        )
        command = [sys.executable, "-c", f"{prelude}print(json.dumps({program}))"]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, env=self.env, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as asking:
            assert asking.stdout is not None
            if asking.stdout.readline() == "ready\n":
                act()
            out, errors = asking.communicate("\n", timeout=60)
        assert asking.returncode == 0, errors
        return json.loads(out)

    def state(self, *arguments: object) -> str:
        """What sim-state prints of this machine."""
        command = [str(SIM / "sim-state"), str(self.directory), *map(str, arguments)]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout

    def tenant(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", TENANT], env=self.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate(timeout=10)


@cache
def build() -> None:
    subprocess.run(["make", "-s", "-C", str(ROOT / "native"), "sim"], check=True, timeout=300)


def make(directory: Path) -> Machine:
    """A machine with an H200 and an A100 in `directory`."""
    build()
    subprocess.run([str(SIM / "sim-machine"), str(directory), "h200", "a100-40"], check=True, timeout=10)
    env = {**os.environ, "HAMI_SIM": str(directory), "LD_LIBRARY_PATH": str(SIM)}
    env.pop("LD_PRELOAD", None)
    return Machine(directory, env)
