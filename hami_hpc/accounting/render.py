# SPDX-License-Identifier: Apache-2.0
"""A bill for people (a table) and for machines (CSV, JSON)."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from zoneinfo import ZoneInfo

from hami_hpc.accounting.bill import Bill
from hami_hpc.accounting.times import iso_local


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], numbers: int, total: Sequence[str]) -> str:
    """Columns aligned by width; the last ``numbers`` of them are numbers and stand to the right."""
    body = [*rows, total] if total else list(rows)
    widths = [max(len(row[index]) for row in [headings, *body]) for index in range(len(headings))]
    first_number = len(headings) - numbers

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if index >= first_number else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join(padded).rstrip()

    rule = "  ".join("-" * width for width in widths)
    lines = [line(headings), rule, *(line(row) for row in rows)]
    return "\n".join([*lines, rule, line(total)] if total else lines)


def bill_table(bill: Bill, tz: ZoneInfo, rejects: Sequence[str]) -> str:
    """The bill as a table, with what it left out below it."""
    headings = [*(name.capitalize() for name in bill.dimensions), "Jobs", "GPU-hours"]
    rows = [[*(label or "-" for label in line.labels), str(line.runs), str(line.gpu_hours)] for line in bill.lines]
    total = ["Total", *[""] * (len(bill.dimensions) - 1), str(bill.runs), str(bill.gpu_hours)]
    period = f"{iso_local(bill.period.start_s, tz)} to {iso_local(bill.period.end_s, tz)}"
    return "\n".join([f"GPU time held, {period}", "", table(headings, rows, 2, total), *notes(bill, rejects)]) + "\n"


def notes(bill: Bill, rejects: Sequence[str]) -> list[str]:
    """What a reader must know beside the lines; nothing when there is nothing to say."""
    said: list[str] = []
    for omitted in bill.left_out:
        more = ", ..." if omitted.runs > len(omitted.examples) else ""
        said.append(f"left out: {omitted.runs} jobs, {omitted.reason} (job {', '.join(omitted.examples)}{more})")
    said += [f"left out: {reject}" for reject in rejects]
    if bill.still_running:
        said.append(f"{bill.still_running} jobs are still running: counted up to when they were last read")
    if bill.spread:
        said.append(f"{bill.spread} suspended jobs cross an edge of the period: suspended time spread evenly over them")
    return ["", *said] if said else []


def bill_csv(bill: Bill) -> str:
    """One line a line of the bill, no total; UTF-8, comma, header."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*bill.dimensions, "jobs", "gpu_hours"])
    for line in bill.lines:
        writer.writerow([*(safe_cell(label) for label in line.labels), line.runs, line.gpu_hours])
    return out.getvalue()


def safe_cell(text: str) -> str:
    """A text that a spreadsheet does not take for a formula."""
    return "'" + text if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def bill_json(bill: Bill, tz: ZoneInfo, rejects: Sequence[str]) -> str:
    """Everything, exact: numbers that must not become floating point are strings."""
    document = {
        "schema": 1,
        "start": iso_local(bill.period.start_s, tz),
        "end": iso_local(bill.period.end_s, tz),
        "by": list(bill.dimensions),
        "lines": [
            {
                **dict(zip(bill.dimensions, line.labels, strict=True)),
                "jobs": line.runs,
                "gpu_hours": str(line.gpu_hours),
                "gpu_microseconds_held": str(line.exact),
            }
            for line in bill.lines
        ],
        "total": {"jobs": bill.runs, "gpu_hours": str(bill.gpu_hours)},
        "left_out": [
            {"jobs": omitted.runs, "reason": omitted.reason, "examples": list(omitted.examples)}
            for omitted in bill.left_out
        ],
        "rejected": list(rejects),
        "still_running": bill.still_running,
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
