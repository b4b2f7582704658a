# SPDX-License-Identifier: Apache-2.0
"""The demo on several nodes: a job over two of them with two slices on each, from sbatch to the bill, and a second job
with a slice on every node.

As the other story it checks what it shows.
"""

from __future__ import annotations

import time

from hami_hpc.contract import constants as c

from . import jobs, node
from .config import machine_of
from .layout import ClusterError, Layout
from .telling import StoryJob, billed, cancel_own, expect, heading, say, scheduled, show, submit

_SCRIPTS = ("ddp.sh", "beside.sh")
_PAIR = ("-N2", "--ntasks-per-node=1", "--gres=vgpu:2:mem=8G,cores=50")


def tell(layout: Layout) -> None:
    """Runs the whole demo on a running cluster. Raises ClusterError at the first step that fails."""
    began_unix_s = int(time.time())
    cancel_own(layout, _SCRIPTS)
    version = jobs.admin(layout, "sinfo", "--version").split()[-1]
    names = layout.gpu_nodes
    say(
        f"A private Slurm {version} is up, with {len(names)} nodes, {names[0]} to {names[-1]}, on this machine. "
        f"Each has {machine_of(layout).gpus} simulated NVIDIA H200s, a slurmd and an agent of its own."
    )
    busy = jobs.admin(layout, "squeue", "-h", "-o", "%i (%u)").split("\n")[:-1]
    if busy:
        raise ClusterError(f"the demo needs all nodes, and there are jobs: {', '.join(busy[:8])}. Cancel: scancel ID")
    try:
        first = _request_and_schedule(layout)
        _seen_by_the_tasks(layout, first)
        second = _beside_on_all_nodes(layout)
        _on_the_nodes(layout, first, second)
        _release(layout, first, second)
        text = billed(layout, 6, began_unix_s, [first, second])
        for name in ("physics", "vision", "games", "news"):
            expect(layout, f"the bill names {name}", name in text)
    finally:
        cancel_own(layout, _SCRIPTS)


def _nodes_of(layout: Layout, job: int) -> list[Layout]:
    """The nodes whose ledgers have a grant of this job."""
    every = [layout.at(name) for name in layout.gpu_nodes]
    return [each for each in every if any(grant.job_id == job for grant in node.grants(each))]


def _request_and_schedule(layout: Layout) -> StoryJob:
    heading(1, "The request: two nodes, on each two slices of 8 GiB and half of a GPU's time")
    first = submit(layout, "games", "ddp", "srun --label slice --until {until}", *_PAIR)
    jobs.wait_for_state(layout, first.job, "RUNNING")
    heading(2, "What Slurm scheduled: on each node two GPUs' shares")
    show(f"$ scontrol show job -d {first.job}")
    show(scheduled(layout, first.job))
    tres = jobs.job_facts(layout, first.job)["TRES"]
    for unit in ("node=2", "gres/vgpu=4", "gres/vgpu_mem=32768", "gres/vgpu_cores=200", "gres/shard=1116"):
        expect(layout, f"job {first.job} holds {unit} (it holds {tres})", unit in tres, first.job)
    return first


def _seen_by_the_tasks(layout: Layout, first: StoryJob) -> None:
    heading(3, "What the tasks saw, one on each node: a GPU of 8192 MiB")

    def printed() -> bool:
        expect(layout, "the program runs", jobs.state(layout, first.job) == "RUNNING", first.job)
        return jobs.output(layout, first.user, first.job).count("CUDA says") == 2

    jobs.wait(layout, printed, "both tasks to reach their limit", 30, first.job)
    lines = sorted(jobs.output(layout, first.user, first.job).splitlines(), key=lambda line: line.partition(":")[0])
    show("\n".join(lines))
    for task in ("0", "1"):
        expect(layout, f"task {task} has a GPU of 8192 MiB", any(_is_first(line, task) for line in lines), first.job)


def _is_first(line: str, task: str) -> bool:
    return line.startswith(f"{task}: ") and "8192 MiB in total" in line


def _beside_on_all_nodes(layout: Layout) -> StoryJob:
    count = len(layout.gpu_nodes)
    heading(4, f"A job of another user, with one slice on each of the {count} nodes")
    options = (f"-N{count}", "--ntasks-per-node=1", "--gres=vgpu:mem=4G,cores=30")
    second = submit(layout, "news", "beside", "srun slice --use 1024 --until {until}", *options)
    jobs.wait_for_state(layout, second.job, "RUNNING")
    return second


def _on_the_nodes(layout: Layout, first: StoryJob, second: StoryJob) -> None:
    heading(5, "On the nodes: what is granted, and used")
    every = [layout.at(name) for name in layout.gpu_nodes]

    def used() -> bool:
        # 2 x 8 GiB where the first job is, and 1 GiB of the second and its context everywhere.
        bytes_used = sum(gpu.used_bytes for each in every for gpu in node.gpus(each))
        return bytes_used == (2 * 8192 + len(every) * (1024 + 512)) << 20

    jobs.wait(layout, used, "all tasks to use what they need", 30, second.job)
    for each in every:
        show(f"{each.node}# hami-hpc jobs")
        show(jobs.admin(each, "hami-hpc", "jobs") + "\n")
    granted = [[each.node for each in _nodes_of(layout, job.job)] for job in (first, second)]
    expect(layout, "the first job is on two nodes", len(granted[0]) == 2, first.job)
    expect(layout, "the second job is on all nodes", granted[1] == list(layout.gpu_nodes), second.job)
    begins = {_step_begin(each, first.job) for each in _nodes_of(layout, first.job)}
    expect(layout, "both nodes found the same begin for the job", len(begins) == 1, first.job)
    say(
        f"Job {first.job} works in step: nobody told the nodes of each other, and on both its slices open at "
        f"{begins.pop()} of 1000 parts of a common period."
    )


def _step_begin(layout: Layout, job: int) -> int:
    offset, size, _ = c.LIMITS_FIELDS["step_begin_permille"]
    data = (layout.run_dir / "jobs" / str(job) / "job.limits").read_bytes()
    return int.from_bytes(data[offset : offset + size], "little")


def _release(layout: Layout, first: StoryJob, second: StoryJob) -> None:
    for demo_job in (first, second):
        demo_job.release.touch()
    for demo_job in (first, second):
        jobs.wait_for_state(layout, demo_job.job, "COMPLETED")
    for name in layout.gpu_nodes:
        node.wait_until_clean(layout.at(name))
    say("Both jobs have ended. No grant, no region and no GPU memory is left on any node.")
