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
from hami_hpc.core.out_of_service import as_numbered, free_shards
from hami_hpc.core.tables import table
from hami_hpc.errors import NodeError
from hami_hpc.node import agent_file, drained_gpus, job_dirs
from hami_hpc.node.boot import boot_id
from hami_hpc.node.config import Settings
from hami_hpc.slurm import commands, placeholders
from hami_hpc.stages import occupy
from hami_hpc.stages.gpu_service import drain, jobs_on, resume

REASON_MAX = 200


def last_faults(settings: Settings) -> dict[str, str]:
    """Returns each GPU's last error by UUID, as far as an agent of this boot has seen one and this user may know."""
    try:
        state = agent_file.read(settings.run_dir, boot_id())
    except NodeError:
        state = None
    return {gpu.uuid: gpu.last_fault for gpu in state.gpus} if state is not None else {}


def rows(settings: Settings, node: placeholders.Node) -> list[dict[str, object]]:
    """Returns the node's GPUs, with what jobs and placeholders hold of them."""
    gpus = occupy.inventory(settings)
    drained = {gpu.uuid: gpu for gpu in as_numbered(drained_gpus.read(settings.state_dir), gpus)}
    held = node.holdings()
    faults = last_faults(settings)
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
                "jobs": jobs_on(held, index),
                "placeholder_jobs": [h.job_id for h in held if h.slurm_index == index and h.is_placeholder],
                "free_shards": free.get(index, 0),
                "last_fault": faults.get(uuid, ""),
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
                row["last_fault"],
            )
        )
    head = ("GPU", "STATE", "SINCE", "JOBS", "FREE SHARDS", "UUID", "REASON", "LAST FAULT")
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
    slurm_node = placeholders.Node(commands.this_node(node), placeholders.environment(os.environ))
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
