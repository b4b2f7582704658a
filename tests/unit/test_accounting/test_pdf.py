# SPDX-License-Identifier: Apache-2.0
"""The PDF of an invoice: what is written in it, where on the paper, whether the chart is drawn, and how it is made.

The HTML on paper, as a browser prints it, is test_pages.py's.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from pathlib import Path

import pypdfium2
import pypdfium2.raw as pdfium
import pytest

from hami_hpc.accounting.documents import invoice, invoice_files, notes
from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.formats import html
from hami_hpc.accounting.formats.pdf import html_to_pdf
from hami_hpc.accounting.pricing.priced_period import price_period
from hami_hpc.accounting.store import job_records
from hami_hpc.accounting.times import month_period, split_days, zone

from .paper import assert_on_paper, bars, opened, page_words
from .samples import GPUS, HOUR, ONE_H200, VGPU_HALF, Job, fill, issue_one
from .test_pages import MIG, PRICES, START

BARE = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}


def _jobs(users: int) -> list[Job]:
    """Three accounts, two models, four modes, on 28 days."""
    kinds = [(ONE_H200, "gpu"), (VGPU_HALF, "gpu"), (MIG, "gpu"), (ONE_H200.replace("h200", "a100"), "old")]
    return [
        Job(
            job_id=i + 1,
            submit=START + i % 28 * 86400,
            start=START + i % 28 * 86400,
            end=START + i % 28 * 86400 + HOUR * (1 + i % 7),
            tres=kinds[i % 4][0],
            partition=kinds[i % 4][1],
            user=f"user-{i % users}",
            account=("account-0", "account-0", "chem", "physics")[i // 4 % 4],
        )
        for i in range(max(200, 4 * users))
    ]


def _document(root: Path, users: int) -> invoice_files.Document:
    fill(root, _jobs(users))
    prices = PRICES
    tz = zone("UTC")
    period = month_period("2026-09", tz)
    records = job_records.from_store(root, period, 256)
    priced_period = price_period(records, GPUS, prices, split_days(period, tz), tz)
    own = invoice.account_times(priced_period)["account-0"]
    said = notes.by_account(priced_period, {}, {})["account-0"]
    records.con.close()

    def build(used: Mapping[tuple[str, str], Decimal]) -> invoice.Content:
        return invoice.build("account-0", date(2026, 9, 1), own, priced_period.segments, prices, used, said)

    (document,) = issue_one(root, "account-0", build, issuer=prices.issuer)
    return document


@pytest.fixture(scope="module", params=[3, 400], ids=["3 users", "400 users"])
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[invoice_files.Document, bytes]:
    """(an issued invoice, its PDF)."""
    document = _document(tmp_path_factory.mktemp("pdf") / "s", request.param)
    return document, html_to_pdf(html.invoice(document))


def _words(content: bytes) -> str:
    with opened(content) as pdf:
        return " ".join(page_words(page) for page in pdf)


def test_the_pdf_says_what_the_invoice_says_to_the_last_cent(made: tuple[invoice_files.Document, bytes]) -> None:
    document, content = made
    words = _words(content)
    shown = document.content
    assert f"Invoice {document.number}" in words
    assert len(shown.lines) == 4 - 1  # the a100 has no rate, and the notes say so
    for line in (*shown.lines, *shown.users):
        assert f"{html.number(line.gpu_hours)} " in words
        assert html.number(line.amount) in words
    for user in shown.users:
        row = f"{user.labels[0]} {html.number(user.jobs)} {html.number(user.gpu_hours)} {html.number(user.amount)}"
        assert row in words
    for amount in (shown.subtotal, shown.discount, f"-{shown.credits[0].amount}"):
        assert html.number(amount) in words
    assert words.count(f"EUR {html.number(shown.total)}") == 2  # at the head and under the sum
    assert "no rate for a100" in words
    assert document.digest in words


def test_every_page_is_a4_numbered_and_no_letter_leaves_its_paper(made: tuple[invoice_files.Document, bytes]) -> None:
    with opened(made[1]) as pdf:
        assert_on_paper(pdf)


def test_the_chart_is_drawn_with_a_bar_for_each_day_that_held_something(
    made: tuple[invoice_files.Document, bytes],
) -> None:
    document, content = made
    days = [Decimal(hours) > 0 for _, hours in document.content.days]
    with opened(content) as pdf:
        widest = max(bars(page) for page in pdf)
    # Neighbouring bars are a fifth of a bar apart, so each is a run of its own along some line of the page.
    assert widest == sum(days)
    assert widest >= 20


def test_the_pdf_can_be_read_aloud_and_filed(made: tuple[invoice_files.Document, bytes]) -> None:
    document, content = made
    with opened(content) as pdf:
        assert pdfium.FPDFCatalog_IsTagged(pdf.raw)
        found = pdf.get_metadata_dict()
        assert found["Title"] == f"Invoice {document.number}"
        assert found["Author"] == "University Computing Centre, 1 Example Street"
        assert found["CreationDate"].startswith("D:20261001")
        assert _language(pdf) == "en"


def _language(pdf: pypdfium2.PdfDocument) -> str:
    size = pdfium.FPDFCatalog_GetLanguage(pdf.raw, None, 0)
    buffer = ctypes.create_string_buffer(size)
    pdfium.FPDFCatalog_GetLanguage(pdf.raw, ctypes.cast(buffer, ctypes.POINTER(pdfium.FPDF_WCHAR)), size)
    return buffer.raw.decode("utf-16-le").rstrip("\0")


def test_the_same_invoice_gives_the_same_bytes_in_another_process_at_another_time(
    made: tuple[invoice_files.Document, bytes], tmp_path: Path
) -> None:
    """Another seed of Python's hashes, another zone: nothing of the process or of the clock gets into the file."""
    document, content = made
    (tmp_path / "page.html").write_text(html.invoice(document), encoding="utf-8")
    script = (
        "import sys; from pathlib import Path; from hami_hpc.accounting.formats.pdf import html_to_pdf; "
        "sys.stdout.buffer.write(html_to_pdf(Path(sys.argv[1]).read_text(encoding='utf-8')))"
    )
    again = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "page.html"],
        env={**BARE, "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo"},
        capture_output=True,
        timeout=120,
        check=True,
    )
    assert again.stdout == content
    assert again.stderr == b""


def test_a_table_over_several_pages_repeats_its_heading(made: tuple[invoice_files.Document, bytes]) -> None:
    document, content = made
    with opened(content) as pdf:
        texts = [page_words(page) for page in pdf]
    with_rows = [text for text in texts if any(f" {user.labels[0]} " in text for user in document.content.users)]
    assert all("User Jobs GPU-hours EUR" in text for text in with_rows)
    assert len(with_rows) > (len(document.content.users) > 100) * 3


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (ModuleNotFoundError("No module named 'weasyprint'"), "pip install weasyprint"),
        (OSError("cannot load library 'libpango-1.0-0': no such file"), "apt-get install libpango-1.0-0"),
    ],
)
def test_what_is_missing_for_a_pdf_is_named_with_the_way_to_get_it(
    monkeypatch: pytest.MonkeyPatch, fault: Exception, says: str
) -> None:
    def missing(name: str) -> None:
        raise fault

    monkeypatch.setattr("hami_hpc.accounting.formats.pdf.import_module", missing)
    with pytest.raises(AccountingError, match=says):
        html_to_pdf("<p>")
