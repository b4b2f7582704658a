# SPDX-License-Identifier: Apache-2.0
"""A node that Slurm powers down and up (SuspendProgram, ResumeProgram): a vGPU job wakes it, and has its slice."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from harness import config, daemons, jobs, node, services
from harness.layout import CPU_NODE, Layout
from test_requests import total_mib

REQUEST = "--gres=vgpu:mem=8G,cores=20"


def programs(layout: Layout) -> tuple[Path, Path]:
    """Returns the files by which SuspendProgram and ResumeProgram say that they ran, once slurmctld has both."""
    asked = (layout.root / "suspended", layout.root / "resumed")
    text = layout.slurm_conf.read_text()
    for name, file in zip(("Suspend", "Resume"), asked, strict=True):
        file.unlink(missing_ok=True)
        program = layout.etc / f"power-{name.lower()}"
        program.write_text(f'#!/bin/sh\necho "$1" >{file}\n')
        program.chmod(0o755)
        text += f"{name}Program={program}\n{name}Timeout={60 if name == 'Resume' else 3}\n"
    daemons.stop(layout, "slurmctld")
    config.write(layout.slurm_conf, f"{text}SuspendTime=3600\nSuspendExcNodes={CPU_NODE}\n")
    daemons.start(layout, services.describe(layout, "slurmctld"))
    jobs.wait(layout, lambda: services.nodes_answer(layout), "the nodes to register", 60)
    return asked


def state(layout: Layout) -> str:
    return jobs.admin(layout, "sinfo", "-h", f"--nodes={config.NODE}", "--partition=gpu", "--format=%t").strip()


def lacks(layout: Layout, job: int) -> list[str]:
    """Returns what a job lacks on the node, as `hami-hpc explain` says."""
    (told,) = json.loads(jobs.admin(layout, "hami-hpc", "explain", "--format", "json", str(job)))
    return [lack for place in told["may_use"] for lack in place["lacks"]]


def test_a_job_wakes_a_node_that_was_powered_down_and_has_its_slice(restored: Layout) -> None:
    suspended, resumed = programs(restored)
    jobs.admin(restored, "scontrol", "update", f"nodename={config.NODE}", "state=power_down")
    jobs.wait(restored, suspended.exists, "SuspendProgram", 60)
    daemons.stop(restored, "slurmd")
    jobs.wait(restored, lambda: state(restored) == "idle~", "the node to be powered down", 60)
    waiting = jobs.submit(restored, "news", "--hold", REQUEST, script="slice")
    assert lacks(restored, waiting) == []

    job = jobs.submit(restored, "games", REQUEST, script="slice; srun slice")
    jobs.wait(restored, resumed.exists, "ResumeProgram", 60)
    assert state(restored).endswith("#")  # powers up
    assert lacks(restored, waiting) == []
    usual = services.describe(restored, "slurmd")
    daemons.start(restored, dataclasses.replace(usual, command=(*usual.command, "-b")))  # as after a boot
    jobs.wait_for_state(restored, job, "COMPLETED", timeout_s=90)
    assert total_mib(jobs.output(restored, "games", job)) == [8192, 8192]
    node.wait_until_clean(restored)
