# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc mig`: lists a node's MIG instances, and switches MIG of one GPU on or off."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from hami_hpc.cli import colours
from hami_hpc.cli.options import command, config_option, format_option, settings_of, this_node_option
from hami_hpc.core.mig_text import settings_lines
from hami_hpc.core.tables import table
from hami_hpc.errors import NodeError
from hami_hpc.node import job_dirs, mig_list
from hami_hpc.node.mig_list import ListedGpu
from hami_hpc.slurm import commands, placeholders
from hami_hpc.stages.mig_mode import switch


def as_json(gpus: tuple[ListedGpu, ...]) -> str:
    """Returns the GPUs with their profiles and instances as JSON."""
    listed = [
        {
            "minor": gpu.minor,
            "uuid": gpu.uuid,
            "name": gpu.name,
            "mode": gpu.mode,
            "profiles": [
                {
                    "id": one.profile_id,
                    "name": one.name,
                    "mem_mib": one.mem_mib,
                    "compute_slices": one.compute_slices,
                    "memory_slices": one.memory_slices,
                    "starts": list(one.starts),
                    "instances_max": one.instances_max,
                }
                for one in gpu.profiles
            ],
            "instances": [
                {
                    "gi_id": row.instance.gi_id,
                    "uuid": row.instance.uuid,
                    "profile": row.profile,
                    "mem_mib": row.mem_mib,
                    "start": row.instance.start,
                    "size": row.instance.size,
                    "is_ours": row.owner == mig_list.OURS,
                    "job_id": row.job_id,
                }
                for row in gpu.instances
            ],
        }
        for gpu in gpus
    ]
    return json.dumps(listed, indent=2)


def as_table(gpus: tuple[ListedGpu, ...]) -> str:
    """Returns the GPUs and their instances, one line each."""
    rows: list[tuple[object, ...]] = []
    for gpu in gpus:
        rows.append((gpu.minor, gpu.mode, "", "", "", "", "", gpu.uuid))
        for row in gpu.instances:
            one = row.instance
            whose = f"job {row.job_id}" if row.job_id is not None else row.owner
            slices = f"{one.start}-{one.start + one.size - 1}"
            rows.append((gpu.minor, "", one.gi_id, row.profile, slices, row.mem_mib, whose, one.uuid or "-"))
    head = ("GPU", "MIG", "INSTANCE", "PROFILE", "SLICES", "MiB", "OF", "UUID")
    return colours.table_head(table(head, rows, right=(0, 2, 5)))


def profile_lines(gpus: tuple[ListedGpu, ...]) -> str:
    """Returns the table of the settings for each GPU model. Raises NodeError when no GPU has MIG."""
    tables = {
        gpu.name: [
            f"# {gpu.name}",
            f"[gpu_models.{gpu.model or 'NAME'}.mig_profiles]",
            *settings_lines(gpu.profiles),
        ]
        for gpu in gpus
        if gpu.profiles
    }
    if not tables:
        raise NodeError("no GPU of this node has MIG")
    return "\n\n".join("\n".join(lines) for lines in tables.values())


@command("mig")
@click.argument("action", type=click.Choice(("list", "profiles", "enable", "disable")))
@click.argument("gpu", required=False, metavar="[UUID|MINOR]")
@this_node_option
@format_option("table", "json", help_text="Of list. Table: for people; json: for machines.")
@config_option
def mig(action: str, gpu: str | None, node: str | None, form: str, config: Path | None) -> None:
    """List this node's MIG instances and whose they are, or switch MIG of one GPU on or off.

    profiles prints the lines for the settings by which the GPUs' profiles are offered: delete those that nobody should
    get. Profiles that differ in media engines alone are one line.

    enable and disable refuse while a job, a process or (disable) an instance is on the GPU. Take it out of service
    before, so that no job starts meanwhile: hami-hpc gpu drain. Before the Hopper generation the GPU is reset for it.
    From Hopper on the mode is off again after a restart of the node. Only root can do any of this.
    """
    if (gpu is None) != (action in ("list", "profiles")):
        raise click.UsageError(f"{action} {'takes no GPU' if gpu else 'needs the UUID or minor number of a GPU'}")
    if form != "table" and action != "list":
        raise click.UsageError(f"--format is for list; {action} prints one line")
    settings = settings_of(config)
    if os.geteuid() != 0:
        raise NodeError(f"only root can {action} MIG instances: run this as root on the node")
    if action == "profiles":
        click.echo(profile_lines(mig_list.read(settings)))
        return
    if action == "list":
        gpus = mig_list.read(settings)
        click.echo(as_json(gpus) if form == "json" else as_table(gpus))
        return
    slurm_node = placeholders.Node(node or commands.node_name(), placeholders.environment(os.environ))
    job_dirs.prepare(settings.run_dir)
    click.echo(switch(settings, slurm_node, gpu or "", action == "enable"))
