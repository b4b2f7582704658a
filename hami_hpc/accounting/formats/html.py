# SPDX-License-Identifier: Apache-2.0
"""Writes invoices and reports as self-contained HTML: one file, without scripts or external files."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from zoneinfo import ZoneInfo

from jinja2 import ChoiceLoader, Environment, FileSystemLoader, PackageLoader, StrictUndefined
from markupsafe import Markup

from hami_hpc.accounting.documents.efficiency import suggestion
from hami_hpc.accounting.documents.energy import EnergyUse
from hami_hpc.accounting.documents.hierarchy import Row
from hami_hpc.accounting.documents.invoice_files import Document
from hami_hpc.accounting.documents.month_report import MonthReport
from hami_hpc.accounting.documents.user_pages import UserPage
from hami_hpc.accounting.formats import charts, tables
from hami_hpc.core.duration import duration

MODE_NAMES = {
    "gpu": "whole GPU",
    "mig": "MIG instance",
    "vgpu": "vGPU slice",
    "shard": "shards",
    "cpu": "CPUs",
    "mem": "node memory",
    "license": "licences",
}


@lru_cache(maxsize=8)
def environment(templates: Path | None) -> Environment:
    """Returns the template environment. A template in the site's own directory replaces ours of the same name."""
    ours = PackageLoader("hami_hpc.accounting.formats", "templates")
    loader = ChoiceLoader([FileSystemLoader(templates), ours]) if templates else ours
    env = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    env.filters["number"] = number
    env.filters["shortened"] = charts.shortened
    return env


def number(value: str | int | Decimal, sign: int = 1) -> str:
    """Returns a number times ``sign`` with thousands separators, and without a minus before zero."""
    signed = Decimal(value) * sign
    return f"{signed if signed else abs(signed):,}"


def invoice(document: Document, templates: Path | None = None) -> str:
    """Returns an issued invoice or credit note as HTML. The same document gives the same bytes."""
    days = document.content.days
    chart = charts.bars(
        f"GPU-hours by day in {document.content.month}",
        "GPU-hours",
        [day[-2:] for day, _ in days],
        [("", [float(hours) for _, hours in days])],
    )
    return (
        environment(templates)
        .get_template("invoice.html.j2")
        .render(document=document, chart=Markup(chart), mode_names=MODE_NAMES, digest=document.printed_digest)
    )


def energy_section(energy: EnergyUse, currency: str, templates: Path | None = None) -> str:
    """Returns the report's part on energy, by account; the accounts with most of it first."""
    lines = sorted(energy.lines.items(), key=lambda entry: (-(entry[1].wh or 0), entry[0]))
    return (
        environment(templates)
        .get_template("energy.html.j2")
        .render(
            energy=energy,
            headings=tables.energy_headings(energy, currency),
            rows=[(label[0], tables.energy_cells(energy, line)) for label, line in lines],
            total=tables.energy_cells(energy, energy.total),
        )
    )


def tree_section(rows: Sequence[Row], currency: str, templates: Path | None = None) -> str:
    """Returns the report's part on accounts and their users. currency: empty without rates."""
    return environment(templates).get_template("hierarchy.html.j2").render(rows=rows, currency=currency)


def user_page(page: UserPage, currency: str, issuer: tuple[str, ...] = (), templates: Path | None = None) -> str:
    """Returns a user's own page of a month."""
    days = [day[-2:] for day, _ in page.days]
    by_day = charts.bars(
        f"GPU-hours by day in {page.month}", "GPU-hours", days, [("", [float(hours) for _, hours in page.days])]
    )
    held, used = sum(run.on_gpu_s for run in page.runs), sum(run.used_gpu_s for run in page.runs)
    costs = [share.cost for share in page.shares if share.cost is not None]
    return (
        environment(templates)
        .get_template("user.html.j2")
        .render(
            user=page.user,
            month=page.month,
            issuer=issuer,
            shares=page.shares,
            jobs=sum(share.jobs for share in page.shares),
            hours=sum((share.hours for share in page.shares), Decimal(0)),
            cost=sum(costs, Decimal(0)) if costs else None,
            currency=currency,
            used_percent=100 * used / held if held else None,
            runs=page.runs[: page.most_runs],
            by_day=Markup(by_day),
            suggestion=suggestion,
        )
    )


def report(
    content: MonthReport,
    tz: ZoneInfo,
    issuer: tuple[str, ...] = (),
    templates: Path | None = None,
    sections: Sequence[str] = (),
) -> str:
    """Returns the monthly cluster report as HTML. sections: more parts of it, as HTML."""
    by_day = charts.bars(
        f"GPU-hours held by day in {content.month}",
        "GPU-hours",
        [day[-2:] for day in content.days],
        [(MODE_NAMES[mode], values) for mode, values in content.modes],
    )
    wasters = charts.shares(
        "GPU-hours held, used and not used, by user",
        "GPU-hours",
        "GPU-hours used",
        "held and not used",
        [(waster.user, min(waster.used_hours, waster.gpu_hours), waster.gpu_hours) for waster in content.wasters[:10]],
    )
    on_gpu_hours = round(content.measured_hours - content.off_gpu_hours, 9)
    return (
        environment(templates)
        .get_template("report.html.j2")
        .render(
            r=content,
            first_day=content.days[0],
            last_day=content.days[-1],
            timezone=tz.key,
            issuer=issuer,
            by_day=Markup(by_day),
            wasters=Markup(wasters),
            used_percent=100 * content.used_hours / on_gpu_hours if on_gpu_hours else None,
            suggestion=suggestion,
            duration=duration,
            sections=[Markup(section) for section in sections],
        )
    )
