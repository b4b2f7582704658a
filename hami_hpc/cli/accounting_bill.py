# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc bill` and `hami-hpc check-bill`."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from hami_hpc.accounting.documents import balance
from hami_hpc.accounting.documents import bill as bills
from hami_hpc.accounting.documents import energy as energies
from hami_hpc.accounting.documents.sreport_check import compare_records
from hami_hpc.accounting.formats import tables
from hami_hpc.accounting.pricing import budget, quota
from hami_hpc.accounting.pricing.held_time import JOB, NOTHING
from hami_hpc.accounting.pricing.priced_period import price_period
from hami_hpc.accounting.store import job_records
from hami_hpc.accounting.times import Bucket, Period, local_date, month_period
from hami_hpc.cli import colours
from hami_hpc.cli.accounting_finance import finance_option, read_finance
from hami_hpc.cli.accounting_options import (
    RecordOptions,
    Setup,
    SiteOptions,
    accounting_command,
    failing_with,
    record_options,
    site_options,
)
from hami_hpc.cli.exit_codes import ExitCode
from hami_hpc.cli.options import format_option, note_old


@accounting_command("bill")
@record_options
@click.option(
    "--by",
    metavar="LIST",
    default="account,user",
    show_default=True,
    help="What the lines are of, separated by commas: " + ", ".join(bills.DIMENSIONS) + ".",
)
@click.option(
    "--account", "accounts", metavar="NAME", multiple=True, help="Only this account (may be repeated).  [default: all]"
)
@click.option("--energy", "with_energy", is_flag=True, help="Also the energy of the jobs, its cost and CO2.")
@finance_option
@format_option("table", "csv", "json")
@click.option("--check", "checked", is_flag=True, hidden=True)
@site_options
def bill(
    by: str,
    accounts: tuple[str, ...],
    with_energy: bool,
    finance: Path | None,
    form: str,
    checked: bool,
    site: SiteOptions,
    **given: Any,
) -> None:
    """GPU-hours held in a period, and their cost, by account and user (or whatever --by names).

    Records come from --input, else from the store that `hami-hpc ingest` keeps, else from sacct.
    """
    options = RecordOptions(**given)
    if checked:
        note_old("bill --check", "check-bill")
        _check(options, form, site)
    setup = site.read()
    period = options.period(setup.tz)
    dimensions = tuple(name.strip() for name in by.split(","))
    with failing_with(ExitCode.USAGE):
        bills.check_dimensions(dimensions)
        if with_energy:
            energies.check_dimensions(dimensions)
    rules = read_finance(site, finance)
    buckets = bills.buckets(period, dimensions, setup.tz)
    with options.records(setup, period, _quota_month(setup, period)) as whole:
        records = job_records.of_accounts(whole, accounts)
        detail = JOB if "job" in dimensions else NOTHING
        priced_period = price_period(records, setup.gpus, setup.prices, buckets, setup.tz, detail, dimensions)
        made = replace(bills.make_bill(priced_period, dimensions, setup.prices), accounts=accounts)
        gaps = [*setup.gaps, *priced_period.gaps, *job_records.gaps(records, period, setup.tz)]
        gaps += bills.cluster_notes(priced_period, dimensions)
        states = _quotas(setup, whole, period, accounts)
        gaps += _budgets(setup, records, period, accounts)
        energy = None
        if with_energy:
            price_period(records, setup.gpus, setup.prices, buckets, setup.tz)  # of this period, after the quotas'
            digits = setup.prices.digits if setup.prices else 2
            energy = energies.measure(records, period, setup.tz, dimensions, rules, digits)
            gaps.append(energy.note())
    if form == "csv":
        click.echo(tables.bill_csv(made, energy), nl=False)
        for note in (*tables.charged_lines(made), *tables.notes(made, priced_period.rejected, states), *gaps):
            click.echo(note, err=True)
    else:
        write = tables.bill_json if form == "json" else tables.bill_table
        text = write(made, setup.tz, priced_period.rejected, states, gaps, energy)
        click.echo(text if form == "json" else colours.table_head(text), nl=False)


@accounting_command(
    "check-bill",
    done="the records and sreport agree",
    found="the records and sreport differ",
)
@record_options
@format_option("table", "json")
@site_options
def check_bill(form: str, site: SiteOptions, **given: Any) -> None:
    """Compare the records of a period with sreport: every difference, with its reason as far as it is known.

    Compared are device-hours of gres/gpu and gres/vgpu by account and user. --clusters goes to sreport too.
    """
    _check(RecordOptions(**given), form, site)


def _check(options: RecordOptions, form: str, site: SiteOptions) -> None:
    """Prints the comparison and exits."""
    setup = site.read()
    period = options.period(setup.tz)
    with options.records(setup, period) as records:
        comparison = compare_records(records, period, int(time.time()), options.clusters)
    text = tables.check_json(comparison) if form == "json" else colours.table_head(tables.check_table(comparison))
    click.echo(text, nl=False)
    raise click.exceptions.Exit(ExitCode.FOUND if comparison.differences else ExitCode.DONE)


def _quota_month(setup: Setup, period: Period) -> Period | None:
    """Returns the calendar month whose quotas are on the period's bill, that of its last second; None without any."""
    if not setup.prices or not setup.prices.quotas:
        return None
    return month_period(local_date(period.end_s - 1, setup.tz).strftime("%Y-%m"), setup.tz)


def _quotas(
    setup: Setup, records: job_records.JobRecords, period: Period, only: Collection[str]
) -> tuple[quota.QuotaState, ...]:
    """Returns the quotas of the month, from all records of it that there are. only: of these accounts, none for all
    accounts and users."""
    month = _quota_month(setup, period)
    if not setup.prices or month is None:
        return ()
    asked = [entry for entry in setup.prices.quotas if not only or (entry.account and entry.account in only)]
    day = local_date(month.start_s, setup.tz)
    source = records.overlapping(month) if records.overlapping else records.source
    buckets = (Bucket("", month),)
    priced_period = price_period(replace(records, source=source), setup.gpus, None, buckets, setup.tz)
    accounts, users = (
        {entry.labels[0]: entry.held_ppm_s for entry in priced_period.sums(name)} for name in ("account", "user")
    )
    return quota.quota_states(asked, accounts, users, day)


def _budgets(setup: Setup, records: job_records.JobRecords, period: Period, accounts: Collection[str]) -> list[str]:
    """Returns a warning for each limit of a budget that is nearly used at the end of the period, or now if that is
    earlier. Exports have only their own time: budgets are those of a store."""
    if not setup.prices or not setup.prices.budgets or records.overlapping is None:
        return []
    until_s = max(period.start_s + 1, min(period.end_s, int(time.time())))
    found = [
        state
        for account in accounts or (None,)
        for state in balance.budget_states(records, setup.gpus, setup.prices, setup.tz, until_s, account)
    ]
    return [budget.sentence(state) for state in found if state.warning]
