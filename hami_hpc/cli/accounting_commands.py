# SPDX-License-Identifier: Apache-2.0
"""The accounting commands. ``commands`` maps their names; the group loads this module only when one is used."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

import click

from hami_hpc.accounting import bill as bills
from hami_hpc.accounting import ingest as ingests
from hami_hpc.accounting import quota, ratesfile, render, sacct, session, store
from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.rates import Rates
from hami_hpc.accounting.site import Site
from hami_hpc.accounting.times import (
    Bucket,
    Period,
    local_date,
    month_period,
    parse_instant,
    split_days,
    split_months,
    zone,
)
from hami_hpc.shell.config import load_settings, settings_path

_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Context:
    """What every command needs: the site, its rates (None without a rates.toml), its zone, and its store."""

    site: Site
    prices: Rates | None
    tz: ZoneInfo
    root: Path


def site_options(command: _F) -> _F:
    """--rates, --store and --timezone, with the site's settings behind them."""
    for option in (
        click.option("--timezone", help="zone of dates and of --input's local times; default: rates.toml's, else UTC"),
        click.option("--store", "root", type=click.Path(path_type=Path), help="default: accounting/ in the state_dir"),
        click.option(
            "--rates", "rates_path", type=click.Path(path_type=Path), help="default: /etc/hami-hpc/rates.toml"
        ),
    ):
        command = option(command)
    return command


def context(rates_path: Path | None, root: Path | None, timezone: str | None) -> Context:
    """Reads the settings. A rates.toml that is named must exist; the default one may be absent."""
    settings = load_settings(settings_path(os.environ))
    prices = ratesfile.load_rates(rates_path) if rates_path else None
    beside = Path(settings.path).with_name("rates.toml")
    if prices is None and beside.exists():
        prices = ratesfile.load_rates(beside)
    tz = zone(timezone or (prices.timezone if prices else "UTC"))
    site = session.site_of(settings, prices)
    return Context(site, prices, tz, root or Path(settings.state_dir) / "accounting")


@contextmanager
def records(chosen: Context, period: Period, source: Path | None, live: bool = False) -> Iterator[session.Records]:
    """The period's records: from --input, else the store, else (no store yet, or --live) from sacct now."""
    with tempfile.TemporaryDirectory(prefix="hami-hpc-") as directory:
        scratch = Path(directory)
        if source:
            export = sacct.open_export(source)
            yield session.from_export(export, chosen.tz, int(source.stat().st_mtime), scratch)
        elif live or not store.read_manifest(chosen.root).generation:
            export = sacct.fetch(period, scratch / "sacct")
            yield session.from_export(export, chosen.tz, int(time.time()), scratch)
        else:
            yield session.from_store(chosen.root, period)


@click.command()
@click.option("--start", help="first instant: 2026-11, 2026-11-21 or 2026-11-21T10:30")
@click.option("--end", help="first instant no longer billed; default: now")
@click.option("--month", help="a calendar month, 2026-11, instead of --start and --end")
@click.option("--by", default="account,user", show_default=True, help="comma list: " + ", ".join(bills.DIMENSIONS))
@click.option("--format", "form", type=click.Choice(["table", "csv", "json"]), default="table", show_default=True)
@click.option("--input", "source", type=click.Path(path_type=Path), help="a file of sacct -P lines with its header")
@click.option("--live", is_flag=True, help="ask sacct now, although there is a store")
@site_options
def bill(
    start: str | None,
    end: str | None,
    month: str | None,
    by: str,
    form: str,
    source: Path | None,
    live: bool,
    rates_path: Path | None,
    root: Path | None,
    timezone: str | None,
) -> None:
    """GPU-hours held in a period, and their cost, by account and user (or whatever --by names).

    Records come from --input, else from the store that `hami-hpc ingest` keeps, else from sacct.
    """
    chosen = context(rates_path, root, timezone)
    period = _period(start, end, month, chosen.tz)
    dimensions = tuple(name.strip() for name in by.split(","))
    buckets = split_days(period, chosen.tz) if "day" in dimensions else split_months(period, chosen.tz)
    with records(chosen, period, source, live) as found:
        answer = session.ask(found, chosen.site, chosen.prices, buckets, chosen.tz)
        states = _quotas(chosen, found, period)
    made = bills.make_bill(answer.usages, answer.priced, answer.segments, dimensions, chosen.prices)
    if form == "csv":
        click.echo(render.bill_csv(made), nl=False)
        for note in render.notes(made, answer.rejected, states):
            click.echo(note, err=True)
    elif form == "json":
        click.echo(render.bill_json(made, chosen.tz, answer.rejected, states), nl=False)
    else:
        click.echo(render.bill_table(made, chosen.tz, answer.rejected, states), nl=False)


def _period(start: str | None, end: str | None, month: str | None, tz: ZoneInfo) -> Period:
    if month:
        if start or end:
            raise AccountingError("give either --month or --start and --end")
        return month_period(month, tz)
    if not start:
        raise AccountingError("say which period: --month 2026-11, or --start 2026-11-01 --end 2026-11-08")
    return Period(parse_instant(start, tz), parse_instant(end, tz) if end else int(time.time()))


def _quotas(chosen: Context, found: session.Records, period: Period) -> tuple[quota.QuotaState, ...]:
    """Quotas are by calendar month: that of the period's last second, as far as the records at hand go."""
    if not chosen.prices or not chosen.prices.quotas:
        return ()
    day = local_date(period.end_s - 1, chosen.tz).replace(day=1)
    month = month_period(day.strftime("%Y-%m"), chosen.tz)
    answer = session.ask(found, chosen.site, None, (Bucket("", month),), chosen.tz)
    return quota.quota_states(chosen.prices.quotas, answer.usages.usages, day)


@click.command()
@click.option("--input", "source", type=click.Path(path_type=Path), help="a file of sacct -P lines, not sacct itself")
@click.option("--since", help="where to begin in an empty store, such as 2026-01")
@click.option(
    "--window-days", type=click.IntRange(1, 366), default=7, show_default=True, help="days for each sacct call"
)
@click.option("--cluster", default="", help="name for records of --input that carry none")
@click.option("--clusters", default="", help="sacct's -M: other clusters, or all")
@click.option("--quiet", is_flag=True, help="say nothing unless something is wrong")
@site_options
def ingest(
    source: Path | None,
    since: str | None,
    window_days: int,
    cluster: str,
    clusters: str,
    quiet: bool,
    rates_path: Path | None,
    root: Path | None,
    timezone: str | None,
) -> None:
    """Read job records into the store: what is new in sacct, or a file. Reading again changes nothing."""
    chosen = context(rates_path, root, timezone)
    reader = ingests.Source(chosen.tz, cluster, clusters)

    def tell(step: ingests.Step) -> None:
        counts, merged = step.counts, step.merged
        if not quiet:
            click.echo(
                f"{step.what}: {counts.lines} lines: {merged.added} new runs, {merged.changed} changed, "
                f"{merged.unchanged} known, {counts.never_started} never started, {counts.steps} steps"
            )
        if counts.rejected:
            click.echo(f"{step.what}: {counts.rejected} lines left out; hami-hpc bill names them", err=True)

    if source:
        tell(ingests.ingest_file(chosen.root, source, reader, int(source.stat().st_mtime)))
        return
    since_s = parse_instant(since, chosen.tz) if since else None
    vanished = ingests.ingest_sacct(chosen.root, reader, since_s, int(time.time()), window_days * 86400, tell)
    if vanished:
        click.echo(f"{vanished} runs had not ended when last read, and sacct knows them no more", err=True)


commands: Mapping[str, click.Command] = {"bill": bill, "ingest": ingest}
