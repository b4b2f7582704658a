# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc resize`: gives a running job's slices another size."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click

from hami_hpc.cli.options import Failure, command, config_option, settings_of, this_node_option
from hami_hpc.cli.trace_command import check_name, runs_of
from hami_hpc.core import resize as rules
from hami_hpc.node import job_dirs
from hami_hpc.slurm import cluster_view, commands
from hami_hpc.slurm.job_runs import Run

SRUN_TIMEOUT_S = 150  # the nodes have 60 s each, at the same time


@command("resize")
@click.argument("job")
@click.argument("size", metavar="mem=SIZE,cores=PERCENT")
@click.option("--dry-run", is_flag=True, help="Show what the job could have; change nothing.")
@this_node_option
@config_option
def resize(job: str, size: str, dry_run: bool, node: str | None, config: Path | None) -> None:
    """Give the slices of a running job another size: more or less memory, time, or both.

    Run it where srun works, as the job's user: it changes all nodes of the job, through a step of the job. On one of
    its nodes root changes that node alone. JOB is 4711, 4711_3 of an array, or 4711+1 of a heterogeneous job.

    A slice can have what its shards are, which Slurm holds for the job until it ends. They are the larger of those of
    its memory and of its time: a job with half of a GPU's time can have half of its memory. The bill stays the same.

    Example: hami-hpc resize 4711 mem=16G
    """
    check_name(job)
    wanted = rules.parse_size(size)
    run = None
    if os.geteuid() == 0:
        from hami_hpc.stages import resize as stage  # of nodes

        settings = settings_of(config)
        run = None if job.isdigit() else _running(job)
        job_id = int(job) if run is None else run.job_id
        if job_dirs.read_grants(job_dirs.job_dir(settings.run_dir, job_id), owner=0):
            environment = {**os.environ, "SLURMD_NODENAME": commands.this_node(node)}
            click.echo(stage.resize(settings, job_id, None, wanted, environment, dry_run))
            return
    sys.exit(_through_a_step(run or _running(job), rules.size_text(wanted), dry_run))


def _running(job: str) -> Run:
    """Returns the present run of a job. Raises Failure for several jobs, and for one that does not run."""
    runs, reason = runs_of(job)
    if not runs:
        raise Failure(f"job {job}: {reason}")
    run = runs[-1]
    if run.state != "RUNNING":
        raise Failure(f"job {job} is {run.state.lower()}: only a running job can be resized")
    return run


def _through_a_step(run: Run, size: str, dry_run: bool) -> int:
    """Resizes the job on all of its nodes by a step of it, and returns the exit status of srun. Raises Failure."""
    if os.geteuid() == 0 and run.uid:
        raise Failure(
            f"job {run.shown} is of {run.user}, and Slurm starts its steps for nobody else: run this on its nodes "
            f"({run.nodes}), or as {run.user}"
        )
    text = f"{rules.DRY_RUN if dry_run else ''}{size}"
    options = (
        *cluster_view.in_job(run.shown, run.job_id),
        f"--nodes={len(commands.hostnames(run.nodes))}",
        "--ntasks-per-node=1",
        "--overlap",
        "--gres=none",
        f"--vgpu-resize={text}",
    )
    call = ("srun", "--quiet", *options, "true")
    environment = cluster_view.environment_for_step(os.environ)
    try:
        return subprocess.run(
            call, env=environment, stdin=subprocess.DEVNULL, timeout=SRUN_TIMEOUT_S, check=False
        ).returncode
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failure(f"{' '.join(call)}: {error}") from error
