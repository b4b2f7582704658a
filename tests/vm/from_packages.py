# SPDX-License-Identifier: Apache-2.0
"""The machine that all tests here share: made, installed as docs/admin.md says, and left as it was between tests."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator

import pytest
from chroots import SETTINGS
from made_packages import NODE, PACKAGES, ROOT
from merged import merge_by
from served import USER
from virtual import Virtual, missing, virtual

from hami_hpc.core.watch import Kind

SUITE = os.environ.get("HAMI_HPC_VM", "bookworm")
BASE = ROOT / "build/vm" / SUITE
FOLDER = {"bookworm": PACKAGES}.get(SUITE, ROOT / f"build/chroot/{SUITE}/checkout/build/packages")
UNITS = ("hami-hpc-reconcile.service", "hami-hpc-agent.service")
OWN_SETTINGS = """\
[classes.std]
swap = true
[agent.actions]
memory_over = "kill"
no_interposer = "kill"
"""
# What doctor advises where jobs are suspended: for Slurm before 23.11, and from then on.
SUSPEND = {"bookworm": "s|^TaskPlugin=.*|&,task/hami_hpc|", "": "$aPreemptParameters=suspend_grace_time=23"}
RENDER = ("hami-hpc", "render", "-o", "/etc/slurm")


def install(machine: Virtual) -> None:
    """Does what docs/admin.md says, and nothing else but for the simulated driver's sake."""
    paths = []
    for part in NODE:
        found = list(FOLDER.glob(f"hami-hpc-{part}_*.deb"))
        assert len(found) == 1, f"{FOLDER} needs one package hami-hpc-{part}, built for the Slurm of {SUITE}: {found}"
        package = found[0]
        machine.put(package, f"/shared/{package.name}")
        paths.append(f"/shared/{package.name}")
    machine.check("apt-get", "install", "-y", "--no-install-recommends", *paths)
    machine.write("etc/hami-hpc/hami-hpc.toml", SETTINGS + OWN_SETTINGS)
    merge_by(machine.read, machine.write, machine.run(*RENDER).stdout, machine.check)
    again = machine.run(*RENDER)
    assert again.returncode == 0, again.stdout
    # Prologs find the simulated driver by a variable.
    for stage in ("prolog", "epilog"):
        machine.check("sed", "-i", "s|^exec|HAMI_SIM=/srv/sim exec|", f"/etc/slurm/hami-hpc-{stage}")
    line = next(one for one in machine.read("etc/slurm/hami-hpc-pam.conf").splitlines() if one.startswith("session"))
    machine.write(
        "etc/pam.d/sshd", re.sub(r"(?m)^session", f"{line}\nsession", machine.read("etc/pam.d/sshd"), count=1)
    )
    machine.check("sed", "-i", SUSPEND.get(SUITE, SUSPEND[""]), "/etc/slurm/slurm.conf")
    for daemon in ("slurmd", "slurmctld"):
        machine.check("systemctl", "restart", daemon)
    machine.check("systemctl", "enable", "--now", *UNITS)


def wait_idle(machine: Virtual) -> None:
    machine.wait(lambda: machine.run("sinfo", "-h", "-o", "%T").stdout.strip() == "idle", "the node", 120)


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Virtual]:
    lacking = missing()
    assert not lacking, f"programs are missing: {lacking}"
    assert BASE.exists(), f"{BASE} is missing: make test-vm makes it"
    with virtual(BASE, tmp_path_factory.mktemp("vm")) as machine:
        install(machine)
        wait_idle(machine)
        yield machine


def findings(machine: Virtual) -> list[str]:
    """Returns the kinds of all that the agent has found, in order. A power cut leaves parts of lines."""
    whole = re.findall(r"^\{.*\}$", machine.read("var/lib/hami-hpc/events.jsonl"), re.MULTILINE)
    lines = [json.loads(line) for line in whole]
    return [line["kind"] for line in lines if line["kind"] in tuple(Kind)]


@pytest.fixture
def machine(installed: Virtual, request: pytest.FixtureRequest) -> Iterator[Virtual]:
    """The machine. After the test no job, grant or drained node may be left, and the agent may have found what the
    test's mark findings(KIND, ...) names, at the most."""
    before = len(findings(installed))
    yield installed
    installed.run("scancel", f"--user={USER}")
    installed.wait(lambda: not installed.run("squeue", "-h").stdout, "all jobs to be gone", 120)
    wait_idle(installed)
    installed.wait(lambda: not installed.run("ls", "/run/hami-hpc/jobs").stdout, "the epilogs", 60)
    said = installed.run("hami-hpc", "reconcile", "--dry-run")
    assert said.stdout.startswith("nothing to do"), said.stdout + said.stderr
    allowed = {kind for mark in request.node.iter_markers("findings") for kind in mark.args}
    found = set(findings(installed)[before:])
    assert found <= allowed, f"{found - allowed}\n{installed.run('hami-hpc', 'events').stdout}"
