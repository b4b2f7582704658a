# SPDX-License-Identifier: Apache-2.0
"""The machine's ends: the power is cut with jobs running, and root reboots it. Afterwards the node serves, nothing is
left of the jobs that ended with it, and no usage record that was written is lost."""

from __future__ import annotations

import json
import time

import pytest
from from_packages import UNITS, wait_idle
from live_v2_jobs import VGPU
from virtual import Virtual

GONE = ("", "CANCELLED", "FAILED", "NODE_FAIL", "COMPLETED", "TIMEOUT", "BOOT_FAIL")
SAVED_S = 8  # slurmctld writes the state of jobs each 5 s
# slurmctld asks what has become of its jobs at a registration of the node's, and takes none for lost before
# BatchStartTimeout and MessageTimeout, 10 s each, have passed since it began itself.
LOST_AFTER_S = 25
RECORD_OF = 900_001
STAGE = {
    "SLURM_JOB_ID": str(RECORD_OF),
    "SLURM_JOB_UID": "5",
    "SLURM_JOB_GPUS": "1",
    "HAMI_HPC_VGPU": "1",
    "HAMI_HPC_CLASS": "std",
    "HAMI_HPC_MEM_MIB": "8192",
    "HAMI_HPC_CORES": "50",
}


def record(machine: Virtual, job: int) -> dict[str, object]:
    text = machine.read(f"var/lib/hami-hpc/usage/{job}.json")
    return json.loads(text) if text else {}


def end_a_job(machine: Virtual) -> None:
    """Runs prolog and epilog of a job that slurmctld does not know, whose own state the power cut must not spoil."""
    words = [f"{name}={value}" for name, value in STAGE.items()]
    for stage in ("prolog", "epilog"):
        machine.check("env", *words, f"/usr/libexec/hami-hpc/{stage}")


def own_mounts(machine: Virtual) -> list[str]:
    """Returns the jobs whose usage is mounted."""
    lines = machine.read("proc/self/mountinfo").splitlines()
    places = [line.split()[4] for line in lines]
    return sorted({place.split("/")[4] for place in places if place.startswith("/run/hami-hpc/jobs/")})


@pytest.mark.parametrize("end", ["power", "reboot"])
def test_after_the_machines_end_the_node_serves_again_and_nothing_is_left(machine: Virtual, end: str) -> None:
    requeued = machine.running(*VGPU, "--requeue", script="slice --use 4000 --hold 600", said="ok")
    other = ("--gres=vgpu:mem=4G,cores=25", "--no-requeue")
    gone = machine.running(*other, script="slice --use 2000 --hold 600", said="ok")
    assert own_mounts(machine) == sorted([str(requeued), str(gone)])
    time.sleep(SAVED_S)
    machine.check("sync")
    end_a_job(machine)
    if end == "power":
        machine.cut_power()
        machine.boot()
    else:
        machine.reboot()
    began = time.monotonic()
    assert record(machine, RECORD_OF)["mem_mib"] == 8192, "it was on the disk when the epilog had ended"
    machine.check("rm", f"/var/lib/hami-hpc/usage/{RECORD_OF}.json")
    states = [machine.run("systemctl", "is-active", unit).stdout.strip() for unit in UNITS]
    assert states == ["inactive", "active"], "reconcile has ended"
    assert "Result=success" in machine.check("systemctl", "show", UNITS[0], "--property=Result")
    assert UNITS[0] in machine.check("systemctl", "show", "slurmd", "--property=After"), "no job starts before"
    if end == "power":
        assert len(machine.check("hami-hpc", "jobs").splitlines()) == 1, "no grant"
        assert own_mounts(machine) == []
        doctor = machine.run("hami-hpc", "doctor").stdout
        assert f"for Slurm job {min(requeued, gone)}, {max(requeued, gone)} still run here" in doctor, doctor
    time.sleep(max(0.0, began + LOST_AFTER_S - time.monotonic()))
    machine.check("systemctl", "restart", "slurmd")  # as doctor says
    machine.wait(lambda: machine.state(gone) in GONE, f"job {gone} to be gone", 120)

    if end == "reboot" and machine.state(requeued) in GONE:
        # systemd ends the programs of jobs before slurmd at a shutdown, which Slurm may take for the job's end.
        requeued = machine.submit(*VGPU, script="slice --use 4000 --hold 600")

    def runs_again() -> bool:
        """Slurm lets what it puts back wait for two minutes."""
        if machine.state(requeued) == "PENDING":
            machine.run("scontrol", "update", f"JobId={requeued}", "StartTime=now")
        rows = machine.check("hami-hpc", "jobs").splitlines()[1:]
        assert all(row.split()[0] == str(requeued) for row in rows), rows
        return "4512 of 8192" in machine.output(requeued) and len(rows) == 1

    machine.wait(runs_again, f"job {requeued} to run again", 240)
    assert own_mounts(machine) == [str(requeued)]
    machine.end(requeued)
    wait_idle(machine)
    machine.wait(lambda: record(machine, requeued), "the record of its second run", 30)
    assert record(machine, requeued)["usage"] == "ok"
    assert own_mounts(machine) == []
    whole = machine.submit("--gres=vgpu:mem=100%,cores=100", script="slice --use 130000")
    machine.wait(lambda: machine.state(whole) == "COMPLETED", "a job with all of a GPU")
    assert "130000 MiB   ok" in machine.output(whole), machine.output(whole)
    assert machine.run("hami-hpc", "doctor").returncode == 0
