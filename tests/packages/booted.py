# SPDX-License-Identifier: Apache-2.0
"""A machine that systemd has booted: an overlay over the base (make-base) in systemd-nspawn, with Slurm's own units,
two simulated GPUs, no compiler, and no network but loopback. It is controller and node at once, its host name is n1.

The simulated driver needs three things that a real one does not: HAMI_SIM in every environment, its files in the
loader's path, and its kernel's side preloaded in tasks. Nothing else differs from a node as docs/admin.md has it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from chroots import PATH, mount
from made_packages import ROOT

SIM = ROOT / "build/native/sim"
ENVIRONMENT = {
    "PATH": PATH,
    "HOME": "/root",
    "LC_ALL": "C.UTF-8",
    "DEBIAN_FRONTEND": "noninteractive",
    "HAMI_SIM": "/srv/sim",
}
BOOT_S = 120
NAMESPACES = ("mount", "pid", "net", "uts", "ipc", "cgroup", "root", "wd")
SLURM_CONF = """\
ClusterName=site
SlurmctldHost=n1(127.0.0.1)
SlurmUser=slurm
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
TaskProlog=/srv/task_prolog
ReturnToService=2
SlurmdParameters=config_overrides
SchedulerParameters=nohold_on_prolog_fail,sched_interval=1,batch_sched_delay=0
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
GresTypes=gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
NodeName=n1 NodeAddr=127.0.0.1 CPUs=8 Gres=gpu:2
PartitionName=gpu Nodes=n1 Default=YES State=UP
"""
TASK_PROLOG = """\
#!/bin/sh
echo "export HAMI_SIM=/srv/sim"
[ ! -e /run/hami-hpc/self/step.limits ] ||
	echo "export LD_PRELOAD=/usr/lib/hami-hpc/libhami-hpc.so:/srv/driver/libhami-sim-kernel.so"
"""
FILES = {
    "etc/hostname": "n1\n",
    # With addresses of 127.* alone glibc resolves none for daemons that listen.
    "etc/hosts": "127.0.0.1 localhost\n10.254.0.1 n1\n",
    "etc/systemd/network/lo.network": "[Match]\nName=lo\n[Network]\nAddress=10.254.0.1/32\n",
    "etc/systemd/system.conf.d/sim.conf": "[Manager]\nDefaultEnvironment=HAMI_SIM=/srv/sim\n",
    # nspawn mounts a boot id of its own over the kernel's, which sandboxed units do not see.
    "etc/systemd/system/one-boot-id.service": (
        "[Unit]\nDefaultDependencies=no\nBefore=sysinit.target\n[Service]\nType=oneshot\n"
        "ExecStart=umount /proc/sys/kernel/random/boot_id\n[Install]\nWantedBy=sysinit.target\n"
    ),
    "etc/slurm/slurm.conf": SLURM_CONF,
    "etc/slurm/gres.conf": "Name=gpu File=/srv/gpu/nvidia[0-1]\n",
    "etc/slurm/cgroup.conf": "CgroupPlugin=cgroup/v1\n",  # which looks at nothing until it is used
    "srv/task_prolog": TASK_PROLOG,
}


@dataclass
class Booted:
    root: Path
    shared: Path
    _nspawn: subprocess.Popen[bytes] | None = None

    def boot(self) -> None:
        """Switches it on, and waits until systemd has started everything."""
        command = (
            *(
                "systemd-nspawn",
                "--quiet",
                f"--directory={self.root}",
                "--machine=n1",
                "--hostname=n1",
                "--register=no",
            ),
            *("--keep-unit", "--private-network", "--capability=all", f"--bind-ro={self.shared}:/shared"),
            *("--console=read-only", "--boot"),
        )
        with (self.root.parent / "console").open("ab") as console:
            self._nspawn = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=console, stderr=console, start_new_session=True
            )
        self.wait(lambda: self.run("systemctl", "is-system-running").stdout.strip() == "running", "systemd", BOOT_S)

    def cut_power(self) -> None:
        """Ends all of its processes at once; nothing of it is told."""
        if self._nspawn is None:
            return
        leader = self._leader()
        if leader:
            os.kill(leader, signal.SIGKILL)
        self._nspawn.wait(timeout=60)
        self._nspawn = None

    def _leader(self) -> int:
        """Returns its first process, or 0."""
        assert self._nspawn is not None
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                words = path.read_text().rpartition(") ")
            except OSError:
                continue
            if int(words[2].split()[1]) == self._nspawn.pid and words[0].endswith("(systemd"):
                return int(path.parent.name)
        return 0

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        leader = self._leader()
        if not leader:
            return subprocess.CompletedProcess(command, 255, "", "the machine is off")
        enter = ("nsenter", f"--target={leader}", *(f"--{name}" for name in NAMESPACES))
        words = (f"{name}={value}" for name, value in ENVIRONMENT.items())
        return subprocess.run(
            (*enter, "env", "-i", *words, *command), capture_output=True, text=True, timeout=300, check=False
        )

    def check(self, *command: str) -> str:
        done = self.run(*command)
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}\n{self.logs()}"
        return done.stdout

    def wait(self, condition: Callable[[], object], what: str, timeout_s: float = 60) -> None:
        end = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < end, f"{what}\n{self.logs()}"
            time.sleep(0.3)

    def logs(self) -> str:
        journal = self.run("journalctl", "--no-pager", "--boot", "--lines=60").stdout
        slurm = [self.root / f"var/log/slurm/{name}.log" for name in ("slurmctld", "slurmd")]
        console = (self.root.parent / "console").read_text(errors="replace")[-1500:]
        return "\n".join([console, journal, *(path.read_text()[-1500:] for path in slurm if path.exists())])

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def submit(self, *options: str, script: str) -> int:
        self.write("srv/job.sh", f"#!/bin/sh\n{script}\n")
        command = ("runuser", "-u", "games", "--", "sbatch", "--parsable", "-D", "/srv/home", *options, "/srv/job.sh")
        return int(self.check(*command))

    def output(self, job: int) -> str:
        path = self.root / f"srv/home/slurm-{job}.out"
        return path.read_text() if path.exists() else ""

    def state(self, job: int) -> str:
        found = re.search(r"JobState=(\w+)", self.run("scontrol", "show", "job", str(job)).stdout)
        return found[1] if found else ""


def _furnish(machine: Booted) -> None:
    root = machine.root
    (root / "usr/sbin/policy-rc.d").unlink(missing_ok=True)  # services may start here
    for name, text in FILES.items():
        machine.write(name, text)
    (root / "srv/task_prolog").chmod(0o755)
    for folder, mode in (("srv/gpu", 0o755), ("srv/driver", 0o755), ("srv/home", 0o777)):
        (root / folder).mkdir(parents=True)
        (root / folder).chmod(mode)
    for index, device in enumerate(("/dev/null", "/dev/zero")):
        (root / f"srv/gpu/nvidia{index}").symlink_to(device)
    shutil.copy2(SIM / "libhami-sim-kernel.so", root / "srv/driver")
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        shutil.copy2(SIM / name, root / "usr/lib/x86_64-linux-gnu")
    shutil.copy2(ROOT / "build/examples/slice", root / "usr/bin/slice")
    subprocess.run((SIM / "sim-machine", root / "srv/sim", "h200", "h200"), check=True, stdout=subprocess.DEVNULL)
    for path in ("slurmctld", "slurmd"):
        subprocess.run(("chroot", root, "install", "-d", "-o", "slurm", f"/var/lib/slurm/{path}"), check=True)
    commands = (
        ("ldconfig",),
        ("systemctl", "enable", "systemd-networkd", "one-boot-id"),
        ("systemctl", "mask", "systemd-networkd-wait-online"),
    )
    for command in commands:
        subprocess.run(("chroot", root, *command), check=True, capture_output=True)


@contextmanager
def booted(base: Path, folder: Path, shared: Path) -> Iterator[Booted]:
    """A machine below `folder`, which is switched on."""
    assert shutil.which("systemd-nspawn"), "systemd-nspawn is missing: apt-get install systemd-container"
    root, upper, work = folder / "root", folder / "upper", folder / "work"
    for path in (root, upper, work):
        path.mkdir(parents=True)
    mount("overlay", root, "-t", "overlay", "-o", f"lowerdir={base},upperdir={upper},workdir={work}")
    machine = Booted(root, shared)
    try:
        _furnish(machine)
        machine.boot()
        yield machine
    finally:
        machine.cut_power()
        subprocess.run(("umount", "--recursive", "--lazy", root), check=False)
