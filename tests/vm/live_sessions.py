# SPDX-License-Identifier: Apache-2.0
"""Users who come by ssh: OpenSSH, Debian's pam_slurm_adopt and hami_hpc's line, on cgroup version 2."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from live_v2_jobs import ALLOWED, OPEN, REFUSED, VGPU
from virtual import Virtual

USER, STRANGER = "games", "news"
TOO_MUCH = 3  # slice --use: there is less
LIBRARY = "/usr/lib/hami-hpc/libhami-hpc.so"
PAM_SYSTEMD = "session optional pam_systemd.so\n"


def processes(machine: Virtual, job: int) -> int:
    """Returns how many processes on the GPUs the agent knows as the job's."""
    lines = [line.split() for line in machine.run("hami-hpc", "ps").stdout.splitlines()]
    return next((int(words[2]) for words in lines if words[1:2] == [str(job)]), 0)


def test_a_session_has_its_jobs_limit_together_with_the_jobs_step(machine: Virtual) -> None:
    job = machine.running(*VGPU, script="slice --use 4000 --hold 200", said="ok")
    done = machine.session(USER, "sh", "-c", f"cat /proc/self/cgroup; {OPEN}; slice --use 2000")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "/step_extern/" in done.stdout
    assert f"'/dev/nvidia0': {ALLOWED}" in done.stdout
    assert f"'/dev/nvidia1': {REFUSED}" in done.stdout
    assert "2000 MiB   ok" in done.stdout
    done = machine.session(USER, "slice", "--use", "4000")
    assert done.returncode == TOO_MUCH, done.stdout + done.stderr
    with machine.start(USER, "sh", "-c", "slice --use 500 --hold 150") as session:
        machine.wait(lambda: processes(machine, job) == 2, "the agent to count the session with its job", 30)
        machine.check("scancel", str(job))
        assert session.wait(timeout=60) != 0, "scancel ends the session"
    machine.end(job)
    assert machine.run("sh", "-c", f"ls /run/hami-hpc/jobs/{job}").returncode != 0


def test_two_sessions_at_once_and_a_second_job(machine: Virtual) -> None:
    job = machine.running(*VGPU, script="sleep 200")
    with machine.start(USER, "slice", "--use", "3000", "--hold", "60") as one:
        machine.wait(lambda: processes(machine, job) == 1, "the first session", 30)
        assert machine.session(USER, "slice", "--use", "3000").returncode == 0
        assert machine.session(USER, "slice", "--use", "6000").returncode == TOO_MUCH
        one.kill()
    machine.wait(lambda: processes(machine, job) == 0, "the end of what the first session ran", 90)


def test_users_without_a_job_are_refused_and_root_is_left_alone(machine: Virtual) -> None:
    refused = machine.session(STRANGER, "true")
    assert refused.returncode == 255, "no job"
    machine.running(*VGPU, script="sleep 200")
    assert machine.session(USER, "true").returncode == 0
    assert machine.session(STRANGER, "true").returncode == 255
    maps = machine.session("root", "cat", "/proc/self/maps")
    assert maps.returncode == 0
    assert "libhami-hpc.so" not in maps.stdout


def test_a_session_that_cannot_be_limited_is_refused_in_words(machine: Virtual) -> None:
    job = machine.running(*VGPU, script="echo up; sleep 200", said="up")  # its own step has the library
    machine.check("mv", LIBRARY, f"{LIBRARY}.away")
    try:
        refused = machine.session(USER, "echo", "in")
        sftp = subprocess.run(
            machine.ssh(USER, program="sftp"), input="pwd\n", text=True, capture_output=True, timeout=60, check=False
        )
    finally:
        machine.check("mv", f"{LIBRARY}.away", LIBRARY)
    assert refused.returncode != 0
    assert "in\n" not in refused.stdout
    assert f"hami_hpc: this session in job {job} is not opened" in refused.stdout + refused.stderr
    assert sftp.returncode != 0, sftp.stdout
    assert machine.session(USER, "true").returncode == 0, "the library is back"


def test_files_are_copied_by_sftp_and_scp(machine: Virtual, tmp_path: Path) -> None:
    machine.running(*VGPU, script="sleep 200")
    (tmp_path / "file").write_text("content")
    command = machine.ssh(USER, program="scp")[:-1]
    for legacy in ((), ("-O",)):
        target = f"127.0.0.1:/srv/home/copied{len(legacy)}"
        done = subprocess.run(
            (*command, *legacy, tmp_path / "file", target), capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        assert machine.read(f"srv/home/copied{len(legacy)}") == "content"


def test_a_terminal_of_a_session(machine: Virtual) -> None:
    machine.running(*VGPU, script="sleep 200")
    done = subprocess.run(
        (*machine.ssh(USER, "-tt"), "tty; slice --use 1000"), capture_output=True, text=True, timeout=60, check=False
    )
    assert "/dev/pts/" in done.stdout, done.stdout + done.stderr
    assert "NVIDIA H200: 8192 MiB in total" in done.stdout, done.stdout + done.stderr


def test_of_a_users_jobs_with_and_without_a_slice_the_session_has_the_one_that_it_was_let_into(
    machine: Virtual,
) -> None:
    """pam_slurm_adopt takes the last one that began."""
    machine.running(*VGPU, script="sleep 200")
    machine.running(script="sleep 200")
    done = machine.session(USER, "sh", "-c", f"cat /proc/self/cgroup /proc/self/maps; {OPEN}")
    assert "libhami-hpc.so" not in done.stdout
    assert f"'/dev/nvidia0': {REFUSED}" in done.stdout, "nor has it the GPU"


@pytest.mark.findings("no_job")
def test_pam_systemd_takes_sessions_out_of_their_job_and_doctor_says_so(machine: Virtual) -> None:
    common = machine.read("etc/pam.d/common-session")
    sshd = machine.read("etc/pam.d/sshd")
    job = machine.running(*VGPU, script="sleep 200")
    try:
        machine.write("etc/pam.d/common-session", common + PAM_SYSTEMD)
        done = machine.session(USER, "sh", "-c", f"cat /proc/self/cgroup; {OPEN}; slice --use 9000")
        doctor = machine.run("hami-hpc", "doctor").stdout
    finally:
        machine.write("etc/pam.d/common-session", common)
        machine.write("etc/pam.d/sshd", sshd)
    assert "user.slice" in done.stdout, done.stdout
    assert f"'/dev/nvidia1': {ALLOWED}" in done.stdout, "all that doctor warns of"
    assert done.returncode == TOO_MUCH, "its memory is limited all the same"
    assert "pam_systemd takes sessions out of their job's cgroup" in doctor, doctor
    machine.end(job)
