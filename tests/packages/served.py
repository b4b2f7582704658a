# SPDX-License-Identifier: Apache-2.0
"""What the machines that systemd has booted have in common (booted.py, tests/vm/virtual.py): Slurm's own units, two
simulated GPUs, no compiler, and no network. Each is controller and node at once, its host name is n1.

The simulated driver needs three things that a real one does not: HAMI_SIM in every environment, its files in the
loader's path, and its kernel's side preloaded in tasks. Nothing else differs from a node as docs/admin.md has it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path

import chroots
from chroots import PATH
from made_packages import ROOT

SIM = ROOT / "build/native/sim"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
ENVIRONMENT = {
    "PATH": PATH,
    "HOME": "/root",
    "LC_ALL": "C.UTF-8",
    "DEBIAN_FRONTEND": "noninteractive",
    "HAMI_SIM": "/srv/sim",
}
USER = "games"
SLURM_CONF = """\
ClusterName=site
SlurmctldHost=n1(127.0.0.1)
SlurmUser=slurm
MpiDefault=none
TaskProlog=/srv/task_prolog
ReturnToService=2
SchedulerParameters=nohold_on_prolog_fail,sched_interval=1,batch_sched_delay=0
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
GresTypes=gpu
SelectType=select/cons_tres
"""
FILES = {
    "etc/hostname": "n1\n",
    # With addresses of 127.* alone glibc resolves none for daemons that listen.
    "etc/hosts": "127.0.0.1 localhost\n10.254.0.1 n1\n",
    "etc/systemd/network/lo.network": "[Match]\nName=lo\n[Network]\nAddress=10.254.0.1/32\n",
    "etc/systemd/system.conf.d/sim.conf": "[Manager]\nDefaultEnvironment=HAMI_SIM=/srv/sim\n",
}


class Served(ABC):
    """A machine that is switched on and off, and runs root's commands."""

    @abstractmethod
    def boot(self) -> None:
        """Switches it on, and waits until systemd has started everything."""

    @abstractmethod
    def cut_power(self) -> None:
        """Ends all of its processes at once; nothing of it is told."""

    @abstractmethod
    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Runs a command as root; the status is 255 where the machine is off."""

    @abstractmethod
    def read(self, name: str) -> str:
        """Returns a file's text; "" where there is none."""

    @abstractmethod
    def write(self, name: str, text: str) -> None:
        """Writes a file, and the folders above it."""

    @abstractmethod
    def console(self) -> str:
        """Returns what the machine's console showed."""

    def check(self, *command: str) -> str:
        done = self.run(*command)
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}\n{self.logs()}"
        return done.stdout

    def wait(self, condition: Callable[[], object], what: str, timeout_s: float = 60) -> None:
        chroots.wait(condition, what, self.logs, timeout_s)

    def logs(self) -> str:
        journal = self.run("journalctl", "--no-pager", "--boot", "--lines=60").stdout
        slurm = [self.read(f"var/log/slurm/{name}.log")[-1500:] for name in ("slurmctld", "slurmd")]
        return "\n".join([self.console()[-1500:], journal, *slurm])

    def submit(self, *options: str, script: str) -> int:
        self.write("srv/job.sh", f"#!/bin/sh\n{script}\n")
        command = ("runuser", "-u", USER, "--", "sbatch", "--parsable", "-D", "/srv/home", *options, "/srv/job.sh")
        return int(self.check(*command))

    def output(self, job: int) -> str:
        return self.read(f"srv/home/slurm-{job}.out")

    def state(self, job: int) -> str:
        found = re.search(r"JobState=(\w+)", self.run("scontrol", "show", "job", str(job)).stdout)
        return found[1] if found else ""


def furnish(root: Path, files: Mapping[str, str], *enabled: str) -> None:
    """Makes such a machine of a root directory of make-base."""
    (root / "usr/sbin/policy-rc.d").unlink(missing_ok=True)  # services may start here
    for name, text in {**FILES, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "srv/task_prolog").chmod(0o755)
    for folder, mode in (("srv/driver", 0o755), ("srv/home", 0o777)):
        (root / folder).mkdir(parents=True)
        (root / folder).chmod(mode)
    shutil.copy2(SIM / "libhami-sim-kernel.so", root / "srv/driver")
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        shutil.copy2(SIM / name, root / LIBRARIES)
    shutil.copy2(ROOT / "build/examples/slice", root / "usr/bin/slice")
    subprocess.run((SIM / "sim-machine", root / "srv/sim", "h200", "h200"), check=True, stdout=subprocess.DEVNULL)
    for daemon in ("slurmctld", "slurmd"):
        subprocess.run(("chroot", root, "install", "-d", "-o", "slurm", f"/var/lib/slurm/{daemon}"), check=True)
    commands = (
        ("ldconfig",),
        ("systemctl", "enable", "systemd-networkd", *enabled),
        ("systemctl", "mask", "systemd-networkd-wait-online"),
    )
    for command in commands:
        subprocess.run(("chroot", root, *command), check=True, capture_output=True)
