# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc usage`: shows what a running job uses now, and its time line. It runs on nodes, which do not have
hami-hpc[accounting]."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from hami_hpc.cli import has_accounting
from hami_hpc.cli.options import JobNumber, command, config_option, format_option, settings_of
from hami_hpc.core import history_chart, standing, swap
from hami_hpc.core.duration import duration, requests
from hami_hpc.core.grant import Grant, total
from hami_hpc.core.records import Usage, total_usage
from hami_hpc.errors import HamiError
from hami_hpc.node import agent_file, boot, history_file, job_dirs, job_history, swapped, turn_notes
from hami_hpc.node.config import Settings
from hami_hpc.node.running_job import read_running
from hami_hpc.slurm import commands


@command("usage")
@click.argument("job", type=JobNumber(1))
@click.option("--history", is_flag=True, help="Memory and time of its GPUs, minute by minute, for the last 24 h.")
@format_option("text", "json", help_text="Text: for people; json: for machines, with bytes and nanoseconds.")
@config_option
def usage(job: int, history: bool, form: str, config: Path | None) -> None:
    """What a running vGPU job uses now. Run it on the job's node, as its user or as root.

    Where the node has rates.toml and the part accounting, also what the job has cost so far on all of
    its nodes.

    With --history what the agent saw of it in each minute, also of a job with whole GPUs, and of a job that has ended,
    as long as its usage record is on the node.
    """
    now_ns = time.time_ns()
    if history:
        settings = settings_of(config)
        found = job_history.find(settings.run_dir, settings.state_dir, job)
        if not found.end_unix_ns and (
            off := agent_file.read_off_gpu(settings.run_dir, boot.boot_id(), job, found.start_unix_ns)
        ):
            found = found._replace(off_gpu_ns=sum(off.values()))
        _show_history(found, form, now_ns)
        return
    settings = settings_of(config)
    run_dir = settings.run_dir
    slices = read_running(run_dir, job, now_ns)
    clock_s = now_ns // 1_000_000_000
    now_ns = history_file.end_unix_ns(job_dirs.job_dir(run_dir, job), slices[0][0].created_unix_ns, now_ns)
    off_gpu = agent_file.read_off_gpu(run_dir, boot.boot_id(), job, slices[0][0].created_unix_ns)
    if form == "json":
        rows = [{"grant": grant._asdict(), "usage": used._asdict()} for grant, used in slices]
        whole, used_of_all = total([grant for grant, _ in slices]), total_usage([used for _, used in slices])
        both = {"grant": whole._asdict(), "usage": used_of_all._asdict()}
        moved = {**_moved(settings, slices[0][0]), "off_gpu_ns": None if off_gpu is None else sum(off_gpu.values())}
        click.echo(
            json.dumps(
                {
                    "job_id": job,
                    "host": commands.shown_name(),
                    **both,
                    "slices": rows,
                    "moved": moved,
                    "now_unix_ns": now_ns,
                }
            )
        )
        return
    for number, (grant, used) in enumerate(slices):
        if number:
            click.echo("")
        _show_slice(grant, used, now_ns, config, None if off_gpu is None else off_gpu.get(grant.gpu_uuid))
    grants = [grant for grant, _ in slices]
    if cost := _cost(config, grants, clock_s, off_gpu):
        click.echo(f"{'  cost     ' if len(grants) == 1 else chr(10) + 'Cost of the job: '}{cost}")


def _moved(settings: Settings, grant: Grant) -> dict[str, object]:
    """Returns where the memory of the job's programs is, and where the job stands on an oversold GPU; jobs with several
    slices are not moved."""
    order, found = swapped.order_of(settings.run_dir, grant.job_id), swapped.processes(settings.run_dir, grant)
    moved = {"text": swap.for_user(order, found), "processes": [process._asdict() for process in found]}
    if not turn_notes.are_taken(settings) or grant.mode != "share":
        return {**moved, "standing": None}
    one = turn_notes.standing_of(settings.run_dir, grant)
    if one.state == standing.LEAVES:  # what has not left yet has no reason to be told
        moved["text"] = standing.text(one, agent_file.now_boot_ns())
    return {**moved, "standing": standing.to_table(one, agent_file.now_boot_ns())}


def _show_slice(grant: Grant, used: Usage, now_ns: int, config: Path | None, off_gpu_ns: int | None) -> None:
    seconds = (now_ns - grant.created_unix_ns) / 1e9
    click.echo(f"Job {grant.job_id}, running for {duration(seconds)} on {grant.gpu_uuid}\n")
    now_mib, peak_mib = used.used_bytes >> 20, used.peak_bytes >> 20
    click.echo(f"  memory   {now_mib:,} of {grant.mem_mib:,} MiB now, {peak_mib:,} MiB at most")
    moved = _moved(settings_of(config), grant)
    if moved["text"]:
        click.echo(f"           {moved['text']}")
    turn = moved["standing"]
    if isinstance(turn, dict) and turn["state"] in standing.TOLD:
        click.echo(f"  turn     {turn['text']}")
    if off_gpu_ns:
        click.echo(f"           off the GPU for {duration(off_gpu_ns / 1e9)} so far")
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


def _cost(config: Path | None, grants: Sequence[Grant], now_s: int, off_gpu_ns: Mapping[str, int] | None) -> str:
    """Returns what a job has cost so far, or why that is not known; empty on a node without rates.toml or without
    hami-hpc[accounting]."""
    settings = settings_of(config)
    if not Path(settings.path).with_name("rates.toml").exists() or not has_accounting():
        return ""
    from hami_hpc.cli import accounting_cost

    try:
        return accounting_cost.so_far(config, grants, now_s, off_gpu_ns)
    except (HamiError, OSError) as error:
        return f"not known: {error}"


def _show_history(found: job_history.JobHistory, form: str, now_ns: int) -> None:
    if form == "json":
        minutes = [one._asdict() for one in found.minutes]
        click.echo(json.dumps({**found._asdict(), "minutes": minutes, "now_unix_ns": now_ns}))
        return
    seconds = max(0, (found.end_unix_ns or now_ns) - found.start_unix_ns) / 1e9
    click.echo(f"Job {found.job_id}, {'ran' if found.end_unix_ns else 'running'} for {duration(seconds)}\n")
    if found.off_gpu_ns:
        click.echo(f"  off the GPU for {duration(found.off_gpu_ns / max(1, found.gpu_count) / 1e9)}")
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
