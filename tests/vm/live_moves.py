# SPDX-License-Identifier: Apache-2.0
"""A job whose memory may be moved, on cgroup version 2: Slurm's freezer, and the memory limit of the job's cgroup."""

from __future__ import annotations

import re

from live_v2_jobs import VGPU
from virtual import Virtual

MIB = 100
STACK_MIB = 128  # of the simulation's context: they go, too
AWAY, BACK = f"{MIB + STACK_MIB} MiB of 1 process off the GPU", "on the GPU, moved to the host"


def usage(machine: Virtual, job: int) -> str:
    return machine.run("hami-hpc", "usage", str(job)).stdout


def cgroup(machine: Virtual, job: int) -> str:
    found = re.search(r"0::(/.*?)/step_", machine.output(job))
    assert found is not None, machine.output(job)
    return f"sys/fs/cgroup{found[1]}"


def test_a_suspended_jobs_memory_leaves_and_comes_back_twice(machine: Virtual) -> None:
    script = f"cat /proc/self/cgroup; slice --use {MIB} --hold 300"
    job = machine.running(*VGPU, "--mem=1200", script=script, said="ok")
    place = cgroup(machine, job)
    assert int(machine.read(f"{place}/memory.max")) == 1200 << 20
    before = int(machine.read(f"{place}/memory.current"))
    for times in (1, 2):
        machine.check("scontrol", "suspend", str(job))
        machine.wait(lambda: AWAY in usage(machine, job), "the memory to leave", 40)
        machine.wait(lambda: "frozen 1" in machine.read(f"{place}/step_batch/user/cgroup.events"), "the freezer", 60)
        moved = int(machine.read(f"{place}/memory.current")) - before
        assert moved > (MIB - 10) << 20, f"{moved} bytes more are charged to the job"
        assert machine.state(job) == "SUSPENDED"
        machine.check("scontrol", "resume", str(job))
        told = f"{BACK} {times} time"
        machine.wait(lambda told=told: told in usage(machine, job), "the memory to come back", 30)  # type: ignore[misc]
        machine.wait(lambda: machine.state(job) == "RUNNING", "the job to go on")


def test_a_job_without_room_in_its_cgroup_keeps_its_memory_on_the_gpu_and_says_why(machine: Virtual) -> None:
    job = machine.running(*VGPU, "--mem=300", script="slice --use 2000 --hold 300", said="ok")
    done = machine.run("hami-hpc", "swap", "out", str(job))
    assert done.returncode == 1
    assert "the host, or the job's memory limit (--mem), has no room for it" in done.stderr, done.stderr
    machine.check("scontrol", "suspend", str(job))
    machine.wait(lambda: "on the GPU though it should leave" in usage(machine, job), "the reason", 20)
    machine.check("scontrol", "resume", str(job))
    machine.wait(lambda: "though" not in usage(machine, job), "the end of it", 20)
    assert machine.state(job) == "RUNNING", "nobody was killed"


def test_a_limit_above_the_jobs_cgroup_counts_too(machine: Virtual) -> None:
    job = machine.running(*VGPU, "--mem=1200", script="cat /proc/self/cgroup; slice --use 600 --hold 300", said="ok")
    scope = cgroup(machine, job).rpartition("/")[0]
    used = int(machine.read(f"{scope}/memory.current"))
    machine.write(f"{scope}/memory.max", str(used + (200 << 20)))
    try:
        done = machine.run("hami-hpc", "swap", "out", str(job))
    finally:
        machine.write(f"{scope}/memory.max", "max")
    assert "has no room for it" in done.stderr, done.stdout + done.stderr
    machine.check("hami-hpc", "swap", "out", str(job))
    machine.check("hami-hpc", "swap", "in", str(job))


def test_a_suspended_job_that_is_cancelled_ends(machine: Virtual) -> None:
    job = machine.running(*VGPU, "--mem=1200", script=f"slice --use {MIB} --hold 300", said="ok")
    machine.check("scontrol", "suspend", str(job))
    machine.wait(lambda: AWAY in usage(machine, job), "the memory to leave", 40)
    machine.check("scancel", str(job))
    machine.wait(lambda: machine.state(job) == "CANCELLED", "its end", 60)


def test_each_step_of_a_suspended_job_and_a_session_move(machine: Virtual) -> None:
    script = f"slice --use {MIB} --hold 300 & srun -n1 --overlap --mem=0 slice --use {MIB} --hold 300"
    job = machine.running(*VGPU, "--mem=2000", script=script)
    machine.wait(lambda: machine.output(job).count("ok") == 2, "both programs", 60)
    machine.check("scontrol", "suspend", str(job))
    both = f"{2 * (MIB + STACK_MIB)} MiB of 2 processes off the GPU"
    machine.wait(lambda: both in usage(machine, job), "the memory of both to leave", 40)
    machine.check("scontrol", "resume", str(job))
    machine.wait(lambda: BACK in usage(machine, job), "the memory to come back", 30)
