# SPDX-License-Identifier: Apache-2.0
"""Paid and not paid: in a chain of its own, which the register counts, and beside documents that never change."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path

import pytest

from hami_hpc.accounting.documents import invoice_files, payments
from hami_hpc.accounting.documents.payments import Payment
from hami_hpc.accounting.errors import AccountingError

from .samples import run
from .test_finance import MONTH, issue, site
from .test_register import moments_of

__all__ = ["site"]
CHEM, PHYS = "GPU-2026-00001", "GPU-2026-00002"


@pytest.fixture
def issued(site: Path) -> Path:
    issue(site)
    return site


def _day(issued: Path) -> str:
    return invoice_files.read_all(issued / "store")[0].issued


def _paid(root: Path) -> dict[str, str]:
    return dict(payments.read(root, invoice_files.read_all(root)))


def test_paid_and_back_leaves_the_documents_and_their_chain_as_they_were(issued: Path) -> None:
    day, root = _day(issued), issued / "store"
    before = {path: path.read_bytes() for path in (root / "invoices").iterdir()}
    newest = json.loads((root / "register.json").read_text())["digest"]
    assert run(issued, "invoice", "paid", CHEM, PHYS, "--date", day).exit_code == 0
    assert _paid(root) == {CHEM: day, PHYS: day}
    assert "not paid: nothing" in run(issued, "ledger").stdout
    assert run(issued, "invoice", "unpaid", PHYS).exit_code == 0
    assert _paid(root) == {CHEM: day}
    assert {path: path.read_bytes() for path in (root / "invoices").iterdir()} == before
    assert json.loads((root / "register.json").read_text())["digest"] == newest
    # Further invoices keep what is paid.
    (issued / "rates.toml").write_text((issued / "rates.toml").read_text().replace("2.5", "2.4"))
    assert run(issued, "invoice", *MONTH, "--correct").exit_code == 0
    assert _paid(root) == {CHEM: day}


def test_saying_it_again_changes_nothing_and_another_day_is_refused(issued: Path) -> None:
    day, root = _day(issued), issued / "store"
    run(issued, "invoice", "paid", CHEM, "--date", day)
    kept = (root / payments.FILE_NAME).read_bytes()
    assert run(issued, "invoice", "paid", CHEM, "--date", day).exit_code == 0
    assert run(issued, "invoice", "unpaid", PHYS).exit_code == 0
    assert (root / payments.FILE_NAME).read_bytes() == kept


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("paid", CHEM), "needs --date"),
        (("unpaid", CHEM, "--date", "2026-11-01"), "needs --date"),
        (("paid", "--date", "2026-11-01"), "say which"),
        (("paid", CHEM, "--date", "2999-01-01"), "in the future"),
        (("paid", CHEM, "--date", "2020-01-01"), "was issued on"),
        (("paid", CHEM, "--date", "20260101"), "is not a day"),
        (("paid", "GPU-2026-00009", "--date", "2026-01-01"), "there is no invoice GPU-2026-00009"),
    ],
)
def test_a_payment_that_cannot_be_is_refused_in_one_line(issued: Path, words: tuple[str, ...], said: str) -> None:
    result = run(issued, "invoice", *words)
    assert result.exit_code in (1, 2)
    assert said in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not (issued / "store" / payments.FILE_NAME).exists()


@pytest.mark.parametrize("edit", ["day", "number", "removed", "swapped", "cut", "no file", "garbage"])
def test_an_edited_or_removed_payment_is_noticed(issued: Path, edit: str) -> None:
    day, root = _day(issued), issued / "store"
    for number in (CHEM, PHYS):
        run(issued, "invoice", "paid", number, "--date", day)
    path = root / payments.FILE_NAME
    first, second = path.read_text().splitlines(keepends=True)
    texts = {
        "day": first.replace(f'"paid": "{day}"', '"paid": "2027-01-01"') + second,
        "number": first.replace(CHEM, PHYS) + second,
        "removed": first,
        "swapped": second + first,
        "cut": first + second[:-9],
        "no file": "",
        "garbage": first + "[3]\n",
    }
    path.write_text(texts[edit])
    result = run(issued, "ledger")
    assert result.exit_code == 1
    assert "restore it and register.json from one backup" in result.stderr
    assert run(issued, "invoice", "unpaid", CHEM).exit_code == 1


def _entry(root: Path, number: str) -> Payment:
    documents = {document.number: document for document in invoice_files.read_all(root)}
    return Payment(number, "2026-12-01", "2026-12-02T00:00:00Z", documents[number].digest)


def test_a_kill_at_any_moment_leaves_a_payment_or_none_and_the_next_one_goes_on(
    issued: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = issued / "store"
    payments.append(root, [_entry(root, CHEM)])
    phys = _entry(root, PHYS)
    seen = set()
    for moment in moments_of(root, monkeypatch, lambda: payments.append(root, [phys])):
        days = _paid(moment)
        seen.add(len(days))
        payments.append(moment, [_entry(moment, PHYS)])
        assert _paid(moment) == {CHEM: "2026-12-01", PHYS: "2026-12-01"}
    assert seen == {1, 2}


def test_half_a_line_behind_those_that_count_is_not_read_and_is_written_over(issued: Path) -> None:
    root = issued / "store"
    payments.append(root, [_entry(root, CHEM)])
    with (root / payments.FILE_NAME).open("ab") as file:
        file.write(b'{"number": "GPU-20')
    assert len(_paid(root)) == 1
    payments.append(root, [_entry(root, PHYS)])
    assert len(_paid(root)) == 2


def test_a_full_disk_notes_nothing(issued: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = issued / "store"

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(AccountingError, match="nothing was noted"):
            payments.append(root, [_entry(root, CHEM)])
    assert _paid(root) == {}


def test_days_are_those_of_the_site_and_not_of_the_machine(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At noon of 31 October in UTC it is 2 in the morning of 1 November on Kiritimati, and October is over."""
    rates = (site / "rates.toml").read_text()
    assert "timezone" not in rates
    (site / "rates.toml").write_text(rates.replace("version = 1\n", 'version = 1\ntimezone = "Pacific/Kiritimati"\n'))
    monkeypatch.setattr(time, "time", lambda: 1_793_448_000.0)
    issue(site)
    assert _day(site) == "2026-11-01"
    assert run(site, "invoice", "paid", CHEM, "--date", "2026-11-02").exit_code == 2
    assert run(site, "invoice", "paid", CHEM, "--date", "2026-11-01").exit_code == 0
