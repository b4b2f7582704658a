# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc usage`: shows what a running job uses now, and its time line. It runs on nodes, which do not have
hami-hpc[accounting]."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path

import click

from hami_hpc.cli.options import command, config_option, format_option, settings_of
from hami_hpc.core import history_chart
from hami_hpc.core.duration import duration, requests
from hami_hpc.node import job_history
from hami_hpc.node.running_job import read_running


@command("usage")
@click.argument("job", type=click.IntRange(1))
@click.option("--history", is_flag=True, help="Memory and time of its GPUs, minute by minute, for the last 24 h.")
@format_option("text", "json", help_text="Text: for people; json: for machines, with bytes and nanoseconds.")
@config_option
def usage(job: int, history: bool, form: str, config: Path | None) -> None:
    """What a running vGPU job uses now. Run it on the job's node, as its user or as root.

    With --history what the agent saw of it in each minute, also of a job with whole GPUs, and of a job that has ended,
    as long as its usage record is on the node.
    """
    now_ns = time.time_ns()
    if history:
        settings = settings_of(config)
        _show_history(job_history.find(settings.run_dir, settings.state_dir, job), form, now_ns)
        return
    grant, used = read_running(settings_of(config).run_dir, job, now_ns)
    if form == "json":
        click.echo(
            json.dumps({"job_id": job, "grant": grant._asdict(), "usage": used._asdict(), "now_unix_ns": now_ns})
        )
        return
    seconds = (now_ns - grant.created_unix_ns) / 1e9
    click.echo(f"Job {job}, running for {duration(seconds)} on {grant.gpu_uuid}\n")
    now_mib, peak_mib = used.used_bytes >> 20, used.peak_bytes >> 20
    click.echo(f"  memory   {now_mib:,} of {grant.mem_mib:,} MiB now, {peak_mib:,} MiB at most")
    busy_percent = used.gpu_busy_ns / seconds / 1e7
    busy = duration(used.gpu_busy_ns / 1e9)
    click.echo(f"  GPU      busy for {busy}: {busy_percent:.1f} % of the GPU, of {grant.cores_percent} % held")
    click.echo(f"  limits   held back for {duration(used.throttled_ns / 1e9)}; {used.oom_count} requests refused")
    if used.device_oom_count:
        click.echo(f"  GPU full {used.device_oom_count} requests within the limits found no memory: others held it")
    if used.request_count:
        click.echo(f"  requests {requests(used.request_count, used.latency_p99_us, used.slo_miss_count)}")
    if used.state != "ok":
        click.echo("  the job's usage record is damaged; the figures are bounds")


def _show_history(found: job_history.JobHistory, form: str, now_ns: int) -> None:
    if form == "json":
        minutes = [one._asdict() for one in found.minutes]
        click.echo(json.dumps({**found._asdict(), "minutes": minutes, "now_unix_ns": now_ns}))
        return
    seconds = max(0, (found.end_unix_ns or now_ns) - found.start_unix_ns) / 1e9
    click.echo(f"Job {found.job_id}, {'ran' if found.end_unix_ns else 'running'} for {duration(seconds)}\n")
    if not found.minutes:
        click.echo("  the agent (hami-hpc agent) has seen no minute of it")
        return
    columns = shutil.get_terminal_size().columns
    lines = history_chart.chart(found.minutes, found.mem_mib, found.gpu_count, columns, _characters())
    click.echo("\n".join(lines))


def _characters() -> str:
    """Returns the characters of the chart that standard output can show."""
    try:
        history_chart.BLOCKS.encode(sys.stdout.encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return history_chart.ASCII
    return history_chart.BLOCKS
