# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc mode`: the modes of isolation that this node offers, and those that are out of its features."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import click

from hami_hpc.cli import colours
from hami_hpc.cli.exit_codes import ExitCode
from hami_hpc.cli.options import command, config_option, format_option, settings_of, this_node_option
from hami_hpc.core.mode_outage import recent
from hami_hpc.core.tables import table
from hami_hpc.errors import NodeError
from hami_hpc.node import job_dirs, mode_outages
from hami_hpc.node.boot import boot_id
from hami_hpc.node.config import Settings
from hami_hpc.slurm import commands
from hami_hpc.stages import mode_service


def rows(settings: Settings) -> list[dict[str, object]]:
    """Returns the modes of the settings, and those that are out without being among them."""
    out = {each.mode: each for each in mode_outages.read(settings.state_dir)}
    noted = mode_outages.read_failures(settings.state_dir) if os.geteuid() == 0 else ()  # they name jobs
    failures = recent(noted, int(time.time()), settings.mode_window_s, boot_id())
    found: list[dict[str, object]] = []
    for mode in dict.fromkeys((*settings.modes, *out)):
        own = [each for each in failures if each.mode == mode]
        entry = out.get(mode)
        found.append(
            {
                "mode": mode,
                "in_service": entry is None,
                "since_unix_s": entry.since_unix_s if entry else None,
                "until_unix_s": entry.until_unix_s if entry else None,
                "failures": len(own),
                "reason": entry.reason if entry else own[-1].text if own else "",
            }
        )
    return found


def show(listed: list[dict[str, object]], form: str) -> None:
    if form == "json":
        click.echo(json.dumps(listed, indent=2))
        return
    cells = [
        (
            row["mode"],
            "in service" if row["in_service"] else "OUT",
            _clock(row["since_unix_s"]),
            _clock(row["until_unix_s"]),
            row["failures"],
            row["reason"],
        )
        for row in listed
    ]
    head = ("MODE", "STATE", "SINCE", "UNTIL", "FAILURES", "LAST FAILURE")
    click.echo(colours.table_head(table(head, cells, right=(4,))))


def _clock(unix_s: object) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(unix_s)) if isinstance(unix_s, int) else ""


@command("mode", found="list: a mode is out of service")
@click.argument("action", type=click.Choice(("list", "resume")))
@click.argument("mode", required=False, metavar="[MODE]")
@this_node_option
@format_option("table", "json", help_text="Of list. Table: for people; json: for machines.")
@config_option
def mode(action: str, mode: str | None, node: str | None, form: str, config: Path | None) -> None:
    """List the modes of isolation that this node offers and how often they failed, or return one to service.

    A mode (share, mps, mig) whose backend fails repeatedly is taken out of this node's features for a while: Slurm
    sends no job of it here, and the node stays in service for others. resume: puts it back before its time.
    """
    if (mode is None) != (action == "list"):
        raise click.UsageError(f"{action} {'takes no mode' if mode else 'needs a mode: share, mps or mig'}")
    if form != "table" and action != "list":
        raise click.UsageError(f"--format is for list; {action} prints one line")
    settings = settings_of(config)
    if action == "list":
        listed = rows(settings)
        show(listed, form)
        is_out = any(not row["in_service"] for row in listed)
        raise click.exceptions.Exit(ExitCode.FOUND if is_out else ExitCode.DONE)
    if os.geteuid() != 0:
        raise NodeError("only root can resume a mode: run this as root on the node")
    job_dirs.prepare(settings.run_dir)
    slurm = mode_service.slurm_of_command(commands.this_node(node))
    click.echo(mode_service.resume(settings, slurm, mode or ""))
