# SPDX-License-Identifier: Apache-2.0
"""The demo, told on the test cluster."""

from __future__ import annotations

import pytest
from harness import story
from harness.layout import Layout


def test_the_demo_follows_a_request_from_sbatch_to_the_bill(
    cluster: Layout, capsys: pytest.CaptureFixture[str]
) -> None:
    story.tell(cluster)
    told = capsys.readouterr().out
    for shown in ("gres/vgpu_mem=8192", "8192 MiB in total", "CUDA_ERROR_OUT_OF_MEMORY", "Reason Resources", "physics"):
        assert shown in told
