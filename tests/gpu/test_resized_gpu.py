# SPDX-License-Identifier: Apache-2.0
"""A job that is resized on a real GPU: PyTorch's memory and its rate follow at once, without a restart.

Run by `make test-gpu`, as root; skipped where there is no GPU.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "native"))
from conformance import REAL_GPU, Slice, make_slice, put
from test_frameworks import need

from hami_hpc.contract import constants as c

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not REAL_GPU, reason="needs a GPU: HAMI_TEST_GPU=1")]
GIB = 1 << 30

# Answers each line of its input: "work" with passes over 256 MiB per second, "fill" with the GiB that it can have.
PROGRAM = """
import sys, time, torch
x = torch.rand(1 << 26, device="cuda")
def work():
    torch.cuda.synchronize()
    begin, count = time.monotonic(), 0
    while time.monotonic() < begin + 2:
        for _ in range(20):
            x.sin_()
        torch.cuda.synchronize()
        count += 20
    return count / (time.monotonic() - begin)
def fill():
    held = []
    try:
        while True:
            held.append(torch.empty(1 << 28, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError:
        pass
    got = len(held) / 4
    del held
    torch.cuda.empty_cache()
    return got
work()
print("ready", flush=True)
for line in sys.stdin:
    total = lambda: torch.cuda.mem_get_info()[1] / (1 << 30)
    print({"work": work, "fill": fill, "total": total}[line.strip()](), flush=True)
"""


class Program:
    def __init__(self, made: Slice | None, *begin: str) -> None:
        command = [*begin, shutil.which("python3") or sys.executable, "-c", PROGRAM]
        environment = made.environment() if made else None
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        assert self._line() == "ready"

    def _line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def ask(self, what: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(what + "\n")

    def answer(self) -> float:
        return float(self._line())

    def __call__(self, what: str) -> float:
        self.ask(what)
        return self.answer()

    def end(self) -> None:
        self.process.communicate(timeout=60)
        assert self.process.returncode == 0


def change(made: Slice, **values: int) -> None:
    """Changes the job's record in place, as root does."""
    record = made.directory / c.FILE_JOB_LIMITS
    with record.open("r+b") as out:
        out.write(put(record.read_bytes(), values))


@pytest.fixture
def uuid() -> str:
    need("torch")
    query = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]


def test_memory_follows(tmp_path: Path, uuid: str) -> None:
    made = make_slice(tmp_path / "job", None, uuid, job_mib=8192)
    program = Program(made)
    small = program("fill")
    change(made, mem_limit_bytes=16 * GIB, asked_mem_bytes=8 * GIB, asked_cores_percent=100)
    assert program("total") == 16
    large = program("fill")
    change(made, mem_limit_bytes=4 * GIB)
    assert program("total") == 4
    less = program("fill")
    program.end()
    print(f"filled {small}, {large}, {less} GiB of 8, 16, 4")
    assert 6.5 <= small < 8
    assert abs(large - small - 8) <= 0.25
    assert abs(small - less - 4) <= 0.25


@pytest.mark.parametrize(("before", "after"), [(25, 75), (75, 25), (100, 50), (50, 100)])
def test_the_rate_follows(before: int, after: int, tmp_path: Path, uuid: str) -> None:
    native = Program(None)
    full = statistics.median(native("work") for _ in range(3))
    native.end()
    made = make_slice(tmp_path / "job", None, uuid, job_mib=8192, cores_percent=before)
    program = Program(made)
    first = 100 * statistics.median(program("work") for _ in range(2)) / full
    change(made, cores_percent=after, asked_mem_bytes=8 * GIB, asked_cores_percent=before)
    time.sleep(0.2)
    second = 100 * statistics.median(program("work") for _ in range(2)) / full
    program.end()
    print(f"cap {before} to {after}: {first:.1f} %, then {second:.1f} % of native")
    assert abs(first - before) < 3  # matrix products, which meet the limit of power, had 9 more
    assert abs(second - after) < 3
