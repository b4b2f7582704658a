# SPDX-License-Identifier: Apache-2.0
"""The demo, told on the test cluster."""

from __future__ import annotations

import subprocess

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


def test_doctor_in_a_shell_that_read_the_clusters_env_misses_cgroups_alone(cluster: Layout) -> None:
    command = ["sh", "-c", f". {cluster.env_file} && exec hami-hpc doctor"]
    done = subprocess.run(command, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False)
    failing = [line for line in done.stdout.splitlines() if line.startswith("FAIL")]
    assert [line.split(":")[0].split()[1] for line in failing] == ["TaskPlugin", "ConstrainDevices"], done.stdout
    assert "gres.conf: node1 has 2 gpu in Slurm, 2 in the driver" in done.stdout
