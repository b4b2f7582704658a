# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc ledger`, `hami-hpc invoice paid` and `unpaid`, and what finance.toml adds to invoices."""

from __future__ import annotations

import csv
import io
import json
import os
import stat
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import click

from hami_hpc.accounting.documents import billing, invoice_files, issuing, payments
from hami_hpc.accounting.documents import ledger as ledgers
from hami_hpc.accounting.documents.invoice_files import Document
from hami_hpc.accounting.documents.payments import Payment
from hami_hpc.accounting.errors import AccountingError, printable
from hami_hpc.accounting.formats import html, tables, ubl
from hami_hpc.accounting.pricing import finance as finances
from hami_hpc.accounting.pricing.finance import Finance
from hami_hpc.accounting.store import store_files
from hami_hpc.accounting.times import iso_utc, month_period, today
from hami_hpc.cli import colours
from hami_hpc.cli.accounting_options import (
    SiteOptions,
    accounting_command,
    failing_with,
    month_option,
    site_options,
    wrong_usage,
)
from hami_hpc.cli.exit_codes import ExitCode
from hami_hpc.cli.options import config_path, format_option

TEMPLATES = "templates"
PAID, UNPAID = "paid", "unpaid"
finance_option = click.option(
    "--finance",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Recipients, tax, terms of payment, energy.  [default: finance.toml beside the settings, if it exists]",
)


def read_finance(site: SiteOptions, named: Path | None) -> Finance:
    """Reads finance.toml. The file that --finance names must exist; the default one may be absent."""
    path = Path(config_path(site.config)).with_name(finances.FILE_NAME)
    if named is None and path.exists():
        refuse_writable(path)
    return finances.load_finance(named or path) if named or path.exists() else Finance()


def site_templates(site: SiteOptions, named: Path | None) -> Path | None:
    """Returns the directory of the site's own templates: --templates, else templates/ beside the settings.

    A template is a program: that directory, which nobody named, counts only if no other user can write it. Raises
    AccountingError.
    """
    path = Path(config_path(site.config)).with_name(TEMPLATES)
    if named or not path.is_dir():
        return named
    for part in (path, *sorted(path.iterdir())):
        refuse_writable(part)
    return path


def refuse_writable(path: Path) -> None:
    """Raises AccountingError for a file that others than root and the caller may have written."""
    status = path.stat()
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
        raise AccountingError(
            f"{path} belongs to uid {status.st_uid} with mode {stat.S_IMODE(status.st_mode):04o}: others can write "
            f"what is on invoices. Run: chown root {path}; chmod go-w {path}"
        )


def bill_by(finance: Finance) -> issuing.Bill | None:
    """Returns what adds finance.toml to the content of an invoice; None if it says nothing of invoices."""
    return (lambda content: billing.build(finance, content)) if finance.bills else None


def refuse_unfit(documents: Sequence[Document]) -> None:
    """Raises AccountingError for the first document that cannot be an e-invoice."""
    for document in documents:
        if found := ubl.faults(document):
            raise AccountingError(
                f"the e-invoice of {document.content.account or '(none)'} ({document.number}): {'; '.join(found)}"
            )


def note_payments(site: SiteOptions, action: str, numbers: Sequence[str], day: str | None) -> None:
    """Notes that documents are paid, or that they are not."""
    if not numbers:
        raise wrong_usage(f"say which: hami-hpc invoice {action} NUMBER")
    if (action == PAID) != bool(day):
        raise wrong_usage("paid needs --date, the day on which the money came; unpaid takes none")
    with failing_with(ExitCode.USAGE):
        paid = _day(day) if day else None
    setup = site.read()
    root = setup.root
    if paid and paid > today(setup.tz):
        raise wrong_usage(f"--date {day} is in the future: note a payment when the money has come")
    if not store_files.read_manifest(root).generation:
        raise AccountingError(f"there is no accounting store in {root}; see --store")
    with store_files.locked(root):
        documents = invoice_files.read_all(root)
        known = {document.number: document for document in documents}
        before = payments.read(root, documents)
        entries = []
        for number in dict.fromkeys(numbers):
            if number not in known:
                raise AccountingError(f"there is no invoice {printable(number)}; hami-hpc ledger lists them")
            document = known[number]
            _check(document, before.get(number, ""), paid)
            if before.get(number, "") != (paid.isoformat() if paid else ""):
                noted = iso_utc(int(time.time()))
                entries.append(Payment(number, paid.isoformat() if paid else "", noted, document.digest))
        if entries:
            invoice_files.settle(root, documents)
            payments.append(root, entries)
    for number in dict.fromkeys(numbers):
        click.echo(f"{number}: {f'paid on {paid}' if paid else 'not paid'}")


def _check(document: Document, before: str, paid: date | None) -> None:
    if paid and paid.isoformat() < document.issued:
        raise AccountingError(f"{document.number} was issued on {document.issued}, after {paid}; correct --date")
    if paid and before and before != paid.isoformat():
        raise AccountingError(
            f"{document.number} was paid on {before}; take that back first: hami-hpc invoice unpaid {document.number}"
        )


def _day(text: str) -> date:
    try:
        day = date.fromisoformat(text)
        if day.isoformat() == text:
            return day
    except ValueError:
        pass
    raise AccountingError(f"'{text}' is not a day; write it as 2026-11-21")


@accounting_command("ledger")
@month_option("Documents of this month only, 2026-10.  [default: all]")
@click.option("--account", "accounts", metavar="NAME", multiple=True, help="Only this account (may be repeated).")
@format_option(
    "table",
    "csv",
    "json",
    "focus",
    help_text=f"Table: for people; focus: CSV of FOCUS {ledgers.FOCUS_VERSION}, a row for each charge.",
)
@finance_option
@site_options
def ledger(month: str | None, accounts: tuple[str, ...], form: str, finance: Path | None, site: SiteOptions) -> None:
    """All invoices and credit notes, with their tax, and what of them is paid.

    FOCUS is the FinOps Open Cost and Usage Specification. Amounts of credit notes are negative.
    """
    setup = site.read()
    if month:
        with failing_with(ExitCode.USAGE):
            month_period(month, setup.tz)
    documents = invoice_files.read_all(setup.root)
    paid = payments.read(setup.root, documents)
    chosen = {
        document.number
        for document in documents
        if month in (None, document.content.month) and (not accounts or document.content.account in accounts)
    }
    if form == "focus":
        prices = setup.prices
        seller = read_finance(site, finance).seller.name or (prices.issuer[0] if prices and prices.issuer else "")
        charges = ledgers.focus([document for document in documents if document.number in chosen], seller)
        # color: click would remove what looks like colours from names.
        click.echo(_csv(ledgers.FOCUS_COLUMNS, charges, False), nl=False, color=True)
        return
    rows = [row for row in ledgers.rows(documents, paid, today(setup.tz)) if row["number"] in chosen]
    if form == "csv":
        click.echo(_csv(ledgers.LEDGER_COLUMNS, rows, True), nl=False, color=True)
    elif form == "json":
        click.echo(json.dumps(rows, indent=2))
    else:
        click.echo(_table(rows) if rows else "no invoices")


def _csv(columns: Sequence[str], rows: Sequence[dict[str, str]], for_people: bool) -> str:
    """Returns rows as CSV. for_people: no text is read as a formula by a spreadsheet; FOCUS wants texts unchanged."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    amounts = ("subtotal", "discount", "credits", "net", "tax", "payable")
    for row in rows:
        writer.writerow(
            tables.safe_cell(row[name]) if for_people and name not in amounts else row[name] for name in columns
        )
    return out.getvalue()


def _table(rows: Sequence[dict[str, str]]) -> str:
    names = ("number", "kind", "account", "month", "due", "status", "paid", "currency", "net", "tax", "payable")
    shown = [
        [*(printable(row[name]) or "-" for name in names[:-3]), *(html.number(row[name]) for name in names[-3:])]
        for row in rows
    ]
    text = colours.table_head(tables.table([name.capitalize() for name in names], shown, 3, []))
    sums = [f"{currency} {amount:,}" for currency, amount in sorted(ledgers.unpaid(rows).items())]
    return "\n".join([text, "", f"not paid: {', '.join(sums) or 'nothing'}"])
