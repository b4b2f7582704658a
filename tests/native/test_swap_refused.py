# SPDX-License-Identifier: Apache-2.0
"""A driver, or a host, that refuses page-locked memory for what is moved off the GPU, on the simulation."""

from __future__ import annotations

from pathlib import Path

import pytest
from conformance import REAL_GPU, sanitizer
from swapped import STACK_MIB, Swapped
from test_compute import machine
from test_swap import Machine
from test_swap_host import ANEW, GROW

__all__ = ["machine"]  # the fixture
pytestmark = pytest.mark.skipif(REAL_GPU, reason="these faults exist on the simulation only")

# Remembers where memory for moves was (of huge pages, as nothing else here), and looks whether the driver still takes
# any as page-locked that is no more; or has no more address space. 300 MiB more than before need other memory of the
# host: the simulated context's own 512 MiB have a place in it, too.
WATCHED = GROW.replace(
    "fill(40)\n",
    """
import resource
MIB, known = 1 << 20, set()
def pieces():
    found = set()
    for text in open("/proc/self/smaps"):
        words = text.split()
        if "-" in words[0] and not words[0].endswith(":"):
            begin, end = (int(word, 16) for word in words[0].split("-"))
        elif words[0] == "VmFlags:" and "hg" in words:
            found |= set(range(begin, end, 64 * MIB))
    return found
def stale():
    global known
    now, kind = pieces(), ctypes.c_uint()
    known |= now
    return [hex(at) for at in known - now if cu.cuPointerGetAttribute(ctypes.byref(kind), 2, U64(at)) == 0]
fill(40)
""",
).replace(
    'check(); print("same")',
    """
    if line.strip() == "free":
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    check(); answer = stale() or "same"
    if line.strip() == "limit":
        size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + 32 * MIB, resource.RLIM_INFINITY))
    print(answer)
""",
)
WATCHED = WATCHED.replace("    else:\n        fill(24)", '    elif line.strip() == "more":\n        fill(300)')


def faulty(tmp_path: Path, machine: Machine, faults: str) -> Swapped:
    job = Swapped.make(tmp_path / "job", *machine, pinned_mib=1000)
    job.made.extra["HAMI_SIM_FAULTS"] = faults
    return job


@pytest.mark.parametrize(
    "faults",
    [
        "cuMemHostRegister=2",
        "cuMemHostRegister=2:after=1",
        "cuMemHostRegister=712:after=2:times=1",
        "cuMemHostUnregister=999",
        "cuMemHostUnregister=999:times=2",
        "cuPointerGetAttribute=999:times=1",
        "cuPointerGetAttribute=1:times=1",
        "cuMemHostRegister=2:after=1;cuMemHostAlloc=2:times=3",
    ],
)
def test_memory_moves_whatever_the_driver_refuses(faults: str, tmp_path: Path, machine: Machine) -> None:
    """Or it stays on the GPU, and says that the host has no room for it: where old memory cannot be given back."""
    job = faulty(tmp_path, machine, faults)
    with job.start(WATCHED) as program:
        for word in ("look", "more", "look", "less", "more"):
            assert program.ask(word) == "same"
            stays = "Unregister" in faults
            state = job.move(out=True, patience_s=3 if stays else 60)[1]
            assert state == "host" or (stays and state == "room")
            assert job.move(out=False)[1] == "gpu"
        assert program.ask("look") == "same"
        program.end()


@pytest.mark.parametrize("faults", ["cuMemHostUnregister=999", "cuPointerGetAttribute=999"])
def test_contexts_come_and_go_whatever_the_driver_refuses(faults: str, tmp_path: Path, machine: Machine) -> None:
    job = faulty(tmp_path, machine, faults)
    with job.start(ANEW) as program:
        for _ in range(4):
            assert job.move(out=True)[1] == "host"
            assert job.move(out=False)[1] == "gpu"
            assert program.ask() == "same"
        program.end()


@pytest.mark.skipif(bool(sanitizer()), reason="a sanitizer takes address space as it likes")
def test_without_address_space_memory_stays_and_moves_later(tmp_path: Path, machine: Machine) -> None:
    job = faulty(tmp_path, machine, "")
    with job.start(WATCHED) as program:
        assert job.move(out=True)[1] == "host"
        assert job.move(out=False)[1] == "gpu"
        for word in ("more", "limit"):
            assert program.ask(word) == "same"
        assert job.move(out=True, patience_s=1)[1] == "room"
        assert job.move(out=False)[1] == "gpu"
        assert program.ask("free") == "same"
        assert job.move(out=True)[1] == "host"
        assert job.move(out=False)[1] == "gpu"
        assert program.ask("look") == "same"
        program.end()


@pytest.mark.parametrize("faults", ["cuMemcpyDtoHAsync=700", "cuMemcpyDtoHAsync=2"])
@pytest.mark.parametrize("pinned_mib", [0, 1000])
def test_memory_of_which_no_copy_succeeds_is_said_to_stay(
    faults: str, pinned_mib: int, tmp_path: Path, machine: Machine
) -> None:
    job = Swapped.make(tmp_path / "job", *machine, pinned_mib=pinned_mib)
    job.made.extra["HAMI_SIM_FAULTS"] = faults
    with job.start(GROW) as program:
        for _ in range(2):  # in the second move all that can be page-locked is
            assert job.move(out=True, patience_s=1)[1] == "driver"
            assert (job.slot()["swapped_bytes"], job.slot()["swap_count"]) == (0, 0)
            assert program.ask("more") == "same", "it works on although it should be away"
            assert job.move(out=False, patience_s=1)[1] == "gpu"
        program.end()


def test_memory_of_which_some_copies_succeed_is_moved_in_part(tmp_path: Path, machine: Machine) -> None:
    # Of 24 copies and more one fails; the first ones, of up to 16 threads, may be of libcuda's own memory.
    job = faulty(tmp_path, machine, "cuMemcpyDtoHAsync=700:after=18:times=1")
    with job.start(GROW) as program:
        for _ in range(6):
            assert program.ask("more") == "same"
        assert job.move(out=True)[1] == "host"
        assert job.slot()["swapped_bytes"] >> 20 in (STACK_MIB + 184 - 24, STACK_MIB + 184 - 40)
        assert job.move(out=False)[1] == "gpu"
        assert program.ask("more") == "same"
        program.end()


def test_a_program_whose_only_large_memory_is_libcudas_is_in_nobodys_way(tmp_path: Path, machine: Machine) -> None:
    """libcuda refuses the addresses of its own memory, which stays."""
    job = faulty(tmp_path, machine, "cuMemcpyDtoHAsync=1")
    with job.start(GROW) as program:
        assert job.move(out=True)[1] == "host"
        assert job.slot()["swapped_bytes"] >> 20 == STACK_MIB
        assert job.move(out=False)[1] == "gpu"
        program.end()
