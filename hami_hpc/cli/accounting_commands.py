# SPDX-License-Identifier: Apache-2.0
"""The accounting commands. ``commands`` maps their names; the group loads this module only when one is used."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import ClassVar
from zoneinfo import ZoneInfo

import click

from hami_hpc.accounting.documents import bill as bills
from hami_hpc.accounting.documents import sreport_check
from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.formats import tables
from hami_hpc.accounting.pricing import quota
from hami_hpc.accounting.pricing.priced_period import price_period
from hami_hpc.accounting.sources import sacct, sacct_json
from hami_hpc.accounting.store import ingest as ingests
from hami_hpc.accounting.store import job_records, store_files, usage_table
from hami_hpc.accounting.times import (
    Bucket,
    Period,
    local_date,
    month_period,
    parse_instant,
    split_days,
    split_months,
)
from hami_hpc.cli.accounting_options import Context, context, site_options
from hami_hpc.contract import constants as contract


@contextmanager
def records(
    chosen: Context, period: Period, source: Path | None, live: bool = False
) -> Iterator[job_records.JobRecords]:
    """The period's records: from --input, else the store, else (no store yet, or --live) from sacct now. A store that
    is named must be there."""
    with tempfile.TemporaryDirectory(prefix="hami-hpc-") as directory:
        scratch = Path(directory)
        if source:
            export = sacct_json.open_input(source, scratch)
            yield job_records.from_export(export, chosen.tz, int(source.stat().st_mtime), scratch)
        elif live or not (chosen.root_named or store_files.read_manifest(chosen.root).generation):
            export = sacct.fetch(period, scratch / "sacct")
            yield job_records.from_export(export, chosen.tz, int(time.time()), scratch)
        else:
            yield job_records.from_store(chosen.root, period)


@click.command()
@click.option("--start", help="first instant: 2026-11, 2026-11-21 or 2026-11-21T10:30")
@click.option("--end", help="first instant no longer billed; default: now")
@click.option("--month", help="a calendar month, 2026-11, instead of --start and --end")
@click.option("--by", default="account,user", show_default=True, help="comma list: " + ", ".join(bills.DIMENSIONS))
@click.option("--format", "form", type=click.Choice(["table", "csv", "json"]), default="table", show_default=True)
@click.option(
    "--input",
    "source",
    type=click.Path(path_type=Path),
    help="a file of sacct -P lines with its header, or of sacct --json",
)
@click.option("--live", is_flag=True, help="ask sacct now, although there is a store")
@click.option(
    "--check",
    "checked",
    is_flag=True,
    help="compare with sreport instead; status 0 when they agree, 1 when they differ, 2 when it failed",
)
@click.option("--clusters", default="", help="with --check, sreport's -M: other clusters, or all")
@site_options
def bill(
    start: str | None,
    end: str | None,
    month: str | None,
    by: str,
    form: str,
    source: Path | None,
    live: bool,
    checked: bool,
    clusters: str,
    rates_path: Path | None,
    root: Path | None,
    timezone: str | None,
) -> None:
    """GPU-hours held in a period, and their cost, by account and user (or whatever --by names).

    JobRecords come from --input, else from the store that `hami-hpc ingest` keeps, else from sacct.
    """
    chosen = context(rates_path, root, timezone)
    period = _period(start, end, month, chosen.tz)
    if checked:
        result = _checked(chosen, period, source, live, clusters)
        click.echo(tables.check_json(result) if form == "json" else tables.check_table(result), nl=False)
        raise SystemExit(1 if result.differences else 0)
    dimensions = tuple(name.strip() for name in by.split(","))
    bills.check_dimensions(dimensions)
    buckets = split_days(period, chosen.tz) if "day" in dimensions else split_months(period, chosen.tz)
    with records(chosen, period, source, live) as found:
        priced_period = price_period(found, chosen.gpus, chosen.prices, buckets, chosen.tz)
        states = _quotas(chosen, found, period)
        gaps = job_records.gaps(found, period, chosen.tz)
    made = bills.make_bill(
        priced_period.held_times, priced_period.priced, priced_period.segments, dimensions, chosen.prices
    )
    if form == "csv":
        click.echo(tables.bill_csv(made), nl=False)
        for note in (*tables.notes(made, priced_period.rejected, states), *gaps):
            click.echo(note, err=True)
    elif form == "json":
        click.echo(tables.bill_json(made, chosen.tz, priced_period.rejected, states, gaps), nl=False)
    else:
        click.echo(tables.bill_table(made, chosen.tz, priced_period.rejected, states, gaps), nl=False)


class _NotComparedError(click.ClickException):
    exit_code = 2


def _checked(
    chosen: Context, period: Period, source: Path | None, live: bool, clusters: str
) -> sreport_check.Comparison:
    """The comparison; one that failed has a status of its own, so that it is not taken for one that differs."""
    try:
        with records(chosen, period, source, live) as found:
            return sreport_check.compare_records(found, period, int(time.time()), clusters)
    except AccountingError as error:
        raise _NotComparedError(str(error).removeprefix(contract.ERROR_PREFIX)) from error


def _period(start: str | None, end: str | None, month: str | None, tz: ZoneInfo) -> Period:
    if month:
        if start or end:
            raise AccountingError("give either --month or --start and --end")
        return month_period(month, tz)
    if not start:
        raise AccountingError("say which period: --month 2026-11, or --start 2026-11-01 --end 2026-11-08")
    return Period(parse_instant(start, tz), parse_instant(end, tz) if end else int(time.time()))


def _quotas(chosen: Context, found: job_records.JobRecords, period: Period) -> tuple[quota.QuotaState, ...]:
    """Quotas are by calendar month: that of the period's last second, as far as the records at hand go."""
    if not chosen.prices or not chosen.prices.quotas:
        return ()
    day = local_date(period.end_s - 1, chosen.tz).replace(day=1)
    month = month_period(day.strftime("%Y-%m"), chosen.tz)
    priced_period = price_period(found, chosen.gpus, None, (Bucket("", month),), chosen.tz)
    return quota.quota_states(chosen.prices.quotas, priced_period.held_times.groups, day)


@click.command()
@click.option(
    "--input", "source", type=click.Path(path_type=Path), help="a file as of sacct -P or sacct --json, not sacct itself"
)
@click.option(
    "--source",
    "reader",
    type=click.Choice([reader.value for reader in ingests.Reader]),
    default=ingests.Reader.SACCT.value,
    show_default=True,
    help="what asks slurmdbd; pyslurm must fit the Slurm at hand (docs/accounting.md)",
)
@click.option("--since", help="where to begin in an empty store, such as 2026-01")
@click.option("--window-days", type=click.IntRange(1, 366), default=7, show_default=True, help="days read at a time")
@click.option("--cluster", default="", help="name for records of --input that carry none")
@click.option("--clusters", default="", help="sacct's -M: other clusters, or all")
@click.option(
    "--usage", "spools", type=click.Path(path_type=Path), multiple=True, help="a usage spool (may be repeated)"
)
@click.option("--remove-usage", is_flag=True, help="delete usage files that are safely stored")
@click.option("--quiet", is_flag=True, help="say nothing unless something is wrong")
@site_options
def ingest(
    source: Path | None,
    reader: str,
    since: str | None,
    window_days: int,
    cluster: str,
    clusters: str,
    spools: tuple[Path, ...],
    remove_usage: bool,
    quiet: bool,
    rates_path: Path | None,
    root: Path | None,
    timezone: str | None,
) -> None:
    """Read job records into the store: what is new in slurmdbd, or a file. Reading again changes nothing.

    --usage reads what vGPU jobs used, from a copy of the nodes' usage directories, and leaves slurmdbd alone.
    """
    chosen = context(rates_path, root, timezone)
    said = None if quiet else sys.stderr
    slurmdbd = ingests.Source(chosen.tz, cluster, clusters, ingests.Reader(reader), progress=said)

    def tell(step: ingests.Step) -> None:
        counts, merged = step.counts, step.merged
        if not quiet:
            click.echo(
                f"{step.what}: {counts.lines} lines: {merged.added} new runs, {merged.changed} changed, "
                f"{merged.unchanged} known, {counts.never_started} never started, {counts.steps} steps"
            )
        if counts.rejected:
            click.echo(f"{step.what}: {counts.rejected} lines left out; hami-hpc bill names them", err=True)

    for directory in spools:
        collected = usage_table.collect(chosen.root, directory, cluster, remove_usage)
        if not quiet:
            click.echo(f"{directory}: {collected.added} new usage records, {collected.known} known")
        for fault in collected.faults:
            click.echo(f"left out: {fault}", err=True)
    if source:
        tell(ingests.ingest_file(chosen.root, source, slurmdbd, int(source.stat().st_mtime)))
    if source or spools:
        return
    since_s = parse_instant(since, chosen.tz) if since else None
    vanished = ingests.ingest_slurmdbd(chosen.root, slurmdbd, since_s, int(time.time()), window_days * 86400, tell)
    if vanished:
        click.echo(f"{vanished} runs had not ended when last read, and slurmdbd knows them no more", err=True)


class _Commands(Mapping[str, click.Command]):
    """By name. The reports' module is imported when one of its commands is asked for: bill has no use for it."""

    _REPORTS: ClassVar = {
        "invoice": "invoice_command",
        "efficiency": "efficiency",
        "report": "report_command",
    }
    _HERE: ClassVar = {"bill": bill, "ingest": ingest}

    def __getitem__(self, name: str) -> click.Command:
        if name in self._HERE:
            return self._HERE[name]
        command: click.Command = getattr(import_module("hami_hpc.cli.accounting_reports"), self._REPORTS[name])
        return command

    def __iter__(self) -> Iterator[str]:
        return iter((*self._HERE, *self._REPORTS))

    def __len__(self) -> int:
        return len(self._HERE) + len(self._REPORTS)


commands = _Commands()
