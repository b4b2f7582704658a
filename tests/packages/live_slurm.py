# SPDX-License-Identifier: Apache-2.0
"""Slurm's own daemons in a fresh chroot with the Debian packages: upgraded, and taken out, with vgpu jobs there."""

from __future__ import annotations

import functools
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import chroots
import pytest
from chroots import SETTINGS, Machine, machine
from made_packages import BASE, NEXT, NODE, PACKAGES, packages_of
from merged import merge

VGPU = "--gres=vgpu:mem=8G,cores=25"
SLURM_CONF = """\
ClusterName=site
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,batch_sched_delay=0
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
GresTypes=gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 CPUs=8 Gres=gpu:1
PartitionName=gpu Nodes=n1 Default=YES State=UP
"""
GRES_CONF = "Name=gpu File=/srv/gpu/nvidia0\n"


@dataclass
class Site:
    """A machine that is controller and node at once; its slurm.conf has never heard of hami_hpc."""

    on: Machine
    daemons: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    def write(self, name: str, text: str) -> None:
        path = self.on.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def start(self, name: str, *command: str) -> None:
        self.daemons[name] = self.on.start(*command, log=self.on.path(f"/var/log/{name}.out"))

    def stop(self, name: str) -> None:
        self.daemons[name].terminate()
        self.daemons[name].wait(timeout=60)

    def restart(self) -> None:
        """slurmctld, then slurmd."""
        for name, command in (("slurmctld", ("slurmctld", "-D")), ("slurmd", ("slurmd", "-D", "-N", "n1"))):
            if name in self.daemons:
                self.stop(name)
            self.start(name, *command)
            self.wait(functools.partial(self.answers, name), name)

    def answers(self, daemon: str) -> bool:
        if daemon == "slurmctld":
            return " UP" in self.on.run("scontrol", "ping").stdout
        return bool(re.match(r"(idle|mixed|alloc|drain)\w*$", self.on.run("sinfo", "-h", "-o", "%T").stdout.strip()))

    def wait(self, condition: Callable[[], object], what: str, timeout_s: float = 60) -> None:
        chroots.wait(condition, what, self.logs, timeout_s)

    def logs(self) -> str:
        found = [self.on.path(f"/var/log/slurm/{name}.log") for name in ("slurmctld", "slurmd")]
        found += [self.on.path(f"/var/log/{name}.out") for name in self.daemons]
        return "\n".join(path.read_text()[-1200:] for path in found if path.exists())

    def submit(self, *options: str, script: str) -> int:
        self.write("/tmp/job.sh", f"#!/bin/sh\n{script}\n")
        command = ("runuser", "-u", "games", "--", "sbatch", "--parsable", "-D", "/tmp", *options, "/tmp/job.sh")
        return int(self.on.check(*command))

    def state(self, job: int) -> str:
        found = re.search(r"JobState=(\w+)", self.on.run("scontrol", "show", "job", str(job)).stdout)
        return found[1] if found else ""

    def output(self, job: int) -> str:
        path = self.on.path(f"/tmp/slurm-{job}.out")
        return path.read_text() if path.exists() else ""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    subprocess.run(("ip", "link", "set", "lo", "up"), check=True)
    # With addresses of 127.* alone glibc resolves none for daemons that listen.
    subprocess.run(("ip", "address", "replace", "10.254.0.1/32", "dev", "lo"), check=True)
    with machine(BASE, tmp_path, PACKAGES) as on:
        made = Site(on)
        on.path("/srv/gpu").mkdir(parents=True)
        on.path("/srv/gpu/nvidia0").symlink_to("/dev/null")
        on.path("/tmp").chmod(0o1777)
        for name in ("/var/spool/slurmctld", "/var/spool/slurmd", "/var/log/slurm"):
            on.path(name).mkdir(parents=True, exist_ok=True)
        made.write("/etc/hosts", f"127.0.0.1 localhost\n10.254.0.1 {socket.gethostname()}\n")
        made.write("/etc/slurm/slurm.conf", SLURM_CONF)
        made.write("/etc/slurm/gres.conf", GRES_CONF)
        made.write("/etc/slurm/cgroup.conf", "CgroupPlugin=cgroup/v1\n")  # which looks at nothing until it is used
        on.check("install", "-d", "-o", "munge", "-g", "munge", "-m", "755", "/run/munge")
        try:
            made.start("munged", "runuser", "-u", "munge", "--", "munged", "--foreground")
            made.restart()
            yield made
        finally:
            on.run("scancel", "--user=games")
            time.sleep(1)
            for name in reversed(list(made.daemons)):
                made.stop(name)


def bring_hami(site: Site) -> None:
    """What docs/install.md and README say, and what render prints."""
    site.on.check("apt-get", "install", "-y", "--no-install-recommends", *packages_of("", NODE))
    site.write("/etc/hami-hpc/hami-hpc.toml", SETTINGS)
    site.on.prepare_node()
    render = ("hami-hpc", "render", "--gpus", "h200:1", "--node", "n1", "--device", "/srv/gpu/nvidia")
    printed = site.on.run(*render).stdout
    merge(site.on.root, printed, site.on.check)
    again = site.on.run(*render)
    assert again.returncode == 0, printed + again.stdout
    site.restart()


def test_a_job_runs_through_an_upgrade_of_the_packages(site: Site) -> None:
    bring_hami(site)
    doctor = site.on.run("hami-hpc", "doctor", "--node", "n1").stdout
    release = site.on.check("slurmd", "-V").split()[-1]
    gres = ("gres_vgpu", "gres_vgpu_mem", "gres_vgpu_cores", "gres_vgpu_slo")
    for name in (*gres, "spank_hami_hpc", "cli_filter_hami_hpc"):
        line = rf"OK +{name}\.so: .*, for Slurm {re.escape(release)}$"
        assert re.search(line, doctor, re.MULTILINE), doctor
    assert re.search(r"OK +builds: ", doctor), doctor
    script = (
        "cat /etc/ld.so.preload\nwhile [ ! -e /tmp/go ]; do sleep 0.2; done\nsrun -n1 echo a step of the new version"
    )
    job = site.submit(VGPU, script=script)
    site.wait(lambda: site.state(job) == "RUNNING" and "libhami-hpc.so" in site.output(job), "the job")
    site.on.check("apt-get", "install", "-y", "--no-install-recommends", *packages_of(NEXT, NODE))
    site.restart()
    assert site.state(job) == "RUNNING"
    beside = site.submit(VGPU, script="cat /etc/ld.so.preload")
    site.wait(lambda: site.state(beside) == "COMPLETED", "a job of the new version beside it")
    assert "/usr/lib/hami-hpc/libhami-hpc.so" in site.output(beside)
    site.write("/tmp/go", "")
    site.wait(lambda: site.state(job) == "COMPLETED", "the end of the job")
    assert "a step of the new version" in site.output(job)
    site.wait(lambda: site.on.path(f"/var/lib/hami-hpc/usage/{job}.json").exists(), "the usage record")
    assert "No job" in site.on.check("hami-hpc", "jobs") or str(job) not in site.on.check("hami-hpc", "jobs")


def test_taking_it_out_with_a_job_running_and_one_pending(site: Site) -> None:
    before = {name: site.on.path(f"/etc/slurm/{name}").read_text() for name in ("slurm.conf", "gres.conf")}
    bring_hami(site)
    running = site.submit(VGPU, script="while [ ! -e /tmp/go ]; do sleep 0.2; done")
    site.wait(lambda: site.state(running) == "RUNNING", "the job")
    site.on.check("scontrol", "update", "nodename=n1", "state=drain", "reason=hami_hpc is taken out")
    pending = site.submit(VGPU, script="env | grep -c HAMI_HPC; cat /etc/ld.so.preload")
    for name, text in before.items():
        site.write(f"/etc/slurm/{name}", text)
    site.on.check("rm", "/etc/slurm/job_submit.lua", "/etc/slurm/cli_filter.lua")
    site.write("/etc/slurm/plugstack.conf", "include plugstack.conf.d/*.conf\n")  # as Debian's
    site.restart()
    assert (site.state(running), site.state(pending)) == ("RUNNING", "PENDING")
    purge = ("apt-get", "purge", "-y", "hami-hpc-common", "hami-hpc-slurm", "hami-hpc-node")
    refused = site.on.run(*purge)
    assert refused.returncode != 0
    assert "vgpu jobs run on this node" in refused.stdout + refused.stderr
    site.write("/tmp/go", "")
    site.wait(lambda: site.state(running) == "COMPLETED", "the end of the job")
    # No epilog of ours runs any more, so the record stays until reconcile; NVML is not here, hence status 3.
    assert site.on.run("hami-hpc", "reconcile", "--node", "n1").returncode == 3
    refused = site.on.run(*purge)
    assert "/etc/slurm/plugstack.conf.d/hami-hpc.conf:" in refused.stdout + refused.stderr
    assert "vgpu jobs run on this node" not in refused.stdout + refused.stderr
    site.on.check("rm", "/etc/slurm/plugstack.conf.d/hami-hpc.conf")
    site.on.check(*purge)
    assert not site.on.path("/usr/lib/hami-hpc").exists()
    site.on.check("scontrol", "update", "nodename=n1", "state=resume")
    plain = site.submit(script="true")
    site.wait(lambda: site.state(plain) == "COMPLETED", "a job of the site's")
    assert site.state(pending) == "PENDING", "it does not run without its slice"
    assert "Reason=BadConstraints" in site.on.check("scontrol", "show", "job", str(pending))
    site.on.check("scancel", str(pending))
