# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc usage`: what a running job uses now. It runs on nodes, which have nothing of hami-hpc[accounting]."""

from __future__ import annotations

import json
import os
import time

import click

from hami_hpc.core.duration import duration
from hami_hpc.node.config import load_settings, settings_path
from hami_hpc.node.running_job import read_running

_EXIT_STATUS = """\b
Exit status:
  0  shown
  1  the job holds no vGPU here, or is another user's
  2  the command line is wrong"""


@click.command(epilog=_EXIT_STATUS)
@click.argument("job", type=click.IntRange(1))
@click.option("--json", "as_json", is_flag=True, help="For machines: bytes and nanoseconds.")
def usage(job: int, as_json: bool) -> None:
    """What a running vGPU job uses now. Run it on the job's node."""
    now_ns = time.time_ns()
    grant, used = read_running(load_settings(settings_path(os.environ)).run_dir, job, now_ns)
    if as_json:
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
    if used.state != "ok":
        click.echo("  the job's usage record is damaged; the figures are bounds")
