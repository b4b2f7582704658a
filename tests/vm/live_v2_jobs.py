# SPDX-License-Identifier: Apache-2.0
"""Jobs on a fresh node from packages, with cgroup version 2: their slice, their GPU's device, what the agent finds."""

from __future__ import annotations

import re

import pytest
from from_packages import findings
from virtual import Virtual

STRANGER = "news"
VGPU = ("--gres=vgpu:mem=8G,cores=50",)
ALLOWED, REFUSED = "No such device or address", "Operation not permitted"
OPEN = "; ".join(f"dd if=/dev/{name} count=0 2>&1" for name in ("nvidia0", "nvidia1", "nvidiactl"))
WARNINGS = {"user namespaces", "AccountingStorageEnforce"}


def test_doctor_finds_nothing_that_fails(machine: Virtual) -> None:
    said = machine.run("hami-hpc", "doctor").stdout
    found = dict(re.findall(r"^(?:OK|WARN|FAIL) +([^:]+): (.*)$", said, re.MULTILINE))
    assert re.findall(r"^FAIL +([^:]+):", said, re.MULTILINE) == [], said
    # No slurmdbd is here, and Debian lets users make namespaces.
    assert set(re.findall(r"^WARN +([^:]+):", said, re.MULTILINE)) <= WARNINGS, said
    assert found["agent"].startswith("pid "), said
    assert found["sshd"].startswith("/etc/pam.d/sshd:"), said
    assert machine.read("sys/fs/cgroup/cgroup.controllers"), "not version 2"


def test_a_job_has_its_slice_and_can_open_its_gpu_alone(machine: Virtual) -> None:
    first = machine.running(*VGPU, script=f"{OPEN}; slice; sleep 100", said="CUDA_ERROR_OUT_OF_MEMORY")
    said = machine.output(first)
    devices = re.findall(r"'/dev/(\w+)': (.*)", said)
    assert devices == [("nvidia0", ALLOWED), ("nvidia1", REFUSED), ("nvidiactl", ALLOWED)], said
    assert "NVIDIA H200: 8192 MiB in total" in said
    assert "8192 of 8192 MiB in use" in said
    second = machine.running(
        "--gres=vgpu:mem=100%,cores=100", script=f"{OPEN}; slice --use 130000; sleep 100", said="ok"
    )
    devices = re.findall(r"'/dev/(\w+)': (.*)", machine.output(second))
    assert devices[:2] == [("nvidia0", REFUSED), ("nvidia1", ALLOWED)], machine.output(second)


def test_a_step_is_held_to_cores_and_memory_of_its_cgroup_and_to_its_slice(machine: Virtual) -> None:
    show = "cat /proc/self/cgroup; nproc; slice --use 3000; slice --use 6000"
    job = machine.submit(*VGPU, "--mem=400", "-n1", script=f"srun --gres=vgpu:mem=4G sh -c '{show}'")
    machine.wait(lambda: machine.state(job) in ("COMPLETED", "FAILED"), "the end of the job", 90)
    said = machine.output(job)
    assert "/step_0/user/task_0" in said, said
    assert "\n1\nNVIDIA H200: 4096 MiB in total" in said, said
    assert re.search(r"3000 MiB   ok .*6000 MiB   CUDA_ERROR_OUT_OF_MEMORY", said, re.DOTALL), said


def test_the_agent_counts_a_jobs_processes_by_their_cgroup(machine: Virtual) -> None:
    """Of two jobs of a user on a GPU, each has its own processes, and nothing is found."""
    script = "slice --use 1000 --hold 100 & slice --use {mib} --hold 100; wait"
    jobs = {machine.running(*VGPU, script=script.format(mib=mib), said="ok"): mib for mib in (2000, 3000)}

    def rows() -> list[tuple[int, int]]:
        lines = machine.run("hami-hpc", "ps").stdout.splitlines()[1:]
        return sorted((int(line.split()[1]), int(line.split()[2])) for line in lines if line.split()[1:2] != ["-"])

    machine.wait(lambda: rows() == [(job, 2) for job in sorted(jobs)], f"two processes of each: {rows()}", 30)


@pytest.mark.findings("no_job")
def test_a_process_of_no_job_is_found_while_no_step_runs_on_the_node(machine: Virtual) -> None:
    """scontrol listpids of 24.11 and later prints nothing then."""
    before = len(findings(machine))
    words = f"runuser -u {STRANGER} -- env HAMI_SIM=/srv/sim slice --use 1000 --hold 120 >/dev/null 2>&1 &"
    machine.check("sh", "-c", words)
    machine.wait(lambda: "no_job" in findings(machine)[before:], "what the agent says of it", 110)
    machine.check("pkill", "-u", STRANGER)  # else it is found again during the next test


@pytest.mark.findings("no_interposer", "uncounted", "memory_over", "time_over")
@pytest.mark.parametrize("name", ["static", "own_loader"])
def test_a_program_without_the_interposer_is_found_with_its_job_and_killed(machine: Virtual, name: str) -> None:
    honest = machine.running(*VGPU, script="slice --use 1000 --hold 200", said="ok")
    before = len(findings(machine))
    job = machine.submit("--gres=vgpu:mem=2G,cores=10", script=f"evade-{name} 3000 100; echo status $?")
    machine.wait(lambda: "status" in machine.output(job), "the program's end", 60)
    assert "status 137" in machine.output(job), machine.output(job)
    assert f"of job {job} runs without the interposer" in machine.output(job)
    assert "no_interposer" in findings(machine)[before:]
    assert machine.state(honest) == "RUNNING"


@pytest.mark.findings("uncounted", "no_interposer", "memory_over", "time_over")
def test_the_drivers_limit_is_set_on_the_jobs_cgroup_and_holds_a_static_program(machine: Virtual) -> None:
    """A driver with memory limits by cgroup (r615): the agent finds the job's, also by its SLUID."""
    machine.check("mkdir", "/srv/sim/memory-limits")
    machine.check("systemctl", "restart", "hami-hpc-agent")
    try:
        script = "cat /proc/self/cgroup; sleep 8; evade-static 9000 5; echo status $?; sleep 100"
        job = machine.running(*VGPU, script=script, said="step_batch")
        stands = "driver's memory limits: stand for 1 of 1 slice(s)"
        machine.wait(lambda: stands in machine.run("hami-hpc", "doctor").stdout, "the limit", 20)
        place = re.search(r"0::(/.*?)/step_", machine.output(job))
        assert place is not None
        inode = machine.check("stat", "-c", "%i", f"/sys/fs/cgroup{place[1]}").strip()
        assert machine.check("ls", "/srv/sim/memory-limits").split() == [f"0-{inode}"]
        machine.wait(lambda: "status" in machine.output(job), "the program's end", 60)
        assert "cuMemAlloc_v2" in machine.output(job), machine.output(job)
        assert "status 1" in machine.output(job), machine.output(job)
    finally:
        machine.check("rm", "-r", "/srv/sim/memory-limits")
        machine.check("systemctl", "restart", "hami-hpc-agent")
