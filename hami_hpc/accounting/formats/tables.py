# SPDX-License-Identifier: Apache-2.0
"""Writes a bill, and the comparison with sreport, as a text table, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from decimal import Decimal
from zoneinfo import ZoneInfo

from hami_hpc.accounting.documents.bill import Bill, Line
from hami_hpc.accounting.documents.energy import NONE, EnergySum, EnergyUse
from hami_hpc.accounting.documents.notes import Facts, grouped, sentences
from hami_hpc.accounting.documents.notes import counted as counted
from hami_hpc.accounting.documents.sreport_check import Comparison
from hami_hpc.accounting.errors import printable
from hami_hpc.accounting.pricing.quota import QuotaState
from hami_hpc.accounting.times import iso_local


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], numbers: int, total: Sequence[str]) -> str:
    """Returns rows as aligned columns, the last ``numbers`` of them to the right. total: the last row, or empty.

    Where users may name any account, a name may have commands for the terminal: they are shown as '?'.
    """
    body = [headings, *rows, total] if total else [headings, *rows]
    widths = [max(map(len, column)) for column in zip(*body, strict=True)]
    first_number = len(headings) - numbers
    # With %, because str.format takes twice as long, which 200,000 lines show.
    aligned = "  ".join(f"%{'' if i >= first_number else '-'}{width}s" for i, width in enumerate(widths))
    shown = map(aligned.__mod__, map(tuple, body))
    head, *lines = [(row if row.isprintable() else printable(row)).rstrip() for row in shown]
    rule = "  ".join("-" * width for width in widths)
    return "\n".join([head, rule, *lines[:-1], rule, lines[-1]] if total else [head, rule, *lines])


def bill_table(
    bill: Bill,
    tz: ZoneInfo,
    rejected: Sequence[str],
    quotas: Sequence[QuotaState] = (),
    gaps: Sequence[str] = (),
    energy: EnergyUse | None = None,
) -> str:
    """Returns the bill as a table, with notes on what is left out below it."""
    money = bill.cost is not None
    headings = [*("QoS" if name == "qos" else name.capitalize() for name in bill.dimensions), "Jobs", "GPU-hours"]
    total = ["Total", *[""] * (len(bill.dimensions) - 1), f"{bill.runs:,}", grouped(bill.gpu_hours)]
    # Column by column, which takes half as long as line by line: 200,000 lines show it.
    label_lists, runs, hours, _, costs = zip(*bill.lines, strict=True) if bill.lines else ((),) * len(Line._fields)
    columns = [[label or "-" for label in column] for column in zip(*label_lists, strict=True)]
    columns += [f"{count:,}" for count in runs], [f"{hour:,}" for hour in hours]
    if money:
        headings.append(bill.currency)
        total.append(grouped(bill.cost))
        columns.append(list(map(grouped, costs)))
    numbers = 3 if money else 2
    if energy:
        added = energy_headings(energy, bill.currency)
        headings += added
        numbers += len(added)
        total += energy_cells(energy, energy.total)
        cells = [energy_cells(energy, energy.lines.get(line.labels, NONE)) for line in bill.lines]
        columns += map(list, zip(*cells, strict=True))
    period = f"{iso_local(bill.period.start_s, tz)} to {iso_local(bill.period.end_s, tz)}"
    shown = table(headings, list(zip(*columns, strict=True)), numbers, total)
    by = f" by {printable(', '.join(name or '(none)' for name in bill.accounts))}" if bill.accounts else ""
    return (
        "\n".join(
            [
                f"GPU time held{by}, {period}",
                "",
                shown,
                *_paragraph(charged_lines(bill)),
                *_paragraph([*notes(bill, rejected, quotas), *gaps]),
            ]
        )
        + "\n"
    )


def charged_lines(bill: Bill) -> list[str]:
    """Returns what of the total is for other resources than GPUs, and what credit rules take off it."""
    lines = [
        f"of the total for {entry.resource}: {bill.currency} {grouped(Decimal(entry.amount))} ({entry.quantity})"
        for entry in bill.resources
    ]
    lines += [
        f"credited: {entry.rule}: {bill.currency} {grouped(Decimal(entry.amount))} "
        f"({counted(entry.jobs, 'job') + ' ' if entry.jobs else ''}charged {grouped(Decimal(entry.charged))})"
        for entry in bill.credited
    ]
    return lines + ([f"after credits by rule: {bill.currency} {grouped(bill.net)}"] if bill.credited else [])


def notes(bill: Bill, rejected: Sequence[str], quotas: Sequence[QuotaState] = ()) -> list[str]:
    """Returns what a reader must know beside the lines: omissions, missing prices, estimates, quota warnings."""
    lines: list[str] = [] if bill.lines else ["no GPU job ran in this period"]
    facts = (bill.left_out, rejected, bill.beyond_held, bill.unpriced, bill.still_running, bill.spread, bill.off_gpu)
    lines += sentences(Facts(*facts))
    for state in quotas:
        if state.warning:
            lines.append(
                f"quota: {state.owner} has held {state.percent} % of {grouped(state.quota_hours)} GPU-hours "
                f"in {state.month}"
            )
    return lines


def _paragraph(lines: Sequence[str]) -> list[str]:
    return ["", *lines] if lines else []


def energy_headings(energy: EnergyUse, currency: str) -> list[str]:
    """Returns the headings of energy_cells."""
    price = [f"{currency or 'cost'}, energy"] if energy.has_price else []
    return ["kWh", "of jobs", *price, *(["kg CO2"] if energy.has_co2 else [])]


def energy_cells(energy: EnergyUse, line: EnergySum) -> list[str]:
    """Returns kWh, of how many jobs they are known, cost and CO2; '-' for what is not known, which is never 0."""
    price = ["-" if line.cost is None else f"{line.cost:,}"] if energy.has_price else []
    co2 = ["-" if line.co2_g is None else f"{Decimal(line.co2_g).scaleb(-3):,}"] if energy.has_co2 else []
    kwh = "-" if line.wh is None else f"{Decimal(line.wh).scaleb(-3):,}" if line.wh else "<0.001"
    return [kwh, f"{line.known:,} of {line.runs:,}", *price, *co2]


def bill_csv(bill: Bill, energy: EnergyUse | None = None) -> str:
    """Returns the lines of the bill as CSV with a header and without the total."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    money = bill.cost is not None
    cost = [f"cost_{bill.currency.lower()}"] if money else []
    writer.writerow([*bill.dimensions, "jobs", "gpu_hours", *cost, *(ENERGY_FIELDS if energy else ())])
    for line in bill.lines:
        cells = [*(safe_cell(label) for label in line.labels), line.runs, line.gpu_hours]
        measured = _energy_fields(energy.lines.get(line.labels, NONE)).values() if energy else ()
        writer.writerow([*cells, *([line.cost] if money else []), *measured])
    return out.getvalue()


ENERGY_FIELDS = ("energy_j", "energy_jobs", "energy_cost", "co2_g")


def _energy_fields(line: EnergySum) -> dict[str, object]:
    """Returns the values of ENERGY_FIELDS, None for what is not known."""
    cost = None if line.cost is None else str(line.cost)
    return dict(zip(ENERGY_FIELDS, (line.joules, line.known, cost, line.co2_g), strict=True))


# With what a spreadsheet begins a formula, and the wide forms of these characters, which one may take for the others.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def safe_cell(text: str) -> str:
    """Returns the text so that a spreadsheet does not read it as a formula."""
    return "'" + text if text.startswith(_FORMULA) else text


def bill_json(
    bill: Bill,
    tz: ZoneInfo,
    rejected: Sequence[str],
    quotas: Sequence[QuotaState] = (),
    gaps: Sequence[str] = (),
    energy: EnergyUse | None = None,
) -> str:
    """Returns the whole bill as JSON. Exact numbers are strings, so that no reader converts them to floating point."""

    def amounts(runs: int, hours: Decimal, cost: Decimal | None) -> dict[str, object]:
        money = {} if cost is None else {"cost": str(cost)}
        return {"jobs": runs, "gpu_hours": str(hours), **money}

    document = {
        "schema": 1,
        "start": iso_local(bill.period.start_s, tz),
        "end": iso_local(bill.period.end_s, tz),
        "by": list(bill.dimensions),
        "accounts": list(bill.accounts),
        "currency": bill.currency or None,
        "lines": [
            {
                **dict(zip(bill.dimensions, line.labels, strict=True)),
                **amounts(line.runs, line.gpu_hours, line.cost),
                "gpu_microseconds_held": str(line.exact),
                **(_energy_fields(energy.lines.get(line.labels, NONE)) if energy else {}),
            }
            for line in bill.lines
        ],
        "total": {
            **amounts(bill.runs, bill.gpu_hours, bill.cost),
            **(_energy_fields(energy.total) if energy else {}),
        },
        "credited": [asdict(entry) for entry in bill.credited],
        "total_after_credits": None if bill.net is None else str(bill.net),
        "resources": [asdict(entry) for entry in bill.resources],
        "charged_beside_held_gpu_hours": str(bill.beyond_held),
        "off_gpu_not_charged_gpu_hours": str(bill.off_gpu),
        "left_out": [
            {"jobs": omitted.runs, "reason": omitted.reason, "examples": list(omitted.examples)}
            for omitted in bill.left_out
        ],
        "unpriced": [
            {"jobs": gap.runs, "gpu_hours": str(gap.gpu_hours), "problem": gap.problem} for gap in bill.unpriced
        ],
        "rejected": list(rejected),
        "gaps": list(gaps),
        "still_running": bill.still_running,
        "suspended_spread": bill.spread,
        "quotas": [
            {
                "owner": state.owner,
                "month": state.month,
                "quota_gpu_hours": str(state.quota_hours),
                "held_gpu_hours": str(state.held_hours),
                "percent": state.percent,
                "warning": state.warning,
            }
            for state in quotas
        ],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def check_table(comparison: Comparison) -> str:
    """Returns the comparison with sreport as text: the count of equal sums, and each difference with its reason."""
    sreport_h, records_h, suspended_h = (
        f"{seconds / 3600:,.4f}" for seconds in (comparison.sreport_s, comparison.records_s, comparison.suspended_s)
    )
    lines = [
        f"{comparison.compared} sums of devices by account and user compared with sreport: "
        f"{comparison.compared - len(comparison.differences)} agree to the second",
        f"in all: sreport {sreport_h} device-hours, the records {records_h}",
    ]
    if comparison.suspended_s:
        lines.append(f"of these {suspended_h} gres/gpu hours were suspended: the bill does not count them")
    if comparison.differences:
        headings = ["Account", "User", "TRES", "sreport, h", "Records, h", "Differ by, h"]
        rows = [
            [
                d.account,
                d.user,
                d.tres,
                *(f"{s / 3600:,.4f}" for s in (d.sreport_s, d.records_s, d.records_s - d.sreport_s)),
            ]
            for d in comparison.differences
        ]
        lines += ["", table(headings, rows, 3, []), ""]
        for d in comparison.differences:
            lines.append(f"{d.account}/{d.user} {d.tres}: {'; '.join(d.reasons) or 'no known reason: investigate'}")
    return "\n".join(lines) + "\n"


def check_json(comparison: Comparison) -> str:
    """Returns the comparison as JSON, in device-seconds."""
    return json.dumps({"schema": 1, **asdict(comparison)}, indent=2) + "\n"
