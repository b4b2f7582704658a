# SPDX-License-Identifier: Apache-2.0
"""The hami-hpc command. A command's module is imported only when that command runs."""

from __future__ import annotations

import importlib

import click

from hami_hpc.contract import constants as c
from hami_hpc.errors import HamiError

# Command -> module that defines it under its own name.
NODE_COMMANDS = {
    "render": "hami_hpc.cli.render_command",
    "inventory": "hami_hpc.cli.node_commands",
    "jobs": "hami_hpc.cli.node_commands",
    "usage": "hami_hpc.cli.usage_command",
    "reconcile": "hami_hpc.cli.node_commands",
    "doctor": "hami_hpc.cli.doctor_command",
}
ACCOUNTING = "hami_hpc.cli.accounting_commands"  # maps its names in `commands`; needs hami-hpc[accounting]


class LazyGroup(click.Group):
    """Finds commands by name without importing the others, and words HamiErrors."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        try:
            accounting = list(importlib.import_module(ACCOUNTING).commands)
        except ModuleNotFoundError:
            accounting = []
        return [*NODE_COMMANDS, *accounting]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in NODE_COMMANDS:
            module = importlib.import_module(NODE_COMMANDS[cmd_name])
            found = getattr(module, cmd_name)
        else:
            try:
                found = importlib.import_module(ACCOUNTING).commands.get(cmd_name)
            except ModuleNotFoundError as error:
                raise click.UsageError(
                    f"'{cmd_name}' is no command of this node; if it is one of accounting's, {error.name} is missing: "
                    "pip install 'hami-hpc[accounting]'"
                ) from error
        return found if isinstance(found, click.Command) else None

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except HamiError as error:
            raise click.ClickException(str(error).removeprefix(c.ERROR_PREFIX)) from error


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="hami-hpc")
def main() -> None:
    """Pieces of a GPU for Slurm: what this node holds, and what the site's settings come to.

    Settings: /etc/hami-hpc/hami-hpc.toml, or the file that $HAMI_HPC_CONFIG names.
    """
