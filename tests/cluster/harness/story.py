# SPDX-License-Identifier: Apache-2.0
"""The demo: follows one request from sbatch to the bill, and shows the other jobs on the same GPU.

Each step checks its output and fails with the logs, so the demo is also a test.
"""

from __future__ import annotations

import re
import time

from . import jobs, node
from .config import GPU_COUNT, NODE
from .layout import ClusterError, Layout
from .telling import StoryJob, billed, cancel_own, expect, heading, say, scheduled, show, submit

_SCRIPTS = ("train.sh", "serve.sh", "whole.sh", "later.sh")


def tell(layout: Layout) -> None:
    """Runs the whole demo on a running cluster. Raises ClusterError at the first step that fails."""
    began_unix_s = int(time.time())
    cancel_own(layout, _SCRIPTS)
    version = jobs.admin(layout, "sinfo", "--version").split()[-1]
    say(f"A private Slurm {version} is up, with {GPU_COUNT} simulated NVIDIA H200s on its node {NODE}.")
    busy = jobs.admin(layout, "squeue", "-h", "-o", "%i (%u)").split("\n")[:-1]
    if busy:
        raise ClusterError(
            f"the demo needs both GPUs, and there are jobs: {', '.join(busy[:8])}. Cancel them: scancel ID"
        )
    try:
        first = _request_and_schedule(layout)
        _seen_by_the_program(layout, first)
        second = _packed(layout, first)
        whole = _whole_gpu(layout)
        waiting = _must_wait(layout)
        _refused(layout)
        _live_usage(layout)
        _release(layout, first, second, whole, waiting)
        text = billed(layout, 10, began_unix_s, [first, second, whole, waiting])
        for name in ("physics", "vision", "games", "news"):
            expect(layout, f"the bill names {name}", name in text)
    finally:
        cancel_own(layout, _SCRIPTS)


def gpu_indices(layout: Layout, job: int | str) -> set[int]:
    """Returns the indices of the job's GPUs, also of those that it shares, from `scontrol show job -d`.

    Slurm prints them as gpu:h200:1(IDX:0), shard:279(IDX:0), or from 23.02 on shard:279(279/559,0/559).
    """
    indices: set[int] = set()
    for gres in re.findall(r"\bGRES=(\S+)", jobs.admin(layout, "scontrol", "show", "job", "-d", str(job))):
        for where in re.findall(r"\b(?:gpu|shard)[^()]*\(([^)]*)\)", gres):
            if where.startswith("IDX:"):
                for first, last in re.findall(r"(\d+)(?:-(\d+))?", where):
                    indices |= set(range(int(first), int(last or first) + 1))
            else:
                shares = [int(share.partition("/")[0]) for share in where.split(",")]
                indices |= {index for index, share in enumerate(shares) if share > 0}
    return indices


def _request_and_schedule(layout: Layout) -> StoryJob:
    heading(1, "The request: 8 GiB of a GPU's memory, half of its time")
    first = submit(layout, "games", "train", "slice --until {until}", "--gres=vgpu:mem=8G,cores=50")
    jobs.wait_for_state(layout, first.job, "RUNNING")
    heading(2, "What Slurm scheduled: shares of one GPU, in units of its own")
    show(f"$ scontrol show job -d {first.job}")
    show(scheduled(layout, first.job))
    tres = jobs.job_facts(layout, first.job)["TRES"]
    for unit in ("gres/vgpu_mem=8192", "gres/vgpu_cores=50", "gres/shard=279", "gres/vgpu=1"):
        expect(layout, f"job {first.job} holds {unit} (it holds {tres})", unit in tres, first.job)
    return first


def _seen_by_the_program(layout: Layout, first: StoryJob) -> None:
    heading(3, "What the program in the job saw: a GPU of 8192 MiB, and CUDA's own error beyond")

    def printed() -> bool:
        expect(layout, "the program runs", jobs.state(layout, first.job) == "RUNNING", first.job)
        return "CUDA says" in jobs.output(layout, first.user, first.job)

    jobs.wait(layout, printed, "the program to reach its limit", 30, first.job)
    text = jobs.output(layout, first.user, first.job)
    show(text)
    for words in ("8192 MiB in total", "8192 of 8192 MiB in use", "CUDA_ERROR_OUT_OF_MEMORY"):
        expect(layout, f"the program printed '{words}'", words in text, first.job)


def _packed(layout: Layout, first: StoryJob) -> StoryJob:
    heading(4, "A second job, of another user and a latency-critical class, on the same GPU")
    second = submit(
        layout, "news", "serve", "slice --use 4096 --until {until}", "--qos=lc", "--gres=vgpu:mem=25%,cores=30"
    )
    jobs.wait_for_state(layout, second.job, "RUNNING")
    show(scheduled(layout, second.job))
    mine, theirs = gpu_indices(layout, first.job), gpu_indices(layout, second.job)
    say(f"Job {first.job} is on GPU {_list(mine)}, job {second.job} on GPU {_list(theirs)}.")
    expect(layout, "both jobs share one GPU", mine == theirs and len(mine) == 1, second.job)
    return second


def _list(numbers: set[int]) -> str:
    return ", ".join(str(number) for number in sorted(numbers))


def _whole_gpu(layout: Layout) -> StoryJob:
    heading(5, "Whole GPUs as ever: the other one goes to a job that knows nothing of vgpu")
    program = "while [ ! -e {until} ]; do sleep 0.2; done"
    whole = submit(layout, "news", "whole", program, "--gres=gpu:h200:1")
    jobs.wait_for_state(layout, whole.job, "RUNNING")
    say(f"Job {whole.job} is on GPU {_list(gpu_indices(layout, whole.job))}.")
    return whole


def _must_wait(layout: Layout) -> StoryJob:
    heading(6, "A job that fits beside nobody has to wait")
    waiting = submit(layout, "games", "later", "slice --use 1024 --until {until}", "--gres=vgpu:mem=8G,cores=60")
    reason = ""

    def explained() -> bool:
        nonlocal reason
        reason = jobs.run_as(layout, "games", ("squeue", "-h", "-j", str(waiting.job), "-o", "%r")).out.strip()
        return reason not in ("", "None")

    jobs.wait(layout, explained, "squeue to tell why the job waits", 30, waiting.job)
    show("games$ squeue")
    show(jobs.run_as(layout, "games", ("squeue", "-o", "%.6i %.8j %.8u %.4q %.10T %.12r %b")).out)
    expect(layout, f"job {waiting.job} waits for resources (reason: {reason})", reason == "Resources", waiting.job)
    say(f"Reason {reason}: no GPU has 60 % left. The job starts when a neighbour ends.")
    return waiting


def _refused(layout: Layout) -> None:
    heading(7, "A request that cannot be, refused at once")
    for request, word in (("vgpu:mem=200G,cores=50", "mem=200G"), ("vgpu:mem=8G,cores=150", "cores=150")):
        command = ("sbatch", f"--gres={request}", "train.sh")
        show(f"games$ {' '.join(command)}")
        done = jobs.run_as(layout, "games", command)
        show(done.text)
        expect(layout, f"{request} is refused with a message", done.status != 0 and word in done.text)


def _live_usage(layout: Layout) -> None:
    heading(8, "On the node: what is granted, and used")
    show("# hami-hpc jobs")
    show(jobs.admin(layout, "hami-hpc", "jobs"))


def _release(layout: Layout, first: StoryJob, second: StoryJob, whole: StoryJob, waiting: StoryJob) -> None:
    heading(9, "The first job ends, the waiting one starts")
    first.release.touch()
    jobs.wait_for_state(layout, waiting.job, "RUNNING")
    say(f"Job {waiting.job} got GPU {_list(gpu_indices(layout, waiting.job))}.")
    for demo_job in (second, whole, waiting):
        demo_job.release.touch()
    for demo_job in (first, second, whole, waiting):
        jobs.wait_for_state(layout, demo_job.job, "COMPLETED")
    node.wait_until_clean(layout)
    say("All jobs have ended. No grant, no region and no GPU memory is left behind.")
