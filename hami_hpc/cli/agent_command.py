# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc agent`: watches this node's GPUs from outside the jobs' processes."""

from __future__ import annotations

import json
from pathlib import Path

import click

from hami_hpc.agent import service
from hami_hpc.cli import colours
from hami_hpc.cli.exit_codes import ExitCode
from hami_hpc.cli.options import command, config_option, format_option, settings_of, this_node_option
from hami_hpc.slurm import commands


@command(
    "agent",
    done="it was told to end; with --once: nothing was found",
    found="with --once: something takes what it was not granted",
)
@click.option("--once", is_flag=True, help="Show what is found now, and end. Nothing is done about it.")
@this_node_option
@format_option("text", "json", help_text="The form of --once.")
@config_option
def agent(form: str, once: bool, node: str | None, config: Path | None) -> None:
    """Watch the GPUs of this node: find processes and jobs that take more than they were granted, and act on them as
    [agent] of the settings says. It runs until it is told to end, as root; hami-hpc-agent.service starts it.
    """
    settings = settings_of(config)
    name = commands.this_node(node)
    if not once:
        service.run(settings, name)
        return
    state = service.look_once(settings, name)
    if form == "json":
        click.echo(json.dumps([event._asdict() for event in state.events], indent=2))
    else:
        for event in state.events:
            click.echo(f"{colours.coloured(event.kind, 'red', bold=True)}: {event.text}")
        if not state.events:
            click.echo(f"nothing found: {len(state.gpus)} GPUs, {len(state.jobs)} slices")
    if state.events:
        raise click.exceptions.Exit(ExitCode.FOUND)
