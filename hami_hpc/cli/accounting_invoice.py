# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc invoice` and `hami-hpc balances`."""

from __future__ import annotations

import difflib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from zoneinfo import ZoneInfo

import click

from hami_hpc.accounting.documents import credits, invoice_files, issuing, notes
from hami_hpc.accounting.documents import invoice as invoices
from hami_hpc.accounting.documents.invoice_files import Document
from hami_hpc.accounting.documents.issuing import Issued
from hami_hpc.accounting.errors import AccountingError, printable
from hami_hpc.accounting.formats import html, tables
from hami_hpc.accounting.pricing import discount
from hami_hpc.accounting.pricing.finance import Finance
from hami_hpc.accounting.pricing.held_time import RUN, facts_by_account
from hami_hpc.accounting.pricing.priced_period import PricedPeriod, price_period
from hami_hpc.accounting.pricing.rates import Rates, segments
from hami_hpc.accounting.store import job_records, store_files
from hami_hpc.accounting.times import Period, month_period, split_days, split_months, today
from hami_hpc.cli import colours
from hami_hpc.cli.accounting_annex import write_annexes
from hami_hpc.cli.accounting_documents import file_names, prepare, write_documents
from hami_hpc.cli.accounting_finance import (
    PAID,
    UNPAID,
    bill_by,
    finance_option,
    note_payments,
    read_finance,
    refuse_unfit,
    site_templates,
)
from hami_hpc.cli.accounting_invoice_tables import (
    documents_json,
    documents_table,
    drafts_json,
    drafts_table,
    kept_text,
)
from hami_hpc.cli.accounting_options import (
    Setup,
    SiteOptions,
    accounting_command,
    failing_with,
    month_option,
    site_options,
    templates_option,
    wrong_usage,
)
from hami_hpc.cli.exit_codes import ExitCode
from hami_hpc.cli.options import format_option, note_old, output_option

_account_option = click.option(
    "--account", "accounts", metavar="NAME", multiple=True, help="Only this account (may be repeated).  [default: all]"
)


@accounting_command("invoice", found="an invoice stands that would be another one today; it was left as it is")
@click.argument("action", required=False, type=click.Choice((PAID, UNPAID)))
@click.argument("numbers", metavar="[NUMBERS]", nargs=-1)
@click.option("--date", "day", metavar="DAY", help="Of paid: the day on which the money came, 2026-11-21.")
@month_option("A calendar month that is over, 2026-10.")
@_account_option
@click.option("--draft", is_flag=True, help="Show what stands, and what would be issued; number and keep nothing.")
@click.option("--correct", is_flag=True, help="Cancel invoices that would be others today, and issue new ones.")
@output_option("The directory for the HTML files.", file_okay=False)
@click.option("--pdf", is_flag=True, help="Write PDF files beside the HTML (needs WeasyPrint).")
@click.option("--annex", "with_annex", is_flag=True, help="Write the jobs of each invoice beside the HTML, as CSV.")
@click.option("--ubl", "e_invoice", is_flag=True, help="Write e-invoices beside the HTML (EN 16931, UBL 2.1).")
@templates_option
@finance_option
@format_option("table", "json")
@click.option("--balances", "show_balances", is_flag=True, hidden=True)
@site_options
def invoice(
    action: str | None,
    numbers: tuple[str, ...],
    day: str | None,
    month: str | None,
    accounts: tuple[str, ...],
    draft: bool,
    correct: bool,
    output: Path | None,
    pdf: bool,
    with_annex: bool,
    e_invoice: bool,
    templates: Path | None,
    finance: Path | None,
    form: str,
    show_balances: bool,
    site: SiteOptions,
) -> None:
    """Numbered invoices of a month, one for each account.

    Issuing a month again gives the same invoices. Where the records or rates of the month have changed since, the old
    invoice stands and is named, with the difference; with --correct a credit note cancels it and a new one replaces it.

    hami-hpc invoice paid NUMBER --date DAY notes that an invoice is paid, unpaid NUMBER that it is not; hami-hpc ledger
    lists both.
    """
    if action:
        note_payments(site, action, numbers, day)
        return
    if not month and not show_balances:
        raise wrong_usage("say which month: --month 2026-10")
    setup, prices = _with_rates(site)
    if show_balances or not month:
        note_old("invoice --balances", "balances")
        click.echo(_balances(setup, prices, accounts, form))
        return
    if setup.tz.key != prices.timezone:
        raise wrong_usage(f"--timezone {setup.tz.key}: invoices are of months in {prices.timezone}, as rates.toml says")
    with failing_with(ExitCode.USAGE):
        period = month_period(month, setup.tz)
    if draft and correct:
        raise wrong_usage("give either --draft, which changes nothing, or --correct")
    prepare(output, pdf=pdf, annex=with_annex, ubl=e_invoice)
    job = _Job(setup, prices, month, period, accounts, read_finance(site, finance), e_invoice)
    kept: list[issuing.Proposal] = []
    if draft:
        proposals = _drafts(job)
        documents = [_draft(proposal, prices) for proposal in proposals]
        shown = drafts_json(proposals, documents) if form == "json" else drafts_table(proposals, documents)
    else:
        documents, kept = _issue(job, correct)
        shown = documents_json(documents) if form == "json" else documents_table(documents)
    click.echo(shown if documents or form == "json" else f"no GPU job in {month}")
    if output:
        named = file_names(documents)
        write_documents(named, output, pdf, e_invoice, site_templates(site, templates))
        if with_annex:
            write_annexes(named, output, setup, prices, period)
    for proposal in kept:
        click.echo(kept_text(proposal), err=True)
    if kept:
        raise click.exceptions.Exit(ExitCode.FOUND)


@dataclass(frozen=True, slots=True)
class _Job:
    """What is to be issued, or drafted: the invoices of a month. accounts: none for all. e_invoice: each document must
    be one that EN 16931 allows."""

    setup: Setup
    prices: Rates
    month: str
    period: Period
    accounts: tuple[str, ...]
    finance: Finance
    e_invoice: bool


@accounting_command("balances")
@_account_option
@format_option("table", "json")
@site_options
def balances(accounts: tuple[str, ...], form: str, site: SiteOptions) -> None:
    """Credits of each account: granted, used by invoices that stand, and left."""
    setup, prices = _with_rates(site)
    click.echo(_balances(setup, prices, accounts, form))


def _with_rates(site: SiteOptions) -> tuple[Setup, Rates]:
    setup = site.read()
    if setup.prices is None:
        raise AccountingError("there are no rates; give --rates, or put rates.toml beside hami-hpc.toml")
    return setup, setup.prices


def _balances(setup: Setup, prices: Rates, accounts: Sequence[str], form: str) -> str:
    documents = invoice_files.read_all(setup.root)
    uses = Issued(documents).credit_uses(prices.currency)
    for fault in credits.unknown_uses(prices, uses):
        click.echo(fault, err=True)
    found = [b for b in credits.balances(prices, uses) if not accounts or b.account in accounts]
    rows = []
    for balance in found:
        start, end = (
            day.isoformat() if day not in (date.min, date.max) else ""
            for day in (balance.valid.start, balance.valid.end)
        )
        amounts = (f"{amount:.{prices.digits}f}" for amount in (balance.granted, balance.used, balance.left))
        rows.append([balance.account, balance.credit, balance.note, start, end, *amounts])
    names = ("account", "credit", "note", "from", "until", "granted", "used", "left")
    if form == "json":
        return json.dumps(
            [{**dict(zip(names, row, strict=True)), "currency": prices.currency} for row in rows], indent=2
        )
    if not rows:
        return "no credits in rates.toml" + (" for " + ", ".join(accounts) if accounts else "")
    shown = [[*(cell or "-" for cell in row[:5]), *(html.number(cell) for cell in row[5:])] for row in rows]
    headings = [
        *(name.capitalize() for name in names[:5]),
        *(f"{name.capitalize()}, {prices.currency}" for name in names[5:]),
    ]
    return colours.table_head(tables.table(headings, shown, 3, []))


def _issue(job: _Job, correct: bool) -> tuple[list[Document], list[issuing.Proposal]]:
    """Returns each account's documents, those that stand or are new, and what was not corrected."""
    setup, prices, month, period = job.setup, job.prices, job.month, job.period
    if period.end_s > time.time():
        raise AccountingError(f"{month} is not over; --draft shows what it comes to so far")
    _refuse_unread(job)  # before the lock, which makes the folders of a store
    # Records, rates and documents of one moment: neither an ingest nor another invoice can come between.
    with store_files.locked(setup.root):
        _refuse_unread(job)
        documents = invoice_files.read_all(setup.root)
        invoice_files.settle(setup.root, documents)
        issued = Issued(documents)
        letterhead = issuing.Letterhead(
            today(setup.tz).isoformat(), prices.issuer, prices.invoice_prefix, job.finance.due_days
        )
        shown: list[Document] = []
        kept: list[issuing.Proposal] = []
        bill = bill_by(job.finance)
        for account, build in _builders(job, issued).items():
            proposal = issuing.propose(issued, account, month, prices.currency, build, bill)
            if proposal.standing and not (correct and proposal.differs):
                shown.append(proposal.standing)
                kept += [proposal] if proposal.differs else []
            else:
                shown += issuing.issue(issued, proposal, letterhead)
        if job.e_invoice:
            refuse_unfit(shown)
        if new := issued.documents[len(documents) :]:
            _keep(setup.root, new)
    return shown, kept


def _refuse_unread(job: _Job) -> None:
    """Raises AccountingError if the store does not have the job's whole month, or its amounts would not be certain."""
    setup = job.setup
    store = store_files.read_manifest(setup.root)
    if fault := job_records.zone_fault(store.timezone, setup.tz):
        raise AccountingError(fault)
    behind = [name for name, until_s in store.read_until_s.items() if until_s < job.period.end_s]
    if behind:
        raise AccountingError(
            f"the store was read from {behind[0]} only up to within {job.month}; run hami-hpc ingest first"
        )
    if setup.undated:
        raise AccountingError(setup.undated)
    if not store.generation:
        raise AccountingError(f"there is no accounting store in {setup.root}; run hami-hpc ingest, or see --store")


def _keep(root: Path, new: Sequence[Document]) -> None:
    try:
        invoice_files.commit(root, new)
    except OSError as error:  # of the register, which decides on all of them
        raise AccountingError(
            f"{error.filename or root} cannot be written ({error.strerror}): make room, and run this again; it issues "
            "what is not issued yet, and no number twice"
        ) from error


def _drafts(job: _Job) -> list[issuing.Proposal]:
    issued = Issued(invoice_files.read_all(job.setup.root))
    bill = bill_by(job.finance)
    return [
        issuing.propose(issued, account, job.month, job.prices.currency, build, bill)
        for account, build in _builders(job, issued).items()
    ]


def _builders(job: _Job, issued: Issued) -> dict[str, issuing.Build]:
    """Returns what makes the content of each account's invoice, for the job's accounts or else for all of the month."""
    setup, prices, month, period, accounts = job.setup, job.prices, job.month, job.period, job.accounts
    currency = prices.currency
    credits.refuse_unknown_uses(prices, issued.credit_uses(currency), issued.used_in_others(currency))
    found = job_records.from_store(setup.root, period)
    priced_period = price_period(found, setup.gpus, prices, split_days(period, setup.tz), setup.tz)
    for gap in (
        *setup.gaps,
        *priced_period.gaps,
    ):  # not on the invoices: it would change them all once there are usage records
        click.echo(gap, err=True)
    first = date.fromisoformat(f"{month}-01")
    times = invoices.account_times(priced_period, prices)
    # An account without jobs in the records any more can still have an invoice that needs a credit note.
    known = sorted({*times, *issued.accounts(month)})
    _refuse_unknown(accounts, known, month)
    said = _notes(found, prices, period, setup.tz, priced_period)
    _tell(said, accounts, known)
    if discount.needs_runs(prices, first):
        whole = split_months(period, setup.tz)
        invoices.add_runs(times, price_period(found, setup.gpus, prices, whole, setup.tz, RUN))

    def builder(account: str) -> issuing.Build:
        own, own_notes = times.get(account, invoices.AccountTime()), said.get(account, ())
        return lambda uses: invoices.build(account, first, own, priced_period.segments, prices, uses, own_notes)

    return {account: builder(account) for account in dict.fromkeys(accounts) or known}


def _notes(
    found: job_records.JobRecords, prices: Rates, period: Period, tz: ZoneInfo, priced_period: PricedPeriod
) -> dict[str, tuple[str, ...]]:
    """Returns the notes on each account's own jobs: what a bill of the month would say of them."""
    whole = segments(prices, split_months(period, tz), tz)
    edges = sorted({edge for part in whole for edge in (part.period.start_s, part.period.end_s)})
    rejected = job_records.rejected_by_account(found, period)
    for note in rejected.pop("", ()):  # nobody knows whose they are
        click.echo(f"on no invoice, of lines that name no account: {note}", err=True)
    return notes.by_account(priced_period, facts_by_account(found.con, edges), rejected)


def _tell(said: Mapping[str, Sequence[str]], accounts: Sequence[str], known: Sequence[str]) -> None:
    """Prints the notes on the accounts concerned, also on those that get no invoice, as all their jobs are left out."""
    for account, sentences in said.items():
        if accounts and account not in accounts:
            continue
        where = "" if account in known else "no invoice: "
        for sentence in sentences:
            click.echo(f"{where}{printable(account) or '(none)'}: {sentence}", err=True)


def _draft(proposal: issuing.Proposal, prices: Rates) -> Document:
    refers_to = proposal.standing.number if proposal.standing and proposal.differs else ""
    return Document(
        "DRAFT", 0, invoice_files.INVOICE, refers_to, "not issued", prices.issuer, proposal.content,
        billing=proposal.billing,
    )  # fmt: skip


def _refuse_unknown(accounts: Sequence[str], known: Sequence[str], month: str) -> None:
    """Raises AccountingError for a mistyped name: it would become an empty invoice, whose number cannot be reused."""
    for account in accounts:
        if account not in known:
            near = difflib.get_close_matches(account, known, 1)
            hint = f"; did you mean {near[0]}?" if near else "; hami-hpc bill --by account names those that did"
            raise AccountingError(f"account {account} held no GPU in {month}{hint}")
