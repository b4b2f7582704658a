# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc store`: takes back an ingest, and takes users' names out of the store."""

from __future__ import annotations

import time
from datetime import date, datetime
from pathlib import Path

import click

from hami_hpc.accounting.documents import invoice_files, privacy
from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.formats.tables import counted
from hami_hpc.accounting.store import anonymous, store_files, undo
from hami_hpc.accounting.times import day_start, iso_local
from hami_hpc.cli.accounting_options import (
    Setup,
    SiteOptions,
    accounting_command,
    failing_with,
    site_options,
    wrong_usage,
)
from hami_hpc.cli.exit_codes import ExitCode

_UNDO, _PRUNE, _PSEUDONYMISE = "undo", "prune", "pseudonymise"


@accounting_command("store")
@click.argument("action", type=click.Choice((_UNDO, _PRUNE, _PSEUDONYMISE)))
@click.option(
    "--before",
    metavar="DATE",
    help="Of prune and pseudonymise: runs that ended before this first day of a month.  [default of pseudonymise: this "
    "month's]",
)
@click.option("--key", type=click.Path(path_type=Path), help="Of pseudonymise: 32 bytes that only you can read.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and change nothing.")
@site_options
def store(action: str, before: str | None, key: Path | None, dry_run: bool, site: SiteOptions) -> None:
    """Take back the last ingest, or take users' names out of the store.

    undo: the store has again the job records that it had before the last call of hami-hpc ingest, all that it read is
    taken back at once; called again, the ingest before it. The next ingest from slurmdbd reads again what was taken
    back of slurmdbd. Usage records and invoices stay.

    prune: removes who ran what, so that only accounts are left. pseudonymise: replaces users' names by others, which
    only the key leads back to. Neither changes an amount, neither can be taken back, and what ended before is not read
    again. Issued invoices stay as they are, with the names on them.
    """
    if (before or key) and action == _UNDO:
        raise wrong_usage("undo takes neither --before nor --key")
    if (action == _PSEUDONYMISE) != bool(key):
        raise wrong_usage("pseudonymise needs --key, a file that only you can read; prune takes none")
    if action == _PRUNE and not before:
        raise wrong_usage("prune needs --before: the first day of a month, such as 2026-01-01")
    if action == _UNDO:
        _undo(site.read(), dry_run)
    else:
        _anonymise(site.read(), before, key, dry_run)


def _anonymise(setup: Setup, before: str | None, key_path: Path | None, dry_run: bool) -> None:
    with failing_with(ExitCode.USAGE):
        today = datetime.now(setup.tz).date()
        before_s = day_start(_day(before) if before else today.replace(day=1), setup.tz)
    key = anonymous.read_key(key_path) if key_path else None
    if not store_files.read_manifest(setup.root).generation:
        raise AccountingError(f"there is no accounting store in {setup.root}; see --store")
    if setup.undated:
        raise AccountingError(setup.undated)
    with store_files.locked(setup.root):
        documents = invoice_files.read_all(setup.root)
        manifest = store_files.read_manifest(setup.root)
        privacy.refuse_open(setup.root, manifest, before_s, int(time.time()), setup.tz)
        check = privacy.amounts_stay(setup.root, setup.gpus, setup.prices, setup.tz, before_s, documents)
        if key is None:
            done = anonymous.prune(setup.root, before_s, check, dry_run)
        else:
            done = anonymous.pseudonymise(setup.root, before_s, key, check, dry_run)
    verb = "would be" if dry_run else "are"
    named = "without a user" if key is None else "with a pseudonym"
    click.echo(
        f"before {iso_local(before_s, setup.tz)[:10]}: {counted(done.runs, 'run')} {verb} {named} "
        f"({counted(done.users, 'user')}), and {counted(done.records, 'usage record')}; "
        f"{counted(done.dropped, 'run')} without a GPU and {counted(done.rejects, 'rejected line')} {verb} gone"
        if key is None
        else f"before {iso_local(before_s, setup.tz)[:10]}: {counted(done.runs, 'run')} {verb} {named} "
        f"({counted(done.users, 'user')}), and {counted(done.records, 'usage record')}"
    )
    if done.timeless:
        click.echo(f"{counted(done.timeless, 'rejected line')} without a time stay as they are", err=True)
    if documents:
        click.echo("issued invoices keep the users' names that are on them", err=True)


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise AccountingError(f"'{text}' is not a day; write it as 2026-01-01") from error


def _undo(setup: Setup, dry_run: bool) -> None:
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
