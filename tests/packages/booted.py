# SPDX-License-Identifier: Apache-2.0
"""A machine that systemd has booted in systemd-nspawn (served.py): an overlay over the base (make-base), with no
network but loopback, and without cgroups for Slurm. tests/vm has one with a kernel of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from chroots import mount
from served import ENVIRONMENT, SLURM_CONF, Served, furnish

BOOT_S = 120
NAMESPACES = ("mount", "pid", "net", "uts", "ipc", "cgroup", "root", "wd")
OWN_CONF = """\
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
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
    # nspawn mounts a boot id of its own over the kernel's, which sandboxed units do not see.
    "etc/systemd/system/one-boot-id.service": (
        "[Unit]\nDefaultDependencies=no\nBefore=sysinit.target\n[Service]\nType=oneshot\n"
        "ExecStart=umount /proc/sys/kernel/random/boot_id\n[Install]\nWantedBy=sysinit.target\n"
    ),
    "etc/slurm/slurm.conf": SLURM_CONF + OWN_CONF,
    "etc/slurm/gres.conf": "Name=gpu File=/srv/gpu/nvidia[0-1]\n",
    "etc/slurm/cgroup.conf": "CgroupPlugin=cgroup/v1\n",  # which looks at nothing until it is used
    "srv/task_prolog": TASK_PROLOG,
}


@dataclass
class Booted(Served):
    root: Path
    shared: Path
    _nspawn: subprocess.Popen[bytes] | None = None

    def boot(self) -> None:
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

    def read(self, name: str) -> str:
        path = self.root / name
        return path.read_text() if path.exists() else ""

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def console(self) -> str:
        return (self.root.parent / "console").read_text(errors="replace")


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
        for index, device in enumerate(("/dev/null", "/dev/zero")):
            (root / "srv/gpu").mkdir(parents=True, exist_ok=True)
            (root / f"srv/gpu/nvidia{index}").symlink_to(device)
        furnish(root, FILES, "one-boot-id")
        machine.boot()
        yield machine
    finally:
        machine.cut_power()
        subprocess.run(("umount", "--recursive", "--lazy", root), check=False)
