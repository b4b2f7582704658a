# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc quota`: what quotas.toml says of accounts, beside slurmdbd, and what of it is in use."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import click

from hami_hpc.cli import colours
from hami_hpc.cli.exit_codes import ExitCode
from hami_hpc.cli.options import command, config_option, format_option, settings_of
from hami_hpc.core import qos as qos_core
from hami_hpc.core import quota as core
from hami_hpc.core.quota import Present, Quotas
from hami_hpc.core.tables import table
from hami_hpc.errors import NodeError
from hami_hpc.node.config import Settings
from hami_hpc.node.quota_settings import FILE, read_quotas
from hami_hpc.render import quota_lines
from hami_hpc.slurm import cluster_view, commands, limits_view, lines
from hami_hpc.slurm.files import ConfFile, find_slurm_conf

HEAD = ("ACCOUNT", "QUOTA", FILE.upper(), "SLURMDBD", "IN USE", "")


def cluster_name() -> str:
    """Returns the ClusterName of this slurmctld. Raises NodeError when it does not answer."""
    return commands.configuration()["ClusterName"]


def read_present(cluster: str) -> Present:
    """Returns what slurmdbd has. Raises NodeError when it does not answer."""
    rows = commands.association_rows(cluster, core.COLUMNS)
    qos = {row["Name"]: qos_core.read_present(row) for row in commands.qos_rows(qos_core.COLUMNS)}
    return Present(tuple(core.read_association(row) for row in rows), qos)


def show(wanted: Quotas, form: str) -> bool:
    """Prints both sides and what is in use; returns whether they differ."""
    cluster = cluster_name()
    present = read_present(cluster)
    rows = core.compare(wanted, present)
    used = limits_view.billing_in_use(commands.show_limits(), cluster)
    missing = core.unknown_accounts(wanted, present)
    # The default QoS and who may use it are no rows of the table.
    differs = any(row.differs for row in rows) or bool(missing or core.plan(wanted, present, cluster))
    notes = [*_missing(missing), *core.remarks(wanted, present, _gpus()), *_unused(wanted, present)]
    if form == "json":
        values = [asdict(row) | {"differs": row.differs, "in_use": _in_use(row, used)} for row in rows]
        click.echo(json.dumps({"values": values, "differs": differs, "notes": notes}, indent=2))
        return differs
    cells = [
        (row.account, row.key, row.quotas or "", row.slurmdbd or "", _in_use(row, used), "differs" * row.differs)
        for row in rows
    ]
    click.echo(colours.table_head(table(HEAD, cells, right=(2, 3, 4))))
    _print_notes(notes)
    return differs


def _in_use(row: core.Compared, used: Mapping[tuple[str, str], str]) -> str:
    limit = core.GUARANTEED if row.key == core.GUARANTEED.key else core.BY_KEY[row.key]
    owner = core.GUARANTEE + row.account if limit is core.GUARANTEED else row.account
    value = used.get((owner, limit.column), "")
    return limit.shown(value) if limit.unit and value else ""


def _gpus() -> int:
    nodes = cluster_view.parse_nodes(commands.show_nodes(), [])
    return sum(node.gpus for node in nodes)


def _missing(accounts: list[str]) -> list[str]:
    return [f"slurmdbd has no account {name}: sacctmgr add account {name}" for name in accounts]


def _unused(wanted: Quotas, present: Present) -> list[str]:
    return [
        f"QoS {name} is of no account of {FILE} any more; when no job is in it: sacctmgr modify account "
        f"{name.removeprefix(core.GUARANTEE)} set DefaultQOS=-1, then sacctmgr delete qos {name}"
        for name in core.unused(wanted, present)
    ]


def _print_notes(notes: list[str]) -> None:
    for note in notes:
        click.echo(f"\n# note: {note}")


def render(wanted: Quotas, settings: Settings) -> bool:
    """Prints slurm.conf's lines; returns whether lines are left."""
    path = find_slurm_conf(os.environ)
    conf = ConfFile(path)
    site = lines.settings_of(conf.lines)
    shards = {
        name: [settings.gpu_size(model).sold_shards for model in models] for name, models in settings.partitions.items()
    }
    merges = [
        *quota_lines.merge_lines(wanted, site, commands.version(), path),
        *quota_lines.merge_partitions(shards, conf.lines),
    ]
    for merge in merges:
        click.echo(f"# {merge.what}")
        for text in merge.lines:
            click.echo(text)
        click.echo()
    if not merges:
        click.echo(f"nothing to do: {path} has all lines")
    _print_notes(quota_lines.remarks(wanted, shards, conf.lines, site))
    return bool(merges)


def apply(wanted: Quotas, path: Path, dry_run: bool) -> bool:
    """Changes slurmdbd, asking it after each step. Returns whether something is left to change (only with dry_run).

    Raises NodeError for an account that slurmdbd does not have, and when it refuses a command or has other values
    than were written.
    """
    cluster = cluster_name()
    present = read_present(cluster)
    missing = core.unknown_accounts(wanted, present)
    if missing:
        raise NodeError(f"{path}: {'; '.join(_missing(missing))}. Nothing was changed")
    qos_core.check_names(wanted.guarantees, present.qos, str(path))
    qos_core.check_circles(wanted.guarantees, present.qos, str(path))
    planned = core.plan(wanted, present, cluster)
    changed = bool(planned)
    while planned:
        for words in planned:
            click.echo(qos_core.line(words))
            if not dry_run:
                commands.change_accounting(words)
        if dry_run:
            break
        present = read_present(cluster)
        before, planned = planned, core.plan(wanted, present, cluster)
        if planned == before:
            left = "; ".join(qos_core.line(words) for words in planned)
            raise NodeError(f"sacctmgr reported no error, and slurmdbd has other values; no change by: {left}")
    if not changed:
        click.echo(f"nothing to do: slurmdbd has the quotas of {path}")
    elif dry_run and wanted.guarantees:
        click.echo("\n# note: commands for users with a QoS list of their own follow when these are done")
    _print_notes([*core.remarks(wanted, present, _gpus()), *_unused(wanted, present)])
    return dry_run and changed


@command(
    "quota",
    found="show, apply --dry-run: slurmdbd differs from quotas.toml; render: slurm.conf lacks lines",
)
@click.argument("action", type=click.Choice(("show", "render", "apply")))
@format_option("table", "json", help_text="Of show. Table: for people; json: for machines.")
@click.option("--dry-run", is_flag=True, help="Of apply: print the commands; change nothing.")
@click.option(
    "--quotas",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"The quotas.  [default: {FILE} beside the settings]",
)
@config_option
def quota(action: str, form: str, dry_run: bool, file: Path | None, config: Path | None) -> None:
    """Compare the quotas of accounts with slurmdbd's, or write them there.

    show: both, and what is in use. render: slurm.conf's lines, also those by which a slice counts as its part of a
    GPU in fair share; needs no quotas. apply: changes what differs. Only accounts and values that quotas.toml names
    are changed, and nothing is deleted.
    """
    if dry_run and action != "apply":
        raise click.UsageError(f"--dry-run is for apply; {action} changes nothing")
    if form != "table" and action != "show":
        raise click.UsageError(f"--format is for show; {action} prints commands or lines")
    settings = settings_of(config)
    path = file or Path(settings.path).with_name(FILE)
    needs_none = action == "render" and file is None and not path.exists()
    wanted = Quotas() if needs_none else read_quotas(path)
    if action == "show":
        differs = show(wanted, form)
    elif action == "render":
        differs = render(wanted, settings)
    else:
        differs = apply(wanted, path, dry_run)
    raise click.exceptions.Exit(ExitCode.FOUND if differs else ExitCode.DONE)
