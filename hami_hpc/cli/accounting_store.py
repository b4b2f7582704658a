# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc store`: takes back an ingest."""

from __future__ import annotations

import click

from hami_hpc.accounting.formats.tables import counted
from hami_hpc.accounting.store import store_files, undo
from hami_hpc.accounting.times import iso_local
from hami_hpc.cli.accounting_options import Setup, SiteOptions, accounting_command, site_options


@accounting_command("store")
@click.argument("action", type=click.Choice(("undo",)))
@click.option("--dry-run", is_flag=True, help="Say what would be taken back, and change nothing.")
@site_options
def store(action: str, dry_run: bool, site: SiteOptions) -> None:
    """Take back the last ingest: the store has again the job records that it had before.

    All that one call of hami-hpc ingest read is taken back at once; called again, the ingest before it. The next ingest
    from slurmdbd reads again what was taken back of slurmdbd. Usage records and invoices stay.
    """
    setup = site.read()
    entry = undo.last(setup.root) if dry_run else undo.undo(setup.root)
    verb = "would take" if dry_run else "took"
    click.echo(f"{verb} back the ingest of {iso_local(entry.at_s, setup.tz)} from {entry.what}: {_content(entry)}")
    left = len(store_files.read_manifest(setup.root).ingests) - (1 if dry_run else 0)
    click.echo(f"{counted(left, 'ingest')} before it can be taken back too")
    if _has_newer_invoices(setup, entry):
        click.echo(
            "invoices were issued since then: hami-hpc invoice --month YYYY-MM --draft shows what differs", err=True
        )


def _content(entry: store_files.Ingest) -> str:
    counts = f"{counted(entry.added, 'new run')}, {entry.changed:,} changed"
    return f"{counts}, {counted(entry.rejected, 'line')} left out"


def _has_newer_invoices(setup: Setup, entry: store_files.Ingest) -> bool:
    folder = setup.root / "invoices"
    return any(path.stat().st_mtime >= entry.at_s for path in folder.glob("*.json"))
