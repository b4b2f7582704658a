# SPDX-License-Identifier: Apache-2.0
"""Spin proves the model of the keepers of two jobs with turns, and refutes each mutation of it."""

from __future__ import annotations

import subprocess

import pytest
from conformance import ROOT

PROVED = ("-DJOBS=2", "-DSTOPS=0")


def check(*defines: str) -> subprocess.CompletedProcess[str]:
    command = [str(ROOT / "scripts/check-time-model"), *defines]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def test_the_keepers_of_two_jobs_keep_to_their_turns_and_nobody_stays_paused() -> None:
    result = check()
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("mutation", ["NO_REOPEN", "NO_SHUT", "NO_TURN_LOOK"])
def test_spin_refutes_a_mutation(mutation: str) -> None:
    result = check(*PROVED, f"-D{mutation}")
    assert result.returncode == 1, result.stdout + result.stderr
    assert "assertion violated" in result.stderr
