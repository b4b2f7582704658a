# SPDX-License-Identifier: Apache-2.0
"""Disks, directories and users at their worst: what one job does, or a full disk, takes no node out of service; what
does is told where the administrator looks."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import cluster as private_cluster
from harness import config, jobs, node
from harness.layout import Layout
from harness.mounting import can_mount

REQUEST = "--gres=vgpu:mem=8G,cores=50"


def runs(layout: Layout, user: str = "news") -> int:
    """A job that completes, having had its slice."""
    job = jobs.submit(layout, user, REQUEST, script="slice --use 16")
    jobs.wait_for_state(layout, job, "COMPLETED")
    return job


def is_mounted(path: Path) -> bool:
    return any(line.split()[4] == str(path) for line in Path("/proc/self/mountinfo").read_text().splitlines())


@pytest.fixture
def full_disk(restored: Layout) -> Iterator[Path]:
    """hami_hpc's state directory, full: a tiny file system of its own, or where nothing can be mounted, a file."""
    state = restored.state_dir
    kept = state.with_name("state.kept")
    state.rename(kept)
    if can_mount():
        state.mkdir(mode=0o700)
        subprocess.run(("mount", "-t", "tmpfs", "-o", "size=128k,mode=0700", "tmpfs", state), check=True)
        filler = state / "filler"
        with pytest.raises(OSError, match="No space left"):
            filler.write_bytes(bytes(1 << 20))
    else:
        filler = state
        filler.write_text("")
    try:
        yield filler
    finally:
        if is_mounted(state):
            subprocess.run(("umount", "--lazy", state), check=True)
        if state.is_dir():
            shutil.rmtree(state)
        state.unlink(missing_ok=True)
        kept.rename(state)


def test_a_full_state_disk_stops_no_job_and_the_usage_arrives_when_there_is_room(
    restored: Layout, full_disk: Path
) -> None:
    first, second = runs(restored, "games"), runs(restored)
    node.wait_until_clean(restored)
    assert not node.drain_reason(restored)
    spool = restored.state_dir / "usage"
    assert not spool.exists() or not list(spool.iterdir())
    full_disk.unlink()
    third = runs(restored)
    jobs.wait(restored, lambda: (spool / f"{third}.json").exists(), "the third job's usage", 30, third)
    assert {path.name for path in spool.iterdir()} == {f"{job}.json" for job in (first, second, third)}


def make_new(layout: Layout) -> None:
    """The node as after a boot: no run directory, no ledger."""
    node.wait_until_clean(layout)
    private_cluster.unmount(layout)
    shutil.rmtree(layout.run_dir)


def test_jobs_that_start_at_once_on_a_new_node_all_run(restored: Layout) -> None:
    for _round in range(3):
        make_new(restored)
        started = [
            jobs.submit(restored, user, "--gres=vgpu:mem=2G,cores=10", script="slice --use 16")
            for user in ("games", "news", "games", "news", "games", "news")
        ]
        for job in started:
            jobs.wait_for_state(restored, job, "COMPLETED")
        assert not node.drain_reason(restored)


def test_parts_of_the_run_directory_that_are_gone_are_made_again(restored: Layout) -> None:
    runs(restored)
    for lost in ("self", "jobs", "ledger.db", "ledger.lock", "jobs.lock"):
        node.wait_until_clean(restored)
        private_cluster.unmount(restored)
        path = restored.run_dir / lost
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
        runs(restored)
    assert not node.drain_reason(restored)


def waiting_job(layout: Layout) -> tuple[int, Path]:
    """A job that runs until a file is there, and that file."""
    release = layout.home / "games" / "release"
    release.unlink(missing_ok=True)
    job = jobs.submit(layout, "games", REQUEST, script="echo begun; while [ ! -e release ]; do sleep 0.2; done")
    jobs.wait(layout, lambda: "begun" in jobs.output(layout, "games", job), "the job to begin", 60, job)
    return job, release


ATTACK = """
import errno, fcntl, mmap, os, subprocess, sys
path = sys.argv[1]
os.chdir(os.path.dirname(path))
file = open(path, "r+b", buffering=0)
size = os.fstat(file.fileno()).st_size
memory = mmap.mmap(file.fileno(), size)
try:
    os.truncate(path, 1 << 40)
    os.posix_fallocate(file.fileno(), 0, 64 << 20)
    print("grown")
except OSError as error:
    print("refused", errno.errorcode[error.errno])
os.truncate(path, 0)
os.truncate(path, size)
memory[:] = bytes([255]) * size
fcntl.flock(file, fcntl.LOCK_EX)
os.chmod(path, 0)
print("held", flush=True)
sys.stdin.readline()
"""


def test_a_user_who_grows_chmods_and_holds_the_usage_file_harms_nobody(restored: Layout) -> None:
    """The user holds it from outside of the job, as by ssh: so nothing of it ends with the job."""
    job, release = waiting_job(restored)
    usage = restored.run_dir / "jobs" / str(job) / "shared" / "usage"
    command = ["/usr/bin/python3", "-c", ATTACK, str(usage)]
    command = ["setpriv", "--reuid=games", "--regid=games", "--clear-groups", *command]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as attacker:
        assert attacker.stdout is not None
        grown = attacker.stdout.readline().split()
        assert grown == (["refused", "ENOSPC"] if can_mount() else ["grown"])
        assert attacker.stdout.readline() == "held\n"
        neighbour = runs(restored)
        release.touch()
        jobs.wait_for_state(restored, job, "COMPLETED")
        node.wait_until_clean(restored)
        assert not node.drain_reason(restored)
        runs(restored, "games")
        attacker.communicate("go\n", timeout=10)
    for number in (job, neighbour):
        path = restored.state_dir / "usage" / f"{number}.json"
        jobs.wait(restored, path.exists, f"{path}", 20, number)
    assert '"usage":"damaged"' in (restored.state_dir / "usage" / f"{job}.json").read_text()


def drained_for(layout: Layout, job: int) -> str:
    """Waits until the node is drained; the reason as sinfo -R has it, also after slurmd has reported the failure."""
    jobs.wait(layout, lambda: bool(node.drain_reason(layout)), "the node to be drained", 30, job)
    time.sleep(2)
    return node.drain_reason(layout)


def back_to_work(layout: Layout) -> None:
    jobs.admin(layout, "scontrol", "update", f"nodename={config.NODE}", "state=resume")


def requeued_job_runs(layout: Layout, job: int) -> None:
    """Slurm holds a job whose prolog failed; released, it runs."""
    jobs.wait(layout, lambda: jobs.state(layout, job) == "PENDING", "the job to be requeued", 30, job)
    back_to_work(layout)
    jobs.admin(layout, "scontrol", "release", str(job))
    jobs.admin(layout, "scontrol", "update", f"jobid={job}", "starttime=now")
    jobs.wait_for_state(layout, job, "COMPLETED", timeout_s=150)


def test_sinfo_says_why_a_prolog_drained_the_node(restored: Layout) -> None:
    restored.run_dir.chmod(0o777)
    job = jobs.submit(restored, "games", REQUEST, script="true")
    reason = drained_for(restored, job)
    assert "hami_hpc: prolog: " in reason
    assert "is not a directory that only root can write" in reason
    restored.run_dir.chmod(0o755)
    requeued_job_runs(restored, job)


def test_sinfo_says_why_an_epilog_drained_the_node(restored: Layout) -> None:
    job, release = waiting_job(restored)
    settings = restored.site_config.read_text()
    restored.site_config.write_text("version = 99\n")
    release.touch()
    reason = drained_for(restored, job)
    assert "hami_hpc: epilog: " in reason
    assert "version = 1 must be there" in reason
    restored.site_config.write_text(settings)
    jobs.admin(restored, "hami-hpc", "reconcile", "--node", config.NODE)
    node.wait_until_clean(restored)
    back_to_work(restored)
    runs(restored)


def test_a_run_directory_that_is_full_is_told_and_the_job_waits(restored: Layout) -> None:
    if not can_mount():
        return  # a file system of a certain size is not to be had
    make_new(restored)
    restored.run_dir.mkdir(mode=0o755)
    subprocess.run(("mount", "-t", "tmpfs", "-o", "size=64k,mode=0755", "tmpfs", restored.run_dir), check=True)
    try:
        filler = restored.run_dir / "filler"
        with pytest.raises(OSError, match="No space left"):
            filler.write_bytes(bytes(1 << 20))
        job = jobs.submit(restored, "games", REQUEST, script="true")
        reason = drained_for(restored, job)
        assert "full" in reason or "No space left" in reason
        filler.unlink()
    finally:
        private_cluster.unmount(restored)
        subprocess.run(("umount", "--lazy", restored.run_dir), check=True)
    requeued_job_runs(restored, job)
