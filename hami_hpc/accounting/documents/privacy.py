# SPDX-License-Identifier: Apache-2.0
"""Checks that taking users' names out of the store (store/anonymous.py) changes no amount, and no open month."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from zoneinfo import ZoneInfo

from hami_hpc.accounting.documents.invoice_files import Document
from hami_hpc.accounting.documents.issuing import Issued
from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.pricing.cluster_gpus import ClusterGpus
from hami_hpc.accounting.pricing.price import Sum
from hami_hpc.accounting.pricing.priced_period import price_period
from hami_hpc.accounting.pricing.rates import Rates
from hami_hpc.accounting.store import job_records
from hami_hpc.accounting.store.anonymous import Check
from hami_hpc.accounting.store.ingest import OVERLAP_S
from hami_hpc.accounting.store.store_files import Manifest
from hami_hpc.accounting.times import Period, iso_local, local_date, split_months

_BY = ("month", "cluster", "account", "partition", "qos", "model", "mode", "class", "billable", "problem")


def refuse_open(root: Path, manifest: Manifest, before_s: int, now_s: int, tz: ZoneInfo) -> None:
    """Raises AccountingError if a month before the instant may still get other records."""
    day = local_date(before_s, tz)
    if day.day != 1:
        raise AccountingError(f"--before {day} is within a month; give the first day of one, such as {day:%Y-%m}-01")
    if before_s > now_s:
        raise AccountingError(f"--before {day} is in the future: names of months that are not over are needed")
    for source, until_s in manifest.read_until_s.items():
        if until_s < before_s + OVERLAP_S:
            raise AccountingError(
                f"the store was read from {source} only up to {iso_local(until_s, tz)}, and records come up to two "
                f"days late: run hami-hpc ingest after {local_date(before_s + OVERLAP_S, tz)}, then this"
            )
    records = job_records.of_manifest(root, manifest, None)
    row = records.con.execute(
        f"SELECT count(*), min(job_id) FROM {records.source} WHERE end_s IS NULL AND start_s < {before_s}"
    ).fetchone()
    records.con.close()
    if row and row[0]:
        raise AccountingError(
            f"{row[0]:,} run{'' if row[0] == 1 else 's'} of before {day} had not ended when last read (job {row[1]}): "
            "run hami-hpc ingest, or wait for the end"
        )


def amounts_stay(
    root: Path, gpus: ClusterGpus, prices: Rates | None, tz: ZoneInfo, before_s: int, documents: Sequence[Document]
) -> Check:
    """Returns the check that each sum is the same before and after, and that no invoice is missing."""

    def check(old: Manifest, new: Manifest) -> None:
        sums = _sums(root, old, gpus, prices, tz, before_s)
        _refuse_missing(documents, {(entry.labels[0], entry.labels[2]) for entry in sums})
        after = _sums(root, new, gpus, prices, tz, before_s)
        if sums != after:
            first = next((a for a, b in zip(sums, after, strict=False) if a != b), (sums or after)[0])
            raise AccountingError(
                f"{first.labels[2] or '(none)'} would have another amount in {first.labels[0]}, as prices depend on "
                "users' names ([[factors]] of a user in rates.toml); nothing was changed"
            )

    return check


def _sums(
    root: Path, manifest: Manifest, gpus: ClusterGpus, prices: Rates | None, tz: ZoneInfo, before_s: int
) -> list[Sum]:
    records = job_records.of_manifest(root, manifest, None)
    row = records.con.execute(f"SELECT min(start_s) FROM {records.source} WHERE held <> ''").fetchone()
    if row is None or row[0] is None or row[0] >= before_s:
        records.con.close()
        return []
    # Runs that begin before the instant and end after it keep their names; their months are compared as well.
    months = split_months(Period(row[0], before_s), tz)
    sums = price_period(records, gpus, prices, months, tz).sums(*_BY)
    records.con.close()
    return sums


def _refuse_missing(documents: Sequence[Document], held: Collection[tuple[str, str]]) -> None:
    """Raises AccountingError for an account without an invoice, in the months since the first one that was invoiced."""
    issued = Issued(documents)
    first = min((document.content.month for document in documents), default="9999-12")
    for month, account in sorted(held):
        if month >= first and issued.standing(account, month) is None:
            raise AccountingError(
                f"{account or '(none)'} has no invoice for {month}: issue it first (hami-hpc invoice --month {month}), "
                "as it lists users; nothing was changed"
            )
