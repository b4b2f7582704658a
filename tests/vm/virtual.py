# SPDX-License-Identifier: Apache-2.0
"""A virtual machine with a kernel of its own, so with cgroup version 2 alone, as Debian boots: Slurm constrains cores,
memory and devices of jobs, and users come by ssh with pam_slurm_adopt. It has no network but the way in by ssh.

Its GPUs' device nodes have no driver: opening one fails with ENXIO where the device cgroup allows it, else with EPERM.
"""

from __future__ import annotations

import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from chroots import mount
from made_packages import ROOT
from served import ENVIRONMENT, SLURM_CONF, USER, Served, furnish

BOOT_S = 240
BOOTS = 4
BEGUN = "the script has begun"
MEMORY_MIB, CPUS = 3072, 4
DISK = "6G"
USERS = (USER, "news")
EVADERS = ("static", "raw", "own_loader")  # tests/native/evaders
OWN_CONF = """\
ProctrackType=proctrack/cgroup
TaskPlugin=task/affinity,task/cgroup
JobAcctGatherType=jobacct_gather/cgroup
JobAcctGatherFrequency=5
PrologFlags=Alloc,Contain
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=300
NodeName=n1 NodeAddr=127.0.0.1 CPUs=4 Sockets=1 CoresPerSocket=4 RealMemory=2500 Gres=gpu:2
PartitionName=gpu Nodes=n1 Default=YES State=UP
"""
SSHD = """\
# As SchedMD's page of pam_slurm_adopt says; pam_systemd is out of common-session.
account required pam_slurm_adopt.so
@include common-auth
account required pam_nologin.so
@include common-account
session required pam_loginuid.so
@include common-session
session required pam_limits.so
session required pam_env.so
@include common-password
"""
FILES = {
    "etc/slurm/gres.conf": "Name=gpu File=/dev/nvidia[0-1]\n",
    "etc/slurm/cgroup.conf": (
        "CgroupPlugin=autodetect\nConstrainCores=yes\nConstrainRAMSpace=yes\nConstrainDevices=yes\n"
    ),
    "etc/systemd/network/en.network": "[Match]\nName=en*\n[Network]\nAddress=10.0.2.15/24\n",
    "etc/tmpfiles.d/gpus.conf": (
        "c! /dev/nvidia0 0666 root root - 195:0\nc! /dev/nvidia1 0666 root root - 195:1\n"
        "c! /dev/nvidiactl 0666 root root - 195:255\n"
    ),
    "etc/ssh/sshd_config.d/tests.conf": "AuthorizedKeysFile /etc/ssh/keys\nMaxStartups 100\nMaxSessions 100\n",
    "etc/pam.d/sshd": SSHD,
    "etc/environment": "HAMI_SIM=/srv/sim\n",
    "etc/ld.so.preload": "/srv/driver/libhami-sim-kernel.so\n",  # a task's own list is the interposer, then this
    "srv/task_prolog": "#!/bin/sh\necho 'export HAMI_SIM=/srv/sim'\n",
    "var/log/journal/.keep": "",
}
QEMU = (
    *("qemu-system-x86_64", "-M", "q35", "-m", str(MEMORY_MIB), "-smp", str(CPUS), "-display", "none", "-no-reboot"),
    *("-monitor", "none", "-device", "virtio-rng-pci", "-append", "root=/dev/vda rw console=ttyS0 quiet panic=-1"),
)
WITH_KVM = ("-enable-kvm", "-cpu", "host,-arch-capabilities")
WITHOUT_KVM = ("-accel", "tcg,thread=multi", "-cpu", "max")
NEEDED = {
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "debootstrap": "debootstrap",
    "ssh": "openssh-client",
    "mkfs.ext4": "e2fsprogs",
}


def missing() -> str:
    """Returns what to install before machines can be made; "" for nothing."""
    absent = [package for program, package in NEEDED.items() if shutil.which(program) is None]
    return f"a virtual machine needs: apt-get install {' '.join(absent)}" if absent else ""


def has_kvm() -> bool:
    """Returns whether the CPU itself runs machines. KVM by software alone (kvm_pvm) starts no kernel of Debian."""
    return Path("/dev/kvm").exists() and any(Path(f"/sys/module/kvm_{name}").exists() for name in ("intel", "amd"))


class PanickedError(Exception):
    """The guest's kernel ended by itself."""


@dataclass
class Virtual(Served):
    """`base` is a root directory of make-base with a kernel, `folder` the machine's own."""

    base: Path
    folder: Path
    port: int = 0
    _qemu: subprocess.Popen[bytes] | None = None
    _ssh: list[str] = field(default_factory=list)

    def boot(self) -> None:
        """Switches it on. Emulated CPUs (seen with QEMU 7.2) sometimes run into a breakpoint of the kernel, which
        patches itself while it boots: it panics, ends, and is switched on again."""
        for again in range(BOOTS):
            self._switch_on()
            try:
                self.wait_for_boot()
            except PanickedError:
                self._end()
                assert again + 1 < BOOTS, self.console()
            else:
                return

    def _switch_on(self) -> None:
        self.port = _free_port()
        command = (
            *(*QEMU, *(WITH_KVM if has_kvm() else WITHOUT_KVM)),
            *("-kernel", self.base / "vmlinuz", "-initrd", self.base / "initrd.img"),
            *("-drive", f"file={self.folder}/disk.qcow2,if=virtio,format=qcow2"),
            *("-netdev", f"user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:{self.port}-10.0.2.15:22"),
            *("-device", "virtio-net-pci,netdev=net", "-serial", f"file:{self.folder}/console"),
        )
        with (self.folder / "qemu.log").open("ab") as log:
            self._qemu = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def wait_for_boot(self) -> None:
        def is_up() -> bool:
            assert self._qemu is not None
            if self._qemu.poll() is not None and "Kernel panic" in self.console():
                raise PanickedError
            assert self._qemu.poll() is None, (self.folder / "qemu.log").read_text()
            return self.run("systemctl", "is-system-running").stdout.strip() in ("running", "degraded")

        self.wait(is_up, "systemd", BOOT_S)
        failed = self.run("systemctl", "--failed", "--plain", "--no-legend").stdout
        assert failed == "", f"{failed}\n{self.logs()}"

    def cut_power(self) -> None:
        if self._qemu is not None:
            self._qemu.kill()
            self._end()

    def reboot(self) -> None:
        """Restarts it in the ordinary way: qemu ends when the machine does (-no-reboot)."""
        assert self._qemu is not None
        self.run("systemctl", "reboot")
        self._qemu.wait(timeout=BOOT_S)
        self._end()
        self.boot()

    def _end(self) -> None:
        assert self._qemu is not None
        self._qemu.wait(timeout=60)
        self._qemu = None
        for path in self.folder.glob("ssh-*"):
            subprocess.run(("ssh", "-o", f"ControlPath={path}", "-O", "exit", "x"), capture_output=True, check=False)
            with suppress(FileNotFoundError):
                path.unlink()

    def ssh(self, user: str, *options: str, program: str = "ssh") -> list[str]:
        """Returns the beginning of a command of ssh, scp or sftp. Root's commands share a connection."""
        shared = ("-o", "ControlMaster=auto", "-o", f"ControlPath={self.folder}/ssh-root", "-o", "ControlPersist=600")
        return [
            *(program, "-F", "/dev/null", "-i", str(self.folder / "key"), "-o", f"Port={self.port}"),
            *(
                "-o",
                "BatchMode=yes",
                "-o",
                "StrictHostKeyChecking=no",
                "-o",
                "UserKnownHostsFile=/dev/null",
                "-o",
                "LogLevel=ERROR",
            ),
            *("-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=15", "-o", f"User={user}"),
            *(shared if user == "root" else ()),
            *(*options, "127.0.0.1"),
        ]

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        if self._qemu is None:
            return subprocess.CompletedProcess(command, 255, "", "the machine is off")
        words = (f"{name}={value}" for name, value in ENVIRONMENT.items())
        return self.session("root", "env", "-i", *words, *command)

    def session(self, user: str, *command: str, seconds: float = 300) -> subprocess.CompletedProcess[str]:
        """Runs a command in a session of the user's by ssh."""
        whole = (*self.ssh(user), shlex.join(command))
        try:
            return subprocess.run(
                whole, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired as late:
            return subprocess.CompletedProcess(whole, 255, "", f"no end within {seconds} s: {late.stderr!r}")

    def start(self, user: str, *command: str) -> subprocess.Popen[str]:
        """Starts a command in a session of the user's by ssh."""
        pipe = subprocess.PIPE
        return subprocess.Popen((*self.ssh(user), shlex.join(command)), stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def read(self, name: str) -> str:
        return self.run("cat", f"/{name}").stdout

    def write(self, name: str, text: str) -> None:
        path = shlex.quote(f"/{name}")
        whole = (*self.ssh("root"), f"mkdir -p $(dirname {path}) && cat >{path}")
        subprocess.run(whole, input=text, text=True, capture_output=True, check=True, timeout=60)

    def running(self, *options: str, script: str, said: str = "") -> int:
        """Submits a job, and waits until it runs and its output has what it says; its first line, if that is not given:
        Slurm calls a job running before its steps are there."""
        said, script = (said, script) if said else (BEGUN, f"echo {BEGUN}; {script}")
        job = self.submit(*options, script=script)
        try:
            self.wait(lambda: self.state(job) == "RUNNING" and said in self.output(job), "its output", 90)
        except AssertionError as error:
            raise AssertionError(f"job {job}, {self.state(job)}: {self.output(job)!r}\n{error}") from None
        return job

    def end(self, job: int) -> None:
        self.run("scancel", str(job))
        self.wait(lambda: not self.run("squeue", "-h", "-j", str(job)).stdout, f"the end of job {job}", 90)

    def put(self, source: Path, target: str) -> None:
        """Copies a file into the machine."""
        command = self.ssh("root")
        with source.open("rb") as file:
            whole = (*command, f"mkdir -p $(dirname {target}) && cat >{target} && chmod 755 {target}")
            subprocess.run(whole, stdin=file, capture_output=True, check=True, timeout=120)

    def console(self) -> str:
        path = self.folder / "console"
        return path.read_text(errors="replace") if path.exists() else ""


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def make_disk(base: Path, folder: Path, public_key: str) -> Path:
    """Makes the image of a disk with the base and what such a machine has besides."""
    root, upper, work, image = folder / "root", folder / "upper", folder / "work", folder / "base.img"
    for path in (root, upper, work):
        path.mkdir(parents=True)
    mount("overlay", root, "-t", "overlay", "-o", f"lowerdir={base},upperdir={upper},workdir={work}")
    try:
        furnish(root, {**FILES, "etc/slurm/slurm.conf": SLURM_CONF + OWN_CONF, "etc/ssh/keys": public_key})
        if base.name != "bookworm":  # OpenSSH from 9.8 on makes those wait who were refused
            (root / "etc/ssh/sshd_config.d/penalties.conf").write_text("PerSourcePenalties no\n")
        (root / "srv/sim/devices").touch()  # CUDA shows what the device cgroup lets it open
        for name in EVADERS:
            shutil.copy2(ROOT / "build/native/evaders" / name, root / "usr/bin" / f"evade-{name}")
        for name in USERS:
            subprocess.run(("chroot", root, "usermod", "--shell", "/bin/sh", "--home", "/srv/home", name), check=True)
        for path in (root / "etc/pam.d").glob("common-session*"):
            kept = [line for line in path.read_text().splitlines() if "pam_systemd.so" not in line]
            path.write_text("\n".join(kept) + "\n")
        command = ("mkfs.ext4", "-q", "-F", "-d", root, "-E", "lazy_itable_init=1", image, DISK)
        subprocess.run(command, check=True)
    finally:
        subprocess.run(("umount", "--recursive", "--lazy", root), check=False)
    return image


@contextmanager
def virtual(base: Path, folder: Path) -> Iterator[Virtual]:
    """A machine in `folder`, which is switched on."""
    subprocess.run(("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "key"), check=True)
    image = make_disk(base, folder, (folder / "key.pub").read_text())
    command = ("qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", image, folder / "disk.qcow2")
    subprocess.run(command, check=True)
    machine = Virtual(base, folder)
    try:
        machine.boot()
        yield machine
    finally:
        machine.cut_power()
