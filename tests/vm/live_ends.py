# SPDX-License-Identifier: Apache-2.0
"""The machine's ends: the power is cut with jobs running, and root reboots it. Afterwards the node serves, and nothing
is left."""

from __future__ import annotations

import time

import pytest
from from_packages import UNITS, wait_idle
from live_v2_jobs import VGPU
from virtual import Virtual

GONE = ("", "CANCELLED", "FAILED", "NODE_FAIL", "COMPLETED", "TIMEOUT", "BOOT_FAIL")


@pytest.mark.parametrize("end", ["power", "reboot"])
def test_after_the_machines_end_the_node_serves_again_and_nothing_is_left(machine: Virtual, end: str) -> None:
    requeued = machine.running(*VGPU, "--requeue", script="slice --use 4000 --hold 600", said="ok")
    other = ("--gres=vgpu:mem=4G,cores=25", "--no-requeue")
    gone = machine.running(*other, script="slice --use 2000 --hold 600", said="ok")
    machine.check("sync")
    if end == "power":
        machine.cut_power()
        machine.boot()
    else:
        machine.reboot()
    states = [machine.run("systemctl", "is-active", unit).stdout.strip() for unit in UNITS]
    assert states == ["inactive", "active"], "reconcile has ended"
    assert "Result=success" in machine.check("systemctl", "show", UNITS[0], "--property=Result")
    assert UNITS[0] in machine.check("systemctl", "show", "slurmd", "--property=After"), "no job starts before"
    # slurmctld began when the node did, and asks what has become of jobs at a later registration than that first one.
    time.sleep(30)
    machine.check("systemctl", "restart", "slurmd")
    machine.wait(lambda: machine.state(gone) in GONE, f"job {gone} to be gone", 120)

    def runs_again() -> bool:
        """Slurm lets what it puts back wait for two minutes; until it knows of the restart, the job runs for it."""
        if machine.state(requeued) == "PENDING":
            machine.run("scontrol", "update", f"JobId={requeued}", "StartTime=now")
        rows = machine.check("hami-hpc", "jobs").splitlines()[1:]
        assert all(row.split()[0] == str(requeued) for row in rows), rows
        return "4512 of 8192" in machine.output(requeued) and len(rows) == 1

    machine.wait(runs_again, f"job {requeued} to run again", 240)
    machine.end(requeued)
    wait_idle(machine)
    whole = machine.submit("--gres=vgpu:mem=100%,cores=100", script="slice --use 130000")
    machine.wait(lambda: machine.state(whole) == "COMPLETED", "a job with all of a GPU")
    assert "130000 MiB   ok" in machine.output(whole), machine.output(whole)
    assert machine.run("hami-hpc", "doctor").returncode == 0
