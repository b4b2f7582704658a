# SPDX-License-Identifier: Apache-2.0
"""Full file systems: /run, with hami_hpc's run directory, and its state directory. No job runs without its slice,
nothing is granted twice, no usage record is lost, and the node serves again by itself when there is room."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from from_packages import wait_idle
from live_v2_jobs import VGPU
from virtual import Virtual

STATE = "/var/lib/hami-hpc"
FILL = """\
set -u
fallocate -l "$(df --output=avail -k "$1" | tail -n 1)K" "$1/filler"
dd if=/dev/zero of="$1/filler.rest" bs=4k 2>/dev/null
[ "$(df --output=avail -k "$1" | tail -n 1)" -eq 0 ]
"""
RETURN_S = 90  # the agent looks each 30 s
WHOLE = ("--gres=vgpu:mem=100%,cores=100",)


@contextmanager
def full(machine: Virtual, folder: str) -> Iterator[None]:
    machine.check("sh", "-c", FILL, "sh", folder)
    try:
        yield
    finally:
        machine.check("rm", "-f", f"{folder}/filler", f"{folder}/filler.rest")


@contextmanager
def small_state(machine: Virtual) -> Iterator[None]:
    """Gives the state directory a small file system of its own."""
    machine.check("cp", "-a", STATE, f"{STATE}.kept")
    machine.check("mount", "-t", "tmpfs", "-o", "size=2m,mode=755", "state", STATE)
    machine.check("sh", "-c", f"cp -a {STATE}.kept/. {STATE}")
    try:
        yield
    finally:
        machine.check("sh", "-c", f"cp -a {STATE}/. {STATE}.kept")
        machine.check("umount", "--lazy", STATE)
        machine.check("sh", "-c", f"cp -a {STATE}.kept/. {STATE} && rm -r {STATE}.kept")


def records(machine: Virtual, *jobs: int) -> list[dict[str, object]]:
    """Returns the jobs' usage records in the spool."""
    texts = [machine.read(f"{STATE[1:]}/usage/{job}.json") for job in jobs]
    return [json.loads(text) for text in texts if text]


def rows(machine: Virtual) -> list[int]:
    return [int(line.split()[0]) for line in machine.check("hami-hpc", "jobs").splitlines()[1:]]


def reason(machine: Virtual) -> str:
    return machine.check("sinfo", "-h", "-R", "-o", "%500E").strip()


def runs_again(machine: Virtual, job: int) -> None:
    """Slurm lets a job whose prolog failed wait for two minutes."""
    assert machine.state(job) == "PENDING"
    machine.check("scontrol", "update", f"JobId={job}", "StartTime=now")
    machine.wait(lambda: machine.state(job) == "COMPLETED", f"job {job}", 90)


def test_a_job_that_meets_a_full_run_directory_waits_and_the_node_returns_by_itself(machine: Virtual) -> None:
    with full(machine, "/run"):
        job = machine.submit(*VGPU, script="slice --use 1000")
        machine.wait(lambda: reason(machine), "the node to be drained", 60)
        assert "hami_hpc: prolog: " in reason(machine)
        assert "full" in reason(machine), reason(machine)
        assert "The node returns to service when there is room" in reason(machine)
        machine.wait(lambda: machine.state(job) == "PENDING", "the job to be put back", 30)
        assert rows(machine) == []
    wait_idle(machine)
    assert reason(machine) == ""
    runs_again(machine, job)
    assert "1000 MiB   ok" in machine.output(job)
    assert "node_resume" in machine.read("var/lib/hami-hpc/events.jsonl")


def test_a_node_that_an_administrator_drained_meanwhile_stays_drained(machine: Virtual) -> None:
    with full(machine, "/run"):
        job = machine.submit(*VGPU, script="slice --use 1000")
        machine.wait(lambda: reason(machine), "the node to be drained", 60)
        machine.check("scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=new disk")
        machine.wait(lambda: machine.state(job) == "PENDING", "the job to be put back", 30)
    left = "/run/hami-hpc/no-room"
    machine.wait(lambda: machine.run("ls", left).returncode != 0, "the agent to look", RETURN_S)
    assert reason(machine) == "new disk"
    machine.check("scontrol", "update", "NodeName=n1", "State=RESUME")
    runs_again(machine, job)


def test_a_job_that_ends_while_the_run_directory_is_full_keeps_its_record_and_gives_back_its_slice(
    machine: Virtual,
) -> None:
    job = machine.running(*WHOLE, script="slice --use 1000 --hold 15", said="ok")
    with full(machine, "/run"):
        machine.wait(lambda: machine.state(job) == "COMPLETED", "the job's end", 60)
        machine.wait(lambda: records(machine, job), "its record", 30)
        assert reason(machine) == "", "an epilog drains nothing by it"
    again = machine.submit(*WHOLE, script="slice --use 130000")
    machine.wait(lambda: machine.state(again) == "COMPLETED", "a job with all of a GPU", 90)
    assert "130000 MiB   ok" in machine.output(again)
    machine.wait(lambda: len(records(machine, job, again)) == 2, "both records", 30)
    assert [one["usage"] for one in records(machine, job, again)] == ["ok", "ok"]


def test_records_wait_while_the_state_directory_is_full_and_arrive_without_another_job(machine: Virtual) -> None:
    with small_state(machine):
        with full(machine, STATE):
            jobs = [machine.submit(*VGPU, script="slice --use 1000") for _ in range(2)]
            for job in jobs:
                machine.wait(lambda job=job: machine.state(job) == "COMPLETED", "the job's end", 90)  # type: ignore[misc]
            waiting = "/run/hami-hpc/spool"
            machine.wait(lambda: len(machine.run("ls", waiting).stdout.split()) == 2, "records that wait", 30)
            assert records(machine, *jobs) == []
            assert reason(machine) == ""
        machine.check("systemctl", "restart", "hami-hpc-agent")  # it looks each five minutes, and when it starts
        machine.wait(lambda: len(records(machine, *jobs)) == 2, "the records", 60)
        assert machine.run("ls", waiting).stdout == ""


def test_a_job_that_ends_with_all_disks_full_has_its_record_later(machine: Virtual) -> None:
    with small_state(machine):
        job = machine.running(*VGPU, script="slice --use 3000 --hold 15", said="ok")
        with full(machine, "/run"), full(machine, STATE):
            machine.wait(lambda: machine.state(job) == "COMPLETED", "the job's end", 60)
            left = "/run/hami-hpc/jobs"
            machine.wait(lambda: ".ended-" in machine.run("ls", "-A", left).stdout, "its directory", 30)
            other = machine.submit(*VGPU, script="slice --use 1000")
            machine.wait(lambda: reason(machine), "the node to be drained", 60)
            machine.wait(lambda: machine.state(other) == "PENDING", "the job to be put back", 30)
        wait_idle(machine)
        runs_again(machine, other)
        machine.wait(lambda: len(records(machine, job, other)) == 2, "both records", 60)
        (first, _) = records(machine, job, other)
        assert (first["usage"], first["peak_bytes"]) == ("ok", 3512 << 20)
        assert rows(machine) == []


def test_the_agent_goes_on_through_a_full_run_directory(machine: Virtual) -> None:
    with full(machine, "/run"):
        logged = "state.json cannot be written (No space left on device); it goes on"
        machine.wait(lambda: logged in machine.run("journalctl", "-b", "-u", "hami-hpc-agent").stdout, "its log", 30)
    machine.wait(lambda: "OK    agent: pid" in machine.run("hami-hpc", "doctor").stdout, "the agent's state", 30)
