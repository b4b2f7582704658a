# SPDX-License-Identifier: Apache-2.0
"""Device memory on the host that changes there, with HAMI_HPC_CHECKSUMS=1 in the program's environment: it does not
come back as if nothing had been; on the simulation."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from conformance import REAL_GPU
from swapped import FAMILIES, POOLS, Program, Swapped
from test_compute import machine
from test_swap import Machine

from hami_hpc.contract import constants as c

__all__ = ["machine"]  # the fixture
pytestmark = pytest.mark.skipif(REAL_GPU, reason="the same code, and slower")


def make(tmp_path: Path, machine: Machine, *, pinned_mib: int = 0) -> Swapped:
    job = Swapped.make(tmp_path / "job", *machine, pinned_mib=pinned_mib)
    job.made.extra[c.ENV_CHECKSUMS] = "1"
    return job


def areas(program: Program) -> dict[int, int]:
    """Returns where the program has memory of its own that is no file's, and how much there."""
    maps = Path(f"/proc/{program.process.pid}/maps").read_text()
    found = re.findall(r"^([0-9a-f]+)-([0-9a-f]+) rw-p \S+ \S+ 0\s*$", maps, re.MULTILINE)
    return {int(begin, 16): int(end, 16) - int(begin, 16) for begin, end in found}


@pytest.mark.parametrize("pinned_mib", [0, 100_000])
@pytest.mark.parametrize("code", [FAMILIES, POOLS], ids=["families", "pools"])
def test_what_did_not_change_comes_back(code: str, pinned_mib: int, tmp_path: Path, machine: Machine) -> None:
    job = make(tmp_path, machine, pinned_mib=pinned_mib)
    with job.start(code) as program:
        for n in range(1, 3):
            assert job.move(out=True)[1] == "host"
            assert job.move(out=False)[1] == "gpu"
            assert program.ask() == f"round {n}"
        program.end()


def test_a_byte_that_changed_ends_the_program(
    tmp_path: Path, machine: Machine, capfd: pytest.CaptureFixture[str]
) -> None:
    job = make(tmp_path, machine)
    with job.start(FAMILIES) as program:
        before = areas(program)
        assert job.move(out=True)[1] == "host"
        moved = job.slot()["swapped_bytes"]
        (arena,) = [at for at, size in areas(program).items() if at not in before and size >= moved]
        places = range(arena, arena + areas(program)[arena], 1 << 20)  # some hold nothing: what stays had room, too
        with Path(f"/proc/{program.process.pid}/mem").open("r+b", buffering=0) as memory:
            for at in places:
                memory.seek(at)
                (byte,) = memory.read(1)
                memory.seek(at)
                memory.write(bytes([byte ^ 1]))
        job.order(c.SWAP_IN)
        assert program.process.wait(30) == -signal.SIGABRT
    said = capfd.readouterr().err
    assert re.search(r"the content of \d+ MiB of device memory changed while it was on the host", said)
    assert "cannot be brought back" in said
