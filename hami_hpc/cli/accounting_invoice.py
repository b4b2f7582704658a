# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc invoice` and `hami-hpc balances`."""

from __future__ import annotations

import difflib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import date
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import click

from hami_hpc.accounting.documents import credits, invoice_files, issuing, notes
from hami_hpc.accounting.documents import invoice as invoices
from hami_hpc.accounting.documents.invoice_files import Document
from hami_hpc.accounting.documents.issuing import Issued
from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.formats import html, tables
from hami_hpc.accounting.formats.pdf import html_to_pdf, require_weasyprint
from hami_hpc.accounting.pricing.held_time import facts_by_account
from hami_hpc.accounting.pricing.priced_period import PricedPeriod, price_period
from hami_hpc.accounting.pricing.rates import Rates, segments
from hami_hpc.accounting.store import job_records, store_files
from hami_hpc.accounting.times import Period, month_period, split_days, split_months
from hami_hpc.cli import colours
from hami_hpc.cli.accounting_files import make_directory, write_file
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
@month_option("A calendar month that is over, 2026-10.")
@_account_option
@click.option("--draft", is_flag=True, help="Show what stands, and what would be issued; number and keep nothing.")
@click.option("--correct", is_flag=True, help="Cancel invoices that would be others today, and issue new ones.")
@output_option("The directory for the HTML files.", file_okay=False)
@click.option("--pdf", is_flag=True, help="Write PDF files beside the HTML (needs hami-hpc[pdf]).")
@templates_option
@format_option("table", "json")
@click.option("--balances", "show_balances", is_flag=True, hidden=True)
@site_options
def invoice(
    month: str | None,
    accounts: tuple[str, ...],
    draft: bool,
    correct: bool,
    output: Path | None,
    pdf: bool,
    templates: Path | None,
    form: str,
    show_balances: bool,
    site: SiteOptions,
) -> None:
    """Numbered invoices of a month, one for each account.

    Issuing a month again gives the same invoices. Where the records or rates of the month have changed since, the old
    invoice stands and is named, with the difference; with --correct a credit note cancels it and a new one replaces it.
    """
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
    # Find out that files cannot be written before numbers are assigned, because that cannot be undone.
    if pdf and not output:
        raise wrong_usage("--pdf needs --output: the directory for the files")
    if pdf:
        require_weasyprint()
    if output:
        make_directory(output)
    kept: list[issuing.Proposal] = []
    if draft:
        proposals = _drafts(setup, prices, month, period, accounts)
        documents = [_draft(proposal, prices) for proposal in proposals]
        shown = _drafts_json(proposals, documents) if form == "json" else _drafts_table(proposals, documents, prices)
    else:
        documents, kept = _issue(setup, prices, month, period, accounts, correct)
        shown = _documents_json(documents) if form == "json" else _documents_table(documents, prices.currency)
    click.echo(shown if documents or form == "json" else f"no GPU job in {month}")
    if output:
        _write_documents(documents, output, pdf, templates)
    for proposal in kept:
        click.echo(_kept_text(proposal), err=True)
    if kept:
        raise click.exceptions.Exit(ExitCode.FOUND)


def _write_documents(documents: Sequence[Document], directory: Path, pdf: bool, templates: Path | None) -> None:
    for document in documents:
        name = document.number if document.sequence else f"DRAFT-{_file_name(document.content.account)}"
        text = html.invoice(document, templates)
        write_file(directory / f"{name}.html", text.encode())
        if pdf:
            write_file(directory / f"{name}.pdf", html_to_pdf(text))


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


def _documents_json(documents: Sequence[Document]) -> str:
    return json.dumps([asdict(document) for document in documents], indent=2)


def _documents_table(documents: Sequence[Document], currency: str) -> str:
    rows = [
        [d.number, d.kind, d.content.account or "(none)", d.refers_to or "-", html.number(d.content.total, _sign(d))]
        for d in documents
    ]
    total = sum((Decimal(d.content.total) * _sign(d) for d in documents), Decimal(0))
    headings = ["Number", "Kind", "Account", "Refers to", currency]
    return colours.table_head(tables.table(headings, rows, 1, ["Total", "", "", "", html.number(total)]))


def _sign(document: Document) -> int:
    return -1 if document.kind == invoice_files.CREDIT_NOTE else 1


def _file_name(account: str) -> str:
    """Returns an account's name for a file's name, with each unsuitable character replaced by its code."""
    return "".join(letter if letter.isalnum() or letter in "-_" else f"%{ord(letter):02X}" for letter in account)


def _issue(
    setup: Setup, prices: Rates, month: str, period: Period, accounts: tuple[str, ...], correct: bool
) -> tuple[list[Document], list[issuing.Proposal]]:
    """Returns each account's documents, those that stand or are new, and what was not corrected."""
    if period.end_s > time.time():
        raise AccountingError(f"{month} is not over; --draft shows what it comes to so far")
    store = store_files.read_manifest(setup.root)
    if fault := job_records.zone_fault(store.timezone, setup.tz):
        raise AccountingError(fault)
    behind = [name for name, until_s in store.read_until_s.items() if until_s < period.end_s]
    if behind:
        raise AccountingError(
            f"the store was read from {behind[0]} only up to within {month}; run hami-hpc ingest first"
        )
    if setup.undated:
        raise AccountingError(setup.undated)
    if not store.generation:
        raise AccountingError(f"there is no accounting store in {setup.root}; run hami-hpc ingest, or see --store")
    # Records, rates and documents of one moment: neither an ingest nor another invoice can come between.
    with store_files.locked(setup.root):
        documents = invoice_files.read_all(setup.root)
        invoice_files.settle(setup.root, documents)
        issued = Issued(documents)
        letterhead = issuing.Letterhead(date.today().isoformat(), prices.issuer, prices.invoice_prefix)
        shown: list[Document] = []
        kept: list[issuing.Proposal] = []
        for account, build in _builders(setup, prices, month, period, issued, accounts).items():
            proposal = issuing.propose(issued, account, month, prices.currency, build)
            if proposal.standing and not (correct and proposal.differs):
                shown.append(proposal.standing)
                kept += [proposal] if proposal.differs else []
            else:
                shown += issuing.issue(issued, proposal, letterhead)
        if new := issued.documents[len(documents) :]:
            invoice_files.commit(setup.root, new)
    return shown, kept


def _drafts(
    setup: Setup, prices: Rates, month: str, period: Period, accounts: tuple[str, ...]
) -> list[issuing.Proposal]:
    issued = Issued(invoice_files.read_all(setup.root))
    builders = _builders(setup, prices, month, period, issued, accounts)
    return [issuing.propose(issued, account, month, prices.currency, build) for account, build in builders.items()]


def _builders(
    setup: Setup, prices: Rates, month: str, period: Period, issued: Issued, accounts: Sequence[str]
) -> dict[str, issuing.Build]:
    """Returns what makes the content of each account's invoice, for ``accounts`` or else for all of the month."""
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
    times = invoices.account_times(priced_period)
    # An account without jobs in the records any more can still have an invoice that needs a credit note.
    known = sorted({*times, *issued.accounts(month)})
    _refuse_unknown(accounts, known, month)
    said = _notes(found, prices, period, setup.tz, priced_period)
    _tell(said, accounts, known)

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
            click.echo(f"{where}{account or '(none)'}: {sentence}", err=True)


def _draft(proposal: issuing.Proposal, prices: Rates) -> Document:
    refers_to = proposal.standing.number if proposal.standing and proposal.differs else ""
    return Document("DRAFT", 0, invoice_files.INVOICE, refers_to, "not issued", prices.issuer, proposal.content)


def _drafts_json(proposals: Sequence[issuing.Proposal], documents: Sequence[Document]) -> str:
    """Each draft, with the invoice that stands (null if none does) and the difference to it."""
    entries = []
    for proposal, document in zip(proposals, documents, strict=True):
        standing = proposal.standing
        stands = {"number": standing.number, "total": standing.content.total} if standing else None
        entries.append({**asdict(document), "stands": stands, "difference": str(proposal.difference)})
    return json.dumps(entries, indent=2)


def _drafts_table(proposals: Sequence[issuing.Proposal], documents: Sequence[Document], prices: Rates) -> str:
    """The drafts; if an invoice stands for one of them, with what stands and the differences."""
    if not any(proposal.standing for proposal in proposals):
        return _documents_table(documents, prices.currency)
    nothing = Decimal(0).scaleb(-prices.digits)
    rows, sums = [], [nothing] * 3
    for proposal in proposals:
        standing = proposal.standing
        amounts = [
            Decimal(standing.content.total) if standing else nothing,
            Decimal(proposal.content.total),
            proposal.difference,
        ]
        sums = [total + amount for total, amount in zip(sums, amounts, strict=True)]
        change = "new" if standing is None else "differs" if proposal.differs else "unchanged"
        numbers = [html.number(amount) for amount in amounts]
        rows.append([proposal.content.account or "(none)", standing.number if standing else "-", change, *numbers])
    headings = ["Account", "Stands", "Draft", f"{prices.currency}, stands", f"{prices.currency}, draft", "Difference"]
    return colours.table_head(tables.table(headings, rows, 3, ["Total", "", "", *map(html.number, sums)]))


def _kept_text(proposal: issuing.Proposal) -> str:
    standing, content = proposal.standing, proposal.content
    assert standing is not None
    same_money = standing.content.currency == content.currency
    difference = f" (difference {html.number(proposal.difference)})" if same_money else ""
    return (
        f"{standing.number} of {content.account or '(none)'} stands with "
        f"{standing.content.currency} {html.number(standing.content.total)}; by today's records and rates it would be "
        f"{content.currency} {html.number(content.total)}{difference}: --draft shows it, --correct issues a credit "
        "note and a new invoice"
    )


def _refuse_unknown(accounts: Sequence[str], known: Sequence[str], month: str) -> None:
    """Raises AccountingError for a mistyped name: it would become an empty invoice, whose number cannot be reused."""
    for account in accounts:
        if account not in known:
            near = difflib.get_close_matches(account, known, 1)
            hint = f"; did you mean {near[0]}?" if near else "; hami-hpc bill --by account names those that did"
            raise AccountingError(f"account {account} held no GPU in {month}{hint}")
