# SPDX-License-Identifier: Apache-2.0
"""Device memory that leaves the GPU to a file on a local disk (HAMI_HPC_SWAP_DIR), on the simulation."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from conformance import REAL_GPU
from swapped import FAMILIES, POOLS, STACK_MIB, Program, Swapped
from test_compute import machine
from test_swap import HOLDER, Machine, used_mib
from test_swap_pools import CONTEXT_MIB, SEGMENTS

from hami_hpc.contract import constants as c

__all__ = ["machine"]  # the fixture
pytestmark = pytest.mark.skipif(REAL_GPU, reason="the same code on a GPU")


def make(tmp_path: Path, machine: Machine, folder: str, *, pinned_mib: int = 0) -> Swapped:
    job = Swapped.make(tmp_path / "job", *machine, pinned_mib=pinned_mib)
    job.made.extra.update({c.ENV_SWAP_DIR: folder, c.ENV_CHECKSUMS: "1"})
    return job


def mapped_mib(program: Program, folder: Path) -> int:
    """Returns how much of a file without a name in the folder the program has mapped."""
    maps = Path(f"/proc/{program.process.pid}/maps").read_text()
    found = re.findall(
        rf"^([0-9a-f]+)-([0-9a-f]+) rw-s .* {re.escape(str(folder))}/\S+ \(deleted\)$", maps, re.MULTILINE
    )
    return sum(int(end, 16) - int(begin, 16) for begin, end in found) >> 20


@pytest.mark.parametrize("pinned_mib", [0, 100_000])
@pytest.mark.parametrize("code", [FAMILIES, POOLS], ids=["families", "pools"])
def test_it_comes_back_from_a_file_without_a_name(code: str, pinned_mib: int, tmp_path: Path, machine: Machine) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    job = make(tmp_path, machine, str(disk), pinned_mib=pinned_mib)
    with job.start(code) as program:
        for n in range(1, 4):
            assert job.move(out=True)[1] == "host"
            assert mapped_mib(program, disk) >= (job.slot()["swapped_bytes"] >> 20) - STACK_MIB
            assert not list(disk.iterdir())
            assert job.move(out=False)[1] == "gpu"
            assert mapped_mib(program, disk) == 0
            assert program.ask() == f"round {n}"
        descriptors = Path(f"/proc/{program.process.pid}/fd").iterdir()
        assert not any(str(disk) in str(one.readlink()) for one in descriptors)
        program.end()


@pytest.mark.parametrize("folder", ["/nowhere", "/etc/passwd", "relative/path", "x" * 5000])
def test_where_there_is_no_such_place_memory_stays_and_the_program_is_told_once(
    folder: str, tmp_path: Path, machine: Machine, capfd: pytest.CaptureFixture[str]
) -> None:
    job = make(tmp_path, machine, folder)
    with job.start(POOLS) as program:
        assert job.move(out=True, patience_s=2)[1] == "room"
        assert used_mib(machine) == CONTEXT_MIB + SEGMENTS * 32
        assert job.move(out=False)[1] == "gpu"
        assert program.ask() == "round 1"
        program.end()
    said = capfd.readouterr().err
    assert said.count("holds no device memory") == 1
    assert f"HAMI_HPC_SWAP_DIR={folder[:200]} holds no device memory (" in said


ON_A_DISK = 'mount -t tmpfs -o size="$1"m none "$2" && shift 2 && exec "$@"'


@pytest.mark.skipif(os.geteuid() != 0, reason="needs mounts")
@pytest.mark.parametrize(("size_mib", "state"), [(100, "room"), (300, "host")])
def test_a_disk_without_room_is_found_before_anything_moves(
    size_mib: int, state: str, tmp_path: Path, machine: Machine
) -> None:
    """256 MiB, and 512 of libcuda's own that need no room."""
    disk = tmp_path / "disk"
    disk.mkdir()
    job = make(tmp_path, machine, str(disk))
    words = ["unshare", "--mount", "sh", "-c", ON_A_DISK, "sh", str(size_mib), str(disk)]
    with Program([*words, sys.executable, "-u", "-c", HOLDER, "256"], job.made.environment()) as program:
        assert job.move(out=True, patience_s=2 if state == "room" else 20)[1] == state
        assert job.move(out=False)[1] == "gpu"
        assert program.ask() == "freed"
        program.end()
