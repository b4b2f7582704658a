# SPDX-License-Identifier: Apache-2.0
"""Writes the annex of an invoice as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from zoneinfo import ZoneInfo

from hami_hpc.accounting.documents.annex import AnnexLine
from hami_hpc.accounting.formats.tables import safe_cell
from hami_hpc.accounting.times import iso_local


def annex_csv(lines: Sequence[AnnexLine], currency: str, tz: ZoneInfo) -> str:
    """Returns one line for each job and model, with a header. Times are local, with the zone's offset."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    money = currency.lower()
    names = ("cluster", "job", "user", "partition", "model", "mode", "class")
    writer.writerow(
        [
            *names,
            "started",
            "ended",
            "runs",
            "gpu_hours",
            "other_hours",
            "of",
            f"cost_{money}",
            f"credited_by_rule_{money}",
        ]
    )
    for line in lines:
        labels = (line.cluster, line.job, line.user, line.partition, line.model, line.mode, line.service_class)
        ended = "" if line.end_s is None else iso_local(line.end_s, tz)
        hours, _, unit = line.quantity.replace(",", "").partition(" ")
        numbers = (line.runs, line.gpu_hours, hours, unit, line.amount, line.credited)
        writer.writerow([*map(safe_cell, labels), iso_local(line.start_s, tz), ended, *numbers])
    return out.getvalue()
