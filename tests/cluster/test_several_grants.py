# SPDX-License-Identifier: Apache-2.0
"""A job with two slices on a node of four GPUs, from its units on: what slurmctld's part translates a request to.

The filters of hami_hpc are not loaded here, so that the units are asked for by hand, and unequal ones as well.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from harness import cluster as private_cluster
from harness import config, daemons, jobs, node, services
from harness.layout import CHECKOUT, Layout

from hami_hpc.contract import constants as c
from hami_hpc.core.grant import Grant
from hami_hpc.core.records import USAGE_FILE_SIZE
from hami_hpc.node import job_dirs, mounts

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
ROOT = CHECKOUT / f".cluster-test-several-{WORKER}"
USER, OTHER = "games", "news"
GPU_COUNT = 4
UNITS = "vgpu:std:2,vgpu_mem:16384,vgpu_cores:100"
PAIR = f"--gres=shard:a:32,shard:b:32,{UNITS}"
SHOW = "sh -c 'echo task $SLURM_PROCID $CUDA_VISIBLE_DEVICES'"


@pytest.fixture(scope="module")
def _several() -> Iterator[Layout]:
    private_cluster.remove(ROOT)
    try:
        with patch.object(config, "GPU_COUNT", GPU_COUNT):
            layout = private_cluster.up(ROOT)
        make_places(layout)
        yield layout
    finally:
        if not os.environ.get("HAMI_HPC_KEEP_CLUSTER"):
            private_cluster.remove(ROOT)


@pytest.fixture
def several(_several: Layout) -> Iterator[Layout]:
    """A cluster whose node has four GPUs, two of the type a and two of the type b, and no filters."""
    yield _several
    for user in ("root", USER, OTHER):
        jobs.admin(_several, "scancel", f"--user={user}")
    jobs.wait(_several, lambda: not jobs.admin(_several, "squeue", "-h"), "all jobs to be gone", 60)
    node.wait_until_clean(_several)
    assert not node.drain_reason(_several), jobs.evidence(_several)


def make_places(layout: Layout) -> None:
    """Gives the node's GPUs types that are places, and takes the filters out of slurm.conf."""
    path = layout.etc / "slurm-hami-hpc.conf"
    text = re.sub(r"^(JobSubmitPlugins|CliFilterPlugins)=.*\n", "", path.read_text(), flags=re.MULTILINE)
    text, count = re.subn(r"gpu:h200:4,shard:h200:(\d+)", lambda match: places(int(match[1])), text)
    assert count == 1, text
    config.write(path, text)
    lines = []
    for line in (layout.etc / "hami-hpc-gres.conf").read_text().splitlines():
        match = re.match(r"(NodeName=\S+) Name=(gpu|shard)(.*)", line)
        if match is None:
            lines.append(line)
            continue
        for place, first in (("a", 0), ("b", 2)):
            each = "" if match[2] == "gpu" else f" Count={shards_of(match[3]) // 2}"
            files = f"{str(config.device_file(layout, 0)).removesuffix('0')}[{first}-{first + 1}]"
            lines.append(f"{match[1]} Name={match[2]} Type={place}{each} File={files}")
    config.write(layout.etc / "hami-hpc-gres.conf", "\n".join(lines) + "\n")
    names = ("slurmctld", "slurmd", "slurmd-cpu")
    for name in reversed(names):  # a slurmd with the old types would register, and be drained
        daemons.stop(layout, name)
    for name in names:
        daemons.start(layout, services.describe(layout, name))
    assert daemons.wait_until(lambda: services.nodes_answer(layout), 60)


def places(shards: int) -> str:
    return f"gpu:a:2,gpu:b:2,shard:a:{shards // 2},shard:b:{shards // 2}"


def shards_of(text: str) -> int:
    match = re.search(r"Count=(\d+)", text)
    assert match is not None
    return int(match[1])


def running(layout: Layout, *options: str, user: str = USER, script: str = "sleep 300") -> int:
    job = jobs.submit(layout, user, *options, script=script)
    jobs.wait_for_state(layout, job, "RUNNING")
    # Slurm shows the job as running while its prolog is.
    jobs.wait(layout, lambda: (layout.run_dir / "jobs" / str(job)).exists(), "the job's directory", job=job)
    return job


def slices(layout: Layout, job: int) -> list[tuple[int, str, int, int]]:
    """Returns number, GPU, MiB and percent of each slice in the job's directory."""
    directory = str(layout.run_dir / "jobs" / str(job))
    return [_slice(grant) for grant in job_dirs.read_grants(directory, owner=0)]


def _slice(grant: Grant) -> tuple[int, str, int, int]:
    return grant.slice_index, grant.gpu_uuid, grant.mem_mib, grant.cores_percent


def record(layout: Layout, job: int) -> dict[str, object]:
    """Waits for the usage record of a job that has ended, and returns it."""
    path = layout.state_dir / "usage" / f"{job}.json"
    jobs.wait(layout, path.exists, "the usage record", job=job)
    loaded = json.loads(path.read_text())
    assert isinstance(loaded, dict)
    return loaded


def test_each_slice_has_a_grant_and_files_of_its_own(several: Layout) -> None:
    job = running(several, PAIR)
    uuids = [gpu.uuid for gpu in node.gpus(several)]
    assert slices(several, job) == [(0, uuids[0], 8192, 50), (1, uuids[2], 8192, 50)]
    held = [(grant.job_id, grant.gpu_uuid, grant.mem_mib) for grant in node.grants(several)]
    assert held == [(job, uuids[0], 8192), (job, uuids[2], 8192)]
    shared = several.run_dir / "jobs" / str(job) / "shared"
    assert sorted(path.name for path in shared.iterdir()) == ["usage", "usage.1"]
    if mounts.has_file_system(str(shared)):
        assert os.statvfs(shared).f_blocks * os.statvfs(shared).f_frsize == 2 * USAGE_FILE_SIZE
        assert os.statvfs(shared).f_ffree == 0, "no room for a third file"
    shown = json.loads(jobs.admin(several, "hami-hpc", "usage", str(job), "--format", "json"))
    assert [one["grant"]["gpu_uuid"] for one in shown["slices"]] == [uuids[0], uuids[2]]
    rows = json.loads(jobs.admin(several, "hami-hpc", "jobs", "--format", "json"))
    assert [(row["job_id"], row["gpu_minor"]) for row in rows] == [(job, 0), (job, 2)]
    jobs.admin(several, "scancel", str(job))
    ended = record(several, job)
    assert (ended["gpu_count"], ended["gpu_uuid"]) == (2, f"{uuids[0]},{uuids[2]}")
    assert (ended["mem_mib"], ended["cores"], ended["usage"]) == (16384, 100, "ok")


def test_tasks_see_all_gpus_of_their_step_or_one_of_them(several: Layout) -> None:
    """And of the job's own units they see the sums."""
    script = "\n".join(
        (
            'echo "batch $CUDA_VISIBLE_DEVICES $HAMI_HPC_VGPU $HAMI_HPC_MEM_MIB $HAMI_HPC_CORES"',
            f"srun -n2 {SHOW} | sort",
            f"srun -n3 --vgpu-bind=single {SHOW} | sort",
            "srun -n1 sh -c 'ls /proc/self/ >/dev/null; echo $HAMI_HPC_LIMITS; ls $(dirname $HAMI_HPC_LIMITS)'",
            f"srun -n1 --gres=shard:a:32,vgpu:std:1,vgpu_mem:8192,vgpu_cores:50 {SHOW}",
            f"srun -n1 --vgpu-bind=both {SHOW} 2>&1 | head -2",
        )
    )
    job = jobs.submit(several, USER, PAIR, "--ntasks=3", script=script)
    jobs.wait_for_state(several, job, "COMPLETED", "FAILED")
    lines = jobs.output(several, USER, job).splitlines()
    kept = [line for line in lines if not line.startswith(("srun: Step", "srun: Job"))]
    assert kept[0] == "batch 0,2 2 16384 100", kept
    assert kept[1:3] == ["task 0 0,2", "task 1 0,2"]
    assert kept[3:6] == ["task 0 0", "task 1 2", "task 2 0"]
    files = kept[7 : kept.index("task 0 0", 6)]
    assert {"job.limits", "job.1.limits", "step-2.limits", "step-2.1.limits"} <= set(files)
    assert not {"step-0.limits", "step-1.1.limits"} & set(files), "steps take their records away"
    assert "--vgpu-bind=both is not understood; allowed is none" in kept[-2] + kept[-1]


def test_an_interactive_shell_and_sbatch_know_the_option(several: Layout) -> None:
    done = jobs.run_as(
        several, USER, ("srun", PAIR, "--vgpu-bind=single", "-n2", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    )
    assert sorted(done.out.split()) == ["0", "2"], done.text
    done = jobs.run_as(several, USER, ("salloc", PAIR, "srun", "-n1", "printenv", "CUDA_VISIBLE_DEVICES"))
    assert done.out.split() == ["0,2"], done.text
    assert "--vgpu-bind" in jobs.run_as(several, USER, ("srun", "--help")).out


def test_ranks_of_torch_find_each_other(several: Layout) -> None:
    show = "sh -c 'echo rank $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE at $MASTER_ADDR $MASTER_PORT'"
    script = "\n".join(
        (
            f"srun -n2 --vgpu-torch {show} | sort",
            f"MASTER_ADDR=me MASTER_PORT=7 RANK=99 srun -n1 --vgpu-torch {show}",
            f"srun -n3 --vgpu-torch {show} 2>&1 | grep share",
            f"srun -n2 --vgpu-torch --vgpu-bind=single {show} 2>&1 | grep exclude",
            "srun -n1 sh -c 'echo none $MASTER_ADDR$RANK'",
        )
    )
    job = jobs.submit(several, USER, PAIR, "--ntasks=3", script=script)
    jobs.wait_for_state(several, job, "COMPLETED", "FAILED")
    lines = jobs.output(several, USER, job).splitlines()
    port = 10000 + job % 2000 * 10
    assert lines[:2] == [f"rank {i} of 2, {i} of 2 at 127.0.0.1 {port}" for i in range(2)], lines
    assert lines[2] == "rank 0 of 1, 0 of 1 at me 7"
    assert "the 3 tasks on a node share fewer GPUs (0,2). NCCL refuses several ranks on one GPU" in lines[3]
    assert "--vgpu-torch and --vgpu-bind=single exclude each other" in lines[4]
    assert lines[-1] == "none", "without the option nothing is set"


def test_unequal_slices_go_back_to_the_queue_and_the_node_stays_in_service(several: Layout) -> None:
    job = jobs.submit(several, USER, f"--gres=shard:a:32,shard:b:33,{UNITS}", script="echo ran")
    jobs.wait(several, lambda: jobs.job_facts(several, job).get("Restarts") == "1", "the job to be requeued", 60, job)
    facts = jobs.admin(several, "scontrol", "show", "job", str(job))
    assert "by slurmctld these shards on this node: GPU 0: 32, GPU 2: 33" in facts
    assert not node.drain_reason(several)
    assert node.grants(several) == []
    assert "ran" not in jobs.output(several, USER, job)


def test_fewer_gpus_than_slices_and_units_that_do_not_divide_never_run(several: Layout) -> None:
    alone = jobs.submit(several, USER, f"--gres=shard:a:32,{UNITS}", script="echo ran")
    odd = jobs.submit(
        several, OTHER, "--gres=shard:a:32,shard:b:32,vgpu:std:2,vgpu_mem:16383,vgpu_cores:100", script=":"
    )
    jobs.wait(several, lambda: jobs.job_facts(several, alone).get("Restarts") == "1", "the requeue", 60, alone)
    jobs.wait_for_state(several, odd, "FAILED")
    assert "HAMI_HPC_MEM_MIB=16383 cannot be divided equally among 2 slices" in jobs.output(several, OTHER, odd)
    assert not node.drain_reason(several)


def test_jobs_of_a_whole_node_and_of_two_whole_slices_are_told_apart(several: Layout) -> None:
    whole = running(several, "--partition=whole", script="echo $SLURM_JOB_GPUS; sleep 300")
    assert (several.run_dir / "jobs" / str(whole) / c.FILE_WHOLE).exists()
    assert node.grants(several) == []
    jobs.admin(several, "scancel", str(whole))
    node.wait_until_clean(several)
    shards = next(iter(re.findall(r"shard:a:(\d+)", (several.etc / "slurm-hami-hpc.conf").read_text())))
    each = int(shards) // 2
    mib = sum(gpu.total_bytes for gpu in node.gpus(several)[:1]) >> 20
    full = f"--gres=shard:a:{each},shard:b:{each},vgpu:std:2,vgpu_mem:{2 * mib},vgpu_cores:200"
    job = running(several, full)
    assert [(mem_mib, cores) for _, _, mem_mib, cores in slices(several, job)] == [(mib, 100)] * 2
    assert not (several.run_dir / "jobs" / str(job) / c.FILE_WHOLE).exists()


def test_a_task_of_an_array_gets_its_own_slices(several: Layout) -> None:
    """slurmctld shows all tasks of an array under the id of one of them."""
    done = jobs.run_as(several, USER, ("sbatch", "--parsable", "--array=0-1", PAIR), stdin="#!/bin/sh\nsleep 300\n")
    array = int(done.out.strip())
    jobs.wait(several, lambda: len(node.grants(several)) == 4, "both tasks to have their slices", 60, array)
    by_gpu = sorted(grant.gpu_uuid for grant in node.grants(several))
    assert len(set(by_gpu)) in (2, 4)


KILLED = """#!/bin/sh
'{real}' & killed=$!
sleep {seconds}
kill -9 $killed
wait $killed
exec '{real}'
"""


@pytest.mark.parametrize("seconds", [0.02, 0.1, 0.15, 0.2, 0.3])
def test_a_prolog_that_is_killed_leaves_both_slices_or_none(several: Layout, seconds: float) -> None:
    """And the prolog that follows makes them; here slurmd sees one prolog."""
    path, real = several.etc / "prolog", several.etc / "prolog.real"
    genuine = path.read_text()
    config.write(real, genuine, 0o755)
    config.write(path, KILLED.format(real=real, seconds=seconds), 0o755)
    try:
        job = running(several, PAIR, script=f"srun -n1 {SHOW}; sleep 300")
        jobs.wait(several, lambda: "task 0 0,2" in jobs.output(several, USER, job), "the step", job=job)
    finally:
        config.write(path, genuine, 0o755)
    assert len(slices(several, job)) == len(node.grants(several)) == 2
    for left in (several.run_dir / "jobs").glob(".new-*"):
        os.utime(left, (10**9, 10**9))  # what is half made is left alone for a minute
    assert reconcile(several).count("restored") == 0
    assert [path.name for path in node.regions(several)] == [str(job)]


def test_reconcile_puts_a_slices_record_back_and_the_ledger_is_made_again(several: Layout) -> None:
    job = running(several, PAIR, script="echo begun; sleep 300")
    jobs.wait(several, lambda: "begun" in jobs.output(several, USER, job), "the script to begin", job=job)
    before = slices(several, job)
    directory = several.run_dir / "jobs" / str(job)
    (directory / "job.1.limits").unlink()
    step = jobs.run_as(several, USER, ("srun", f"--jobid={job}", "--overlap", "echo", "ran"))
    assert "job.1.limits No such file or directory. Administrator: run hami-hpc reconcile" in step.text
    assert "ran\n" not in step.out
    assert "limits records of 1 slice(s) were lost" in reconcile(several)
    assert slices(several, job) == before
    for path in several.run_dir.glob("ledger.db*"):
        path.unlink()
    reconcile(several)
    assert [grant.gpu_uuid for grant in node.grants(several)] == [uuid for _, uuid, _, _ in before]
    with contextlib.suppress(FileNotFoundError):
        Path(directory / "shared/usage.1").unlink()


def reconcile(layout: Layout) -> str:
    return jobs.admin(layout, "hami-hpc", "reconcile", "--node", config.NODE, allowed=(0, 3))
