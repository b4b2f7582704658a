# SPDX-License-Identifier: Apache-2.0
"""Several equal slices on a node (docs/adr/055): what slurmctld allocates for vgpu:2, in jobs, arrays and steps, and
what sacct says of it. Prolog, epilog and SPANK plugin do nothing here but write down their environment."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from harness import cluster as private_cluster
from harness import config, jobs
from harness.layout import ClusterError, Layout
from harness.second_node import cancel_all, two_gpu_nodes

from hami_hpc.accounting.sources.tres import AllocatedGpus, parse_alloc_tres
from hami_hpc.core.shards_shown import shards_of_node

USER = "games"
USERS = ("root", USER)
GPUS = {"node1": 4, "cpu1": 2}  # of types a a b b, and a b
SHARDS = 559  # of a GPU; cores=50 are 279
PAIR = "--gres=vgpu:2:mem=8G,cores=50"
HERE = "--nodelist=node1"
EIGHT_GIB, HALF = 8192, 50


@pytest.fixture(scope="module")
def _placed(_session_cluster: Layout) -> Iterator[Layout]:
    layout, stages = _session_cluster, {}
    for stage in ("prolog", "epilog"):
        folder = layout.public / stage
        folder.mkdir(mode=0o777, exist_ok=True)
        stages[stage] = f"#!/bin/sh\nenv >{folder}/$SLURM_JOB_ID.$SLURMD_NODENAME\n"
    settings = config.site_toml(layout).replace("[vgpu]\n", "[vgpu]\nslices_max = 2\n")
    with two_gpu_nodes(layout, settings, "h200:2", stages, USERS, ["h200"] * GPUS["node1"]):
        yield layout


@pytest.fixture
def placed(_placed: Layout) -> Iterator[Layout]:
    """Two nodes on which a job may have two slices."""
    yield _placed
    cancel_all(_placed, USERS)


def submit(layout: Layout, *options: str, script: str = "sleep 300") -> int:
    return jobs.submit(layout, USER, "--time=30", *options, script=script)


def started(layout: Layout, *options: str) -> int:
    job = submit(layout, *options)
    jobs.wait_for_state(layout, job, "RUNNING")
    return job


def waits(layout: Layout, *options: str) -> bool:
    job = submit(layout, *options)
    tried = ("Resources", "Priority")
    jobs.wait(layout, lambda: jobs.job_facts(layout, job)["Reason"] in tried, "Slurm to try the job", 30, job)
    return jobs.state(layout, job) == "PENDING"


def shards(layout: Layout, job: int | str, name: str = "node1") -> dict[int, int]:
    return shards_of_node(jobs.admin(layout, "scontrol", "show", "job", "-d", str(job)), name)


def refused(layout: Layout, *options: str) -> str:
    with pytest.raises(ClusterError) as caught:
        submit(layout, *options)
    return str(caught.value)


def environment_of(layout: Layout, stage: str, job: int, name: str = "node1") -> dict[str, str]:
    path = layout.public / stage / f"{job}.{name}"
    jobs.wait(layout, path.exists, f"the {stage} of job {job}", 30, job)
    return dict(re.findall(r"^(\w+)=(.*)$", path.read_text(), re.MULTILINE))


def recorded(layout: Layout, job: int) -> AllocatedGpus:
    jobs.wait_until_recorded(layout, job)
    text = jobs.admin(layout, "sacct", "-X", "-n", "-P", "--noconvert", "-j", str(job), "-o", "AllocTRES")
    return parse_alloc_tres(text.strip())


def test_two_slices_are_equal_and_on_two_gpus(placed: Layout) -> None:
    first, second = started(placed, PAIR, HERE), started(placed, PAIR, HERE)
    assert shards(placed, first) == {0: 279, 2: 279}
    assert shards(placed, second) == {0: 279, 2: 279}  # two halves fit
    assert shards(placed, started(placed, PAIR, HERE)) == {1: 279, 3: 279}
    started(placed, PAIR, HERE)
    assert waits(placed, PAIR, HERE)


def test_prolog_and_epilog_get_the_sums(placed: Layout) -> None:
    job = submit(placed, PAIR, HERE, script="env")
    jobs.wait_for_state(placed, job, "COMPLETED")
    for stage in ("prolog", "epilog"):
        variables = environment_of(placed, stage, job)
        assert variables["HAMI_HPC_VGPU"] == "2"
        assert variables["HAMI_HPC_MEM_MIB"] == str(2 * EIGHT_GIB)
        assert variables["HAMI_HPC_CORES"] == str(2 * HALF)
        assert variables["HAMI_HPC_CLASS"] == "std"
    script = dict(re.findall(r"^(\w+)=(.*)$", jobs.output(placed, USER, job), re.MULTILINE))
    assert (script["HAMI_HPC_VGPU"], script["SLURM_SHARDS_ON_NODE"]) == ("2", "558")
    assert script["CUDA_VISIBLE_DEVICES"] == "0,2"


def test_one_slice_lies_beside_them_on_any_gpu(placed: Layout) -> None:
    started(placed, PAIR.replace("50", "80"), HERE)
    singles = [started(placed, "--gres=vgpu:mem=8G,cores=80", HERE) for _ in range(2)]
    assert [shards(placed, job) for job in singles] == [{1: 447}, {3: 447}]
    assert [environment_of(placed, "prolog", job)["SLURM_JOB_GPUS"] for job in singles] == ["1", "3"]
    assert waits(placed, PAIR, HERE)


def test_slices_of_one_job_leave_room_to_those_that_were_there_without_a_type(placed: Layout) -> None:
    assert shards(placed, started(placed, "--gres=vgpu:mem=8G,cores=80", HERE)) == {0: 447}
    assert shards(placed, started(placed, PAIR, HERE)) == {1: 279, 2: 279}


def test_whole_gpus_of_a_model_run_beside_slices(placed: Layout) -> None:
    started(placed, PAIR, HERE)
    job = started(placed, "--gres=gpu:h200:2", HERE)
    facts = jobs.job_facts(placed, job)
    assert re.search(r"gpu:\w:1\(IDX:1\),gpu:\w:1\(IDX:3\)|gpu:2\(IDX:1,3\)", facts["GRES"]), facts["GRES"]
    assert facts["Features"] == "vgpu_type_h200"
    told = "1,3" if config.slurm_release() < (24, 5) else "3"  # later releases replace it for each type
    assert environment_of(placed, "prolog", job)["SLURM_JOB_GPUS"] == told
    for option in ("--gpus=h200:1", "--gpus-per-node=h200:1", "--gpus-per-task=h200:1"):
        job = submit(placed, option, "--ntasks=1", "--nodelist=cpu1", script="echo $CUDA_VISIBLE_DEVICES")
        jobs.wait_for_state(placed, job, "COMPLETED")
        assert jobs.output(placed, USER, job).strip()
    done = jobs.run_as(placed, USER, ("srun", "--gres=gpu:h200:2", "--nodelist=cpu1", "printenv", "SLURM_STEP_GPUS"))
    assert done.out == "0,1\n", done.text


def test_each_node_has_its_slices(placed: Layout) -> None:
    job = started(placed, "--gres=vgpu:h200:2:mem=8G,cores=50", "--nodes=2")
    assert shards(placed, job, "node1") == {0: 279, 2: 279}
    assert shards(placed, job, "cpu1") == {0: 279, 1: 279}
    for name in GPUS:
        assert environment_of(placed, "prolog", job, name)["HAMI_HPC_MEM_MIB"] == str(2 * EIGHT_GIB)
    jobs.admin(placed, "scancel", str(job))
    assert recorded(placed, job) == AllocatedGpus((), "std", 4, 4 * EIGHT_GIB, 4 * HALF, 4 * 279)


def test_tasks_of_an_array_have_two_slices_each(placed: Layout) -> None:
    job = submit(placed, PAIR, HERE, "--array=1-4")
    for task in range(1, 5):
        jobs.wait_for_state(placed, f"{job}_{task}", "RUNNING")
    held = [shards(placed, f"{job}_{task}") for task in range(1, 5)]
    assert held == [{0: 279, 2: 279}] * 2 + [{1: 279, 3: 279}] * 2
    assert waits(placed, PAIR, HERE)


def test_sacct_counts_each_slice_once(placed: Layout) -> None:
    job = submit(placed, PAIR, HERE, script="true")
    jobs.wait_for_state(placed, job, "COMPLETED")
    assert recorded(placed, job) == AllocatedGpus((), "std", 2, 2 * EIGHT_GIB, 2 * HALF, 558)


def test_a_requeued_job_and_one_after_a_restart_of_slurmctld_keep_their_types(placed: Layout) -> None:
    job = started(placed, PAIR, HERE, "--requeue")
    jobs.admin(placed, "scontrol", "requeue", str(job))
    private_cluster.restart(placed, "slurmctld")
    jobs.wait(placed, lambda: jobs.job_facts(placed, job)["Restarts"] == "1", "the requeue", 60, job)
    jobs.wait_for_state(placed, job, "RUNNING", timeout_s=200)
    assert shards(placed, job) == {0: 279, 2: 279}


def test_an_update_keeps_the_places_and_changes_the_size(placed: Layout) -> None:
    job = submit(placed, PAIR, HERE, "--hold")
    jobs.admin(placed, "scontrol", "update", f"JobId={job}", "gres=vgpu:2:mem=4G,cores=25")
    for wrong in ("vgpu:1", "vgpu:mem=4G", "shard:a:5", "gpu:1", "vgpu:3"):
        with pytest.raises(ClusterError):
            jobs.admin(placed, "scontrol", "update", f"JobId={job}", f"gres={wrong}")
    jobs.admin(placed, "scontrol", "release", str(job))
    jobs.wait_for_state(placed, job, "RUNNING")
    assert shards(placed, job) == {0: 139, 2: 139}
    assert environment_of(placed, "prolog", job)["HAMI_HPC_MEM_MIB"] == "8192"


def test_a_gpu_out_of_service_gets_no_slice(placed: Layout) -> None:
    """Placeholder jobs have no type: their shards lie on one GPU all the same."""
    jobs.admin(placed, "hami-hpc", "gpu", "drain", "0", "--reason", "test", "--node", "node1")
    try:
        assert shards(placed, started(placed, PAIR, HERE)) == {1: 279, 2: 279}
        assert shards(placed, started(placed, "--gres=vgpu:mem=8G,cores=50", HERE)) == {1: 279}
        listed = jobs.admin(placed, "hami-hpc", "gpu", "list", "--node", "node1")
        assert re.search(r"^ *0 .*test", listed, re.MULTILINE), listed
    finally:
        jobs.admin(placed, "hami-hpc", "gpu", "resume", "0", "--node", "node1")
    assert shards(placed, started(placed, PAIR, HERE)) == {0: 279, 2: 279}


SHOW = "sh -c 'echo $1 $CUDA_VISIBLE_DEVICES $HAMI_HPC_VGPU $HAMI_HPC_MEM_MIB $HAMI_HPC_CORES; sleep 4' x"


def step_lines(layout: Layout, script: str, *options: str) -> list[str]:
    job = submit(layout, PAIR, HERE, "--ntasks=3", *options, script=script)
    jobs.wait_for_state(layout, job, "COMPLETED", "FAILED")
    return sorted(line for line in jobs.output(layout, USER, job).splitlines() if not line.startswith("srun: "))


def test_two_steps_of_one_slice_at_once_have_a_gpu_each(placed: Layout) -> None:
    step = "srun -n1 --exact --gres=vgpu:1 "
    lines = step_lines(placed, f"{step} {SHOW} one & {step} {SHOW} two & wait")
    assert [line.split()[2:] for line in lines] == [["1", "8192", "50"]] * 2
    assert sorted(line.split()[1] for line in lines) == ["0", "2"]
    small = "srun -n1 --exact --gres=vgpu:1:mem=2G,cores=10 "
    lines = step_lines(placed, f"{small} {SHOW} one & {small} {SHOW} two & wait")
    assert [line.split()[2:] for line in lines] == [["1", "2048", "10"]] * 2
    assert sorted(line.split()[1] for line in lines) == ["0", "2"]


def test_a_step_of_two_slices_and_one_without_a_request_have_both_gpus(placed: Layout) -> None:
    script = f"srun -n2 {SHOW} bare\nsrun -n1 --gres=vgpu:2:mem=4G {SHOW} two"
    assert step_lines(placed, script) == ["bare 0,2 2 16384 100"] * 2 + ["two 0,2 2 8192 100"]


def test_a_third_step_waits_and_one_of_three_slices_is_refused(placed: Layout) -> None:
    step = "srun -n1 --exact --gres=vgpu:1 --immediate=1"
    script = (
        f"{step} {SHOW} one & {step} {SHOW} two & sleep 2; {step} true; echo third $?; srun --gres=vgpu:3 true; wait"
    )
    job = submit(placed, PAIR, HERE, "--ntasks=3", script=script)
    jobs.wait_for_state(placed, job, "COMPLETED", "FAILED")
    text = jobs.output(placed, USER, job)
    assert "third 1" in text, text
    assert "count=3 is more than the job has (2)" in text


def test_srun_alone_and_salloc_have_two_slices(placed: Layout) -> None:
    done = jobs.run_as(placed, USER, ("srun", PAIR, HERE, "sh", "-c", "echo $CUDA_VISIBLE_DEVICES $HAMI_HPC_VGPU"))
    assert done.out == "0,2 2\n", done.text
    inner = "srun --gres=vgpu:2 printenv CUDA_VISIBLE_DEVICES; srun --gres=vgpu:1 printenv HAMI_HPC_MEM_MIB"
    done = jobs.run_as(placed, USER, ("salloc", PAIR, HERE, "sh", "-c", inner))
    assert done.out == "0,2\n8192\n", done.text


def test_a_heterogeneous_job_has_slices_in_each_part(placed: Layout) -> None:
    done = jobs.run_as(
        placed,
        USER,
        ("sbatch", "--parsable", PAIR, HERE, ":", "--gres=vgpu:mem=8G", "--nodelist=cpu1", "--wrap=sleep 300"),
    )
    job = int(done.out)
    jobs.wait_for_state(placed, f"{job}+0", "RUNNING")
    assert shards(placed, f"{job}+0") == {0: 279, 2: 279}
    assert len(shards(placed, f"{job}+1", "cpu1")) == 1


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ("vgpu:3", "slices_max is 2 here, so a job has at most 2 vgpus per node"),
        ("vgpu:16", "slices_max is 2 here"),
        (f"vgpu:{'9' * 300}", "slices_max can be 16 at most"),
        ("vgpu:0:mem=8G", "'0' is not a count of vgpus"),
        ("vgpu:-1", "'-1' is not a count of vgpus"),
        ("vgpu:2:mode=mps", "a count of 2 and mode=mps cannot be combined"),
        ("vgpu:2:mode=mig", "a count of 2 and mode=mig cannot be combined"),
        ("vgpu:2,vgpu:1", "vgpu is requested twice"),
        ("vgpu:2,gpu:1", "'gpu:1' cannot be combined"),
        ("vgpu:2,shard:a:5", "'shard:a:5' cannot be combined"),
        ("shard:a:5,shard:b:5", "is not allowed on this cluster"),
        ("gpu:h200:1,gpu:a100:1", ""),
    ],
)
def test_what_cannot_be_is_refused_at_submit(placed: Layout, request_: str, message: str) -> None:
    assert message in refused(placed, f"--gres={request_}")


def test_options_that_do_not_go_with_slices_are_refused(placed: Layout) -> None:
    assert "vgpu and --exclusive" in refused(placed, PAIR, "--exclusive")
    assert "'gpu:1' cannot be combined" in refused(placed, PAIR, "--gpus=1")
    assert "cannot carry a vgpu request" in refused(placed, "--gpus=vgpu:2")
    assert "OverSubscribe=EXCLUSIVE" in refused(placed, PAIR, "--partition=whole")
