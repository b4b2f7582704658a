# SPDX-License-Identifier: Apache-2.0
"""The hami-hpc command. A command's module is imported only when that command runs."""

from __future__ import annotations

import importlib
import importlib.util

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
# Likewise; these need hami-hpc[accounting], which nodes do not have.
ACCOUNTING_COMMANDS = {
    "ingest": "hami_hpc.cli.accounting_ingest",
    "collect-usage": "hami_hpc.cli.accounting_ingest",
    "bill": "hami_hpc.cli.accounting_bill",
    "check-bill": "hami_hpc.cli.accounting_bill",
    "invoice": "hami_hpc.cli.accounting_invoice",
    "balances": "hami_hpc.cli.accounting_invoice",
    "efficiency": "hami_hpc.cli.accounting_reports",
    "report": "hami_hpc.cli.accounting_reports",
}
INSTALL_ACCOUNTING = "pip install 'hami-hpc[accounting]'"


class LazyGroup(click.Group):
    """Finds commands by name without importing the others, and words HamiErrors."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        has_accounting = importlib.util.find_spec("duckdb") is not None
        return [*NODE_COMMANDS, *(ACCOUNTING_COMMANDS if has_accounting else ())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = {**NODE_COMMANDS, **ACCOUNTING_COMMANDS}.get(cmd_name)
        if module is None:
            return None
        try:
            found = getattr(importlib.import_module(module), cmd_name.replace("-", "_"))
        except ModuleNotFoundError as error:
            if cmd_name in NODE_COMMANDS:
                raise
            raise click.UsageError(f"{cmd_name} needs {error.name}, which is missing: {INSTALL_ACCOUNTING}") from error
        return found if isinstance(found, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the commands of nodes and those of accounting, with whole sentences, which click would cut."""
        listed = self.list_commands(ctx)
        for title, table in (("Commands of a node", NODE_COMMANDS), ("Commands of accounting", ACCOUNTING_COMMANDS)):
            commands = {name: self.get_command(ctx, name) for name in table if name in listed}
            rows = [(name, command.get_short_help_str(limit=1000)) for name, command in commands.items() if command]
            with formatter.section(title):
                formatter.write_dl(rows or [(", ".join(table), INSTALL_ACCOUNTING)])

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except HamiError as error:
            raise click.ClickException(str(error).removeprefix(c.ERROR_PREFIX)) from error


def _show_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from hami_hpc.builds import build_text

        click.echo(f"hami-hpc, version {build_text()}")
        ctx.exit()


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show which build this is.",
)
def main() -> None:
    """Pieces of a GPU for Slurm: what this node holds, and what the site's settings come to.

    Settings: /etc/hami-hpc/hami-hpc.toml, or the file that $HAMI_HPC_CONFIG names.
    """
