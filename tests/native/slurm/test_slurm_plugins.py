# SPDX-License-Identifier: Apache-2.0
"""Runs the C tests of slurm-plugins: one program a behaviour, under address and undefined-behaviour sanitizers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
BUILD = ROOT / "build" / "tests" / "slurm"
PROGRAMS = sorted(path.stem for path in HERE.glob("*.c") if not path.stem.startswith("fuzz_"))
FUZZERS = sorted(path.stem for path in HERE.glob("fuzz_*.c"))
ARGUMENTS = {
    "counts_and_class_travel_to_the_node": [str(ROOT / "build" / "slurm-plugins")],
    "nothing_in_the_environment_takes_the_fence_away": [str(BUILD / "libmark.so")],
}
FUZZ_RUNS = 200_000


def run(*command: str, timeout_s: float = 300) -> None:
    """Fails the test with what the command printed when it does not end with status 0."""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    run("make", "-C", str(ROOT / "slurm-plugins"))
    run("make", "-C", str(HERE))


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_behaviour_of_the_slurm_plugins(program: str) -> None:
    run(str(BUILD / program), *ARGUMENTS.get(program, []))


@pytest.mark.parametrize("fuzzer", FUZZERS)
def test_any_bytes_are_parsed_without_harm(fuzzer: str) -> None:
    run(str(BUILD / fuzzer), "-seed=1", f"-runs={FUZZ_RUNS}", "-max_len=8192", f"-artifact_prefix={BUILD}/")
