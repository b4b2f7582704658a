# SPDX-License-Identifier: Apache-2.0
"""PrologFlags=RunInJob, of Slurm 24.05 and later (make test-vm runs this on those): prolog and epilog run in the job's
extern step, so in its cgroup. What works all the same, and what does not, as doctor says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from from_packages import SUITE, wait_idle
from live_full_disks import full, reason, records, rows, runs_again
from live_sessions import TOO_MUCH
from live_v2_jobs import VGPU
from made_packages import ROOT
from served import USER
from virtual import Virtual

CONF, SETTINGS, PROLOG = "/etc/slurm/slurm.conf", "/etc/hami-hpc/hami-hpc.toml", "/etc/slurm/hami-hpc-prolog"
SITE = "/etc/slurm/hami_hpc_site.lua"
SLOW_S = 20
MPS_CONTROL = "/srv/driver/nvidia-cuda-mps-control"
MPS = ("--gres=vgpu:mem=4G,cores=25,mode=mps",)


def restart(machine: Virtual) -> None:
    for daemon in ("slurmctld", "slurmd", "hami-hpc-agent"):
        machine.check("systemctl", "restart", daemon)
    wait_idle(machine)


@contextmanager
def changed(machine: Virtual, path: str, change: str) -> Iterator[None]:
    """Changes a file by sed, and puts its text back."""
    text = machine.read(path.lstrip("/"))
    try:
        machine.check("sed", "-i", change, path)
        yield
    finally:
        machine.write(path.lstrip("/"), text)


@pytest.fixture(scope="module")
def in_job(installed: Virtual) -> Iterator[None]:
    with changed(installed, CONF, "s/^PrologFlags=.*/&,RunInJob/"):
        restart(installed)
        yield
    restart(installed)


@pytest.fixture
def with_mps(machine: Virtual, in_job: None) -> Iterator[None]:
    """The node of an administrator who has added mode=mps."""
    for name in ("control", "server"):
        machine.put(ROOT / f"build/native/sim/nvidia-cuda-mps-{name}", f"/srv/driver/nvidia-cuda-mps-{name}")
    mode = f's|^version = 1|&\\n[vgpu]\\nmodes = ["share", "mps"]\\n[mps]\\ncontrol = "{MPS_CONTROL}"|'
    feature = "s/Feature=vgpu_share/&,vgpu_mps/"
    with changed(machine, SETTINGS, mode), changed(machine, CONF, feature), changed(machine, SITE, "1!d"):
        machine.run("hami-hpc", "render", "--output", "/srv/rendered")  # with lines left to merge
        machine.check("cp", "/srv/rendered/hami_hpc_site.lua", SITE)
        restart(machine)
        yield
    machine.run("scancel", f"--user={USER}")
    machine.wait(lambda: not machine.run("squeue", "-h").stdout, "all jobs to be gone", 120)
    restart(machine)


def daemons(machine: Virtual) -> str:
    """Returns the cgroup of each MPS control daemon."""
    script = 'for pid in $(pgrep -f "^$0 -d"); do cat /proc/$pid/cgroup; done'
    return machine.run("sh", "-c", script, MPS_CONTROL).stdout


def test_jobs_and_steps_have_their_slice_and_their_record(machine: Virtual, in_job: None) -> None:
    script = "slice --use 1000 --hold 20 & srun -n1 --overlap --mem=0 --gres=vgpu:mem=2G slice --use 3000; wait"
    job = machine.running(*VGPU, script=script, said="2048 MiB in total")
    assert rows(machine) == [job]
    machine.wait(lambda: machine.state(job) == "COMPLETED", "the job's end", 90)
    assert "8192 MiB in total" in machine.output(job)
    assert "3000 MiB   CUDA_ERROR_OUT_OF_MEMORY" in machine.output(job), machine.output(job)
    machine.wait(lambda: records(machine, job), "its record", 30)
    assert records(machine, job)[0]["usage"] == "ok"
    assert rows(machine) == []


def test_stages_have_room_in_a_job_with_little_memory(machine: Virtual, in_job: None) -> None:
    """Slurm's least limit of a cgroup is 30 MiB. The first prolog of a boot reads the GPUs, and needs most."""
    machine.check("rm", "/run/hami-hpc/ledger.db")
    job = machine.submit(*VGPU, "--mem=1", script="echo done")
    machine.wait(lambda: machine.state(job) == "COMPLETED", "the job's end", 90)
    machine.wait(lambda: records(machine, job), "its record", 30)
    assert reason(machine) == ""


def test_a_prolog_that_fails_puts_the_job_back_and_the_node_returns(machine: Virtual, in_job: None) -> None:
    with full(machine, "/run"):
        job = machine.submit(*VGPU, script="slice --use 1000")
        machine.wait(lambda: "hami_hpc: prolog: " in reason(machine), "the node to be drained", 60)
        machine.wait(lambda: machine.state(job) == "PENDING", "the job to be put back", 30)
    wait_idle(machine)
    runs_again(machine, job)


def test_a_session_is_limited_once_the_prolog_has_ended_and_doctor_warns_of_the_time_before(
    machine: Virtual, in_job: None
) -> None:
    assert "begins while its job's prolog runs is not limited" in machine.run("hami-hpc", "doctor").stdout
    with changed(machine, PROLOG, f"s/^HAMI_SIM/sleep {SLOW_S}; &/"):
        job = machine.submit(*VGPU, script="echo begun; sleep 200")
        unlimited: list[str] = []

        def is_let_in() -> bool:
            done = machine.session(USER, "sh", "-c", "cat /proc/self/cgroup; slice --use 9000")
            unlimited.append(done.stdout)
            return "/step_extern/" in done.stdout

        machine.wait(is_let_in, "a session", SLOW_S)
        assert "143156 MiB in total" in unlimited[-1], "what doctor warns of"
        machine.wait(lambda: "begun" in machine.output(job), "the job's begin", 60)
    limited = machine.session(USER, "slice", "--use", "9000")
    assert limited.returncode == TOO_MUCH, limited.stdout
    assert "8192 MiB in total" in limited.stdout


def test_an_mps_daemon_is_of_its_first_job_and_doctor_warns_of_it(machine: Virtual, with_mps: None) -> None:
    """On 24.11 it ends with that job. On 26.05 neither ends, and Slurm drains the node."""
    assert "the daemon of mode=mps is a process of its first job" in machine.run("hami-hpc", "doctor").stdout
    first = machine.running(*MPS, script="slice --use 1000 --hold 300", said="ok")
    second = machine.running(*MPS, script="sleep 300")
    (cgroup,) = daemons(machine).splitlines()
    assert "/step_extern/" in cgroup
    machine.end(first)
    if SUITE == "trixie":
        machine.wait(lambda: daemons(machine) == "", "the daemon's end", 60)
    else:
        machine.wait(lambda: "Kill task failed" in reason(machine), "the node to be drained", 120)
        machine.check("scontrol", "update", "NodeName=n1", "State=RESUME")
    machine.wait(lambda: rows(machine) == [second], "the first job's grant to be gone", 60)
    assert machine.state(second) == "RUNNING"
