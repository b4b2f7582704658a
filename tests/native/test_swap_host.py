# SPDX-License-Identifier: Apache-2.0
"""The host's memory for what is moved off the GPU, on the simulation: what there is room for, and that it is kept."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import sys
from pathlib import Path

import pytest
from conformance import REAL_GPU
from swapped import STACK_MIB, Program, Swapped
from test_compute import machine
from test_swap import HOLDER, START, Machine

from hami_hpc.contract import constants as c

__all__ = ["machine"]  # the fixture
F_OFD_SETLK = 37
pytestmark = [
    pytest.mark.skipif(REAL_GPU, reason="on a real GPU: tests/gpu/test_swapped.py"),
]

GROW = (
    START
    + """
held = []
def fill(mib):
    a = alloc(mib); data = bytes([len(held) + 1]) * (mib << 20)
    ok(cu.cuMemcpyHtoD_v2(a, data, S(mib << 20))); held.append((a, data))
back, memcmp = (ctypes.c_char * (300 << 20))(), ctypes.CDLL(None).memcmp
memcmp.argtypes = P, P, S
def check():
    for a, data in held:
        ok(cu.cuMemcpyDtoH_v2(back, a, S(len(data))))
        assert memcmp(back, data, len(data)) == 0
fill(40)
print("ready")
for line in sys.stdin:
    if line.strip() == "less":
        ok(cu.cuMemFree_v2(held.pop()[0]))
    else:
        fill(24)
    check(); print("same")
"""
)


def test_the_hosts_memory_fits_what_is_moved_each_time(tmp_path: Path, machine: Machine) -> None:
    """It is kept between two moves, and the kernel may take it meanwhile: what it held then is never read."""
    job = Swapped.make(tmp_path / "job", *machine)
    with job.start(GROW) as program:
        for word, mib in (("more", 64), ("more", 88), ("less", 64), ("less", 40), ("more", 64), ("more", 88)):
            assert program.ask(word) == "same"
            assert job.move(out=True)[1] == "host"
            assert job.slot()["swapped_bytes"] >> 20 == STACK_MIB + mib
            assert job.move(out=False)[1] == "gpu"
            assert mib - 8 <= lazily_freed_mib(program) <= 2 * 88, (
                "it is the kernel's to take, and not one more each time"
            )
        program.end()


@pytest.mark.parametrize(("pinned_mib", "freed"), [(63, True), (64, True), (1000, False)])
def test_what_is_page_locked_is_kept_and_fits_what_is_moved(
    pinned_mib: int, freed: bool, tmp_path: Path, machine: Machine
) -> None:
    job = Swapped.make(tmp_path / "job", *machine, pinned_mib=pinned_mib)
    with job.start(GROW) as program:
        for word in ("more", "more", "less", "more", "more"):
            assert program.ask(word) == "same"
            assert job.move(out=True)[1] == "host"
            assert job.move(out=False)[1] == "gpu"
            assert (lazily_freed_mib(program) > 0) == freed, "the kernel takes nothing that is page-locked"
        program.end()


ANEW = (
    START
    + """
def fill():
    a = alloc(40); ok(cu.cuMemcpyHtoD_v2(a, bytes([n]) * (40 << 20), S(40 << 20))); return a
n = 1; a = fill()
print("ready")
for line in sys.stdin:
    back = ctypes.create_string_buffer(40 << 20); ok(cu.cuMemcpyDtoH_v2(back, a, S(40 << 20)))
    assert back.raw == bytes([n]) * (40 << 20)
    n += 1
    ok(cu.cuCtxDestroy_v2(ctx)); ok(cu.cuCtxCreate_v2(ctypes.byref(ctx), 0, 0)); a = fill()
    print("same")
"""
)


def test_page_locks_that_went_with_their_context_are_made_again(tmp_path: Path, machine: Machine) -> None:
    job = Swapped.make(tmp_path / "job", *machine, pinned_mib=1000)
    with job.start(ANEW) as program:
        for _ in range(3):
            for _ in range(2):
                assert job.move(out=True)[1] == "host"
                assert job.move(out=False)[1] == "gpu"
            assert program.ask() == "same"
        program.end()


def test_processes_of_a_job_move_out_one_after_the_other(tmp_path: Path, machine: Machine) -> None:
    """Each finds the room that those before it have left: all at once they would take more than the job's --mem."""
    job = Swapped.make(tmp_path / "job", *machine)
    behind_slots = struct.pack("hh4xqqi4x", fcntl.F_WRLCK, os.SEEK_SET, c.SLOT_LOCK_BASE + c.USAGE_SLOT_COUNT, 1, 0)
    with job.start(GROW) as program:
        with (job.made.directory / c.FILE_USAGE).open("r+b") as usage:
            fcntl.fcntl(usage, F_OFD_SETLK, behind_slots)
            assert job.move(out=True, patience_s=1)[1] == "gpu", "another one moves"
        assert job.move(out=True)[1] == "host", "which ends, or is killed"
        assert job.move(out=False)[1] == "gpu"
        assert program.ask("more") == "same"
        program.end()


def lazily_freed_mib(program: Program) -> int:
    text = Path(f"/proc/{program.process.pid}/smaps_rollup").read_text()
    return int(text.split("\nLazyFree:")[1].split()[0]) >> 10


FAKE = """
mount -t tmpfs none /sys/fs/cgroup && mkdir -p "/sys/fs/cgroup/$1" && cp "$2"/memory.* "/sys/fs/cgroup/$1/" &&
mount --bind "$2/cgroup" /proc/$$/cgroup && shift 2 && exec "$@"
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs mounts")
@pytest.mark.parametrize("place", ["/job", "/"])
@pytest.mark.parametrize(
    ("version", "files_mib", "state"),
    [(1, 0, "room"), (1, 200, "host"), (1, 900, "host"), (2, 0, "room"), (2, 200, "host"), (2, 900, "host")],
)
def test_pages_of_files_are_no_reason_to_have_no_room(
    version: int, files_mib: int, state: str, place: str, tmp_path: Path, machine: Machine
) -> None:
    """A job's limit counts what the kernel keeps of the files that it read, and takes back before anything else. In a
    container with a cgroup namespace the job's cgroup is the root. 300 MiB are enough for the program's 256: what is
    libcuda's own stays on the GPU."""
    limit, used = (("max", "current"), ("limit_in_bytes", "usage_in_bytes"))[version == 1]
    names, line, below = (
        ("", f"0::{place}\n", place[1:] or "."),
        ("total_", f"7:cpu,memory:/x\n4:memory:{place}\n", f"memory{place}"),
    )[version == 1]
    (tmp_path / "cgroup").write_text(line)
    (tmp_path / f"memory.{limit}").write_text(f"{1 << 30}\n")
    (tmp_path / f"memory.{used}").write_text(f"{(1 << 30) - (100 << 20)}\n")
    file = files_mib << 19
    (tmp_path / "memory.stat").write_text(f"anon 5\n{names}inactive_file {file}\n{names}active_file {file}\n")
    job = Swapped.make(tmp_path / "job", *machine)
    program = Program(
        ["unshare", "--mount", "sh", "-c", FAKE, "sh", below, str(tmp_path), sys.executable, "-u", "-c", HOLDER, "256"],
        job.made.environment(),
    )
    with program:
        assert job.move(out=True, patience_s=2 if state == "room" else 20)[1] == state
        assert job.move(out=False)[1] == "gpu"
        assert program.ask() == "freed"
        program.end()


LOCKS_ALL = HOLDER.replace('print("ready")', 'ok(ctypes.CDLL(None).mlockall(2)); print("ready")')  # MCL_FUTURE


@pytest.mark.skipif(os.geteuid() != 0, reason="locks more memory than a user may")
def test_what_is_away_is_not_locked_though_the_program_locks_all_that_it_maps(tmp_path: Path, machine: Machine) -> None:
    """The kernel could take none of it then, and a job's --mem would hold it in memory."""
    job = Swapped.make(tmp_path / "job", *machine)

    def resident_and_not_locked_kib(program: Program) -> int:
        mappings = re.split(
            r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path(f"/proc/{program.process.pid}/smaps").read_text(), flags=re.M
        )
        held = [
            (one.split("Rss:")[1].split()[0], one.split("VmFlags:")[1].split()) for one in mappings if "VmFlags:" in one
        ]
        return sum(int(kib) for kib, flags in held if "lo" not in flags)

    with job.start(LOCKS_ALL, "512") as program:
        assert resident_and_not_locked_kib(program) < 256 << 10
        assert job.move(out=True)[1] == "host"
        assert resident_and_not_locked_kib(program) >= 512 << 10
        assert job.move(out=False)[1] == "gpu"
        assert program.ask() == "freed"
        program.end()
