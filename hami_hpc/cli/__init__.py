# SPDX-License-Identifier: Apache-2.0
"""The hami-hpc command. A command's module is imported only when that command runs."""

from __future__ import annotations

import importlib
import importlib.util
import io
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from hami_hpc import installed
from hami_hpc.contract.constants import FILE_CONFIG
from hami_hpc.errors import HamiError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# Command -> the module that defines it under the command's name, and the first sentence of its help. With this table,
# listing the commands and completing their names imports none of them.
NODE_COMMANDS = {
    "render": (
        "hami_hpc.cli.render_command",
        "Write hami_hpc's parts of slurm.conf, gres.conf and plugstack.conf for this node, and the filters' site "
        "table.",
    ),
    "forget-node": (
        "hami_hpc.cli.render_command",
        "Delete the lines that render wrote for nodes that are gone, and show the site's lines that still name them.",
    ),
    "inventory": (
        "hami_hpc.cli.inventory_command",
        "This node's GPUs, as the driver shows them and as the settings count them.",
    ),
    "jobs": ("hami_hpc.cli.node_commands", "The grants on this node, with what the jobs use of them right now."),
    "usage": ("hami_hpc.cli.usage_command", "What a running vGPU job uses now."),
    "metrics": (
        "hami_hpc.cli.metrics_command",
        "What the agent sees of this node's GPUs and jobs, for Prometheus.",
    ),
    "ps": (
        "hami_hpc.cli.ps_command",
        "The jobs and processes on this node's GPUs, with what each was granted and what it uses.",
    ),
    "top": (
        "hami_hpc.cli.top_command",
        "This node's GPUs, their jobs and the agent's findings, each second until q is pressed.",
    ),
    "events": (
        "hami_hpc.cli.events_command",
        "What happened on this node: grants and their ends, refusals, what the agent found and did, GPUs and nodes "
        "taken out of service, errors of GPUs.",
    ),
    "pool": (
        "hami_hpc.cli.pool_command",
        "What the cluster has for vGPU jobs, what of it is allocated, and the largest free slice of each node.",
    ),
    "advise": (
        "hami_hpc.cli.advise_command",
        "Say whether MIG, MPS, sharing or a whole GPU suits a workload, and why.",
    ),
    "explain": (
        "hami_hpc.cli.explain_command",
        "Why a vGPU job waits or where it runs, what it asked for, and what would fit now.",
    ),
    "trace": (
        "hami_hpc.cli.trace_command",
        "Where the time of a job's start went: each step with its time, and the milliseconds since the one before.",
    ),
    "resize": (
        "hami_hpc.cli.resize_command",
        "Give the slices of a running job another size: more or less memory, time, or both.",
    ),
    "swap": (
        "hami_hpc.cli.swap_command",
        "Move the device memory of a running job's programs to the host, or back to the GPU.",
    ),
    "reconcile": (
        "hami_hpc.cli.node_commands",
        "Make the ledger and the run directory agree with Slurm's jobs and the GPUs.",
    ),
    "gpu": (
        "hami_hpc.cli.gpu_command",
        "Take one GPU of this node out of service, return it, or list the GPUs.",
    ),
    "mode": (
        "hami_hpc.cli.mode_command",
        "List the modes of isolation that this node offers and how often they failed, or return one to service.",
    ),
    "mig": (
        "hami_hpc.cli.mig_command",
        "List this node's MIG instances and whose they are, switch MIG of a GPU, apply a static layout, or make room.",
    ),
    "mps": ("hami_hpc.cli.mps_command", "Show the MPS daemons of this node's jobs, or restart one."),
    "doctor": ("hami_hpc.cli.doctor_command", "Check what vGPU jobs need on this node, and say what to do."),
    "baseline": (
        "hami_hpc.cli.baseline_command",
        "Record this node's own figures, or check that they are no worse.",
    ),
    "agent": (
        "hami_hpc.cli.agent_command",
        "Watch the GPUs of this node: find processes and jobs that take more than they were granted, and act on them "
        "as [agent] of the settings says.",
    ),
    "qos": (
        "hami_hpc.cli.qos_command",
        "Compare the QoS of the settings with slurmdbd's, or write them there.",
    ),
    "quota": (
        "hami_hpc.cli.quota_command",
        "Compare the quotas of accounts with slurmdbd's, or write them there.",
    ),
}
# The same for the commands that need hami-hpc[accounting], which nodes do not have.
ACCOUNTING_COMMANDS = {
    "ingest": (
        "hami_hpc.cli.accounting_ingest",
        "Read job records into the store: what is new in slurmdbd, or a file.",
    ),
    "collect-usage": (
        "hami_hpc.cli.accounting_ingest",
        "Read into the store what vGPU jobs used, as the nodes' epilogs wrote it.",
    ),
    "store": (
        "hami_hpc.cli.accounting_store",
        "Take back the last ingest, or take users' names out of the store.",
    ),
    "bill": (
        "hami_hpc.cli.accounting_bill",
        "GPU-hours held in a period, and their cost, by account and user (or whatever --by names).",
    ),
    "check-bill": (
        "hami_hpc.cli.accounting_bill",
        "Compare the records of a period with sreport: every difference, with its reason as far as it is known.",
    ),
    "invoice": ("hami_hpc.cli.accounting_invoice", "Numbered invoices of a month, one for each account."),
    "balances": (
        "hami_hpc.cli.accounting_invoice",
        "Credits of each account: granted, used by invoices that stand, and left.",
    ),
    "ledger": (
        "hami_hpc.cli.accounting_finance",
        "All invoices and credit notes, with their tax, and what of them is paid.",
    ),
    "balance": (
        "hami_hpc.cli.accounting_balance",
        "What an account has left of its budgets and credits, and when it will be used up.",
    ),
    "efficiency": (
        "hami_hpc.cli.accounting_reports",
        "What a job (or a user's or account's jobs) used of what it held, and the request that would have sufficed.",
    ),
    "report": ("hami_hpc.cli.accounting_reports", "The monthly cluster report: one self-contained HTML file."),
}
COMMANDS = {**NODE_COMMANDS, **ACCOUNTING_COMMANDS}
# These show what Slurm's controller shows, of the cluster that SLURM_CLUSTERS names, as squeue does. All others act on
# this cluster's jobs, where another's of the same numbers must not be taken for them.
OF_ANY_CLUSTER = frozenset({"explain", "pool"})
# WHEEL is a file: no public index has a package of ours (docs/install.md).
INSTALL_NODE = "the package hami-hpc-common, or pip install WHEEL, the file that make wheel builds"
INSTALL_ACCOUNTING = (
    "the package hami-hpc-accounting, or pip install 'WHEEL[accounting]', the file that make wheel builds"
)

if installed.ACCOUNTING_DIR:
    sys.path.append(installed.ACCOUNTING_DIR)  # after the node's: it replaces none of them


def has_accounting() -> bool:
    """Returns whether the requirements of hami-hpc[accounting] are installed."""
    return importlib.util.find_spec("duckdb") is not None


class LazyGroup(click.Group):
    """Finds commands by name without importing the others, and writes the error messages."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS if has_accounting() else NODE_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        try:
            found = getattr(importlib.import_module(COMMANDS[cmd_name][0]), cmd_name.replace("-", "_"))
        except ModuleNotFoundError as error:
            is_of_node = cmd_name in NODE_COMMANDS
            if is_of_node and (error.name or "hami_hpc").partition(".")[0] == "hami_hpc":
                raise
            install = INSTALL_NODE if is_of_node else INSTALL_ACCOUNTING
            raise click.UsageError(f"{cmd_name} needs {error.name}, which is missing: {install}") from error
        return found if isinstance(found, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the commands of nodes and of accounting with whole sentences; click would shorten them."""
        listed = self.list_commands(ctx)
        for title, table in (("Commands of a node", NODE_COMMANDS), ("Commands of accounting", ACCOUNTING_COMMANDS)):
            rows = [(name, summary) for name, (_, summary) in table.items() if name in listed]
            with formatter.section(title):
                formatter.write_dl(rows or [(", ".join(table), INSTALL_ACCOUNTING)])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from hami_hpc.cli import exit_codes, options

        options.format_statuses(exit_codes.meanings(), formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completes command names from the table; click would import every command for its help."""
        from click.shell_completion import CompletionItem

        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        commands = [CompletionItem(name, help=COMMANDS[name][1]) for name in names]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            name, found, rest = super().resolve_command(ctx, args)
            if name not in OF_ANY_CLUSTER:
                os.environ.pop("SLURM_CLUSTERS", None)  # squeue's --local does not outweigh it
            return name, found, rest
        except click.UsageError as error:
            if args[0] in COMMANDS:
                raise
            from difflib import get_close_matches

            near = get_close_matches(args[0], self.list_commands(ctx), 1)
            raise click.UsageError(error.message + (f" Did you mean {near[0]}?" if near else ""), ctx) from error

    def make_context(self, *arguments: Any, **more: Any) -> click.Context:
        try:
            return super().make_context(*arguments, **more)
        except click.UsageError as error:
            raise _reworded(error) from error

    def main(self, *arguments: Any, **named: Any) -> Any:
        """Runs the command. Prints no traceback for a full disk or for letters that the terminal cannot show."""
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            return super().main(*arguments, **named)
        except OSError as error:
            from hami_hpc.cli import colours, options

            colours.show_error(options.os_error_text(error))
            sys.exit(1)
        finally:
            _drop_unwritten()

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            raise _reworded(error) from error
        except BrokenPipeError:  # the reader (head, less) has closed the pipe; click handles that
            raise
        except (HamiError, OSError) as error:
            from hami_hpc.cli import options

            text = options.os_error_text(error) if isinstance(error, OSError) else str(error)
            raise options.Failure(text) from error


def _drop_unwritten() -> None:
    """Discards what a stream cannot take: the interpreter would report an error for it at exit, and end with 120."""
    for number, stream, used in ((1, sys.__stdout__, sys.stdout), (2, sys.__stderr__, sys.stderr)):
        if stream is not None and used is stream:
            try:
                stream.flush()
            except OSError:
                os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def _reworded(error: click.UsageError) -> click.ClickException:
    from hami_hpc.cli import options

    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):  # it shows the help; new in click 8.2
        return error
    return options.WrongUsageError(error.format_message(), error.ctx)


def _show_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from hami_hpc.builds import build_text

        click.echo(f"hami-hpc, version {build_text()}")
        ctx.exit()


HELP = f"""Pieces of a GPU for Slurm: what this node holds, what its jobs use, and what is billed for it.

Settings: {installed.CONFIG or FILE_CONFIG}, or the file that $HAMI_HPC_CONFIG names.
"""


@click.command(
    cls=LazyGroup,
    help=HELP,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show which build this is.",
)
def main() -> None:
    """Runs the command that the arguments name."""
