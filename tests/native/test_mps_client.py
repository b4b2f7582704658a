# SPDX-License-Identifier: Apache-2.0
"""The interposer in a client of MPS, on the simulation: it counts memory, and says in one line when the server ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance import BUILD, REAL_GPU, ROOT, make_slice, put

from hami_hpc.contract import constants as c
from hami_hpc.node import mps, mps_daemon, mps_processes
from hami_hpc.node.mps_daemon import Place

pytestmark = pytest.mark.skipif(REAL_GPU, reason="tests/gpu/mps.py is for a real GPU")
PROGRAM = str(BUILD / "sim/nvidia-cuda-mps-control")
CLIENT = str(ROOT / "tests/gpu/mps_client.py")
MEMBER = mps_daemon.Member(1, 1, 50, 8192)
CONTEXT_MIB = 512


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Place, dict[str, str]]]:
    """A place whose daemon runs, and the environment of a step with 50 % and 1024 MiB."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="m-") as folder:
        machine = Path(folder, "machine")
        subprocess.run([str(BUILD / "sim/sim-machine"), str(machine), "h200"], check=True)
        uuid = next(line for line in (machine / "machine.conf").read_text().splitlines() if "GPU-" in line)
        uuid = uuid.partition("=")[2].strip()
        monkeypatch.setenv("HAMI_SIM", str(machine))
        monkeypatch.delenv("LD_PRELOAD", raising=False)
        place = mps.place_of(folder, 0, os.getuid(), multi_user=False)
        mps.hold(PROGRAM, place, uuid, MEMBER)
        made = make_slice(Path(folder, "jobs"), machine, uuid, job_mib=1024, cores_percent=50, policy="none")
        more = {"CUDA_MPS_PIPE_DIRECTORY": place.pipe, "CUDA_VISIBLE_DEVICES": uuid}
        try:
            yield place, made.environment() | more
        finally:
            mps.leave(PROGRAM, place, MEMBER)
            subprocess.run(["umount", "-l", f"{folder}/mps"], check=False, capture_output=True)


def start(environment: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, CLIENT, *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def server_with_client(place: Place) -> int:
    end = time.monotonic() + 10
    while time.monotonic() < end:
        for server in mps_daemon.servers(PROGRAM, place):
            if mps_daemon.clients(PROGRAM, place, server):
                return server
        time.sleep(0.02)
    raise AssertionError("no client came")


def test_the_jobs_memory_is_limited_and_the_share_is_the_servers(job: tuple[Place, dict[str, str]]) -> None:
    numbers = json.loads(start(job[1], "take", "4096").communicate(timeout=30)[0])
    assert (numbers["sms"], numbers["taken_mib"]) == (66, 1024 - CONTEXT_MIB)


def test_clients_are_the_processes_of_a_slice(job: tuple[Place, dict[str, str]]) -> None:
    place, environment = job
    record = Path(environment[c.ENV_LIMITS]).with_name(c.FILE_JOB_LIMITS)
    record.write_bytes(put(record.read_bytes(), {"max_processes": 1}))
    holder = start(environment, "hold", "64", "30")
    server_with_client(place)
    out, errors = start(environment, "take", "64").communicate(timeout=30)
    assert json.loads(out)["status"] == 800
    assert "allows (max_processes = 1), so process" in errors
    holder.kill()
    holder.communicate()
    assert json.loads(start(environment, "take", "64").communicate(timeout=30)[0])["taken_mib"] == 64


def test_the_end_of_the_server_is_one_line_in_the_jobs_output(job: tuple[Place, dict[str, str]]) -> None:
    place, environment = job
    process = start(environment, "hold", "64", "1.5")
    os.kill(server_with_client(place), signal.SIGKILL)
    out, errors = process.communicate(timeout=30)
    assert json.loads(out)["error"].endswith(": CUDA error 806"), "whichever call of the program was next"
    assert len(errors.splitlines()) == 1, errors
    assert "the MPS server of this job has ended, and this program's work" in errors


def test_a_client_that_was_ended_is_told_so(job: tuple[Place, dict[str, str]]) -> None:
    place, environment = job
    process = start(environment, "hold", "64", "1.5")
    server = server_with_client(place)
    mps_daemon.ask(PROGRAM, place, f"terminate_client {server} {process.pid}")
    out, errors = process.communicate(timeout=30)
    assert json.loads(out)["error"].endswith(": CUDA error 810")
    assert "has ended this program's work (CUDA error 810)" in errors


def test_a_fault_of_any_client_is_told_as_one_that_may_be_anothers(job: tuple[Place, dict[str, str]]) -> None:
    """On a GPU all clients of a server get the error of the one that made the fault (docs/benchmarks/mps.md)."""
    environment = job[1] | {"HAMI_SIM_FAULTS": "cuCtxSynchronize=700"}
    _out, errors = start(environment, "hold", "64", "0").communicate(timeout=30)
    assert "or of another client of its MPS server, made a fault, which ends the work of all" in errors
    del environment["CUDA_MPS_PIPE_DIRECTORY"]
    out, errors = start(environment, "hold", "64", "0").communicate(timeout=30)
    assert (json.loads(out)["status"], errors) == (700, ""), "without MPS it is the program's own"
    others = job[1] | {"HAMI_SIM_FAULTS": "cuCtxSynchronize=701"}
    assert start(others, "hold", "64", "0").communicate(timeout=30)[1] == "", "no fault"


@pytest.mark.parametrize("partition", ["", "the job's", "another"])
def test_a_program_without_its_partition_gets_no_context_and_one_line(
    job: tuple[Place, dict[str, str]], partition: str
) -> None:
    """With a driver that has static SM partitions (simulated: docs/adr/087)."""
    place, environment = job
    uuid = environment["CUDA_VISIBLE_DEVICES"]
    mps.leave(PROGRAM, place, MEMBER)
    Path(os.environ["HAMI_SIM"], "mps-static").write_text("15 8 132\n")
    mps.hold(PROGRAM, place, uuid, MEMBER, static=True)
    [member] = mps.members(place)
    named = {"": {}, "the job's": {"CUDA_MPS_SM_PARTITION": member.partition}}
    given = named.get(partition, {"CUDA_MPS_SM_PARTITION": f"{uuid}/none"})
    out, errors = start(environment | given, "take", "64").communicate(timeout=30)
    if partition == "the job's":
        assert (json.loads(out)["sms"], errors) == (64, "")
    else:
        assert json.loads(out)["status"] == 915
        assert "this one names none that are there; leave that variable as the step has it (CUDA error 915)" in errors
        assert len(errors.splitlines()) == 1


def test_without_mps_nothing_is_said(job: tuple[Place, dict[str, str]]) -> None:
    environment = {name: value for name, value in job[1].items() if name != "CUDA_MPS_PIPE_DIRECTORY"}
    out, errors = start(environment, "sms").communicate(timeout=30)
    assert (json.loads(out)["sms"], errors) == (132, "")


def test_the_server_is_known_as_a_jobs_and_another_process_is_not(job: tuple[Place, dict[str, str]]) -> None:
    """The agent does not report it as a process of no job."""
    place, environment = job
    process = start(environment, "hold", "64", "30")
    server = server_with_client(place)
    folder = f"{place.run_dir}/mps"
    assert mps_processes.is_jobs_server(server, folder)
    assert not mps_processes.is_jobs_server(server, "/run/hami-hpc/mps")
    assert not mps_processes.is_jobs_server(process.pid, folder)
    fake = subprocess.Popen([PROGRAM.replace("control", "server")], env=environment, stdin=subprocess.PIPE)
    time.sleep(0.2)
    assert not mps_processes.is_jobs_server(fake.pid, folder), "a user starts the same program, without the daemon"
    for one in (fake, process):
        one.kill()
        one.communicate()
