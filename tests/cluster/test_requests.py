# SPDX-License-Identifier: Apache-2.0
"""Every way to ask Slurm for a slice ends in the same units, and in a program that sees the slice."""

from __future__ import annotations

import re

import pytest
from harness import jobs
from harness.layout import Layout

H200_MIB = 143156
SHARDS = H200_MIB // 256  # of one GPU
SHOW = "slice --use 16"


def units(layout: Layout, job: int | str) -> dict[str, int]:
    """The GPU units in a job's TRES, by name without gres/."""
    pairs = re.findall(r"gres/([\w:]+)=(\d+)", jobs.job_facts(layout, job)["TRES"])
    return {name: int(count) for name, count in pairs}


def slice_units(shards: int, mem_mib: int, cores: int, service_class: str = "std") -> dict[str, int]:
    counts = {"shard": shards, "vgpu": 1, f"vgpu:{service_class}": 1, "vgpu_mem": mem_mib, "vgpu_cores": cores}
    return dict(sorted(counts.items()))


def total_mib(text: str) -> list[int]:
    """What `slice` said the GPU has in total, for each time that it ran."""
    return [int(number) for number in re.findall(r"(\d+) MiB in total", text)]


@pytest.mark.parametrize(
    ("gres", "expected"),
    [
        ("vgpu:mem=8G,cores=50", slice_units(279, 8192, 50)),
        ("vgpu:mem=8192M,cores=5", slice_units(32, 8192, 5)),
        ("vgpu:h200:mem=50%", slice_units(279, 279 * 256, 25)),
        ("vgpu:cores=25", slice_units(139, 139 * 256, 25)),
        ("vgpu", slice_units(139, 139 * 256, 25)),
        ("vgpu:mem=100%,cores=100", slice_units(SHARDS, H200_MIB, 100)),
    ],
)
def test_a_request_becomes_units_and_the_program_sees_its_slice(
    cluster: Layout, gres: str, expected: dict[str, int]
) -> None:
    job = jobs.submit(cluster, "games", f"--gres={gres}", script=SHOW)
    jobs.wait_for_state(cluster, job, "COMPLETED")
    assert dict(sorted(units(cluster, job).items())) == expected
    assert total_mib(jobs.output(cluster, "games", job)) == [expected["vgpu_mem"]]


def test_a_request_in_a_batch_directive_is_the_same_as_on_the_command_line(cluster: Layout) -> None:
    job = jobs.submit(cluster, "games", script=f"#SBATCH --gres=vgpu:mem=8G,cores=50\n{SHOW}")
    jobs.wait_for_state(cluster, job, "COMPLETED")
    assert dict(sorted(units(cluster, job).items())) == slice_units(279, 8192, 50)
    assert total_mib(jobs.output(cluster, "games", job)) == [8192]


def test_srun_outside_an_allocation_takes_a_request(cluster: Layout) -> None:
    done = jobs.run_as(cluster, "games", ("srun", "--gres=vgpu:mem=4G,cores=10", "slice", "--use", "16"))
    assert done.status == 0, done.text
    assert total_mib(done.out) == [4096]


def test_salloc_takes_a_request_and_its_srun_sees_the_slice(cluster: Layout) -> None:
    command = ("salloc", "--gres=vgpu:mem=3G,cores=10", "srun", "slice", "--use", "16")
    done = jobs.run_as(cluster, "games", command)
    assert done.status == 0, done.text
    assert total_mib(done.out) == [3072]


def test_each_task_of_a_job_array_gets_its_own_slice(cluster: Layout) -> None:
    job = jobs.submit(cluster, "games", "--array=1-3", "--gres=vgpu:mem=2G,cores=10", script=SHOW)
    for task in (1, 2, 3):
        jobs.wait_for_state(cluster, f"{job}_{task}", "COMPLETED")
        assert units(cluster, f"{job}_{task}")["vgpu_mem"] == 2048
        assert total_mib((cluster.home / "games" / f"slurm-{job}_{task}.out").read_text()) == [2048]


def test_the_gpu_part_of_a_heterogeneous_job_has_its_slice(cluster: Layout) -> None:
    """Slurm puts the parts on different nodes: one of CPUs only, and one with a slice."""
    script = "#SBATCH --partition=cpu\n#SBATCH hetjob\n#SBATCH --partition=gpu --gres=vgpu:mem=4G,cores=20\n"
    script += "env | grep -c HAMI_HPC_LIMITS; srun --het-group=1 slice --use 16; "
    script += "srun --het-group=1 --gres=vgpu:mem=2G slice --use 16"
    job = jobs.submit(cluster, "games", script=script)
    jobs.wait_for_state(cluster, job, "COMPLETED")
    assert "vgpu" not in units(cluster, f"{job}+0")
    assert units(cluster, f"{job}+1")["vgpu_mem"] == 4096
    text = jobs.output(cluster, "games", job)
    assert text.splitlines()[0] == "0"
    assert total_mib(text) == [4096, 2048]


@pytest.mark.parametrize("update", ["gres=vgpu:mem=4G;cores=25", "TresPerNode=gres/vgpu:mem=4G;cores=25"])
def test_scontrol_changes_the_request_of_a_pending_job(cluster: Layout, update: str) -> None:
    job = jobs.submit(cluster, "games", "--hold", "--gres=vgpu:mem=8G,cores=50", script=SHOW)
    done = jobs.run_as(cluster, "games", ("scontrol", "update", f"jobid={job}", update))
    assert done.status == 0, done.text
    jobs.admin(cluster, "scontrol", "release", str(job))
    jobs.wait_for_state(cluster, job, "COMPLETED")
    assert dict(sorted(units(cluster, job).items())) == slice_units(139, 4096, 25)
    assert total_mib(jobs.output(cluster, "games", job)) == [4096]


@pytest.mark.parametrize("service_class", ["lc", "be"])
def test_the_qos_decides_the_class(cluster: Layout, service_class: str) -> None:
    options = (f"--qos={service_class}", "--gres=vgpu:mem=1G,cores=5")
    job = jobs.submit(cluster, "games", *options, script='echo "class $HAMI_HPC_CLASS"')
    jobs.wait_for_state(cluster, job, "COMPLETED")
    assert units(cluster, job)[f"vgpu:{service_class}"] == 1
    assert f"class {service_class}" in jobs.output(cluster, "games", job)


def test_a_job_that_exports_nothing_is_fenced_all_the_same(cluster: Layout) -> None:
    job = jobs.submit(cluster, "games", "--export=NONE", "--gres=vgpu:mem=2G,cores=10", script=SHOW)
    jobs.wait_for_state(cluster, job, "COMPLETED")
    assert total_mib(jobs.output(cluster, "games", job)) == [2048]


def test_jobs_without_vgpu_are_left_alone(cluster: Layout) -> None:
    show = "env | grep -E '^(LD_PRELOAD|HAMI_HPC_)' ; echo end"
    plain = jobs.submit(cluster, "games", script=show)
    whole = jobs.submit(cluster, "games", "--gres=gpu:1", script=f"{show}; {SHOW}")
    for job in (plain, whole):
        jobs.wait_for_state(cluster, job, "COMPLETED")
    assert jobs.without_simulation(cluster, jobs.output(cluster, "games", plain)) == "end\n"
    text = jobs.without_simulation(cluster, jobs.output(cluster, "games", whole))
    assert text.startswith("end\n")
    assert total_mib(text) == [H200_MIB]
    assert not {"vgpu", "vgpu_mem", "vgpu_cores", "shard"} & units(cluster, whole).keys()
