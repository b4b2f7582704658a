# SPDX-License-Identifier: Apache-2.0
"""From packages to a service on a machine that systemd has booted, as docs/admin.md says it; then the power is cut."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from booted import Booted, booted
from chroots import SETTINGS
from made_packages import BASE, NODE, PACKAGES, packages_of
from merged import merge

VGPU = "--gres=vgpu:mem=8G,cores=50"
USE = "slice --use 4000 --hold {seconds}"
UNITS = ("hami-hpc-reconcile.service", "hami-hpc-agent.service", "hami-hpc-metrics.service")
METRICS = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:9855/metrics').read().decode())"
RENDER = ("hami-hpc", "render", "-o", "/etc/slurm", "--device", "/srv/gpu/nvidia")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Booted]:
    with booted(BASE, tmp_path_factory.mktemp("booted"), PACKAGES) as made:
        yield made


def metrics(machine: Booted) -> str:
    return machine.run("python3", "-c", METRICS).stdout


def is_shown(machine: Booted, job: int) -> bool:
    return re.search(rf'^hami_hpc_job_memory_used_bytes\{{.*job_id="{job}"', metrics(machine), re.MULTILINE) is not None


def unit_state(machine: Booted, unit: str) -> str:
    return machine.run("systemctl", "is-active", unit).stdout.strip()


def test_the_steps_of_the_admin_page_make_a_service(machine: Booted) -> None:
    machine.check("apt-get", "install", "-y", "--no-install-recommends", *packages_of("", NODE))
    machine.check("sh", "-c", "test -d /etc/hami-hpc")
    machine.check("groupadd", "--system", "hami-hpc")
    machine.write("etc/hami-hpc/hami-hpc.toml", SETTINGS + '[agent]\ngroup = "hami-hpc"\n')
    merge(machine.root, machine.run(*RENDER).stdout, machine.check)
    again = machine.run(*RENDER)
    assert again.returncode == 0, again.stdout
    # Prologs find the simulated driver by a variable.
    for stage in ("prolog", "epilog"):
        machine.check("sed", "-i", "s|^exec|HAMI_SIM=/srv/sim exec|", f"/etc/slurm/hami-hpc-{stage}")
    for daemon in ("slurmd", "slurmctld"):
        machine.check("systemctl", "restart", daemon)
    machine.check("systemctl", "enable", "--now", *UNITS)
    machine.wait(lambda: machine.run("sinfo", "-h", "-o", "%T").stdout.strip() == "idle", "the node")
    assert machine.run("systemctl", "--failed", "--plain", "--no-legend").stdout == ""
    said = machine.run("hami-hpc", "doctor").stdout
    found = dict(re.findall(r"^(?:OK|WARN|FAIL) +([^:]+): (.*)$", said, re.MULTILINE))
    assert found["agent"].startswith("pid "), said
    fails = set(re.findall(r"^FAIL +([^:]+):", said, re.MULTILINE))
    assert fails == {"TaskPlugin", "ConstrainDevices"}, said  # this machine has no cgroups for Slurm


def test_a_job_has_its_slice_and_the_services_see_it(machine: Booted) -> None:
    job = machine.submit(VGPU, script=f"cat /etc/ld.so.preload\n{USE.format(seconds=15)}")
    machine.wait(lambda: is_shown(machine, job), "the metrics to show the job")
    machine.wait(lambda: machine.state(job) == "COMPLETED", "the end of the job")
    said = machine.output(job)
    assert said.startswith("/usr/lib/hami-hpc/libhami-hpc.so\nNVIDIA H200: 8192 MiB in total"), said
    assert (machine.root / f"var/lib/hami-hpc/usage/{job}.json").exists()


def test_after_the_power_was_cut_the_node_serves_again_and_nothing_is_left(machine: Booted) -> None:
    jobs = [machine.submit(VGPU, script=USE.format(seconds=600)) for _ in range(2)]
    for job in jobs:
        machine.wait(lambda job=job: "4512 of 8192" in machine.output(job), "the memory")  # type: ignore[misc]
    machine.cut_power()
    machine.boot()
    assert [unit_state(machine, unit) for unit in UNITS] == ["inactive", "active", "active"], "reconcile has ended"
    assert "Result=success" in machine.check("systemctl", "show", UNITS[0], "--property=Result")
    order = machine.check("systemctl", "show", "slurmd", "--property=After")
    assert UNITS[0] in order, "no job starts before"
    assert machine.check("hami-hpc", "jobs").splitlines()[1:] == []
    # slurmctld recovers what it had written of jobs; that the node booted it does not see here, by the host's uptime.
    machine.check("scancel", "--user=games")
    machine.wait(lambda: machine.run("sinfo", "-h", "-o", "%T").stdout.strip() == "idle", "the node", 120)
    after = machine.submit("--gres=vgpu:mem=100%,cores=100", script="slice --use 130000")
    machine.wait(lambda: machine.state(after) == "COMPLETED", "a job with all of a GPU")
    assert "130000 MiB   ok" in machine.output(after), machine.output(after)
    machine.wait(lambda: "hami_hpc_agent_up 1.0" in metrics(machine), "the agent to be seen")
