# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc mps`: the MPS daemons of this node's jobs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from hami_hpc.cli import colours
from hami_hpc.cli.exit_codes import ExitCode
from hami_hpc.cli.options import command, config_option, format_option, settings_of
from hami_hpc.core.tables import table
from hami_hpc.errors import NodeError
from hami_hpc.node import mps_daemon, mps_processes
from hami_hpc.node.config import Settings
from hami_hpc.node.mps import lost, members, places, restart
from hami_hpc.node.mps_daemon import MpsError, Place
from hami_hpc.node.mps_processes import Process
from hami_hpc.stages import common

OTHERS_SHOWN, PIPE_SHOWN = 4, 64  # pipe directories are texts of users


def rows(settings: Settings, found: tuple[Process, ...]) -> list[dict[str, object]]:
    """Returns the daemons of this configuration's jobs, and what is left of others of its. `found`: all processes."""
    listed: list[dict[str, object]] = []
    for place in (*places(settings.run_dir), *lost(settings.mps_control, settings.run_dir)):
        jobs = members(place)
        daemons = mps_daemon.daemons(settings.mps_control, place, found)
        listed.append(
            {
                "daemon": place.pipe.rpartition("/")[2],
                "gpu": place.gpu_minor,
                "user": place.user,
                "state": _state(settings, place, bool(jobs), bool(daemons)),
                "pids": [process.pid for process in daemons],
                "server_pids": [process.pid for process in mps_processes.servers_at(place.pipe, found)],
                "jobs": [job.job_id for job in jobs],
                "percent": max((job.cores_percent for job in jobs), default=0),
                "mem_mib": max((job.mem_mib for job in jobs), default=0),
                "chunks": {job.job_id: job.chunks for job in jobs} if mps_daemon.is_static(place) else None,
                "pipe": place.pipe,
            }
        )
    return listed


def about_others(settings: Settings, found: tuple[Process, ...]) -> str:
    """Returns a line about the control daemons that this configuration did not start, "" without any."""
    others = mps_processes.foreign(f"{settings.run_dir}/{mps_daemon.FOLDER}", found)
    if not others:
        return ""
    shown = [f"process {one.pid} of uid {one.uid} in {one.pipe[:PIPE_SHOWN]}" for one in others[:OTHERS_SHOWN]]
    more = f" and {len(others) - OTHERS_SHOWN} more" if len(others) > OTHERS_SHOWN else ""
    return (
        f"note: {len(others)} other MPS daemon(s) run here, of users or of another configuration of hami_hpc, and are "
        f"left alone: {', '.join(shown)}{more}"
    )


def _state(settings: Settings, place: Place, has_jobs: bool, has_daemon: bool) -> str:
    if not has_jobs:
        return "left over"
    if not has_daemon:
        return "ended"
    return "answers" if mps_daemon.answers(settings.mps_control, place) else "hangs"


def show(listed: list[dict[str, object]], form: str) -> None:
    if form == "json":
        click.echo(json.dumps(listed, indent=2))
        return
    if not listed:
        click.echo("no job of this configuration needs an MPS daemon, and none is left of one")
        return
    cells = [
        (
            row["daemon"],
            row["gpu"],
            row["user"],
            row["state"],
            _joined(row["jobs"]),
            row["percent"] or "-",
            row["mem_mib"] or "-",
            _chunks(row["chunks"]),
            _joined(row["pids"]),
            _joined(row["server_pids"]),
            row["pipe"],
        )
        for row in listed
    ]
    head = ("DAEMON", "GPU", "USER", "STATE", "JOBS", "MOST %", "MOST MIB", "CHUNKS", "PID", "SERVER", "PIPE DIRECTORY")
    click.echo(colours.table_head(table(head, cells, right=(1, 5, 6))))


def _chunks(of_jobs: object) -> str:
    """Returns the chunks of each job's static SM partition; "-" for a daemon without."""
    return "+".join(map(str, of_jobs.values())) or "0" if isinstance(of_jobs, dict) else "-"


def _joined(numbers: object) -> str:
    return ",".join(map(str, numbers)) if isinstance(numbers, list) and numbers else "-"


def _restart(settings: Settings, name: str) -> str:
    place = next((place for place in places(settings.run_dir) if place.pipe.endswith(f"/{name}")), None)
    if place is None:
        known = ", ".join(place.pipe.rpartition("/")[2] for place in places(settings.run_dir)) or "none"
        raise MpsError(f"there is no MPS daemon {name!r} of hami_hpc here; there are: {known}. See hami-hpc mps status")
    ledger = common.read_ledger(settings)
    try:
        grants = {(grant.job_id, grant.created_unix_ns): grant for grant in ledger.grants()}
    finally:
        ledger.close()
    of_jobs = [grants[key] for job in members(place) if (key := (job.job_id, job.created_unix_ns)) in grants]
    if not of_jobs:
        raise MpsError(f"no job of the ledger needs the MPS daemon {name}; run hami-hpc reconcile")
    restart(settings.mps_control, place, of_jobs[0].gpu_uuid, settings.mps_static)
    return f"the MPS daemon {name} was restarted; programs that were its clients end with an error of CUDA"


@command("mps", found="status: a daemon hangs or has ended, or is left over from jobs that have ended")
@click.argument("action", type=click.Choice(("status", "restart")))
@click.argument("daemon", required=False, metavar="[GPU-USER]")
@format_option("table", "json", help_text="Of status. Table: for people; json: for machines.")
@config_option
def mps(action: str, daemon: str | None, form: str, config: Path | None) -> None:
    """Show the MPS daemons of this node's jobs, or restart one. As root, on the node.

    restart: ends a daemon with its servers and starts it again, with the limits of its jobs. What their programs have
    on the GPU is lost: they end with an error. Daemons of users, or of another configuration of hami_hpc on this
    machine, are not listed and never touched: a note says that they are there.
    """
    if (daemon is None) != (action == "status"):
        what = "takes no daemon" if daemon else "needs a daemon, GPU-USER as status lists them"
        raise click.UsageError(f"{action} {what}")
    if form != "table" and action != "status":
        raise click.UsageError(f"--format is for status; {action} prints one line")
    if os.geteuid() != 0:
        raise NodeError(f"only root can see and restart MPS daemons: run hami-hpc mps {action} as root on the node")
    settings = settings_of(config)
    if daemon is not None:
        click.echo(_restart(settings, daemon))
        return
    found = mps_processes.processes()
    listed = rows(settings, found)
    show(listed, form)
    if others := about_others(settings, found):
        click.echo(others, err=form != "table")
    is_bad = any(row["state"] in ("hangs", "ended", "left over") for row in listed)
    raise click.exceptions.Exit(ExitCode.FOUND if is_bad else ExitCode.DONE)
