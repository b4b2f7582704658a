# SPDX-License-Identifier: Apache-2.0
"""Spin proves the model of the keepers, of two jobs and of processes that share a budget, and refutes each mutation."""

from __future__ import annotations

import subprocess

import pytest
from conformance import ROOT

TWO_JOBS, ONE_JOB = "-DJOBS=2 -DSTOPS=0", "-DSTOPS=0"


def check(*defines: str) -> subprocess.CompletedProcess[str]:
    command = [str(ROOT / "scripts/check-time-model"), *defines]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


FORMS = (
    "-DJOBS=2 -DSTOPS=0",
    "-DJOBS=2",
    "-DSTOPS=0 -DFINE",
    "-DSTOPS=0 -DPROCESSES=3",
    "-DJOBS=1",
)  # as the script has


@pytest.mark.parametrize("form", FORMS)
def test_the_keepers_keep_caps_and_turns_and_nobody_stays_paused(form: str) -> None:
    result = check(*form.split())
    assert result.returncode == 0, result.stdout + result.stderr


MUTATIONS = [(TWO_JOBS, name) for name in ("NO_REOPEN", "NO_SHUT", "NO_TURN_LOOK")]
MUTATIONS += [(ONE_JOB, name) for name in ("NO_REOPEN", "NO_SHUT", "LATE_COUNT")]


@pytest.mark.parametrize(("form", "mutation"), MUTATIONS)
def test_spin_refutes_a_mutation(form: str, mutation: str) -> None:
    result = check(*form.split(), f"-D{mutation}")
    assert result.returncode == 1, result.stdout + result.stderr
    assert "assertion violated" in result.stderr
