# SPDX-License-Identifier: Apache-2.0
"""The accounting commands that explain rather than bill: efficiency, report; and invoice."""

from __future__ import annotations

import difflib
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from datetime import date
from decimal import Decimal
from pathlib import Path

import click

from hami_hpc.accounting.documents import efficiency as eff
from hami_hpc.accounting.documents import invoice, invoice_files
from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.formats import html, tables
from hami_hpc.accounting.formats.pdf import html_to_pdf, require_weasyprint
from hami_hpc.accounting.pricing.priced_period import price_period
from hami_hpc.accounting.pricing.rates import Rates
from hami_hpc.accounting.store import job_records, store_files, usage_table
from hami_hpc.accounting.times import Period, month_period, parse_instant, split_days
from hami_hpc.cli.accounting_options import Context, context, site_options
from hami_hpc.core.duration import duration

_MONTH_S = 30 * 86400


@click.command()
@click.argument("job", required=False)
@click.option("--user", help="this user's jobs, instead of one job")
@click.option("--account", help="this account's jobs, instead of one job")
@click.option("--start", help="jobs that ended since; default: 30 days ago")
@click.option("--end", help="jobs that ended before; default: now")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="jobs listed, most wasteful first")
@click.option("--json", "as_json", is_flag=True, help="one object a job, for machines")
@site_options
def efficiency(
    job: str | None,
    user: str | None,
    account: str | None,
    start: str | None,
    end: str | None,
    limit: int,
    as_json: bool,
    rates_path: Path | None,
    root: Path | None,
    timezone: str | None,
) -> None:
    """What a job (or a user's or account's jobs) used of what it held, and the request that would have sufficed."""
    if sum(bool(given) for given in (job, user, account)) != 1:
        raise AccountingError("give one of: a job's number, --user, --account")
    chosen = context(rates_path, root, timezone)
    if job:
        runs = runs_of(chosen, "display_id = $1 OR job_id::VARCHAR = $1", [job], None)
    else:
        end_s = parse_instant(end, chosen.tz) if end else int(time.time())
        period = Period(parse_instant(start, chosen.tz) if start else end_s - _MONTH_S, end_s)
        column, value = ("username", user) if user else ("account", account)
        where = f"{column} = $1 AND end_s >= $2 AND end_s < $3"
        runs = runs_of(chosen, where, [value, period.start_s, period.end_s], period)
    if not runs:
        raise AccountingError(_nothing_found(chosen, job, user or account or "", bool(user)))
    if as_json:
        click.echo(json.dumps([{**asdict(run), "suggestion": eff.suggestion(run)} for run in runs], indent=2))
    else:
        click.echo(_one_run(runs[-1]) if job and len(runs) == 1 else _many_runs(runs, limit))


def _nothing_found(chosen: Context, job: str | None, owner: str, is_user: bool) -> str:
    read = f"{job_records.read_until(chosen.root, chosen.tz)}; run hami-hpc ingest for what is newer"
    if job:
        return f"there is no GPU job {job}: {read}"
    kind = "user" if is_user else "account"
    return f"no GPU job of {kind} {owner} ended in that time: {read}, or see --start and --end"


def runs_of(chosen: Context, where: str, values: list[object], period: Period | None) -> list[eff.RunUse]:
    """Stored runs with what they used. where: SQL of ours with placeholders."""
    found = job_records.from_store(chosen.root, period)
    used = usage_table.stored(chosen.root, store_files.read_manifest(chosen.root))
    return eff.runs(found.con, found.source, used, chosen.gpus, where, values)


def _one_run(run: eff.RunUse) -> str:
    held = f"{run.share_ppm / 1_000_000:g} GPU"
    if run.slices:
        held = f"{run.slices} x {run.mem_mib:,} MiB, {run.cores_percent} % of the GPU's time, class {run.service_class}"
    lines = [
        f"Job {run.job} of {run.user} ({run.account}), {run.state}",
        "",
        f"  held     {held}",
        f"  for      {duration(run.seconds)}, {run.held_gpu_s / 3600:.4f} GPU-hours",
    ]
    if not run.measured:
        why = "no usage record of this job was collected" if run.slices else "only vGPU jobs leave usage records"
        return "\n".join([*lines, f"  used     not known: {why}"])
    lines += [
        f"  GPU      {_percent(run.gpu_percent)} used: busy for {duration(run.gpu_busy_s)}, "
        f"held back for {duration(run.throttled_s)}",
        f"  memory   {_percent(run.mem_percent)} at its peak: {run.peak_bytes / (1 << 20):,.0f} MiB",
        f"  refused  {run.oom_count} requests for memory",
    ]
    if run.damaged:
        lines.append("  the job's usage record was damaged; the figures are bounds")
    better = eff.suggestion(run)
    return "\n".join([*lines, "", f"  {better} would have sufficed" if better else "  the request fitted"])


def _many_runs(runs: list[eff.RunUse], limit: int) -> str:
    measured = [run for run in runs if run.measured]
    held, used = sum(run.held_gpu_s for run in measured), sum(run.gpu_busy_s for run in measured)
    rows = [
        [
            run.job,
            run.state,
            eff.suggestion(run) or "as asked",
            f"{run.held_gpu_s / 3600:.2f}",
            _percent(run.gpu_percent),
            _percent(run.mem_percent),
            str(run.oom_count),
        ]
        for run in sorted(measured, key=lambda run: -run.wasted_gpu_s)[:limit]
    ]
    headings = ["Job", "State", "Would have sufficed", "GPU-hours", "GPU used", "Memory", "Refused"]
    share = f"{100 * used / held:.1f} % of {held / 3600:.2f} GPU-hours used" if held else "nothing held"
    unknown = f"; of {len(runs) - len(measured)} more it is not known" if len(runs) > len(measured) else ""
    return f"{tables.table(headings, rows, 4, [])}\n\n{len(measured)} jobs measured: {share}{unknown}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} %"


@click.command("report")
@click.option("--month", required=True, help="a calendar month, 2026-11")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="the HTML file to write")
@click.option(
    "--templates", type=click.Path(path_type=Path, exists=True, file_okay=False), help="a site's own templates"
)
@site_options
def report_command(
    month: str, out: Path, templates: Path | None, rates_path: Path | None, root: Path | None, timezone: str | None
) -> None:
    """The monthly cluster report: one self-contained HTML file."""
    from hami_hpc.accounting.documents import bill, month_report

    chosen = context(rates_path, root, timezone)
    period = month_period(month, chosen.tz)
    if period.start_s > time.time():
        raise AccountingError(f"{month} has not begun; give a month that has")
    found = job_records.from_store(chosen.root, period)
    priced_period = price_period(found, chosen.gpus, chosen.prices, split_days(period, chosen.tz), chosen.tz)
    prices = chosen.prices or Rates()
    made = bill.make_bill(priced_period.held_times, priced_period.priced, priced_period.segments, ("account",), None)
    notes = tables.notes(made, priced_period.rejected) + job_records.gaps(found, period, chosen.tz)
    used = usage_table.stored(chosen.root, store_files.read_manifest(chosen.root))
    # Only what was measured can be judged; the rest need not leave the database.
    where = f"end_s >= $1 AND end_s < $2 AND job_id IN (SELECT job_id FROM {used})"
    runs = eff.runs(found.con, found.source, used, chosen.gpus, where, [period.start_s, period.end_s])
    read_until_s = found.read_until_s or int(time.time())
    built = month_report.build(found.con, month, priced_period, prices, runs, notes, read_until_s)
    _write(out, html.report(built, chosen.tz, prices.issuer, templates).encode())


@click.command("invoice")
@click.option("--month", help="a calendar month that is over, 2026-10")
@click.option("--account", "accounts", multiple=True, help="only this account (may be repeated); default: all")
@click.option("--draft", is_flag=True, help="show what would be issued; number and keep nothing")
@click.option("--balances", is_flag=True, help="what is left of each account's credits, instead of invoices")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="directory for the HTML files")
@click.option("--pdf", is_flag=True, help="PDF files beside the HTML (needs hami-hpc[pdf])")
@click.option(
    "--templates", type=click.Path(path_type=Path, exists=True, file_okay=False), help="a site's own templates"
)
@click.option("--json", "as_json", is_flag=True, help="the documents, instead of a table")
@site_options
def invoice_command(
    month: str | None,
    accounts: tuple[str, ...],
    draft: bool,
    balances: bool,
    out: Path | None,
    pdf: bool,
    templates: Path | None,
    as_json: bool,
    rates_path: Path | None,
    root: Path | None,
    timezone: str | None,
) -> None:
    """Numbered invoices of a month, one for each account.

    Issuing a month again gives the same invoices; where the records or rates of the month have changed since, a
    credit note takes the old invoice back and a new one replaces it.
    """
    chosen = context(rates_path, root, timezone)
    if chosen.prices is None:
        raise AccountingError("an invoice needs rates; give --rates, or put rates.toml beside hami-hpc.toml")
    if balances:
        click.echo(_balances(chosen, chosen.prices, accounts, as_json))
        return
    if not month:
        raise AccountingError("say which month: --month 2026-10")
    # What cannot be written must be found before numbers are given, which cannot be taken back.
    if pdf and not out:
        raise AccountingError("--pdf needs --out: the directory for the files")
    if pdf:
        require_weasyprint()
    if out:
        _make_directory(out)
    documents = _issue(chosen, chosen.prices, month, accounts, draft)
    if as_json:
        click.echo(json.dumps([asdict(document) for document in documents], indent=2))
    else:
        click.echo(_documents_table(documents, chosen.prices.currency) if documents else f"no GPU job in {month}")
    if out:
        for document in documents:
            name = document.number if document.sequence else f"DRAFT-{_file_name(document.content.account)}"
            text = html.invoice(document, templates)
            _write(out / f"{name}.html", text.encode())
            if pdf:
                _write(out / f"{name}.pdf", html_to_pdf(text))


def _balances(chosen: Context, prices: Rates, accounts: Sequence[str], as_json: bool) -> str:
    documents = invoice_files.read_all(chosen.root)
    every = invoice.balances(prices, lambda account: invoice_files.used_credit(documents, account, None))
    found = [balance for balance in every if not accounts or balance.account in accounts]
    rows = []
    for balance in found:
        start, end = (
            day.isoformat() if day not in (date.min, date.max) else ""
            for day in (balance.valid.start, balance.valid.end)
        )
        amounts = (f"{amount:.{prices.digits}f}" for amount in (balance.granted, balance.used, balance.left))
        rows.append([balance.account, balance.note, start, end, *amounts])
    names = ("account", "note", "from", "until", "granted", "used", "left")
    if as_json:
        return json.dumps(
            [{**dict(zip(names, row, strict=True)), "currency": prices.currency} for row in rows], indent=2
        )
    if not rows:
        return "no credits in rates.toml" + (" for " + ", ".join(accounts) if accounts else "")
    shown = [[*(cell or "-" for cell in row[:4]), *(html.number(cell) for cell in row[4:])] for row in rows]
    headings = [
        *(name.capitalize() for name in names[:4]),
        *(f"{name.capitalize()}, {prices.currency}" for name in names[4:]),
    ]
    return tables.table(headings, shown, 3, [])


def _documents_table(documents: Sequence[invoice_files.Document], currency: str) -> str:
    rows = [
        [d.number, d.kind, d.content.account or "(none)", d.refers_to or "-", html.number(d.content.total, _sign(d))]
        for d in documents
    ]
    total = sum((Decimal(d.content.total) * _sign(d) for d in documents), Decimal(0))
    headings = ["Number", "Kind", "Account", "Refers to", currency]
    return tables.table(headings, rows, 1, ["Total", "", "", "", html.number(total)])


def _sign(document: invoice_files.Document) -> int:
    return -1 if document.kind == invoice_files.CREDIT_NOTE else 1


def _file_name(account: str) -> str:
    """An account's name where it is fit for a file, and else with what is not replaced by its code."""
    return "".join(letter if letter.isalnum() or letter in "-_" else f"%{ord(letter):02X}" for letter in account)


def _issue(
    chosen: Context, prices: Rates, month: str, accounts: tuple[str, ...], draft: bool
) -> list[invoice_files.Document]:
    period = month_period(month, chosen.tz)
    if period.end_s > time.time() and not draft:
        raise AccountingError(f"{month} is not over; --draft shows what it comes to so far")
    manifest = store_files.read_manifest(chosen.root)
    behind = [name for name, until_s in manifest.read_until_s.items() if until_s < period.end_s]
    if behind and not draft:
        raise AccountingError(
            f"the store was read from {behind[0]} only up to within {month}; run hami-hpc ingest first"
        )
    found = job_records.from_store(chosen.root, period)
    priced_period = price_period(found, chosen.gpus, prices, split_days(period, chosen.tz), chosen.tz)
    notes = [
        f"left out of all invoices: {omitted.runs} jobs: {omitted.reason}"
        for omitted in priced_period.held_times.left_out
    ]
    first = date.fromisoformat(f"{month}-01")
    issued: list[invoice_files.Document] = []
    with nullcontext() if draft else store_files.locked(chosen.root):
        documents = list(invoice_files.read_all(chosen.root))
        # An account whose jobs have all gone from the records still has an invoice to take back.
        issued_before = {d.content.account for d in documents if d.content.month == month}
        known = sorted({*invoice.accounts_of(priced_period.priced), *issued_before})
        _refuse_unknown(accounts, known, month)
        for account in dict.fromkeys(accounts) or known:

            def build(used: Mapping[str, Decimal], account: str = account) -> invoice.Content:
                return invoice.build(account, first, priced_period.priced, priced_period.segments, prices, used, notes)

            if draft:
                current = invoice_files.standing(documents, account, month)
                content = build(invoice_files.used_credit(documents, account, current))
                issued.append(
                    invoice_files.Document("DRAFT", 0, invoice_files.INVOICE, "", "not issued", prices.issuer, content)
                )
                continue
            today, prefix = date.today().isoformat(), prices.invoice_prefix
            issued += invoice_files.issue(chosen.root, documents, account, month, build, today, prices.issuer, prefix)
    return issued


def _refuse_unknown(accounts: Sequence[str], known: Sequence[str], month: str) -> None:
    """A name that is mistyped must not become an invoice over nothing, which has a number for ever."""
    for account in accounts:
        if account not in known:
            near = difflib.get_close_matches(account, known, 1)
            hint = f"; did you mean {near[0]}?" if near else "; hami-hpc bill --by account names those that did"
            raise AccountingError(f"account {account} held no GPU in {month}{hint}")


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise AccountingError(f"{path} cannot be written to: {error.strerror}; see --out") from error


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise AccountingError(f"{path} cannot be written: {error.strerror}; see --out") from error
    click.echo(str(path), err=True)
