# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc usage`: shows what a running job uses now. It runs on nodes, which do not have hami-hpc[accounting]."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from hami_hpc.cli.options import command, config_option, format_option, settings_of
from hami_hpc.core.duration import duration, requests
from hami_hpc.node.running_job import read_running


@command("usage")
@click.argument("job", type=click.IntRange(1))
@format_option("text", "json", help_text="Text: for people; json: for machines, with bytes and nanoseconds.")
@config_option
def usage(job: int, form: str, config: Path | None) -> None:
    """What a running vGPU job uses now. Run it on the job's node, as its user or as root."""
    now_ns = time.time_ns()
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
