# SPDX-License-Identifier: Apache-2.0
"""A job whose device memory is moved to the host and back while it runs, on the simulation or a real GPU."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from conformance import Slice, make_slice, put

from hami_hpc.contract import constants as c
from hami_hpc.core.records import USAGE_FILE_SIZE

SLOTS_AT = c.USAGE_SIZE + c.USAGE_STEP_COUNT * c.USAGE_STEP_SIZE
STACK_MIB = 128  # of the simulated H200, of a context: off the GPU with what moves, and not copied
WORDS = {number: word for word, number in c.SWAP_STATES.items()}

# Has memory in pools, its own and the device's, whose segments of 32 MiB are free at their beginnings, in the middle,
# nearly all, every second piece, or all. Says "ready", then for each line of its input compares and changes them.
POOLS = """
import sys, ctypes, struct
cu = ctypes.CDLL("libcuda.so.1")
def ok(result):
    assert result == 0, result
P, S, U64, MIB = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64, 1 << 20
ctx, stream, device, own, gone = P(), P(), P(), P(), P()
ok(cu.cuInit(0)); ok(cu.cuCtxCreate_v2(ctypes.byref(ctx), 0, 0)); ok(cu.cuStreamCreate(ctypes.byref(stream), 1))
properties = struct.pack("iiiiPNH54x", 1, 0, 1, 0, 0, 0, 0)
ok(cu.cuDeviceGetDefaultMemPool(ctypes.byref(device), 0))
ok(cu.cuMemPoolCreate(ctypes.byref(own), properties))
ok(cu.cuMemPoolCreate(ctypes.byref(gone), properties)); ok(cu.cuMemPoolDestroy(gone))
for pool in device, own:
    ok(cu.cuMemPoolSetAttribute(pool, 4, ctypes.byref(U64(2**64 - 1))))  # keeps all that is free
live, seed = {}, 0
def new(pool, n):
    global seed
    a = U64(); seed += 1
    ok(cu.cuMemAllocFromPoolAsync(ctypes.byref(a), S(n), pool, stream)); ok(cu.cuStreamSynchronize(stream))
    data = (bytes([(seed * 37 + 11 * k) % 256 for k in range(251)]) * (n // 251 + 1))[:n]
    ok(cu.cuMemcpyHtoD_v2(a, data, S(n))); live[a.value] = data
    return a.value
def free(a):
    ok(cu.cuMemFreeAsync(U64(a), stream)); ok(cu.cuStreamSynchronize(stream)); del live[a]
def check():
    for a, data in live.items():
        out = ctypes.create_string_buffer(len(data)); ok(cu.cuMemcpyDtoH_v2(out, U64(a), S(len(data))))
        assert out.raw == data, hex(a)
for pool, holes in (device, ([0], [4, 5], range(15), range(1, 16, 2), range(0, 16, 2))), (own, ([0], [12], range(16))):
    segments = [[new(pool, 2 * MIB) for _ in range(16)] for _ in holes]
    for segment, hole in zip(segments, holes):
        for i in hole:
            free(segment[i])
small = [new(device, 1000) for _ in range(100)]
for a in small[:50]:
    free(a)
check()
print("ready")
for n, line in enumerate(sys.stdin, 1):
    check(); free(next(iter(live))); new(device, 5 * MIB); check(); print(f"round {n}")
"""

# Has memory of each family with content of its own, of whole pages and other sizes. Says "ready", then for each line of
# its input compares all of it.
FAMILIES = """
import sys, ctypes
cu = ctypes.CDLL("libcuda.so.1")
def ok(result):
    assert result == 0, result
P, S, U64 = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64
ctx, stream = P(), P()
ok(cu.cuInit(0)); ok(cu.cuCtxCreate_v2(ctypes.byref(ctx), 0, 0)); ok(cu.cuStreamCreate(ctypes.byref(stream), 1))
class Props(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("loc", ctypes.c_int), ("id", ctypes.c_int),
                ("win", P), ("flags", ctypes.c_ubyte * 8)]
class Access(ctypes.Structure):
    _fields_ = [("loc", ctypes.c_int), ("id", ctypes.c_int), ("flags", ctypes.c_int)]
class Array(ctypes.Structure):
    _fields_ = [("w", S), ("h", S), ("f", ctypes.c_int), ("c", ctypes.c_uint)]
MIB = 1 << 20
def plain(n):
    a = U64(); ok(cu.cuMemAlloc_v2(ctypes.byref(a), S(n))); return a.value
def pool(n):
    a = U64(); ok(cu.cuMemAllocAsync(ctypes.byref(a), S(n), stream)); return a.value
def vmm(n):
    a, h = U64(), U64(); p = Props(1, 0, 1, 0, None)
    ok(cu.cuMemAddressReserve(ctypes.byref(a), S(n), S(0), U64(0), U64(0)))
    for at in range(0, n, 32 * MIB):
        ok(cu.cuMemCreate(ctypes.byref(h), S(32 * MIB), ctypes.byref(p), U64(0)))
        ok(cu.cuMemMap(U64(a.value + at), S(32 * MIB), S(0), h, U64(0)))
        ok(cu.cuMemRelease(h))
    access = Access(1, 0, 3)
    ok(cu.cuMemSetAccess(a, S(n), ctypes.byref(access), S(1)))
    return a.value
def managed(n):
    a = U64(); ok(cu.cuMemAllocManaged(ctypes.byref(a), S(n), 1)); return a.value
made = {}
for name, make in dict(plain=plain, pool=pool, vmm=vmm, managed=managed).items():
    for i, n in enumerate((1 * MIB, 5 * MIB + 512, 24 * MIB, 40 * MIB)):
        n = (n + 32 * MIB - 1) // (32 * MIB) * 32 * MIB if make is vmm else n
        made[name, i] = make(n), n
small = [plain(1000) for _ in range(100)]
array, desc = P(), Array(1024, 1024, 0x20, 1)
ok(cu.cuArrayCreate_v2(ctypes.byref(array), ctypes.byref(desc)))
def fill(a, n, seed):
    data = bytes([(seed * 37 + 11 * k) % 256 for k in range(251)])
    data = (data * (n // 251 + 1))[:n]
    ok(cu.cuMemcpyHtoD_v2(U64(a), data, S(n))); return data
want = {key: fill(a, n, i) for i, (key, (a, n)) in enumerate(made.items())}
want_small = [fill(a, 1000, i) for i, a in enumerate(small)]
texels = bytes(range(256)) * 16
ok(cu.cuMemcpyHtoA_v2(array, S(0), texels, S(4096)))
out, memcmp = (ctypes.c_char * (64 * MIB))(), ctypes.CDLL(None).memcmp
memcmp.argtypes = P, P, S
def holds(a, data):
    ok(cu.cuMemcpyDtoH_v2(out, U64(a), S(len(data)))); return memcmp(out, data, len(data)) == 0
def check():
    for key, (a, n) in made.items():
        assert holds(a, want[key]), key
    assert all(map(holds, small, want_small))
    ok(cu.cuMemcpyAtoH_v2(out, array, S(0), S(4096)))
    assert out[:4096] == texels
check()
print("ready")
for n, line in enumerate(sys.stdin, 1):
    check(); print(f"round {n}")
"""

# To be put before its "ready".
SHARE = """
handle = (ctypes.c_char * 64)()
ok(cu.cuIpcGetMemHandle(ctypes.byref(handle), U64(made["plain", 2][0])))
"""


class Program:
    """A running program; killed where a test fails."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Program:
        if (said := self.answer()) != "ready":
            self.__exit__()
            raise AssertionError(f"the program did not begin, and said: {said!r}")
        return self

    def __exit__(self, *failure: object) -> None:
        self.process.kill()
        self.process.communicate()

    def answer(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def tell(self, line: str = "") -> None:
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def ask(self, line: str = "") -> str:
        self.tell(line)
        return self.answer()

    def end(self, timeout_s: float = 60) -> str:
        """Lets it come to its end; returns the rest of its output."""
        out, _ = self.process.communicate(timeout=timeout_s)
        assert self.process.returncode == 0
        return out


def slots(usage: Path) -> list[dict[str, int]]:
    """Returns the slots of the processes in a usage file."""
    data = usage.read_bytes()
    return [
        {
            name: int.from_bytes(data[at + offset : at + offset + size], "little")
            for name, (offset, size, _kind) in c.USAGE_SLOT_FIELDS.items()
        }
        for at in range(SLOTS_AT, USAGE_FILE_SIZE, c.USAGE_SLOT_SIZE)
        if any(data[at : at + 4])
    ]


@dataclass(frozen=True)
class Swapped:
    made: Slice

    @classmethod
    def make(
        cls,
        directory: Path,
        machine: Path | None,
        uuid: str,
        *,
        mib: int = 120_000,
        swap: int = c.SWAP_IN,
        pinned_mib: int = 0,
    ) -> Swapped:
        fields = {"swap": swap, "swap_pinned_bytes": pinned_mib << 20}
        return cls(make_slice(directory, machine, uuid, job_mib=mib, policy="none", fields=fields))

    def start(self, code: str, *arguments: str) -> Program:
        """Runs Python code that prints "ready"."""
        python = sys.executable if self.made.machine else shutil.which("python3") or sys.executable
        return Program([python, "-u", "-c", code, *arguments], self.made.environment())

    def slot(self) -> dict[str, int]:
        """The slot of the job's only process; zeros when there is none."""
        found = slots(self.made.directory / c.FILE_USAGE)
        return found[-1] if found else dict.fromkeys(c.USAGE_SLOT_FIELDS, 0)

    def order(self, swap: int) -> None:
        record = self.made.directory / c.FILE_JOB_LIMITS
        with record.open("r+b") as out:
            out.write(put(record.read_bytes(), {"swap": swap}))

    def move(self, *, out: bool, patience_s: float = 60) -> tuple[float, str]:
        """Moves the memory; returns the seconds that it took, and where it is ([swap_states]).

        `patience_s`: how long it may be refused, or not begin; one off the GPU that has begun has a minute more.
        """
        begin = time.monotonic()
        self.order(c.SWAP_OUT if out else c.SWAP_IN)
        wanted = ("host", "wanted") if out else ("gpu",)
        while (state := WORDS[self.slot()["swap_state"]]) not in wanted:
            if time.monotonic() > begin + patience_s + 60 * (state == "leaving"):
                break
            time.sleep(0.002)
        return time.monotonic() - begin, "host" if state == "wanted" else state
