# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc mig`: lists a node's MIG instances, switches MIG of one GPU on or off, and makes room for requests."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from hami_hpc.cli import colours, mig_plan_view
from hami_hpc.cli.exit_codes import ExitCode
from hami_hpc.cli.options import command, config_option, format_option, settings_of, this_node_option
from hami_hpc.core.mig_plan import State
from hami_hpc.core.mig_text import settings_lines
from hami_hpc.core.out_of_service import Holding
from hami_hpc.core.tables import table
from hami_hpc.errors import NodeError
from hami_hpc.node import job_dirs, mig_list
from hami_hpc.node.config import Settings
from hami_hpc.node.mig_list import ListedGpu
from hami_hpc.slurm import commands, placeholders
from hami_hpc.stages.mig_apply import apply, layout_of_file
from hami_hpc.stages.mig_defragment import defragment
from hami_hpc.stages.mig_defragment import release as release_holds
from hami_hpc.stages.mig_mode import Holder, switch

HOLD_MINUTES, HOLD_MINUTES_MAX = 60, 24 * 60


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
                    "is_ours": row.owner in (mig_list.OURS, mig_list.STATIC),
                    "is_static": row.owner == mig_list.STATIC,
                    "job_id": row.job_id,
                }
                for row in gpu.instances
            ],
            "holds": [
                {
                    "profile": kept.hold.profile,
                    "start": kept.hold.start,
                    "size": kept.hold.size,
                    "until_unix_s": kept.until_unix_s,
                }
                for kept in gpu.holds
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
            slices = mig_plan_view.slices_text(one.start, one.size)
            rows.append((gpu.minor, "", one.gi_id, row.profile, slices, row.mem_mib, whose, one.uuid or "-"))
        for kept in gpu.holds:
            slices = mig_plan_view.slices_text(kept.hold.start, kept.hold.size)
            until = f"held until {mig_plan_view.clock(kept.until_unix_s)}"
            rows.append((gpu.minor, "", "", kept.hold.profile, slices, "", until, ""))
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


def check_options(action: str, gpu: str | None, form: str, options: dict[str, bool]) -> None:
    """Raises UsageError for an argument or an option that is not of the action. `options`: which others were given."""
    takes_gpu = action in ("enable", "disable")
    if action != "apply" and (gpu is not None) != takes_gpu:
        raise click.UsageError(f"{action} {'needs the UUID or minor number of a GPU' if takes_gpu else 'takes no GPU'}")
    if form != "table" and action not in ("list", "defragment"):
        raise click.UsageError(f"--format is for list and defragment; {action} prints lines of one form")
    for option, is_given in options.items():
        if is_given and action != "defragment" and (option, action) != ("--dry-run", "apply"):
            actions = "apply and defragment" if option == "--dry-run" else "defragment"
            raise click.UsageError(f"{option} is for {actions}, not for {action}")


class NoNode:
    """In place of the node as slurmctld shows it, where its name is not known, as early in a boot."""

    def __init__(self, error: NodeError) -> None:
        self.error = error

    def holdings(self) -> tuple[Holding, ...]:
        raise self.error


def run_apply(settings: Settings, node: str | None, file: str | None, dry_run: bool) -> None:
    """Makes the layout of a file stand, or the one that was applied last, and prints what was done."""
    slurm_node: Holder
    try:
        name = commands.this_node(node)
        slurm_node = placeholders.Node(name, placeholders.environment(os.environ))
    except NodeError as error:
        if file is not None:  # the file has tables by the node's name
            raise
        slurm_node = NoNode(error)
    layout = None if file is None else layout_of_file(str(Path(file).absolute()), name)
    for line in apply(settings, slurm_node, layout, dry_run):
        click.echo(f"{line}{' (dry run)' if dry_run else ''}")
    if layout is not None:
        click.echo("After a change: hami-hpc render, restart slurmctld and slurmd, then hami-hpc doctor")


def run_defragment(
    settings: Settings, node: str, demand: tuple[tuple[str, int], ...], minutes: int, dry_run: bool, form: str
) -> None:
    """Plans, and does it without `dry_run`. Exits with ExitCode.FOUND while free slices suffice for a request, and no
    place does."""
    result = defragment(settings, node, demand, minutes * 60, dry_run)
    if form == "json":
        click.echo(mig_plan_view.as_json(result))
    else:
        mig_plan_view.show(result, dry_run)
    is_left = any(one.state is State.FRAGMENTED for one in result.verdicts)
    is_left = is_left or any(error for _, error in result.leftovers)
    raise click.exceptions.Exit(ExitCode.FOUND if is_left else ExitCode.DONE)


@command("mig", found="defragment: a request has no place although free slices suffice, or a leftover stays")
@click.argument("action", type=click.Choice(("list", "profiles", "enable", "disable", "apply", "defragment")))
@click.argument("gpu", required=False, metavar="[UUID|MINOR|FILE]")
@click.option(
    "--demand",
    multiple=True,
    metavar="PROFILE[=COUNT]",
    help="Of defragment: plan for these instances, the most important first.  [default: what waits in the queue]",
)
@click.option(
    "--hold-minutes",
    type=click.IntRange(1, HOLD_MINUTES_MAX),
    help=f"Of defragment: how long places are held.  [default: {HOLD_MINUTES}]",
)
@click.option("--release", is_flag=True, help="Of defragment: end all holds, and do nothing else.")
@click.option("--dry-run", is_flag=True, help="Of apply and defragment: show what would be done; change nothing.")
@this_node_option
@format_option("table", "json", help_text="Of list and defragment. Table: for people; json: for machines.")
@config_option
def mig(
    action: str,
    gpu: str | None,
    demand: tuple[str, ...],
    hold_minutes: int | None,
    release: bool,
    dry_run: bool,
    node: str | None,
    form: str,
    config: Path | None,
) -> None:
    """List this node's MIG instances and whose they are, switch MIG of a GPU, apply a static layout, or make room.

    profiles prints the lines for the settings by which the GPUs' profiles are offered: delete those that nobody should
    get. Profiles that differ in media engines alone are one line.

    enable and disable refuse while a job, a process or (disable) an instance is on the GPU. Take it out of service
    before, so that no job starts meanwhile: hami-hpc gpu drain. Before the Hopper generation the GPU is reset for it.
    From Hopper on the mode is off again after a restart of the node.

    apply makes the static layout of FILE stand, whose instances Slurm gives whole, as gres/gpu of the profile's type;
    without FILE the one that was applied last, as after a restart. No slice is on a GPU with one. It refuses while jobs
    or processes use a GPU whose instances have to change. See docs/modes.md for the file.

    defragment says which requests of the queue this node has no place for although free slices suffice, and after
    which jobs' ends they fit. It removes instances of ours that no job has, and holds these places: other profiles are
    not put there, and a job that fits nowhere else goes back to the queue. It moves no instance and ends no job. A hold
    ends when its profile is placed there, after --hold-minutes, and at a restart. Only root can do any of this.
    """
    given = {"--demand": bool(demand), "--hold-minutes": hold_minutes is not None}
    check_options(action, gpu, form, {**given, "--release": release, "--dry-run": dry_run})
    if release and (dry_run or any(given.values())):
        raise click.UsageError("--release ends all holds and takes none of --demand, --hold-minutes and --dry-run")
    wanted = mig_plan_view.parse_demand(demand)
    settings = settings_of(config)
    if os.geteuid() != 0:
        raise NodeError(f"only root can {action} MIG instances: run this as root on the node")
    if action == "profiles":
        click.echo(profile_lines(mig_list.read(settings)))
    elif action == "list":
        gpus = mig_list.read(settings)
        click.echo(as_json(gpus) if form == "json" else as_table(gpus))
    elif action == "apply":
        run_apply(settings, node, gpu, dry_run)
    elif release:
        click.echo(f"{release_holds(settings)} hold(s) ended")
    elif action == "defragment":
        minutes = HOLD_MINUTES if hold_minutes is None else hold_minutes
        run_defragment(settings, commands.this_node(node), wanted, minutes, dry_run, form)
    else:
        slurm_node = placeholders.Node(commands.this_node(node), placeholders.environment(os.environ))
        job_dirs.prepare(settings.run_dir)
        click.echo(switch(settings, slurm_node, gpu or "", action == "enable"))
