# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc efficiency` and `hami-hpc report`: they compare the usage of jobs with their allocations."""

from __future__ import annotations

import json
import os
import pwd
import time
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import click

from hami_hpc.accounting.documents import balance, bill, hierarchy, month_report, user_pages
from hami_hpc.accounting.documents import efficiency as eff
from hami_hpc.accounting.documents import energy as energies
from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.formats import html, tables
from hami_hpc.accounting.pricing.priced_period import price_period
from hami_hpc.accounting.pricing.rates import Rates
from hami_hpc.accounting.sources import account_tree
from hami_hpc.accounting.store import job_records, store_files, usage_table
from hami_hpc.accounting.times import Period, local_date, month_period, parse_instant, split_days, split_months
from hami_hpc.cli import colours
from hami_hpc.cli.accounting_files import make_directory, write_file
from hami_hpc.cli.accounting_finance import finance_option, read_finance, site_templates
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
from hami_hpc.cli.options import format_option, output_option
from hami_hpc.core.duration import duration, requests

_MONTH_S = 30 * 86400


@accounting_command("efficiency")
@click.argument("job", required=False)
@click.option("--user", metavar="NAME", help="This user's jobs, instead of one job.")
@click.option("--account", metavar="NAME", help="This account's jobs, instead of one job.")
@month_option("Jobs that ended in a calendar month, 2026-11.")
@click.option("--start", metavar="TIME", help="Jobs that ended since then.  [default: 30 days before --end]")
@click.option("--end", metavar="TIME", help="Jobs that ended before.  [default: now]")
@click.option(
    "--limit", type=click.IntRange(1), default=20, show_default=True, help="Jobs listed, most wasteful first."
)
@format_option("table", "json")
@site_options
def efficiency(
    job: str | None,
    user: str | None,
    account: str | None,
    month: str | None,
    start: str | None,
    end: str | None,
    limit: int,
    form: str,
    site: SiteOptions,
) -> None:
    """What a job (or a user's or account's jobs) used of what it held, and the request that would have sufficed.

    With rates also what each cost, before discounts and credits of its account. With --month alone: your own jobs.
    """
    if month and not (job or user or account):
        user = pwd.getpwuid(os.getuid()).pw_name
    if sum(bool(given) for given in (job, user, account)) != 1:
        raise wrong_usage("give one of: a job's number, --user, --account, or only --month for your own jobs")
    if month and (start or end or job):
        raise wrong_usage("--month goes with --user or --account, and without --start and --end")
    setup = site.read()
    if job:
        runs = _runs_of(setup, _OF_JOB, [job], None)
    else:
        with failing_with(ExitCode.USAGE):
            period = month_period(month, setup.tz) if month else _period(start, end, setup.tz)
        column, value = ("username", user) if user else ("account", account)
        where = f"{column} = $1 AND end_s >= $2 AND end_s < $3"
        runs = _runs_of(setup, where, [value, period.start_s, period.end_s], period)
    if not runs:
        raise AccountingError(_nothing_found(setup, job, user or account or "", bool(user)))
    if form == "json":
        click.echo(json.dumps([_fields(run, setup.prices) for run in runs], indent=2))
    elif job and len(runs) == 1:
        click.echo(_one_run(runs[0], setup.prices))
    else:
        click.echo(_many_runs(runs, limit, setup.prices))


def _period(start: str | None, end: str | None, tz: ZoneInfo) -> Period:
    end_s = parse_instant(end, tz) if end else int(time.time())
    return Period(parse_instant(start, tz) if start else end_s - _MONTH_S, end_s)


def _fields(run: eff.RunUse, prices: Rates | None) -> dict[str, object]:
    cost = None if run.cost is None else str(run.cost)
    return {**asdict(run), "cost": cost, "currency": prices and prices.currency, "suggestion": eff.suggestion(run)}


# The number of an array or of a heterogeneous job is also that of all its tasks and components: 100_3, 200+1.
_OF_JOB = (
    "display_id = $1 OR job_id::VARCHAR = $1 "
    "OR starts_with(display_id, $1 || '_') OR starts_with(display_id, $1 || '+')"
)


def _nothing_found(setup: Setup, job: str | None, owner: str, is_user: bool) -> str:
    read = f"{job_records.read_until(setup.root, setup.tz)}; run hami-hpc ingest for what is newer"
    if job:
        return f"there is no GPU job {job}: {read}"
    kind = "user" if is_user else "account"
    return f"no GPU job of {kind} {owner} ended in that time: {read}, or see --start and --end"


def _runs_of(setup: Setup, where: str, values: list[object], period: Period | None) -> list[eff.RunUse]:
    """Returns stored runs with their usage. where: a fixed SQL condition with placeholders."""
    found = job_records.from_store(setup.root, period)
    used = usage_table.stored(setup.root, store_files.read_manifest(setup.root))
    chosen = eff.choose(found, where, values)
    costs = eff.costs(chosen, setup.gpus, setup.prices, setup.tz) if setup.prices else None
    return eff.runs(chosen, used, setup.gpus, costs)


def _one_run(run: eff.RunUse, prices: Rates | None = None) -> str:
    held = f"{run.share_ppm / 1_000_000:g} GPU"
    if run.slices:
        held = f"{run.slices} x {run.mem_mib:,} MiB, {run.cores_percent} % of the GPU's time, class {run.service_class}"
    lines = [
        f"Job {run.job} of {run.user} ({run.account}), {run.state}",
        "",
        f"  held     {held}",
        f"  for      {duration(run.seconds)}, {run.held_gpu_s / 3600:.4f} GPU-hours",
    ]
    if run.off_gpu_s:
        lines.append(
            f"  off GPU  {duration(run.off_gpu_s)} of it: moved to the host by root's order, and not counted as unused"
        )
    if prices:
        amount = "not known: no rate" if run.cost is None else f"{prices.currency} {run.cost:,}"
        lines.append(f"  cost     {amount}, before discounts and credits" if run.cost else f"  cost     {amount}")
    if not run.measured:
        why = "no usage record of this job was collected"
        if not run.slices:
            why += "; only nodes with hami-hpc agent write one for a job with whole GPUs"
        return "\n".join([*lines, f"  used     not known: {why}"])
    lines += [
        f"  GPU      {_percent(run.gpu_percent)} used: busy for {duration(run.gpu_busy_s)}"
        + (f", held back for {duration(run.throttled_s)}" if run.slices else ", as the agent saw it"),
        f"  memory   {_percent(run.mem_percent)} at its peak: {run.peak_bytes / (1 << 20):,.0f} MiB",
    ]
    if run.slices:
        lines.append(f"  refused  {run.oom_count} requests for memory")
    if run.request_count:
        lines.append(f"  requests {requests(run.request_count, run.latency_p99_us, run.slo_miss_count)}")
    if run.damaged:
        lines.append("  the job's usage record was damaged; the figures are bounds")
    better = eff.suggestion(run)
    return "\n".join([*lines, "", f"  {better} would have sufficed" if better else "  the request fitted"])


def _many_runs(runs: list[eff.RunUse], limit: int, prices: Rates | None) -> str:
    """Returns a table of the most wasteful runs, those of which the use is not known last, with sums of all."""
    measured = [run for run in runs if run.measured]
    held, used = sum(run.on_gpu_s for run in measured), sum(run.used_gpu_s for run in measured)
    off = sum(run.held_gpu_s for run in measured) - held
    of_several = len({run.cluster for run in runs}) > 1
    rows = [
        [
            *([run.cluster] if of_several else []),
            run.job,
            run.state,
            (eff.suggestion(run) or "as asked") if run.measured else "not known",
            *([_cost(run.cost)] if prices else []),
            f"{run.held_gpu_s / 3600:.2f}",
            _percent(run.gpu_percent),
            _percent(run.mem_percent),
            str(run.oom_count) if run.measured else "-",
        ]
        for run in sorted(runs, key=lambda run: (not run.measured, -run.wasted_gpu_s, -run.held_gpu_s))[:limit]
    ]
    cost = [prices.currency] if prices else []
    first = ["Cluster"] if of_several else []
    headings = [*first, "Job", "State", "Would have sufficed", *cost, "GPU-hours", "GPU used", "Memory", "Refused"]
    share = f"{100 * used / held:.1f} % of {held / 3600:.2f} GPU-hours used" if held else "nothing held"
    share += f", and {off / 3600:.2f} held off the GPU" if off else ""
    unknown = f"; of {len(runs) - len(measured)} more it is not known" if len(runs) > len(measured) else ""
    shown = colours.table_head(tables.table(headings, rows, 4 + len(cost), []))
    said = [f"{tables.counted(len(measured), 'job')} measured: {share}{unknown}"]
    if prices:
        total = sum((run.cost for run in runs if run.cost is not None), Decimal(0))
        rest = sum(run.cost is None for run in runs)
        said.append(
            f"{tables.counted(len(runs), 'job')} cost {prices.currency} {total:,}, before discounts and credits"
            + (f"; {tables.counted(rest, 'job')} without a rate" if rest else "")
        )
    return "\n".join([shown, "", *said])


def _cost(amount: Decimal | None) -> str:
    return "-" if amount is None else f"{amount:,}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} %"


@accounting_command("report")
@month_option("A calendar month, 2026-11.", required=True)
@output_option("The HTML file to write.", required=True)
@click.option(
    "--tree",
    metavar="FILE",
    help=f"The accounts' tree: what '{' '.join(account_tree.COMMAND)}' printed; {account_tree.ASK} runs that.",
)
@click.option(
    "--users", type=click.Path(path_type=Path, file_okay=False), help="The directory for a page of each user."
)
@templates_option
@finance_option
@site_options
def report(
    month: str,
    output: Path,
    tree: str | None,
    users: Path | None,
    templates: Path | None,
    finance: Path | None,
    site: SiteOptions,
) -> None:
    """The monthly cluster report: one self-contained HTML file.

    --tree adds the hierarchy of accounts, with users below their accounts; --users writes a page for each user.
    """
    setup = site.read()
    with failing_with(ExitCode.USAGE):
        period = month_period(month, setup.tz)
    if period.start_s > time.time():
        raise AccountingError(f"{month} has not begun; give a month that has")
    branches = account_tree.read(tree) if tree else {}
    if users:
        make_directory(users)
    # A month that is not over would only seem to be less than the one before.
    previous = _month_before(setup, period) if period.end_s <= time.time() else None
    found = job_records.from_store(setup.root, period)
    prices = setup.prices or Rates()
    used = usage_table.stored(setup.root, store_files.read_manifest(setup.root))
    # Efficiency is known only for measured jobs, so the database returns only these.
    where = f"end_s >= $1 AND end_s < $2 AND job_id IN (SELECT job_id FROM {used})"
    chosen = eff.choose(found, where, [period.start_s, period.end_s])
    costs = eff.costs(chosen, setup.gpus, setup.prices, setup.tz) if setup.prices else None
    runs = eff.runs(chosen, used, setup.gpus, costs)
    until_s = max(period.start_s + 1, min(period.end_s, int(time.time())))
    budgets = balance.budget_states(found, setup.gpus, prices, setup.tz, until_s) if prices.budgets else []
    # Last, because the report asks for more of it.
    priced_period = price_period(found, setup.gpus, setup.prices, split_days(period, setup.tz), setup.tz)
    made = bill.make_bill(priced_period, ("account",), setup.prices)
    gaps = [*setup.gaps, *priced_period.gaps, *job_records.gaps(found, period, setup.tz)]
    notes = tables.notes(made, priced_period.rejected) + tables.charged_lines(made) + gaps
    read_until_s = found.read_until_s or int(time.time())
    built = month_report.build(
        month, priced_period, prices, runs, notes, read_until_s, previous, setup.prices is not None, budgets
    )
    rules = read_finance(site, finance)
    energy = energies.measure(found, period, setup.tz, ("account",), rules, prices.digits)
    own_templates = site_templates(site, templates)
    shares = hierarchy.shares(priced_period.sums("cluster", "account", "user"), setup.prices)
    currency = setup.prices.currency if setup.prices else ""
    sections = [html.energy_section(energy, prices.currency, own_templates)]
    if tree or users:
        rows = hierarchy.rows(shares, branches)
        sections.insert(0, html.tree_section(rows, currency, own_templates))
    write_file(output, html.report(built, setup.tz, prices.issuer, own_templates, sections).encode())
    if users:
        days = split_days(period, setup.tz)
        pages = user_pages.build(month, shares, priced_period.sums("user", "day"), [d.label for d in days], runs)
        for page in pages:
            text = html.user_page(page, currency, prices.issuer, own_templates)
            write_file(users / page.file_name, text.encode("utf-8", "replace"))


def _month_before(setup: Setup, period: Period) -> tuple[str, month_report.Sums] | None:
    """Returns the month before and its sums; None if the store has no job in it."""
    name = local_date(period.start_s - 1, setup.tz).strftime("%Y-%m")
    before = month_period(name, setup.tz)
    found = job_records.from_store(setup.root, before)
    made = price_period(found, setup.gpus, setup.prices, split_months(before, setup.tz), setup.tz)
    sums = month_report.sums_of(made, setup.prices)
    found.con.close()
    return (name, sums) if sums.accounts else None
