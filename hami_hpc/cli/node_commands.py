# SPDX-License-Identifier: Apache-2.0
"""Commands about this node: jobs, reconcile."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from hami_hpc.cli import colours
from hami_hpc.cli.exit_codes import ExitCode
from hami_hpc.cli.options import command, config_option, format_option, settings_of, this_node_option
from hami_hpc.core.grant import Grant
from hami_hpc.core.reconcile_plan import Kind
from hami_hpc.core.records import MIB, Usage
from hami_hpc.core.tables import table
from hami_hpc.node import job_dirs, usage_files
from hami_hpc.slurm import commands
from hami_hpc.stages import common
from hami_hpc.stages import reconcile as stage


@command("jobs")
@format_option("table", "json")
@config_option
def jobs(form: str, config: Path | None) -> None:
    """The grants on this node, with what the jobs use of them right now."""
    settings = settings_of(config)
    ledger = common.read_ledger(settings)
    try:
        grants = ledger.grants()
    finally:
        ledger.close()
    now = time.time_ns()
    used = [usage_files.read_usage(job_dirs.job_dir(settings.run_dir, grant.job_id), grant, now) for grant in grants]
    if form == "json":
        click.echo(json.dumps([_job_json(*pair) for pair in zip(grants, used, strict=True)], indent=2))
        return
    rows = [
        (
            grant.job_id,
            grant.uid,
            grant.gpu_minor,
            grant.service_class,
            grant.mem_mib,
            usage.used_bytes // MIB if usage.state == "ok" else usage.state,
            usage.peak_bytes // MIB,
            usage.oom_count,
            usage.device_oom_count,
            grant.cores_percent,
        )
        for grant, usage in zip(grants, used, strict=True)
    ]
    head = ("JOB", "UID", "GPU", "CLASS", "LIMIT MIB", "USED MIB", "PEAK MIB", "OOM", "OOM GPU", "CORES %")
    click.echo(colours.table_head(table(head, rows, right=(0, 1, 2, 4, 5, 6, 7, 8, 9))))


def _job_json(grant: Grant, usage: Usage) -> dict[str, object]:
    return grant._asdict() | {
        "usage": usage.state,
        "used_bytes": usage.used_bytes,
        "peak_bytes": usage.peak_bytes,
        "oom_count": usage.oom_count,
        "device_oom_count": usage.device_oom_count,
    }


@command(
    "reconcile",
    done="done, and nothing is left for a person",
    found="a PROBLEM is left for a person, or an action failed",
)
@click.option("--dry-run", is_flag=True, help="Show what would be done; change nothing.")
@this_node_option
@format_option("table", "json")
@config_option
def reconcile(form: str, dry_run: bool, node: str | None, config: Path | None) -> None:
    """Make the ledger and the run directory agree with Slurm's jobs and the GPUs. Safe at any time, also with jobs
    running.
    """

    def this_node() -> str:
        return commands.this_node(node)

    results = stage.reconcile(settings_of(config), lambda: commands.running_jobs(this_node()), dry_run, this_node)
    if form == "json":
        rows = [
            {"action": r.action.kind.value, "job_id": r.action.job_id, "text": r.action.text, "error": r.error}
            for r in results
        ]
        click.echo(json.dumps(rows, indent=2))
    else:
        for r in results:
            problem = colours.coloured("PROBLEM:", "red", bold=True) + " "
            prefix = problem if r.action.kind is Kind.PROBLEM else "would do: " if dry_run else ""
            failed = colours.coloured("FAILED:", "red", bold=True)
            click.echo(prefix + r.action.text + (f" -- {failed} {r.error}" if r.error else ""))
        if not results:
            click.echo("nothing to do: ledger, run directory, Slurm and GPUs agree")
    if any(r.error or r.action.kind is Kind.PROBLEM for r in results):
        raise click.exceptions.Exit(ExitCode.FOUND)
