# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc qos`: the QoS that the settings name, beside those in slurmdbd."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from hami_hpc.cli import colours
from hami_hpc.cli.exit_codes import ExitCode
from hami_hpc.cli.options import command, config_option, format_option, settings_of
from hami_hpc.core import qos as core
from hami_hpc.core.qos import Qos
from hami_hpc.core.tables import table
from hami_hpc.errors import NodeError
from hami_hpc.node.qos_settings import read_qos
from hami_hpc.render import qos_lines
from hami_hpc.render.merging import Merge
from hami_hpc.slurm import commands, lines
from hami_hpc.slurm.files import ConfFile, find_slurm_conf


def read_present() -> dict[str, Qos]:
    """Returns slurmdbd's QoS by name. Raises NodeError when it does not answer."""
    return {row["Name"]: core.read_present(row) for row in commands.qos_rows(core.COLUMNS)}


def show(wanted: Sequence[Qos], form: str) -> bool:
    """Prints both sides; returns whether they differ."""
    present = read_present()
    rows = core.compare(wanted, present)
    missing = [qos.name for qos in wanted if qos.name not in present]
    if form == "json":
        lines_of = [asdict(row) | {"differs": row.differs} for row in rows]
        click.echo(json.dumps({"missing": missing, "values": lines_of}, indent=2))
    else:
        cells = [
            (
                row.qos,
                row.field + (f"[{row.tres}]" if row.tres else ""),
                "" if row.settings is None else row.settings or core.NONE,
                "" if row.slurmdbd is None else row.slurmdbd or core.NONE,
                "differs" if row.differs else "",
            )
            for row in rows
        ]
        click.echo(colours.table_head(table(("QOS", "FIELD", "SETTINGS", "SLURMDBD", ""), cells)))
        if missing:
            click.echo(f"\nslurmdbd has no QoS {', '.join(missing)}")
    return bool(missing) or any(row.differs for row in rows)


def render(wanted: Sequence[Qos]) -> bool:
    """Prints the commands that make the set from nothing, and slurm.conf's lines; returns whether lines are left."""
    click.echo("# The QoS of the settings, for a slurmdbd that has none of them:")
    for words in core.plan(wanted, {}):
        click.echo(core.line(words))
    merges, remarks = _slurm_conf(wanted)
    for merge in merges:
        click.echo(f"\n# {merge.what}")
        for text in merge.lines:
            click.echo(text)
    for remark in remarks:
        click.echo(f"\n# note: {remark}")
    return bool(merges)


def _slurm_conf(wanted: Sequence[Qos]) -> tuple[list[Merge], list[str]]:
    try:
        path = find_slurm_conf(os.environ)
    except NodeError:
        path, site = "slurm.conf", {}
    else:
        site = lines.settings_of(ConfFile(path).lines)
    return qos_lines.merge_lines(wanted, site, commands.version(), path), qos_lines.remarks(wanted, site)


def apply(wanted: Sequence[Qos], path: str, dry_run: bool) -> bool:
    """Changes slurmdbd, and asks it afterwards. Returns whether something is left to change (only with dry_run).

    Raises NodeError when slurmdbd refuses a command, or has something else than was written.
    """
    present = read_present()
    core.check_names(wanted, present, path)
    core.check_circles(wanted, present, path)
    planned = core.plan(wanted, present)
    for number, words in enumerate(planned):
        click.echo(core.line(words))
        if dry_run:
            continue
        try:
            commands.change_accounting(words)
        except NodeError as error:
            raise NodeError(f"{error} ({number} of {len(planned)} commands were done)") from error
    if not planned:
        has = "slurmdbd has the QoS of the settings" if wanted else f"{path} has no table [qos.NAME]"
        click.echo(f"nothing to do: {has}")
    left = [] if dry_run or not planned else core.differences(wanted, read_present())
    if left:
        what = ", ".join(f"{d.what} of {d.qos} is {d.present or core.NONE}, not {d.wanted or core.NONE}" for d in left)
        raise NodeError(f"sacctmgr reported no error, and slurmdbd has other values: {what}")
    return dry_run and bool(planned)


@command(
    "qos",
    found="show, apply --dry-run: slurmdbd differs from the settings; render: slurm.conf lacks lines",
)
@click.argument("action", type=click.Choice(("show", "render", "apply")))
@format_option("table", "json", help_text="Of show. Table: for people; json: for machines.")
@click.option("--dry-run", is_flag=True, help="Of apply: print the commands; change nothing.")
@config_option
def qos(action: str, form: str, dry_run: bool, config: Path | None) -> None:
    """Compare the QoS of the settings with slurmdbd's, or write them there.

    show: both, side by side. render: the sacctmgr commands and slurm.conf's lines; asks slurmdbd nothing. apply:
    changes what differs. Only QoS and fields that the settings name are changed, and none is deleted.
    """
    if dry_run and action != "apply":
        raise click.UsageError(f"--dry-run is for apply; {action} changes nothing")
    if form != "table" and action != "show":
        raise click.UsageError(f"--format is for show; {action} prints commands")
    settings = settings_of(config)
    wanted = read_qos(settings)
    if action == "show":
        differs = show(wanted, form)
    elif action == "render":
        differs = render(wanted)
    else:
        differs = apply(wanted, settings.path, dry_run)
    raise click.exceptions.Exit(ExitCode.FOUND if differs else ExitCode.DONE)
