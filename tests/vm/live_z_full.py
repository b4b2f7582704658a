# SPDX-License-Identifier: Apache-2.0
"""Full disks: a job is refused, or it runs with its limits, never without them; and all is well when there is room."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from live_v2_jobs import VGPU
from virtual import Virtual

LIMITED = "NVIDIA H200: 8192 MiB in total"


@contextmanager
def full(machine: Virtual, folder: str) -> Iterator[None]:
    """Fills the file system of a folder, root's reserve too."""
    fill = (
        f"dd if=/dev/zero of={folder}/fill bs=1M 2>/dev/null; dd if=/dev/zero of={folder}/rest bs=1k 2>/dev/null; sync"
    )
    machine.run("sh", "-c", fill)
    try:
        yield
    finally:
        machine.run("sh", "-c", f"rm -f {folder}/fill {folder}/rest")


@pytest.mark.parametrize("folder", ["/run", "/var/lib"])
def test_on_a_full_disk_a_job_is_refused_or_limited(machine: Virtual, folder: str) -> None:
    before = machine.running(*VGPU, script="sleep 15; slice --use 4000 --hold 20", said="")
    machine.write("dev/shm/job.sh", "#!/bin/sh\nslice --use 1000 > /dev/shm/said.$SLURM_JOB_ID 2>&1\n")
    with full(machine, folder):
        done = machine.run(
            *("runuser", "-u", "games", "--", "sbatch", "--parsable", "-D", "/dev/shm", "-o", "/dev/null", *VGPU),
            "/dev/shm/job.sh",
        )
        job = int(done.stdout) if done.returncode == 0 else 0
        if job:
            machine.wait(lambda: machine.state(job) not in ("RUNNING", "CONFIGURING", "COMPLETING"), "an answer", 60)
        said = machine.read(f"dev/shm/said.{job}")
        assert not said or LIMITED in said, said
        doctor = machine.run("hami-hpc", "doctor")
        print(f"{folder} full: job {job} {done.stderr!r} {machine.state(job) if job else ''!r}: {said!r}")
        print("\n".join(line for line in doctor.stdout.splitlines() if not line.startswith("OK")))
        print(machine.run("sinfo", "-R").stdout)
        print(machine.run("scontrol", "show", "job", str(job)).stdout if job else "")
    machine.run("scontrol", "update", "NodeName=n1", "State=RESUME")
    machine.wait(lambda: machine.state(before) not in ("RUNNING", "COMPLETING"), "the job from before", 90)
    assert LIMITED in machine.output(before), machine.output(before)
    machine.run("scancel", "--user=games")
    machine.run("scontrol", "update", "NodeName=n1", "State=RESUME")
    again = machine.submit(*VGPU, script="slice --use 1000")
    machine.wait(lambda: machine.state(again) == "COMPLETED", "a job when there is room", 90)
    assert LIMITED in machine.output(again)
