# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc balance`: what an account has left of its budgets and credits."""

from __future__ import annotations

import difflib
import json
import time
from datetime import date, timedelta

import click

from hami_hpc.accounting.documents import balance as balances
from hami_hpc.accounting.documents import invoice_files
from hami_hpc.accounting.documents.issuing import Issued
from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.formats import tables
from hami_hpc.accounting.pricing.budget import PACE_DAYS, BudgetState
from hami_hpc.accounting.pricing.rates import Rates
from hami_hpc.accounting.store import job_records
from hami_hpc.cli import colours
from hami_hpc.cli.accounting_options import Setup, SiteOptions, accounting_command, site_options
from hami_hpc.cli.exit_codes import ExitCode
from hami_hpc.cli.options import Failure, format_option


@accounting_command("balance", done="something is left, or nothing limits the account")
@click.argument("account")
@format_option("table", "json")
@site_options
def balance(account: str, form: str, site: SiteOptions) -> None:
    """What an account has left of its budgets and credits, and when it will be used up.

    Ends with 1 if a budget or the credits are used up, for a script that then holds the account's jobs. An error ends
    with 1 too; with --format json, "empty" is true only if nothing is left.
    """
    setup = site.read()
    if setup.prices is None:
        raise AccountingError("there are no rates; give --rates, or put rates.toml beside hami-hpc.toml")
    now_s = int(time.time())
    records = job_records.from_store(setup.root, None)
    issued = Issued(invoice_files.read_all(setup.root))
    found = balances.account_balance(records, setup.gpus, setup.prices, setup.tz, account, issued, now_s)
    if not (found.had or found.seen):
        _refuse_unknown(account, records, setup.prices)
    notes = [*setup.gaps]
    if records.read_until_s is not None and records.read_until_s < now_s - 86400:
        notes.append(job_records.read_until(setup.root, setup.tz))
    if form == "json":
        click.echo(json.dumps(_fields(found, notes), indent=2))
    else:
        click.echo(_text(found, setup.prices, notes))
    if found.is_empty:
        raise Failure(f"account {account} has nothing left: {_why(found, setup)}", ExitCode.FAILED)


def _refuse_unknown(account: str, records: job_records.JobRecords, prices: Rates) -> None:
    """Raises AccountingError: a mistyped name would be without any limit."""
    rows = records.con.execute(f"SELECT DISTINCT account FROM {records.source}").fetchall()
    limited = [*(entry.account for entry in prices.budgets), *(entry.account for entry in prices.credits)]
    near = difflib.get_close_matches(account, sorted({*(row[0] for row in rows), *limited}), 1)
    raise AccountingError(
        f"account {account} has no jobs in the store, and no budget or credit in rates.toml; "
        + (f"did you mean {near[0]}?" if near else "hami-hpc bill --by account names those with jobs")
    )


def _why(found: balances.AccountBalance, setup: Setup) -> str:
    used_up = [f"its budget in {state.unit} is used up" for state in found.budgets if state.is_empty]
    if found.credits and found.credit_left <= 0:
        used_up.append("its credits are used up")
    return " and ".join(used_up) or f"its budgets or credits in rates.toml have ended by {found.day}"


def _fields(found: balances.AccountBalance, notes: list[str]) -> dict[str, object]:
    return {
        "account": found.account,
        "day": found.day.isoformat(),
        "currency": found.currency,
        "empty": found.is_empty,
        "budgets": [
            {
                "unit": state.unit,
                "from": state.valid.start.isoformat(),
                "until": state.valid.end.isoformat(),
                "granted": str(state.granted),
                "used": str(state.used),
                "left": str(state.left),
                "percent": state.percent,
                "warning": state.warning,
                f"per_day_in_last_{PACE_DAYS}_days": str(state.pace_per_day),
                "used_up_on": state.empty_on and state.empty_on.isoformat(),
            }
            for state in found.budgets
        ],
        "credits": [
            {
                "credit": credit.credit,
                "granted": str(credit.granted),
                "used": str(credit.used),
                "left": str(credit.left),
            }
            for credit in found.credits
        ],
        "not_invoiced": str(found.pending),
        "credit_left": str(found.credit_left) if found.credits else None,
        "notes": notes,
    }


def _text(found: balances.AccountBalance, prices: Rates, notes: list[str]) -> str:
    lines = [f"Account {found.account} on {found.day}"]
    if found.budgets:
        rows = [_budget_row(state) for state in found.budgets]
        headings = ["Budget", "Last day", "Granted", "Used", "Left", "Used, %", "Used up on"]
        lines += ["", colours.table_head(tables.table(headings, rows, 5, []))]
    if found.credits:
        money = f"{{:,.{prices.digits}f}}"
        rows = [
            [credit.credit, _last_day(credit.valid.end), *map(money.format, (credit.granted, credit.used, credit.left))]
            for credit in found.credits
        ]
        headings = ["Credit", "Last day", f"Granted, {found.currency}", "Invoiced", "Left"]
        lines += ["", colours.table_head(tables.table(headings, rows, 3, [])), ""]
        lines.append(f"not invoiced yet: {found.currency} {money.format(found.pending)}, before discounts")
        lines.append(f"left of credits after that: {found.currency} {money.format(found.credit_left)}")
    if not found.budgets and not found.credits:
        lines += [
            "",
            "no budget or credit of it in rates.toml holds today" + (", and one has ended" if found.over else ""),
        ]
    return "\n".join([*lines, *(["", *notes] if notes else [])])


def _budget_row(state: BudgetState) -> list[str]:
    forecast = "used up" if state.is_empty else str(state.empty_on) if state.empty_on else "lasts"
    amounts = (f"{amount:,}" for amount in (state.granted, state.used, state.left))
    return [state.unit, _last_day(state.valid.end), *amounts, str(state.percent), forecast]


def _last_day(end: date) -> str:
    return "-" if end == date.max else str(end - timedelta(days=1))
