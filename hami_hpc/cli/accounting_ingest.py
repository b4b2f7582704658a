# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc ingest` and `hami-hpc collect-usage`: the commands that fill the store."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from hami_hpc.accounting.formats.tables import counted
from hami_hpc.accounting.store import ingest as ingests
from hami_hpc.accounting.store import usage_table
from hami_hpc.accounting.times import parse_instant
from hami_hpc.cli.accounting_options import (
    SiteOptions,
    accounting_command,
    clusters_option,
    failing_with,
    one_cluster,
    site_options,
)
from hami_hpc.cli.exit_codes import ExitCode
from hami_hpc.cli.options import input_option, note_old

_quiet_option = click.option("--quiet", is_flag=True, help="Print nothing unless something is wrong.")


@accounting_command("ingest")
@input_option(
    "Read this file, of sacct --json or sacct -P, instead of asking slurmdbd; - for standard input (may be repeated).",
    multiple=True,
)
@click.option(
    "--source",
    "reader",
    type=click.Choice([reader.value for reader in ingests.Reader]),
    default=ingests.Reader.SACCT.value,
    show_default=True,
    help="What asks slurmdbd; pyslurm must fit the Slurm at hand (docs/accounting.md).",
)
@click.option("--since", metavar="TIME", help="Where to begin in an empty store, such as 2026-01.")
@click.option("--window-days", type=click.IntRange(1, 366), default=7, show_default=True, help="Days read at a time.")
@clusters_option(
    "Clusters to ask for, as sacct's -M: names, or all; with --input: the cluster of lines that name none.  [default: "
    "this one]"
)
@click.option("--new-cluster", is_flag=True, help="Let --input be of a cluster that the store has no job of.")
@_quiet_option
@click.option("--cluster", "name", default="", hidden=True)
@click.option("--usage", "spools", type=click.Path(path_type=Path), multiple=True, hidden=True)
@click.option("--remove-usage", is_flag=True, hidden=True)
@site_options
def ingest(
    source: tuple[Path, ...],
    reader: str,
    since: str | None,
    window_days: int,
    clusters: str,
    new_cluster: bool,
    quiet: bool,
    name: str,
    spools: tuple[Path, ...],
    remove_usage: bool,
    site: SiteOptions,
) -> None:
    """Read job records into the store: what is new in slurmdbd, or a file. Reading again changes nothing."""
    setup = site.read()
    if name:
        note_old("ingest --cluster", "--clusters")
    if spools:
        note_old("ingest --usage", "collect-usage --input")
        _collect(setup.root, spools, name, remove_usage, quiet)
        if not source:
            return
    said = None if quiet else sys.stderr

    def tell(step: ingests.Step) -> None:
        counts, merged = step.counts, step.merged
        if not quiet:
            click.echo(
                f"{step.what}: {counted(counts.lines, 'line')}: {counted(merged.added, 'new run')}, "
                f"{merged.changed} changed, {merged.unchanged} known, {counts.never_started} never started, "
                f"{counted(counts.steps, 'step')}"
            )
        if counts.rejected:
            click.echo(
                f"{step.what}: {counted(counts.rejected, 'line')} left out; hami-hpc bill names what is wrong", err=True
            )
        for gap in step.gaps:
            click.echo(gap, err=True)

    if source:
        export = ingests.Source(
            setup.tz, cluster=name or one_cluster(clusters), is_new_cluster=new_cluster, progress=said
        )
        ingests.ingest_files(setup.root, source, export, tell)
        return
    with failing_with(ExitCode.USAGE):
        since_s = parse_instant(since, setup.tz) if since else None
    slurmdbd = ingests.Source(setup.tz, clusters=clusters, reader=ingests.Reader(reader), progress=said)
    vanished = ingests.ingest_slurmdbd(setup.root, slurmdbd, since_s, int(time.time()), window_days * 86400, tell)
    if vanished:
        click.echo(f"{counted(vanished, 'run')} had not ended when last read, and slurmdbd has no record now", err=True)


@accounting_command("collect-usage")
@input_option("A copy of the nodes' usage directories (may be repeated).", required=True, multiple=True)
@click.option("--remove", is_flag=True, help="Delete the files whose records are in the store.")
@clusters_option("The cluster of records that do not say it, those of an older hami_hpc.")
@_quiet_option
@site_options
def collect_usage(source: tuple[Path, ...], remove: bool, clusters: str, quiet: bool, site: SiteOptions) -> None:
    """Read into the store what vGPU jobs used, as the nodes' epilogs wrote it. Reading again changes nothing."""
    _collect(site.read().root, source, one_cluster(clusters), remove, quiet)


def _collect(root: Path, directories: Sequence[Path], cluster: str, remove: bool, quiet: bool) -> None:
    for directory in directories:
        collected = usage_table.collect(root, directory, cluster, remove)
        if not quiet:
            click.echo(f"{directory}: {counted(collected.added, 'new usage record')}, {collected.known} known")
        for fault in collected.faults:
            click.echo(f"left out: {fault}", err=True)
