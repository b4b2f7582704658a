# SPDX-License-Identifier: Apache-2.0
"""A partition with nodes of two GPU models (docs/adr/066): where slurmctld puts requests without a type, with several
types, and by preset. Prolog, epilog and SPANK plugin do nothing here."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import pytest
from harness import config, jobs
from harness.layout import ClusterError, Layout
from harness.second_node import cancel_all, two_gpu_nodes

from hami_hpc.core.shards_shown import shards_of_node

USER = "games"
MODELS = {"node1": "h200", "cpu1": "a100"}  # two GPUs each
SHARDS = {"node1": 559, "cpu1": 318}  # of a GPU
A100_MIB = 81559
PRESETS = '[presets.quarter]\nmem = "8G"\ncores = 25\n[presets.avoid]\ntype = "!h200"\nmem = "50%"\ncores = 1\n'


@pytest.fixture(scope="module")
def _mixed(_session_cluster: Layout) -> Iterator[Layout]:
    text = config.site_toml(_session_cluster).replace('["h200"]', '["h200", "a100"]', 1)
    text = text.replace("[partitions", f"[gpu_models.a100]\ntotal_mib = {A100_MIB}\n[partitions", 1)
    stages = dict.fromkeys(("prolog", "epilog"), "#!/bin/sh\nexit 0\n")
    with two_gpu_nodes(_session_cluster, text + PRESETS, "a100:2", stages, [USER]) as layout:
        yield layout


@pytest.fixture
def mixed(_mixed: Layout) -> Iterator[Layout]:
    yield _mixed
    cancel_all(_mixed, [USER])


def submit(layout: Layout, *options: str) -> int:
    return jobs.submit(layout, USER, "--time=30", *options, script="sleep 300")


def started(layout: Layout, *options: str) -> tuple[int, str]:
    """Returns the job and its node."""
    job = submit(layout, *options)
    jobs.wait_for_state(layout, job, "RUNNING")
    return job, jobs.job_facts(layout, job)["NodeList"]


def waits(layout: Layout, *options: str) -> bool:
    job = submit(layout, *options)
    tried = ("Resources", "Priority")
    jobs.wait(layout, lambda: jobs.job_facts(layout, job)["Reason"] in tried, "Slurm to try the job", 30, job)
    return jobs.state(layout, job) == "PENDING"


def refused(layout: Layout, *options: str) -> str:
    with pytest.raises(ClusterError) as caught:
        submit(layout, *options)
    return str(caught.value)


def shards_by_gpu(layout: Layout, placed: list[tuple[int, str]]) -> Counter[tuple[str, int]]:
    total: Counter[tuple[str, int]] = Counter()
    for job, name in placed:
        for gpu, count in shards_of_node(jobs.admin(layout, "scontrol", "show", "job", "-d", str(job)), name).items():
            total[name, gpu] += count
    return total


@pytest.mark.parametrize(("cores", "on_h200", "on_a100"), [(50, 2, 1), (25, 4, 2)])
def test_jobs_without_a_type_fill_all_models_and_never_more_than_a_gpu_has(
    mixed: Layout, cores: int, on_h200: int, on_a100: int
) -> None:
    request = f"--gres=vgpu:mem=8G,cores={cores}"
    placed = [started(mixed, request) for _ in range(2 * (on_h200 + on_a100))]
    assert waits(mixed, request)
    each = 559 * cores // 100
    assert shards_by_gpu(mixed, placed) == {
        **{("node1", gpu): on_h200 * each for gpu in range(2)},
        **{("cpu1", gpu): on_a100 * each for gpu in range(2)},
    }
    assert all(count <= SHARDS[name] for (name, _), count in shards_by_gpu(mixed, placed).items())


def test_a_job_that_no_small_gpu_has_the_shards_of_waits_for_a_large_one(mixed: Layout) -> None:
    request = "--gres=vgpu:mem=8G,cores=60"  # 335 shards; an A100 has 318
    assert {started(mixed, request)[1] for _ in range(2)} == {"node1"}
    assert waits(mixed, request)
    assert jobs.admin(mixed, "squeue", "-h", "-w", "cpu1") == ""


def test_memory_in_mib_counts_the_same_on_both_models(mixed: Layout) -> None:
    request = "--gres=vgpu:mem=80000M,cores=1"  # 313 shards
    placed = [started(mixed, request) for _ in range(4)]
    assert Counter(name for _, name in placed) == {"node1": 2, "cpu1": 2}
    assert set(shards_by_gpu(mixed, placed).values()) == {313}


def test_types_of_a_request_are_a_choice_of_nodes(mixed: Layout) -> None:
    job, name = started(mixed, "--gres=vgpu:type=!h200,mem=8G,cores=50")
    assert (name, jobs.job_facts(mixed, job)["Features"]) == ("cpu1", "vgpu_type_a100")
    assert shards_by_gpu(mixed, [(job, name)]) == {("cpu1", 0): 159}
    choice = "(vgpu_type_h200|vgpu_type_a100)"
    job, name = started(mixed, "--gres=vgpu:type=h200|a100,mem=8G,cores=50", "--constraint=vgpu_share|vgpu_policy_cap")
    assert jobs.job_facts(mixed, job)["Features"] == f"(vgpu_share|vgpu_policy_cap)&{choice}"
    job, name = started(mixed, "--gres=vgpu:type=h200|a100,mem=8G,cores=60")
    assert (name, jobs.job_facts(mixed, job)["Features"]) == ("node1", choice)
    same = "[vgpu_type_h200|vgpu_type_a100]"
    job, name = started(mixed, "--gres=vgpu:type=h200|a100,mem=1G,cores=1", f"--constraint={same}")
    assert jobs.job_facts(mixed, job)["Features"] == same


def test_a_job_of_several_nodes_may_have_both_models(mixed: Layout) -> None:
    job, _ = started(mixed, "--gres=vgpu:type=h200|a100,mem=8G,cores=10", "--nodes=2")
    assert jobs.job_facts(mixed, job)["NumNodes"] == "2"
    detail = jobs.admin(mixed, "scontrol", "show", "job", "-d", str(job))
    assert [sum(shards_of_node(detail, name).values()) for name in MODELS] == [55, 55]


def test_an_update_of_a_waiting_job_keeps_its_choice(mixed: Layout) -> None:
    job = submit(mixed, "--hold", "--gres=vgpu:type=h200|a100,mem=8G,cores=50")
    done = jobs.run_as(mixed, USER, ("scontrol", "update", f"jobid={job}", "features=vgpu_policy_cap"))
    assert done.status == 0, done.text
    facts = jobs.job_facts(mixed, job)
    assert facts["Features"] == "vgpu_policy_cap&(vgpu_type_h200|vgpu_type_a100)"
    assert "shard:279" in facts["TresPerNode"]
    done = jobs.run_as(mixed, USER, ("scontrol", "update", f"jobid={job}", "gres=vgpu:type=!h200,mem=8G,cores=50"))
    assert done.status == 0, done.text
    facts = jobs.job_facts(mixed, job)
    assert facts["Features"] == "vgpu_policy_cap&vgpu_type_a100"
    assert "shard:159" in facts["TresPerNode"]


def test_srun_has_the_same_units_for_job_and_step(mixed: Layout) -> None:
    command = ("srun", "--gres=vgpu:type=h200|a100,mem=8G,cores=50", "-pgpu", "-t5", "scontrol", "show", "job", "-d")
    done = jobs.run_as(mixed, USER, command)
    assert done.status == 0, done.text
    assert "Features=(vgpu_type_h200|vgpu_type_a100)" in done.out
    assert re.search(r"shard[:=]279", done.out)
    done = jobs.run_as(mixed, USER, ("srun", "--gres=vgpu:mem=50%", "-t5", "true"))
    assert done.status != 0
    assert "this request is not the same on all of them" in done.text


def test_presets_are_what_the_site_wrote_down(mixed: Layout) -> None:
    job, _ = started(mixed, "--gres=vgpu:preset=quarter")
    assert "vgpu_mem:8192" in jobs.job_facts(mixed, job)["TresPerNode"]
    job, name = started(mixed, "--gres=vgpu:preset=avoid,mem=1G")
    assert (name, jobs.job_facts(mixed, job)["Features"]) == ("cpu1", "vgpu_type_a100")
    assert "vgpu_mem:1024" in jobs.job_facts(mixed, job)["TresPerNode"]


@pytest.mark.parametrize(
    ("request_", "line"),
    [
        ("vgpu:type=h200|v100", "GPU type 'v100' is not in this cluster; its types are: a100, h200."),
        ("vgpu:type=!h200|a100", "leaves no GPU type of partition gpu; its types are: h200, a100."),
        ("vgpu:type=h200|", "type=h200| is not understood"),
        ("vgpu:h200:type=a100", "'type' is given twice ('h200 and type=a100')"),
        ("vgpu:preset=tiny", "preset=tiny is not one of this cluster's presets, which are: avoid, quarter."),
        ("vgpu:2:preset=quarter", "a count of 2 and preset=quarter cannot be combined"),
    ],
)
def test_what_nothing_satisfies_is_refused_in_one_line(mixed: Layout, request_: str, line: str) -> None:
    text = refused(mixed, "-pgpu", f"--gres={request_}")
    assert line in text
    assert text.count("hami_hpc: ") == 1
