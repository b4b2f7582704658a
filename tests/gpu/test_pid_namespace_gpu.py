# SPDX-License-Identifier: Apache-2.0
"""Programs in PID namespaces on a real GPU: by the ids of its channels each knows its own time in the driver's records.

Run by `make test-gpu`, as root; skipped where there is no GPU. Needs driver 555 or later.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "native"))
from conformance import REAL_GPU, make_slice
from test_pid_namespace import IN_NAMESPACE
from test_resized_gpu import Program, uuid

__all__ = ["uuid"]
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not REAL_GPU, reason="needs a GPU: HAMI_TEST_GPU=1")]


def test_a_cap_beside_one_that_wants_everything_has_its_share(tmp_path: Path, uuid: str) -> None:
    """Where all of its open time counts it has some 30 %."""
    native = Program(None)
    full = statistics.median(native("work") for _ in range(3))
    native.end()
    made = [make_slice(tmp_path / p, None, uuid, job_mib=8192, cores_percent=50, policy=p) for p in ("cap", "burst")]
    programs = [Program(one, *IN_NAMESPACE) for one in made]
    got = []
    for _ in range(4):
        for program in programs:
            program.ask("work")
        got.append([100 * program.answer() / full for program in programs])
    for program in programs:
        program.end()
    cap, burst = (statistics.median(column) for column in zip(*got[1:], strict=True))
    print(f"cap {cap:.1f}, burst {burst:.1f} % of native")
    assert cap > 44
    assert burst > 44
