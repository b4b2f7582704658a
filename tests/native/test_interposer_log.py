# SPDX-License-Identifier: Apache-2.0
"""What the interposer says on the standard error holds no program up, and is written into no file of the program's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conformance import REAL_GPU, Slice
from swapped import FAMILIES, Swapped
from test_compute import machine
from test_interposer_manners import made
from test_swap import Machine

from hami_hpc.contract import constants as c

__all__ = ["machine", "made"]  # fixtures
pytestmark = pytest.mark.skipif(REAL_GPU, reason="shown on the simulation")

# Has a standard error that is full, and whose reader sleeps.
FULL = """
import os
ends = os.pipe()
os.set_blocking(ends[1], False)
try:
    while True:
        os.write(ends[1], b"x" * 4096)
except BlockingIOError:
    pass
os.set_blocking(ends[1], True)
os.dup2(ends[1], 2)
"""


@pytest.mark.parametrize("level", ["1", "2"])
def test_a_reader_who_sleeps_holds_nobody_up(level: str, tmp_path: Path, machine: Machine) -> None:
    job = Swapped.make(tmp_path / "job", *machine)
    job.made.extra[c.ENV_LOG] = level
    with job.start(FULL + FAMILIES) as program:
        for n in range(1, 3):
            assert job.move(out=True)[1] == "host"
            assert job.move(out=False)[1] == "gpu"
            assert program.ask() == f"round {n}"
        program.end()


# Closes its standard error, and has something else there.
REPLACED = """
import ctypes, os, socket, sys
how, path = sys.argv[1:]
os.close(2)
if how == "socket":
    ours, theirs = socket.socketpair()
    os.dup2(ours.fileno(), 2)
else:
    assert os.open(path, {"data": os.O_RDWR, "log": os.O_WRONLY | os.O_APPEND}[how] | os.O_CREAT) == 2
cu, address, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64(), ctypes.c_void_p()
assert cu.cuInit(0) == 0 and cu.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
assert cu.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 40)) == 2
if how == "socket":
    theirs.setblocking(False)
    try:
        print(theirs.recv(99))
    except BlockingIOError:
        print("nothing")
"""


@pytest.mark.parametrize("how", ["socket", "data", "log"])
def test_no_line_is_written_into_what_has_the_place_of_the_standard_error(
    how: str, made: Slice, tmp_path: Path
) -> None:
    """Only into what can be nothing but written: it may be a log."""
    path = tmp_path / "own"
    command = [sys.executable, "-I", "-c", REPLACED, how, str(path)]
    environment = made.environment() | {c.ENV_LOG: "2"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout == ("nothing\n" if how == "socket" else "")
    if how != "socket":
        assert ("hami_hpc: " in path.read_text()) == (how == "log")


@pytest.mark.parametrize("level", ["", "x", "-1", "99999999999999999999", "0x", "\n", "%s%n"])
def test_errors_are_said_whatever_level_is_set(level: str, made: Slice) -> None:
    environment = made.environment() | {c.ENV_LOG: level}
    del environment[c.ENV_LIMITS]
    code = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))"
    command = [sys.executable, "-I", "-c", code]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert result.stdout == "800\n"
    assert result.stderr.count("no limits (HAMI_HPC_LIMITS is not set)") == 1
