# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc gpu`: takes one GPU of a node out of service and returns it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import click

from hami_hpc.cli import colours
from hami_hpc.cli.exit_codes import ExitCode
from hami_hpc.cli.options import command, config_option, format_option, settings_of, this_node_option
from hami_hpc.core.inventory import Gpu
from hami_hpc.core.out_of_service import DrainedGpu, Holding, free_shards
from hami_hpc.core.tables import table
from hami_hpc.errors import NodeError
from hami_hpc.node import admin_log, drained_gpus, job_dirs
from hami_hpc.node.config import Settings
from hami_hpc.node.locks import HeldError
from hami_hpc.slurm import commands, placeholders
from hami_hpc.stages import occupy

WAIT_S = 30.0
REASON_MAX = 200


def find(gpus: tuple[Gpu, ...], drained: tuple[DrainedGpu, ...], word: str) -> DrainedGpu:
    """Returns the GPU that `word` names by UUID or minor number. Raises NodeError when the node has none such."""
    for entry in drained:
        if word in (entry.uuid, str(entry.minor)):
            return entry
    for gpu in gpus:
        if word in (gpu.uuid, str(gpu.minor)):
            return DrainedGpu(gpu.uuid, gpu.minor, gpu.slurm_index, "", 0)
    known = ", ".join(f"{gpu.minor} ({gpu.uuid})" for gpu in gpus) or "none"
    raise NodeError(f"this node has no GPU {word}. Its GPUs by minor number: {known}")


def drain(settings: Settings, node: placeholders.Node, word: str, reason: str) -> str:
    """Takes the GPU out of service and returns a line about it. Raises NodeError when a part of it stays free."""
    drained = drained_gpus.read(settings.state_dir)
    entry = find(occupy.inventory(settings), drained, word)
    since = entry.since_unix_s or int(time.time())
    entry = entry._replace(reason=reason, since_unix_s=since)
    others = tuple(other for other in drained if other.uuid != entry.uuid)
    drained_gpus.write(settings.state_dir, tuple(sorted((*others, entry), key=lambda gpu: gpu.minor)))
    name = f"GPU {entry.minor} ({entry.uuid})"
    admin_log.to_syslog(admin_log.WARNING, f"{name} is out of service: {reason}")
    run = _occupied(settings, node)
    left = run.free().get(entry.slurm_index, 0)
    if left:
        raise NodeError(
            f"{name} is out of service, but {left} shards of it are still free for Slurm: the placeholder job did not "
            "start (squeue -n hami-hpc-drain). Jobs that Slurm starts there are refused. Run this again"
        )
    jobs = _jobs_on(run.held, entry.slurm_index)
    return f"{name} is out of service: {reason}. {len(jobs)} running job(s) go on{_listed(jobs)}"


def resume(settings: Settings, node: placeholders.Node, word: str) -> str:
    """Returns the GPU to service, and a line about it. Raises NodeError when it was in service."""
    drained = drained_gpus.read(settings.state_dir)
    entry = find(occupy.inventory(settings), drained, word)
    name = f"GPU {entry.minor} ({entry.uuid})"
    drained_gpus.write(settings.state_dir, tuple(other for other in drained if other.uuid != entry.uuid))
    if entry in drained:
        admin_log.to_syslog(admin_log.WARNING, f"{name} is in service again")
    _occupied(settings, node)
    return f"{name} is in service" + (" again" if entry in drained else ", as before")


def _occupied(settings: Settings, node: placeholders.Node) -> occupy.Occupation:
    """Runs occupy, after the process that a prolog or epilog may have started."""
    end = time.monotonic() + WAIT_S
    while True:
        try:
            return occupy.occupy(settings, node, max(1.0, end - time.monotonic()))
        except HeldError:
            if time.monotonic() > end:
                raise


def _jobs_on(held: tuple[Holding, ...], slurm_index: int) -> list[int]:
    return [h.job_id for h in held if h.slurm_index == slurm_index and not h.is_placeholder]


def _listed(jobs: list[int]) -> str:
    more = f" and {len(jobs) - 8} more" if len(jobs) > 8 else ""
    return f": {', '.join(map(str, jobs[:8]))}{more}" if jobs else ""


def rows(settings: Settings, node: placeholders.Node) -> list[dict[str, object]]:
    """Returns the node's GPUs, with what jobs and placeholders hold of them."""
    drained = {gpu.uuid: gpu for gpu in drained_gpus.read(settings.state_dir)}
    gpus = occupy.inventory(settings)
    held = node.holdings()
    free = free_shards({gpu.slurm_index: occupy.shards_of(settings, gpu) for gpu in gpus}, held)
    listed = [(gpu.uuid, gpu.minor, gpu.slurm_index) for gpu in gpus]
    lost = [(d.uuid, d.minor, d.slurm_index) for d in drained.values() if d.uuid not in {gpu.uuid for gpu in gpus}]
    found: list[dict[str, object]] = []
    for uuid, minor, index in sorted([*listed, *lost], key=lambda row: row[1]):
        entry = drained.get(uuid)
        found.append(
            {
                "uuid": uuid,
                "minor": minor,
                "in_service": entry is None,
                "reason": entry.reason if entry else "",
                "since_unix_s": entry.since_unix_s if entry else None,
                "jobs": _jobs_on(held, index),
                "placeholder_jobs": [h.job_id for h in held if h.slurm_index == index and h.is_placeholder],
                "free_shards": free.get(index, 0),
            }
        )
    return found


def show(listed: list[dict[str, object]], form: str) -> None:
    if form == "json":
        click.echo(json.dumps(listed, indent=2))
        return
    cells = []
    for row in listed:
        since = row["since_unix_s"]
        cells.append(
            (
                row["minor"],
                "in service" if row["in_service"] else "OUT",
                time.strftime("%Y-%m-%d %H:%M", time.localtime(since)) if isinstance(since, int) else "",
                len(row["jobs"]) if isinstance(row["jobs"], list) else 0,
                row["free_shards"],
                row["uuid"],
                row["reason"],
            )
        )
    head = ("GPU", "STATE", "SINCE", "JOBS", "FREE SHARDS", "UUID", "REASON")
    click.echo(colours.table_head(table(head, cells, right=(0, 3, 4))))


def _checked_reason(reason: str | None) -> str:
    text = " ".join((reason or "").split())
    if not text or len(text) > REASON_MAX or not text.isprintable():
        raise click.UsageError(f"drain needs --reason with 1 to {REASON_MAX} printable characters")
    return text


@command("gpu", found="list: a GPU is out of service, and a part of it is free for Slurm")
@click.argument("action", type=click.Choice(("drain", "resume", "list")))
@click.argument("gpu", required=False, metavar="[UUID|MINOR]")
@click.option("--reason", help="Of drain: why, for gpu list, doctor and the log.")
@this_node_option
@format_option("table", "json", help_text="Of list. Table: for people; json: for machines.")
@config_option
def gpu(action: str, gpu: str | None, reason: str | None, node: str | None, form: str, config: Path | None) -> None:
    """Take one GPU of this node out of service, return it, or list the GPUs.

    drain: no new job starts on that GPU; running jobs go on, and the node stays in service with its other GPUs. It
    holds what is free there by jobs of root that are called hami-hpc-drain. resume: cancels them. Both can be repeated.
    """
    if (gpu is None) != (action == "list"):
        raise click.UsageError(f"{action} {'takes no GPU' if gpu else 'needs the UUID or minor number of a GPU'}")
    if reason is not None and action != "drain":
        raise click.UsageError(f"--reason is for drain, not for {action}")
    if form != "table" and action != "list":
        raise click.UsageError(f"--format is for list; {action} prints one line")
    wanted_reason = _checked_reason(reason) if action == "drain" else ""
    settings = settings_of(config)
    slurm_node = placeholders.Node(node or commands.node_name(), placeholders.environment(os.environ))
    if action == "list":
        listed = rows(settings, slurm_node)
        show(listed, form)
        is_open = any(not row["in_service"] and row["free_shards"] for row in listed)
        raise click.exceptions.Exit(ExitCode.FOUND if is_open else ExitCode.DONE)
    if os.geteuid() != 0:
        raise NodeError(f"only root can {action} a GPU: run this as root on the node")
    job_dirs.prepare(settings.run_dir)
    click.echo(
        drain(settings, slurm_node, gpu or "", wanted_reason)
        if action == "drain"
        else resume(settings, slurm_node, gpu or "")
    )
