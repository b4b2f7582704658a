# SPDX-License-Identifier: Apache-2.0
"""The job-level annexes that `hami-hpc invoice --annex` writes beside the invoices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from hami_hpc.accounting.documents import annex, invoice_files
from hami_hpc.accounting.documents.invoice_files import Document
from hami_hpc.accounting.formats.annex_csv import annex_csv
from hami_hpc.accounting.pricing.held_time import JOB
from hami_hpc.accounting.pricing.priced_period import price_period
from hami_hpc.accounting.pricing.rates import Rates
from hami_hpc.accounting.store import job_records
from hami_hpc.accounting.times import Period, split_months
from hami_hpc.cli.accounting_files import write_file
from hami_hpc.cli.accounting_options import Setup


def write_annexes(
    named: Sequence[tuple[str, Document]], directory: Path, setup: Setup, prices: Rates, period: Period
) -> None:
    """Writes NAME-jobs.csv for each invoice. named: documents with the names of their files.

    An annex has today's records and rates. If they no longer come to the invoice, none is written for it, and a line on
    standard error says so.
    """
    found = job_records.from_store(setup.root, period)
    buckets = split_months(period, setup.tz)
    priced_period = price_period(found, setup.gpus, prices, buckets, setup.tz, JOB)
    replaced = {document.refers_to for _, document in named if document.kind == invoice_files.CREDIT_NOTE}
    wanted = {
        document.content.account: (name, document)
        for name, document in named
        if document.kind == invoice_files.INVOICE and document.number not in replaced
    }
    for account, lines in annex.annexes(priced_period, prices, wanted):
        name, document = wanted[account]
        if annex.fits(lines, document.content):
            write_file(directory / f"{name}-jobs.csv", annex_csv(lines, prices.currency, setup.tz).encode())
        else:
            click.echo(
                f"no annex of {name}: today's records and rates come to another amount than the invoice has; --draft "
                "shows the difference",
                err=True,
            )
