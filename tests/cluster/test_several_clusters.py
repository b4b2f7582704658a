# SPDX-License-Identifier: Apache-2.0
"""Two clusters with one slurmdbd: requests with -M, a federation, and whose jobs are whose."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from harness import config, jobs, node, second_cluster
from harness.layout import Layout
from harness.second_cluster import MODEL, NAME
from test_requests import total_mib

# On 24.11 srun -M starts its step on this cluster's node of the same name, as both are on one host here.
pytestmark = pytest.mark.slurm_before("23.02")
HALF_MIB = 19968  # of the other cluster's GPU: 39 shards of 512 MiB
WHOLE = "--gres=vgpu:mem=100%,cores=100"


@pytest.fixture(scope="module")
def other(_session_cluster: Layout) -> Iterator[Layout]:
    next_here = jobs.submit(_session_cluster, "games", script="true") + 1
    with second_cluster.second_cluster(_session_cluster, next_here) as layout:
        yield layout


@contextmanager
def federation(layout: Layout) -> Iterator[None]:
    """Joins both clusters, and parts them afterwards."""
    jobs.admin(layout, "sacctmgr", "-i", "add", "federation", "fed", f"clusters=demo,{NAME}")
    try:
        jobs.wait(
            layout, lambda: "Synced:Yes" in jobs.admin(layout, "scontrol", "show", "federation"), "the federation", 30
        )
        yield
    finally:
        jobs.admin(layout, "scancel", "-M", f"demo,{NAME}", "--user=games")
        jobs.admin(layout, "sacctmgr", "-i", "delete", "federation", "fed")


def submit_with_one_number(clusters: tuple[Layout, Layout], *words: str) -> int:
    """Submits a job in each cluster, and others before it where one of them is behind."""
    numbers = [0, 0]
    while not numbers[0] == numbers[1] > 0:
        behind = numbers.index(min(numbers))
        jobs.admin(clusters[behind], "scancel", "--user=games")
        numbers[behind] = jobs.submit(clusters[behind], "games", *words, script="sleep 600")
    return numbers[0]


def ended_in(layout: Layout, job: int) -> bool:
    """Returns whether slurmdbd has the job as completed in this cluster. Of a federation's job scontrol may show the
    record of the cluster where it was submitted."""
    words = ("-n", "-X", "-P", "-D", "-o", "state")
    return "COMPLETED" in jobs.admin(layout, "sacct", "--local", f"--jobs={job}", *words)


def yesterday() -> str:
    return (datetime.now(UTC) - timedelta(days=1)).date().isoformat()


def billed(clusters: tuple[Layout, Layout], store: Path) -> set[tuple[str, str, str]]:
    """Reads both clusters into one store; returns cluster, job and model of each line of the bill."""
    first = clusters[0]
    rates = f"version = 1\n[gpus.{MODEL}]\ntotal_mib = {config.GPU_MIB[MODEL]}\n"
    rates += f'[partitions."{NAME}/gpu"]\ngpu_models = ["{MODEL}"]\n'
    (store / "rates.toml").write_text(rates)
    since = yesterday()
    common = ("--store", str(store), "--rates", str(store / "rates.toml"))
    jobs.admin(first, "hami-hpc", "ingest", *common, "-M", f"demo,{NAME}", "--since", since)
    for layout in clusters:
        jobs.admin(first, "hami-hpc", "collect-usage", *common, "--input", str(layout.state_dir / "usage"))
    words = ("--start", since, "--by", "cluster,job,model", "--format", "csv")
    text = jobs.admin(first, "hami-hpc", "bill", *common, *words)
    return {(row["cluster"], row["job"], row["model"]) for row in csv.DictReader(text.splitlines())}


def test_a_request_is_the_other_clusters_to_judge_by_its_own_gpus(cluster: Layout, other: Layout) -> None:
    script = "slice; srun --overlap --gres=vgpu:mem=25%,cores=5 slice"
    job = jobs.submit(cluster, "games", f"--clusters={NAME}", "--gres=vgpu:mem=50%,cores=50,policy=cap", script=script)
    jobs.wait_for_state(other, job, "COMPLETED")
    assert total_mib(jobs.output(cluster, "games", job)) == [HALF_MIB, HALF_MIB // 2 - 256]
    refused = jobs.run_as(cluster, "games", ("srun", "-M", NAME, "--gres=vgpu:mem=80G,cores=5", "true"))
    assert f"the largest, {MODEL}, has 40383M" in refused.err
    done = jobs.run_as(cluster, "games", ("srun", "-M", NAME, "--gres=vgpu:mem=8G,cores=50", "slice"))
    assert total_mib(done.out) == [8192], done.text
    refused = jobs.run_as(cluster, "games", ("srun", "-M", NAME, "--gres=vgpu:mem=50%,cores=5", "true"))
    assert f"srun for --clusters={NAME} cannot carry this request" in refused.err


def test_steps_in_the_shell_of_salloc_are_parts_of_the_other_clusters_slice(cluster: Layout, other: Layout) -> None:
    """This cluster has a job of the same number, which is smaller than what the step asks for."""
    steps = "srun slice; srun --gres=vgpu:mem=2G,cores=50 slice; srun --gres=vgpu:mem=10% slice"
    done = jobs.run_as(cluster, "games", ("salloc", "-M", NAME, "--gres=vgpu:mem=8G,cores=50", "sh", "-c", steps))
    assert total_mib(done.out) == [8192, 2048], done.text
    assert f"srun for a job of cluster {NAME} cannot carry this request" in done.err
    node.wait_until_clean(other)


def test_jobs_of_one_number_are_billed_to_their_clusters_and_keep_their_slices(
    cluster: Layout, other: Layout, tmp_path: Path
) -> None:
    """reconcile with SLURM_CLUSTERS asked the other cluster, and took the node's grants for those of ended jobs."""
    job = submit_with_one_number((cluster, other), "--output=/dev/null", "--gres=vgpu:mem=8G,cores=20")
    for layout in (cluster, other):
        jobs.wait_for_state(layout, job, "RUNNING")
    jobs.admin(other, "scancel", str(job))
    jobs.wait_for_state(other, job, "CANCELLED")
    text = jobs.admin(cluster, "env", f"SLURM_CLUSTERS={NAME}", "hami-hpc", "reconcile", "--dry-run", "--node=node1")
    assert "nothing to do" in text
    shown = jobs.admin(cluster, "env", f"SLURM_CLUSTERS={NAME}", "hami-hpc", "explain", str(job))
    assert shown.startswith(f"Job {job} (partition gpu, QoS std) is cancelled")
    jobs.admin(cluster, "scancel", str(job))
    for layout in (cluster, other):
        node.wait_until_clean(layout)
    jobs.wait_until_recorded(cluster, job)
    jobs.wait_until_recorded(other, job)
    lines = billed((cluster, other), tmp_path)
    assert {line for line in lines if line[1] == str(job)} == {
        ("demo", str(job), config.GPU_MODEL),
        (NAME, str(job), MODEL),
    }


def test_a_released_job_of_a_federation_runs_where_there_is_room_and_is_billed_there_alone(
    cluster: Layout, other: Layout, tmp_path: Path
) -> None:
    with federation(cluster):
        full = [
            jobs.submit(cluster, "games", "--clusters=demo", WHOLE, script="sleep 600") for _ in range(config.GPU_COUNT)
        ]
        for job in full:
            jobs.wait_for_state(cluster, job, "RUNNING")
        fresh = jobs.submit(cluster, "games", "--gres=vgpu:mem=50%,cores=20", script="slice")
        held = jobs.submit(cluster, "games", "--hold", "--qos=be", "--gres=vgpu:mem=4G,cores=20", script="slice")
        jobs.run_as(cluster, "games", ("scontrol", "release", str(held)))
        jobs.wait(other, lambda: ended_in(other, fresh) and ended_in(other, held), f"both jobs to end in {NAME}", 30)
        assert total_mib(jobs.output(cluster, "games", fresh)) == [HALF_MIB]
        assert total_mib(jobs.output(cluster, "games", held)) == [4096]
        # As FederationParameters=fed_display does it: sacct lists all clusters, if it is not told otherwise.
        words = ("SACCT_FEDERATION=1", "hami-hpc", "bill", "--live", "--start", yesterday(), "--by", "cluster,job")
        assert NAME not in jobs.admin(cluster, "env", *words)
    for layout in (cluster, other):
        node.wait_until_clean(layout)
    jobs.wait_until_recorded(other, fresh, held)
    lines = billed((cluster, other), tmp_path)
    mine = {line for line in lines if line[1] in {str(fresh), str(held)}}
    assert mine == {(NAME, str(fresh), MODEL), (NAME, str(held), MODEL)}
