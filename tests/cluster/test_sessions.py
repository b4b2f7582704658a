# SPDX-License-Identifier: Apache-2.0
"""Sessions in the extern step of a job (pam_slurm_adopt), with the PAM line that render writes: limited as the job is.

Slurm makes the extern step's cgroup here (PrologFlags=Contain, proctrack/cgroup); a program of the tests joins it and
opens the session, as sshd with pam_slurm_adopt does.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from harness import agent, config, jobs, mounting
from harness import cluster as private_cluster
from harness.layout import Layout
from sessions import Sshd, build
from test_views import hami_json

USER = "games"
TOO_MUCH = 3  # slice --use: there is less
REQUEST = ("--gres=vgpu:mem=4G,cores=25",)


@dataclass(frozen=True)
class Adopting:
    """The cluster, where its jobs' cgroups are, and sshd's PAM service."""

    layout: Layout
    cgroups: Path
    sshd: Sshd

    def place(self, job: int) -> Path | None:
        return next(self.cgroups.glob(f"slurm*/uid_*/job_{job}/step_extern"), None)

    def command(self, job: int, *command: str) -> list[str]:
        place = self.place(job)
        assert place is not None, "no extern step"
        kernel = {"LD_PRELOAD": str(config.simulated_kernel(self.layout)), "PATH": f"{self.layout.bin}:/usr/bin:/bin"}
        return self.sshd.command(place, {**config.driver_environment(self.layout), **kernel}, *command)

    def session(self, job: int, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(job, *command), capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def adopting(restored: Layout, tmp_path: Path) -> Iterator[Adopting]:
    build()
    conf = restored.slurm_conf.read_text().replace("proctrack/linuxproc", "proctrack/cgroup")
    fragment = restored.etc / "slurm-hami-hpc.conf"
    folder = tmp_path / "pam.d"
    folder.mkdir()
    (folder / "session").write_text((restored.etc / "hami-hpc-pam.conf").read_text())
    with mounting.freezer(tmp_path) as mount:
        config.write(fragment, fragment.read_text().replace("PrologFlags=Alloc", "PrologFlags=Alloc,Contain"))
        config.write(restored.slurm_conf, conf)
        config.write(restored.etc / "cgroup.conf", f"CgroupPlugin=cgroup/v1\nCgroupMountpoint={mount}\n")
        for name in ("slurmctld", *restored.slurmds):
            private_cluster.restart(restored, name)
        yield Adopting(restored, mount / "freezer", Sshd(folder, USER, has_own_run=False))
        jobs.admin(restored, "scancel", f"--user={USER}")
        jobs.wait(restored, lambda: not jobs.admin(restored, "squeue", "-h"), "all jobs to be gone", 60)


def processes(layout: Layout, job: int) -> int:
    """Returns how many processes on the GPUs the agent knows as the job's."""
    told = hami_json(layout, "root", "ps")
    return sum(row["processes"] for row in told["rows"] if row["job_id"] == job) if told["source"] == "agent" else 0


def start(adopting: Adopting, script: str, *request: str) -> int:
    job = jobs.submit(adopting.layout, USER, *(request or REQUEST), script=script)
    jobs.wait_for_state(adopting.layout, job, "RUNNING")
    jobs.wait(adopting.layout, lambda: adopting.place(job) is not None, "the extern step", 30, job)
    return job


def test_a_session_shares_its_jobs_limit_and_ends_with_the_job(adopting: Adopting) -> None:
    layout = adopting.layout
    job = start(adopting, "slice --use 2000 --hold 120")
    jobs.wait(layout, lambda: "ok" in jobs.output(layout, USER, job), "the job's memory")
    beside = adopting.session(job, "slice", "--use", "2000")
    assert beside.returncode == TOO_MUCH, beside.stdout + beside.stderr
    command = adopting.command(job, "sh", "-c", "slice --use 500 --hold 100")
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE) as session:
        assert session.stdout is not None
        while "ok" not in (line := session.stdout.readline()):
            assert line, "the session could not allocate"
        jobs.wait(layout, lambda: processes(layout, job) == 2, "the agent to count the session with its job", 20)
        time.sleep(3)  # the agent looks each second; what it finds of either fails the test (conftest.py)
        jobs.admin(layout, "scancel", str(job))
        session.wait(timeout=60)
    assert session.returncode != 0
    jobs.wait(layout, lambda: adopting.place(job) is None, "the extern step's end")
    jobs.wait(layout, lambda: not (layout.run_dir / "jobs" / str(job)).exists(), "its epilog")


@pytest.mark.findings("no_interposer", "memory_over")
def test_a_session_without_the_line_is_found_by_the_agent(adopting: Adopting) -> None:
    layout = adopting.layout
    (adopting.sshd.folder / "session").write_text("session required pam_permit.so\n")
    job = start(adopting, "sleep 120")
    seen = agent.log_size(layout)
    command = adopting.command(job, "sh", "-c", "slice --use 5000 --hold 100")
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE) as session:
        assert session.stdout is not None
        while "ok" not in (line := session.stdout.readline()):
            assert line, "the session was limited"
        jobs.wait(
            layout,
            lambda: any(one.job_id == job and one.kind == "no_interposer" for one in agent.events_since(layout, seen)),
            "the agent to find it",
            20,
        )
        jobs.admin(layout, "scancel", str(job))
        session.wait(timeout=60)


def test_a_session_is_of_the_one_job_that_it_was_let_into(adopting: Adopting) -> None:
    """Of a user's jobs on the node, one has a slice of 2 GiB, one of 4 GiB, one none."""
    sleep = "sleep 120"
    small, large, none = (
        start(adopting, sleep, request) for request in ("--gres=vgpu:mem=2G,cores=10", *REQUEST, "-n1")
    )
    assert adopting.session(small, "slice", "--use", "2500").returncode == TOO_MUCH
    done = adopting.session(large, "slice", "--use", "2500")
    assert done.returncode == 0, done.stdout + done.stderr
    without = adopting.session(none, "sh", "-c", "cat /proc/self/maps; env")
    assert "libhami-hpc.so" not in without.stdout
    assert without.returncode == 0
