# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc trace`: where the time of a job's start went, from Slurm and from the job's node."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import click

from hami_hpc.cli import colours
from hami_hpc.cli.explain_command import JOB
from hami_hpc.cli.options import Failure, command, config_option, format_option, node_option
from hami_hpc.cli.pool_command import settings_here
from hami_hpc.contract import constants as c
from hami_hpc.core.start_trace import (
    NS_PER_MS,
    NS_PER_S,
    OF_NODE,
    OF_SLURM,
    TICK_NS,
    Step,
    difference_text,
    make_steps,
)
from hami_hpc.core.tables import table
from hami_hpc.errors import HamiError
from hami_hpc.node import job_times
from hami_hpc.node.job_times import NodeRun
from hami_hpc.slurm import cluster_view
from hami_hpc.slurm.job_runs import Run, read_runs

RUNNING = ("RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "SIGNALING", "STAGE_OUT", "STOPPED")
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}")
SRUN_TIMEOUT_S = 90
CLOCKS_DIFFER_NS = 2 * NS_PER_S  # the node's clock may be behind slurmctld's by so much
TASKS_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Traced:
    """One run of a job: Slurm's record of it, if Slurm has one, which of how many it is, and its steps."""

    name: str
    slurm: Run | None
    number: int
    count: int
    steps: list[Step]
    node_reason: str  # why this host knows nothing of it; "" if it does

    @property
    def on_node(self) -> str:
        return f" on {self.slurm.nodes}" if self.slurm is not None and self.slurm.nodes else ""


def runs_of(name: str) -> tuple[list[Run], str]:
    """Returns the runs of one job, the oldest first, and why Slurm shows none. Raises Failure for several jobs."""
    try:
        runs = read_runs(name)
    except HamiError as error:
        return [], str(error)
    shown = sorted({run.shown for run in runs}, key=lambda text: (len(text), text))
    if len({run.job_id for run in runs}) > 1 or any("[" in text for text in shown):
        some = ", ".join(shown[:TASKS_SHOWN]) + (", ..." if len(shown) > TASKS_SHOWN else "")
        raise Failure(f"job {name} is an array or has several parts, and one is wanted here: name one of {some}")
    return runs, "" if runs else "Slurm shows no such job to this user"


def choose(name: str, runs: list[Run], wanted: int | None) -> int:
    """Returns the number of the run to show, from 1: the last one unless another is wanted. Raises Failure."""
    if wanted is not None and wanted > len(runs):
        have = f"{len(runs)} runs" if len(runs) > 1 else "one run"
        raise Failure(f"job {name} had {have} so far, so there is no run {wanted}")
    return wanted or len(runs)


def of_run(node_runs: list[NodeRun], runs: list[Run], number: int) -> NodeRun | None:
    """Returns what this node knows of a run: the grant that was made between its start and the next run's start."""
    starts = [run.started_s for run in runs[number - 1 :]]
    if starts[0] is None:
        return None
    begin = starts[0] * NS_PER_S - CLOCKS_DIFFER_NS
    ends = [start * NS_PER_S - CLOCKS_DIFFER_NS for start in starts[1:] if start is not None]
    end = min(ends, default=2**63)
    return next((found for found in reversed(node_runs) if begin <= found.start_unix_ns < end), None)


def missing_reason(run: Run, hidden: str, run_dir: str) -> str:
    """Returns why this host knows nothing of a run."""
    if run.started_s is None:
        return "the job has not been started"
    if not run.has_vgpu:
        return "the job has no vgpu, so hami_hpc notes nothing of it"
    if os.geteuid() not in (0, run.uid):
        return f"the job belongs to {run.user}: only they and root see more than Slurm shows"
    refusal = job_times.why_no_slice(run_dir, run.job_id)
    if refusal:
        return f"the job has no slice on this node: {refusal}"
    if hidden:
        return hidden
    if run.state in RUNNING:
        return f"this host has no record of it: run this on the job's node ({run.nodes}), or give --node NAME"
    return f"this host has no record of it: run this on the job's node ({run.nodes}), before accounting collects it"


def trace_job(name: str, wanted: int | None, run_dir: str, state_dir: str) -> Traced:
    """Returns the steps of one run. Raises Failure for an unknown job or run."""
    runs, slurm_reason = runs_of(name)
    job_id = runs[0].job_id if runs else int(name) if name.isdigit() else 0
    node_runs, hidden = job_times.read_node_runs(run_dir, state_dir, job_id, time.time_ns())
    if not runs and not node_runs:
        raise Failure(f"nothing is known of job {name}: this host has no record of it, and {slurm_reason}")
    if not runs:
        number = choose(name, [Run(job_id, name, "", 0, "", None, None, None, "", True)] * len(node_runs), wanted)
        found = node_runs[number - 1]
        reasons = dict.fromkeys(OF_SLURM, slurm_reason) | dict(found.reasons)
        return Traced(name, None, number, len(node_runs), make_steps(found.unix_ns, reasons), "")
    number = choose(name, runs, wanted)
    run = runs[number - 1]
    matching = of_run(node_runs, runs, number)
    seconds = {"submitted": run.submitted_s, "eligible": run.eligible_s, "allocated": run.started_s}
    unix_ns = {key: at * NS_PER_S for key, at in seconds.items() if at is not None}
    if matching is None:
        reason = missing_reason(run, hidden, run_dir)
        return Traced(name, run, number, len(runs), make_steps(unix_ns, dict.fromkeys(OF_NODE, reason)), reason)
    steps = make_steps(unix_ns | dict(matching.unix_ns), matching.reasons)
    return Traced(name, run, number, len(runs), steps, "")


def _time_text(step: Step) -> str:
    if step.unix_ns is None:
        return "unknown"
    text = datetime.fromtimestamp(step.unix_ns // NS_PER_S).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    digits = 0 if step.kind.precision_ns >= NS_PER_S else 2 if step.kind.precision_ns >= TICK_NS else 6
    return f"{text}.{step.unix_ns % NS_PER_S // 10 ** (9 - digits):0{digits}d}" if digits else text


def _print(traced: Traced) -> None:
    run = traced.slurm
    which = f", run {traced.number} of {traced.count}" if traced.count > 1 else ""
    who = f" of {run.user}{traced.on_node}: {run.state.lower()}" if run is not None else ""
    click.echo(colours.coloured(f"Job {traced.name}{who}{which}", bold=True) + "\n")
    shown = [step for step in traced.steps if not traced.node_reason or step.kind.key in OF_SLURM]
    rows = [
        (step.kind.title, _time_text(step), difference_text(step), step.kind.source, step.reason or step.note)
        for step in shown
    ]
    click.echo(colours.table_head(table(("STEP", "TIME", "MS AFTER", "TOLD BY", "NOTE"), rows, right=(2,))))
    if traced.node_reason:
        click.echo(f"\nNo more than Slurm's part is known: {traced.node_reason}.")
    click.echo("\nSlurm's times are whole seconds, so a difference with ~ is exact to 1,000 ms only.")


def _json(traced: Traced) -> dict[str, object]:
    run = traced.slurm
    return {
        "job": traced.name,
        "job_id": run.job_id if run is not None else int(traced.name),
        "user": run.user if run is not None else None,
        "state": run.state if run is not None else None,
        "nodes": run.nodes if run is not None else None,
        "run": traced.number,
        "runs": traced.count,
        "node_part_unknown": traced.node_reason or None,
        "steps": [
            {
                "step": step.kind.key,
                "unix_ns": step.unix_ns,
                "precision_ms": step.kind.precision_ns / NS_PER_MS,
                "after_previous_ms": None if step.after_ns is None else step.after_ns / NS_PER_MS,
                "told_by": step.kind.source,
                "unknown": step.reason or None,
                "note": step.note or None,
            }
            for step in traced.steps
        ],
    }


def ask_node(name: str, node: str, words: list[str]) -> int:
    """Runs this command as a step of the running job on its node. Returns the exit status of srun. Raises Failure."""
    if NODE_NAME.fullmatch(node) is None:
        raise click.BadParameter(f"{node!r} is no name of a node", param_hint="'--node'")
    runs, reason = runs_of(name)
    if not runs:
        raise Failure(f"job {name}: {reason}")
    if runs[-1].state not in RUNNING:
        raise Failure(f"job {name} is {runs[-1].state.lower()}, so no step of it can run on {node}: run this there")
    options = (
        *cluster_view.in_job(runs[-1].shown, runs[-1].job_id),
        f"--nodelist={node}",
        "--nodes=1",
        "--ntasks=1",
        "--overlap",
        "--gres=none",
    )
    call = ("srun", "--quiet", *options, "hami-hpc", "trace", name, *words)
    environment = cluster_view.environment_for_step(os.environ)
    try:
        return subprocess.run(
            call, env=environment, stdin=subprocess.DEVNULL, timeout=SRUN_TIMEOUT_S, check=False
        ).returncode
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failure(f"{' '.join(call)}: {error}") from error


def check_name(job: str) -> None:
    """Raises click.BadParameter for what is no id of one job."""
    if JOB.fullmatch(job) is None:
        raise click.BadParameter(f"{job!r} is no job id such as 4711, 4711_3 or 4711+1", param_hint="'JOB'")


@command("trace")
@click.argument("job")
@click.option(
    "--run", "wanted", type=click.IntRange(1), help="Which run of a requeued job, from 1.  [default: the last]"
)
@node_option("Ask this node of the running job, by a step of the job.")
@format_option("text", "json", help_text="Text: for people; json: for machines, with nanoseconds.")
@config_option
def trace(job: str, wanted: int | None, node: str | None, form: str, config: Path | None) -> None:
    """Where the time of a job's start went: each step with its time, and the milliseconds since the one before.

    JOB is 4711, 4711_3 of an array, or 4711+1 of a heterogeneous job. On the job's node its user and root see every
    step; elsewhere, and of others' jobs, there is what Slurm shows.
    """
    check_name(job)
    if node is not None:
        words = [f"--format={form}", *([f"--run={wanted}"] if wanted else [])]
        sys.exit(ask_node(job, node, words + ([f"--config={config.absolute()}"] if config else [])))
    settings = settings_here(config)
    run_dir, state_dir = (settings.run_dir, settings.state_dir) if settings else (c.FILE_RUN_DIR, c.FILE_STATE_DIR)
    traced = trace_job(job, wanted, run_dir, state_dir)
    if form == "json":
        click.echo(json.dumps(_json(traced), indent=2))
    else:
        _print(traced)
