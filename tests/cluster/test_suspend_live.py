# SPDX-License-Identifier: Apache-2.0
"""Jobs that Slurm suspends and resumes: their device memory leaves the GPU before they stop, and comes back.

Here hami-hpc-watch sees it, a process of root's in each step; task/hami_hpc is not configured (test_suspend_asked.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from harness import cluster as private_cluster
from harness import config, jobs, mounting, services
from harness.config import PARTITION
from harness.layout import Layout
from test_resize_live import USER, end, running
from test_swap_live import BE, allocated, moving, used_mib
from test_views import hami

__all__ = ["moving"]

# Of each program that moves. Slurm 22.05 leaves them two seconds, in which a busy machine must copy it too.
MIB = 40
STACK_MIB, LEFT_MIB = 128, 384  # of the simulated H200's context; the stacks go, too
STAYS = f"{LEFT_MIB} MiB stay on the GPU; they wait until Slurm resumes it"
USING = f"rm -f go\nslice --use {MIB} --until go"
CGROUPS = re.compile(r"^CgroupMountpoint=(.*)$", re.MULTILINE)
TURN_S = 5  # the shortest that Slurm allows
CPUS = "--cpus-per-task=200"  # of the node's 256: two such jobs never run at the same time


def order(layout: Layout, word: str, job: int) -> None:
    jobs.admin(layout, "scontrol", word, str(job))


def is_at_most(layout: Layout, mib: int) -> None:
    jobs.wait(layout, lambda: used_mib(layout) <= mib, f"the GPUs to hold at most {mib} MiB")


def is_again(layout: Layout, mib: int) -> None:
    jobs.wait(layout, lambda: used_mib(layout) == mib, f"the GPUs to hold {mib} MiB again")


def go(layout: Layout) -> None:
    """Lets the programs of the user's jobs end."""
    (layout.home / USER / "go").touch()


def events(layout: Layout) -> str:
    return (layout.state_dir / "events.jsonl").read_text()


def watches(job: int) -> list[int]:
    """Returns the processes in the job's steps that see Slurm's signals."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"/hami-hpc-watch") and words[1:3] == [b"--job", str(job).encode()]:
            found.append(int(path.parent.name))
    return found


def in_step(pid: int) -> bool:
    """Returns whether the process is slurmstepd's child; the one that runs root's program has no parent but init."""
    parent = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1]
    return parent != "1"


def state_of(job: int, layout: Layout) -> list[str]:
    """Returns the letters of the job's processes in ps, but for slurmstepd: T is stopped."""
    found = []
    for pid in jobs.admin(layout, "scontrol", "listpids", str(job), allowed=(0, 1)).splitlines()[1:]:
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            found.append(Path(f"/proc/{pid.split()[0]}/stat").read_text().rpartition(") ")[2][0])
    return found


def test_a_suspended_jobs_memory_leaves_the_gpu_and_comes_back(moving: Layout) -> None:
    """Twice, with a program that the script's shell started and one of a step."""
    script = f"rm -f go\nslice --use {MIB} --until go &\nsrun -n1 --overlap slice --use {MIB} --until go"
    job = running(moving, script, "--qos=be", "--gres=vgpu:mem=8G,cores=50")
    jobs.wait(moving, lambda: jobs.output(moving, USER, job).count("ok") == 2, "both allocations")
    held = used_mib(moving)
    for _ in range(2):
        order(moving, "suspend", job)
        jobs.wait_for_state(moving, job, "SUSPENDED")
        is_at_most(moving, held - 2 * MIB)
        jobs.wait(moving, lambda: "T" in state_of(job, moving), "the programs to be stopped")
        said = f"{2 * (MIB + STACK_MIB)} MiB of 2 processes off the GPU until Slurm resumes the job"
        told = hami(moving, "root", "usage", str(job))
        assert said in told.out, told.text
        assert "  stopped    by Slurm until it resumes the job" in hami(moving, "root", "explain", str(job)).out
        order(moving, "resume", job)
        is_again(moving, held)
    said = "on the GPU, moved to the host 2 times so far"
    jobs.wait(moving, lambda: said in hami(moving, "root", "usage", str(job)).out, "the content to be back")
    go(moving)
    end(moving, job)
    record = json.loads((moving.state_dir / f"usage/{job}.json").read_text())
    assert record["usage"] == "ok"


def test_a_program_that_handles_sigtstp_itself_is_moved_too(moving: Layout) -> None:
    """The script's own handler runs, and a program that ignores the signal is not disturbed."""
    script = f"""rm -f go
trap 'echo told' TSTP
env --ignore-signal=TSTP slice --use {MIB} --until go &
slice --use {MIB} --until go &
until wait; do :; done"""
    job = running(moving, script, *BE)
    jobs.wait(moving, lambda: jobs.output(moving, USER, job).count("ok") == 2, "both allocations")
    held = used_mib(moving)
    order(moving, "suspend", job)
    is_at_most(moving, held - 2 * MIB)
    jobs.wait(moving, lambda: set(state_of(job, moving)) == {"T"}, "all programs to be stopped")
    order(moving, "resume", job)
    is_again(moving, held)
    jobs.wait(moving, lambda: "told" in jobs.output(moving, USER, job), "the handler")
    go(moving)
    end(moving, job)


# Has a stream capture open, so that its memory cannot leave, and counts.
BUSY = """
import ctypes, os, time
cu, context, stream, memory = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
assert cu.cuInit(0) == 0 and cu.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
assert cu.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(20 << 20)) == 0
assert cu.cuStreamCreate(ctypes.byref(stream), 1) == 0 and cu.cuStreamBeginCapture_v2(stream, 0) == 0
print("ok", flush=True)
count = 0
while not os.path.exists("go"):
    count += 1
    open("count" + os.environ["SLURM_STEP_ID"], "w").write(str(count))
    time.sleep(0.05)
"""


def test_programs_whose_memory_stays_are_stopped_all_the_same(moving: Layout) -> None:
    """Ten steps: slurmd stops eight at a time, so that the first are stopped before the last are told."""
    home = moving.home / USER
    (home / "busy.py").write_text(BUSY)
    script = "rm -f go count*\nfor step in 1 2 3 4 5 6 7 8 9 10; do srun --overlap -n1 python3 busy.py & done"
    job = running(moving, script, *BE)
    jobs.wait(moving, lambda: jobs.output(moving, USER, job).count("ok") == 10, "all programs")
    # A file is empty for a moment each time it is written anew.
    jobs.wait(moving, lambda: all(path.read_text() for path in home.glob("count*")), "all programs to count")
    order(moving, "suspend", job)
    jobs.wait(moving, lambda: "T" in state_of(job, moving), "the first steps to be stopped")
    jobs.wait(moving, lambda: set(state_of(job, moving)) == {"T"}, "all steps to be stopped")
    for _ in range(3):
        counts = [path.read_text() for path in sorted(home.glob("count*"))]
        time.sleep(1)
        assert [path.read_text() for path in sorted(home.glob("count*"))] == counts
    order(moving, "resume", job)
    jobs.wait(
        moving,
        lambda: all(path.read_text() != count for path, count in zip(sorted(home.glob("count*")), counts, strict=True)),
        "all programs to go on",
    )
    go(moving)
    end(moving, job)


def test_suspensions_one_upon_another_end_where_slurm_ends(moving: Layout) -> None:
    """Each order comes as soon as the one before has reached the programs, wherever their memory is then."""
    job = running(moving, USING, *BE)
    allocated(moving, job)
    held = used_mib(moving)
    for _ in range(3):
        order(moving, "suspend", job)
        jobs.wait(moving, lambda: "T" in state_of(job, moving), "the programs to be stopped")
        order(moving, "resume", job)
        jobs.wait(moving, lambda: "T" not in state_of(job, moving), "the programs to go on")
    is_again(moving, held)
    go(moving)
    end(moving, job)


def test_the_watch_is_roots_ends_with_its_step_and_holds_up_nobody(moving: Layout) -> None:
    """Only jobs whose memory can be moved have one; its death leaves the job as it is without one."""
    std = running(moving, "rm -f go\nslice --use 100 --until go", "--gres=vgpu:mem=2G,cores=10")
    each = 'for of in /proc/[0-9]*; do [ "$(cat $of/comm)" != hami-hpc-watch ] || kill -s KILL ${of#/proc/}; done'
    job = running(moving, f"({each}) 2>errors\nsrun -n1 --overlap true\n{USING}", *BE)
    allocated(moving, job)
    assert watches(std) == []
    seen = watches(job)
    assert len(seen) == 2, "one in the batch step, one outside"
    assert all(Path(f"/proc/{pid}").stat().st_uid == 0 for pid in seen)
    assert "not permitted" in (moving.home / USER / "errors").read_text()
    os.kill(next(pid for pid in seen if in_step(pid)), signal.SIGKILL)
    jobs.wait(moving, lambda: watches(job) == [], "the other one to end too")
    held = used_mib(moving)
    order(moving, "suspend", job)
    jobs.wait(moving, lambda: "T" in state_of(job, moving), "the programs to be stopped")
    assert used_mib(moving) == held
    order(moving, "resume", job)
    go(moving)
    end(moving, job)
    end(moving, std)


def test_a_resume_that_nobody_heard_of(moving: Layout) -> None:
    """The watch is killed while its job is suspended; reconcile, and the agent, ask slurmctld."""
    job = running(moving, USING, *BE)
    allocated(moving, job)
    held = used_mib(moving)
    order(moving, "suspend", job)
    is_at_most(moving, held - MIB)
    jobs.wait(moving, lambda: "T" in state_of(job, moving), "the programs to be stopped")
    for pid in watches(job):
        with contextlib.suppress(ProcessLookupError):  # one ended since
            os.kill(pid, signal.SIGKILL)
    order(moving, "resume", job)
    jobs.wait(moving, lambda: "T" not in state_of(job, moving), "the programs to go on")
    assert used_mib(moving) <= held - MIB
    done = hami(moving, "root", "reconcile", "--node", moving.node)
    assert done.out == f"job {job}: Slurm has resumed it; its memory comes back to the GPU\n", done.text
    is_again(moving, held)
    go(moving)
    end(moving, job)


def test_a_signal_of_the_jobs_user_suspends_nothing(moving: Layout) -> None:
    """Slurm knows that it suspends nobody: the memory comes back at once, and later does not leave."""
    job = running(moving, f"rm -f go\nsrun -n1 --overlap slice --use {MIB} --until go", *BE)
    allocated(moving, job)
    held = used_mib(moving)
    for _ in range(3):
        assert jobs.run_as(moving, USER, ("scancel", "--signal=TSTP", str(job))).status == 0
        time.sleep(2)
        is_again(moving, held)
        assert "T" not in state_of(job, moving)
    told = [line for line in events(moving).splitlines() if f"job {job} goes on" in line]
    assert len(told) == 1, told
    go(moving)
    end(moving, job)


def test_a_suspended_job_can_be_cancelled(moving: Layout) -> None:
    job = running(moving, f"slice --use {MIB} --hold 600", *BE)
    allocated(moving, job)
    held = used_mib(moving)
    order(moving, "suspend", job)
    is_at_most(moving, held - MIB)
    jobs.admin(moving, "scancel", str(job))
    jobs.wait_for_state(moving, job, "CANCELLED")
    is_at_most(moving, 0)


def test_a_job_suspended_before_its_programs_use_the_gpu_is_not_on_it(moving: Layout) -> None:
    """Its prolog has ended, its program begins while the job is suspended for the first time."""
    job = running(moving, f"rm -f go\nuntil [ -e begin ]; do sleep 0.1; done\nslice --use {MIB} --until go", *BE)
    order(moving, "suspend", job)
    jobs.wait(moving, lambda: "T" in state_of(job, moving), "the script to be stopped")
    order(moving, "resume", job)
    (moving.home / USER / "begin").touch()
    allocated(moving, job)
    (moving.home / USER / "begin").unlink()
    go(moving)
    end(moving, job)


def test_what_an_administrator_moved_out_is_not_slurms_to_bring_back(moving: Layout) -> None:
    job = running(moving, USING, *BE)
    allocated(moving, job)
    held = used_mib(moving)
    assert hami(moving, "root", "swap", "out", str(job)).status == 0
    order(moving, "suspend", job)
    jobs.wait(moving, lambda: "T" in state_of(job, moving), "the programs to be stopped")
    order(moving, "resume", job)
    jobs.wait(moving, lambda: "T" not in state_of(job, moving), "the programs to go on")
    time.sleep(1)
    assert used_mib(moving) <= held - MIB
    assert hami(moving, "root", "swap", "in", str(job)).status == 0
    go(moving)
    end(moving, job)


# ---------------------------------------------------------------------------------------------- with cgroups


@pytest.fixture
def frozen(moving: Layout, tmp_path: Path) -> Iterator[Layout]:
    """The cluster with proctrack/cgroup, as sites have it: SIGTSTP reaches slurmstepd's own children alone, and
    the step is frozen and not stopped. The machine's hierarchy of version 1 serves, or one for this test."""
    with mounting.freezer(tmp_path) as mount:
        conf, cgroups = moving.slurm_conf.read_text(), (moving.etc / "cgroup.conf").read_text()
        config.write(moving.slurm_conf, conf.replace("proctrack/linuxproc", "proctrack/cgroup"))
        config.write(moving.etc / "cgroup.conf", f"CgroupPlugin=cgroup/v1\nCgroupMountpoint={mount}\n")
        restart(moving)
        yield moving
        config.write(moving.slurm_conf, conf)
        config.write(moving.etc / "cgroup.conf", cgroups)
        restart(moving)


def test_a_frozen_jobs_memory_leaves_the_gpu(frozen: Layout) -> None:
    """A step's own program, which SIGTSTP would stop at once, and one of the script, which it does not reach."""
    script = f"rm -f go\nslice --use {MIB} --until go &\nsrun -n1 --overlap slice --use {MIB} --until go"
    job = running(frozen, script, "--qos=be", "--gres=vgpu:mem=8G,cores=50")
    jobs.wait(frozen, lambda: jobs.output(frozen, USER, job).count("ok") == 2, "both allocations")
    held = used_mib(frozen)
    assert len({Path(f"/proc/{pid}/cgroup").read_text() for pid in watches(job)}) > 2, "in the steps and outside"
    for _ in range(2):
        order(frozen, "suspend", job)
        is_at_most(frozen, held - 2 * MIB)
        jobs.wait(frozen, lambda: set(state_of(job, frozen)) <= {"D", "T"}, "the steps to be frozen")
        order(frozen, "resume", job)
        is_again(frozen, held)
    order(frozen, "suspend", job)
    jobs.wait(frozen, lambda: set(state_of(job, frozen)) <= {"D", "T"}, "the steps to be frozen")
    go(frozen)  # it ends while root's program lets its memory come back
    order(frozen, "resume", job)
    end(frozen, job)
    freezer = Path(CGROUPS.search((frozen.etc / "cgroup.conf").read_text())[1]) / "freezer"  # type: ignore[index]
    jobs.wait(frozen, lambda: not list(freezer.glob(f"slurm*/uid_*/job_{job}")), "its cgroups to be removed")


# ---------------------------------------------------------------------------------------------------- preemption


@pytest.fixture
def gang(moving: Layout) -> Iterator[Layout]:
    """The cluster, where jobs of the partition `high` suspend those of `low`, and two of `low` take turns."""
    settings, conf = moving.site_config.read_text(), moving.slurm_conf.read_text()
    models = settings.partition(f"[partitions.{PARTITION}]\n")[2].partition("\n")[0]
    moving.site_config.write_text(f"{settings}[partitions.low]\n{models}\n[partitions.high]\n{models}\n")
    config.render(moving)
    lines = ["PreemptType=preempt/partition_prio", "PreemptMode=SUSPEND,GANG", f"SchedulerTimeSlice={TURN_S}"]
    for name, tier, sharing in (("low", 1, "FORCE:2"), ("high", 10, "FORCE:1")):
        line = f"PartitionName={name} Nodes={moving.node} PriorityTier={tier} MaxTime=60 OverSubscribe={sharing}"
        lines.append(line)
    config.write(moving.slurm_conf, conf + "\n".join(lines) + "\n")
    restart(moving)
    yield moving
    jobs.admin(moving, "scancel", f"--user={USER}")
    jobs.wait(moving, lambda: not jobs.admin(moving, "squeue", "-h"), "all jobs to be gone")
    moving.site_config.write_text(settings)
    config.write(moving.slurm_conf, conf)
    config.render(moving)
    restart(moving)


def restart(layout: Layout) -> None:
    for name in ("slurmctld", *layout.slurmds):
        private_cluster.restart(layout, name)
    jobs.wait(layout, lambda: services.nodes_answer(layout), "the nodes to answer")


def start(layout: Layout, partition: str, script: str, *options: str) -> int:
    words = (f"--partition={partition}", CPUS, "--gres=vgpu:mem=8G,cores=20", *options)
    return jobs.submit(layout, USER, *words, script=script)


def test_the_memory_of_a_preempted_job_leaves_for_that_time(gang: Layout) -> None:
    low = start(gang, "low", USING, "--qos=be")
    allocated(gang, low)
    held = used_mib(gang)
    high = start(gang, "high", "until [ -e end ]; do sleep 0.2; done")
    jobs.wait_for_state(gang, high, "RUNNING")
    jobs.wait_for_state(gang, low, "SUSPENDED")
    is_at_most(gang, held - MIB)
    (gang.home / USER / "end").touch()
    jobs.wait_for_state(gang, high, "COMPLETED")
    (gang.home / USER / "end").unlink()
    is_again(gang, held)
    go(gang)
    jobs.wait_for_state(gang, low, "COMPLETED")


def test_two_jobs_take_turns_on_the_gpu(gang: Layout) -> None:
    """Each turn is Slurm's; both come to their end, and the memory of both was on the host at times."""
    (gang.home / USER / "go").unlink(missing_ok=True)
    both = [start(gang, "low", f"slice --use {MIB} --until go", "--qos=be") for _ in range(2)]
    moved = [f"job {job}: {MIB + STACK_MIB} MiB of 1 process moved off the GPU, {STAYS}" for job in both]
    jobs.wait(gang, lambda: all(events(gang).count(line) >= 2 for line in moved), "two turns of each", 120)
    go(gang)
    for job in both:
        jobs.wait_for_state(gang, job, "COMPLETED", timeout_s=120)
    for job in both:
        record = json.loads((gang.state_dir / f"usage/{job}.json").read_text())
        assert record["usage"] == "ok"
