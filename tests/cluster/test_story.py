# SPDX-License-Identifier: Apache-2.0
"""The demo, told on the test cluster."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time

import pytest
from harness import story
from harness.config import slurm_release
from harness.layout import CHECKOUT, Layout

sys.path.insert(0, str(CHECKOUT / "tests" / "docs"))
from documents import blocks


def without_numbers(line: str) -> str:
    """A line of the story without what differs from run to run: job numbers, GPU-hours, blanks."""
    line = re.sub(r"([Jj]ob|-d) \d+", r"\1 N", line)
    line = re.sub(r"\b0\.\d{4}\b", "HOURS", line)
    return " ".join(re.sub(r"^\s*\d+ (?= *\d+ +\d+ +(std|lc|be) )", "N ", line).split())


def test_the_demo_follows_a_request_from_sbatch_to_the_bill(
    cluster: Layout, capsys: pytest.CaptureFixture[str]
) -> None:
    time.sleep(2)  # the bill is by whole seconds, and the last test's jobs are none of the story's
    story.tell(cluster)
    told = capsys.readouterr().out
    for shown in ("gres/vgpu_mem=8192", "8192 MiB in total", "CUDA_ERROR_OUT_OF_MEMORY", "Reason Resources", "physics"):
        assert shown in told
    if slurm_release() >= (23, 2):
        return  # README.md shows what 22.05 prints
    lines = {without_numbers(line) for line in told.splitlines()}
    (transcript,) = [block for block in blocks("README.md") if block.language == "console"]
    for line in transcript.text.splitlines():
        assert line == "[...]" or without_numbers(line) in lines, line


def test_doctor_in_a_shell_that_read_the_clusters_env_misses_cgroups_alone(cluster: Layout) -> None:
    command = ["sh", "-c", f". {cluster.env_file} && exec hami-hpc doctor"]
    done = subprocess.run(command, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False)
    failing = [line for line in done.stdout.splitlines() if line.startswith("FAIL")]
    assert [line.split(":")[0].split()[1] for line in failing] == ["TaskPlugin", "ConstrainDevices"], done.stdout
    assert "gres.conf: node1 has 2 gpu in Slurm, 2 in the driver" in done.stdout


def test_make_does_not_take_a_shells_cluster_for_its_own(cluster: Layout) -> None:
    """As who has followed the README has it: `. .cluster/env`, and later `make test` in the same shell."""
    named = re.findall(r"^export (\w+)=", cluster.env_file.read_text(), re.MULTILINE)
    assert "SLURM_CONF" in named
    show = f"make -s -C {CHECKOUT} --eval 'shown: ; @env' shown"
    plain = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": "/of/the/site"}
    for read, kept in (("", True), (f". {cluster.env_file} && ", False)):
        done = subprocess.run(["sh", "-c", read + show], env=plain, capture_output=True, text=True, check=True)
        seen = {line.partition("=")[0] for line in done.stdout.splitlines()}
        assert ("LD_LIBRARY_PATH" in seen) is kept
        assert not seen & (set(named) - {"LD_LIBRARY_PATH"})
