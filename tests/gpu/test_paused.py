# SPDX-License-Identifier: Apache-2.0
"""Work that is paused in the middle gives the same results as natively, to the bit; paused.cu has the kinds of work.

Run by `make test-gpu` on a GPU node with nvcc, as root; HAMI_TEST_PAUSED is a built paused.cu instead. Under the cap of
10 % each case runs for 5 ms of each 50, so that it is paused about a hundred times. About three minutes in all.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "native"))
from conformance import MIB, REAL_GPU, Slice, make_slice

from hami_hpc.contract import constants as c
from hami_hpc.core.records import parse_usage

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not REAL_GPU, reason="needs a GPU: HAMI_TEST_GPU=1")]

CASES = (
    "tensor",
    "wgmma",
    "cp_async",
    "tma",
    "grid_sync",
    "cluster",
    "look_back",
    "conditional",
    "tail_launch",
    "copies",
    "callbacks",
    "ordered",
    "events",
    "captures",
)
NEIGHBOURS = (("tensor", "copies"), ("grid_sync", "look_back"))
SECONDS = 0.6  # of work on the GPU without a cap
CAPTURES = 20
LIMIT_MIB = 8192
TIMEOUT_S = 180
SEED = 20261122


def query(what: str) -> str:
    """What nvidia-smi says of the first GPU."""
    command = ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")[0].strip()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of paused.cu, built."""
    if query("compute_cap") != "9.0":
        pytest.skip("paused.cu is for GPUs of compute capability 9.0")
    if built := os.environ.get("HAMI_TEST_PAUSED"):
        return str(Path(built).resolve())
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc is not installed on this machine, and HAMI_TEST_PAUSED names no built program")
    path = tmp_path_factory.mktemp("paused") / "paused"
    options = ["-O2", "-std=c++17", "-rdc=true", "-gencode", "arch=compute_90a,code=sm_90a"]
    source = str(Path(__file__).with_name("paused.cu"))
    subprocess.run([nvcc, *options, source, "-o", str(path), "-lcuda", "-lcudadevrt"], check=True)
    return str(path)


@dataclass(frozen=True)
class Outcome:
    """A run of a case: how many rounds it did, and the hash of what they gave."""

    case: str
    rounds: int
    hash: str


def outcome(case: str, status: int, out: str, errors: str) -> Outcome:
    assert status == 0, f"{case}: status {status}: {errors[-2000:]}"
    answer = json.loads(out)
    return Outcome(answer["case"], answer["rounds"], answer["hash"])


@cache
def native(program: str, case: str, amount: str = f"seconds={SECONDS}") -> Outcome:
    """What `case` gives without a cap; `amount` is the program's seconds= or rounds=."""
    command = [program, case, str(SEED), amount]
    result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    return outcome(case, result.returncode, result.stdout, result.stderr)


def capped_job(directory: Path) -> Slice:
    return make_slice(directory, None, query("uuid"), job_mib=LIMIT_MIB, cores_percent=10, policy="cap")


def paused_ns(job: Slice) -> int:
    """How long the job's processes were paused, in ns."""
    data = (job.directory / c.FILE_USAGE).read_bytes()
    return parse_usage(data, LIMIT_MIB * MIB, 3600 * 10**9).throttled_ns


def test_every_case_is_run(program: str) -> None:
    listed = subprocess.run([program, "list"], capture_output=True, text=True, check=True).stdout
    assert tuple(listed.split()) == CASES


@pytest.mark.parametrize("case", CASES)
def test_what_is_paused_gives_the_same_results(case: str, program: str, tmp_path: Path) -> None:
    expected = native(program, case)
    job = capped_job(tmp_path)
    result = job.run(program, case, str(SEED), f"rounds={expected.rounds}", timeout_s=TIMEOUT_S)
    assert outcome(case, result.returncode, result.stdout, result.stderr) == expected
    assert paused_ns(job) > SECONDS * 10**9  # it was paused for longer than it worked


@pytest.mark.parametrize("cases", NEIGHBOURS, ids="+".join)
def test_two_tenants_that_are_paused_give_the_same_results(
    cases: tuple[str, str], program: str, tmp_path: Path
) -> None:
    expected = [native(program, case) for case in cases]
    processes = [
        subprocess.Popen(
            [program, alone.case, str(SEED), f"rounds={alone.rounds}"],
            env=capped_job(tmp_path / alone.case).environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for alone in expected
    ]
    try:
        answers = [process.communicate(timeout=TIMEOUT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
    together = [outcome(case, p.returncode, *a) for case, p, a in zip(cases, processes, answers, strict=True)]
    assert together == expected


def test_captures_succeed_while_other_threads_launch(program: str, tmp_path: Path) -> None:
    """The interposer looks for outstanding work by events, which would end a capture that they became part of."""
    amount = f"rounds={CAPTURES}"
    expected = native(program, "captures", amount)
    result = capped_job(tmp_path).run(program, "captures", str(SEED), amount, timeout_s=TIMEOUT_S)
    assert outcome("captures", result.returncode, result.stdout, result.stderr) == expected
