# SPDX-License-Identifier: Apache-2.0
"""Memory that moves on a machine with several GPUs, where libcuda gives each large object a second handle, by which the
other GPUs could reach it (docs/adr/103): the memory leaves the GPU all the same, and comes back once."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import test_swap
import test_swap_ends
from conformance import BUILD, REAL_GPU
from swapped import STACK_MIB, Swapped
from test_swap import HOLDER, START, Machine, used_mib

pytestmark = pytest.mark.skipif(REAL_GPU, reason="on a real GPU: tests/gpu/test_swapped.py")

# As on one GPU.
test_families = test_swap.test_memory_of_each_family_keeps_its_content
test_threads = test_swap.test_threads_that_use_their_memory_all_the_time_notice_nothing
test_killed = test_swap.test_killed_at_any_moment_nothing_of_it_is_left
test_waits_for_room = test_swap.test_memory_waits_for_room_on_the_gpu_and_comes_back
test_ends_away = test_swap.test_a_process_that_ends_while_its_memory_is_away_needs_no_room
test_ends_in_a_move_out = test_swap_ends.test_a_program_may_end_in_the_middle_of_a_move_out
test_ends_in_a_move_in = test_swap_ends.test_a_program_may_end_in_the_middle_of_a_move_in


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A simulated machine of this test's own with two GPUs, and the first one's UUID."""
    directory = tmp_path / "sim"
    subprocess.run([BUILD / "sim/sim-machine", directory, "h200", "h200"], check=True, capture_output=True)
    text = (directory / "machine.conf").read_text()
    return directory, next(word for word in text.replace("=", " ").split() if word.startswith("GPU-"))


def test_nothing_of_what_moved_is_left_on_the_gpu(tmp_path: Path, machine: Machine) -> None:
    job = Swapped.make(tmp_path / "job", *machine)
    with job.start(HOLDER, "1024") as program:
        held = used_mib(machine)
        for _ in range(3):
            assert job.move(out=True)[1] == "host"
            assert used_mib(machine) == held - 1024 - STACK_MIB
            assert job.move(out=False)[1] == "gpu"
            assert used_mib(machine) == held
        assert program.ask() == "freed"
        assert used_mib(machine) == held - 1024
        program.end()
    assert used_mib(machine) == 0


# Does one thing with the handle by which other GPUs reach its memory, which is the last that libcuda took: makes one
# more handle, or sends a control. The requests are those of rm_abi.h, the handles the simulation's (sim_rm.h).
KNOWN = (
    START.replace("ctypes, sys", "ctypes, itertools, os, sys")
    + """
held = [alloc(16), alloc(64)]
libc, U32 = ctypes.CDLL(None), ctypes.c_uint32
files = {os.path.realpath(f"/proc/self/fd/{n}"): int(n) for n in os.listdir("/proc/self/fd")}
control = next(n for path, n in files.items() if path.endswith("/nvidiactl"))
def ask(number, *words):
    request = (U32 * len(words))(*words)
    code = 3 << 30 | 4 * len(words) << 16 | ord("F") << 8 | number
    assert libc.ioctl(control, ctypes.c_ulong(code), ctypes.byref(request)) == 0
    return list(request)
def dup(handle, client, device):
    return ask(0x34, client, device, 0, client, handle, 0, 0)[6] == 0
if sys.argv[1] == "control":
    ask(0x2a, 0xc1d00001, 0x6d000001, 0xf80101, 0, 0, 0, 0, 0)
else:
    handles = reversed(range(0x6d000001, 0x6d000020))
    tried = itertools.product(handles, range(0xc1d00000, 0xc1d00004), range(0x5c000001, 0x5c000008))
    assert any(dup(*one) for one in tried)
print("ready")
for line in sys.stdin:
    print("there")
"""
)


def test_memory_stays_whose_handle_for_other_gpus_has_another_one(tmp_path: Path, machine: Machine) -> None:
    job = Swapped.make(tmp_path / "job", *machine)
    with job.start(KNOWN, "last") as program:
        assert job.move(out=True)[1] == "host"
        assert job.slot()["swapped_bytes"] >> 20 == STACK_MIB + 16
        assert job.move(out=False)[1] == "gpu"
        assert program.ask() == "there"
        program.end()


def test_a_program_that_asks_for_the_address_on_nvlink_stays(tmp_path: Path, machine: Machine) -> None:
    job = Swapped.make(tmp_path / "job", *machine)
    with job.start(KNOWN, "control") as program:
        assert job.move(out=True, patience_s=5)[1] == "shared"
        assert program.ask() == "there"
        program.end()
