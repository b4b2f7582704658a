# SPDX-License-Identifier: Apache-2.0
"""The files of invoices: what was changed or removed is noticed, and no moment of death loses or doubles a number."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from hami_hpc.accounting.documents import invoice_files, issuing
from hami_hpc.accounting.documents.invoice import Content, InvoiceLine
from hami_hpc.accounting.documents.invoice_files import Document
from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.formats import html

from .samples import issue_one

LETTERHEAD = issuing.Letterhead("2026-10-01", ("We",), "HPC")


def _content(account: str, total: str = "1.00") -> Content:
    line = InvoiceLine(("h200", "gpu", "", "gpu", "1.0000"), 1, "1.0000", total)
    days = (("2026-09-01", "1.0000"),)
    amounts = (1, "1.0000", "0.0000", total, "0.00", (), total)
    return Content(account, "2026-09", "UTC", "EUR", (line,), (line,), days, *amounts, ())


def _issue(root: Path, *accounts: str, total: str = "1.00") -> tuple[Document, ...]:
    """Issues the invoices of several accounts in one commit."""
    documents = invoice_files.read_all(root)
    invoice_files.settle(root, documents)
    issued = issuing.Issued(documents)
    for account in accounts:
        proposal = issuing.propose(issued, account, "2026-09", "EUR", lambda _, name=account: _content(name, total))  # type: ignore[misc]
        if proposal.differs or not proposal.standing:
            issuing.issue(issued, proposal, LETTERHEAD)
    new = tuple(issued.documents[len(documents) :])
    if new:
        invoice_files.commit(root, new)
    return new


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with three invoices."""
    (tmp_path / "s").mkdir()
    _issue(tmp_path / "s", "a", "b", "c")
    return tmp_path / "s"


def _edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    raw = json.loads(path.read_text(encoding="utf-8"))
    change(raw)
    path.write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")


def _file(root: Path, sequence: int) -> Path:
    return root / "invoices" / f"HPC-2026-{sequence:05d}.json"


EDITS: list[Callable[[dict[str, Any]], object]] = [
    lambda raw: raw.update(issuer=["They"]),
    lambda raw: raw.update(issued="2026-09-30"),
    lambda raw: raw.update(kind=invoice_files.CREDIT_NOTE),
    lambda raw: raw.update(refers_to="HPC-2026-00001"),
    lambda raw: raw["content"].update(total="0.01"),
    lambda raw: raw["content"].update(account="z"),
    lambda raw: raw["content"]["lines"][0].update(amount="0.01"),
    lambda raw: raw["content"]["notes"].append("paid"),
    lambda raw: raw.update(digest="0" * 64),
    lambda raw: raw.update(version=1),
]


@pytest.mark.parametrize("sequence", [1, 2, 3])
@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_of_any_field_of_any_document_is_noticed(
    root: Path, edit: Callable[[dict[str, Any]], object], sequence: int
) -> None:
    _edit(_file(root, sequence), edit)
    with pytest.raises(AccountingError, match=r"was changed after it was issued|has a version of before"):
        invoice_files.read_all(root)


@pytest.mark.parametrize("sequence", [1, 2, 3])
def test_an_edit_with_a_digest_that_fits_does_not_fit_what_follows(root: Path, sequence: int) -> None:
    """Who knows the program gives the edited document, and it alone, the digest that it has to have."""
    documents = invoice_files.read_all(root)
    forged = invoice_files.sealed(
        Document(**{**_shallow(documents[sequence - 1]), "issued": "2026-09-30"}),
        documents[sequence - 2] if sequence > 1 else None,
    )
    _file(root, sequence).write_text(json.dumps(asdict(forged), indent=1) + "\n", encoding="utf-8")
    with pytest.raises(AccountingError, match=r"changed after it was issued|not those that"):
        invoice_files.read_all(root)


def _shallow(document: Document) -> dict[str, Any]:
    return {name: getattr(document, name) for name in Document.__slots__}


def test_an_edited_number_and_a_renamed_file_are_noticed(root: Path) -> None:
    def renumber(raw: dict[str, Any]) -> None:
        raw.update(number="HPC-2026-00004", sequence=4)

    _edit(_file(root, 3), renumber)
    with pytest.raises(AccountingError, match="is not the invoice that its name says"):
        invoice_files.read_all(root)
    _file(root, 3).rename(_file(root, 4))
    with pytest.raises(AccountingError, match="invoice number 3 is missing"):
        invoice_files.read_all(root)


@pytest.mark.parametrize("removed", [(3,), (2, 3), (1,), (1, 2, 3)])
def test_a_document_that_was_removed_is_missed_and_its_number_is_not_given_again(
    root: Path, removed: tuple[int, ...]
) -> None:
    for sequence in removed:
        _file(root, sequence).unlink()
    with pytest.raises(AccountingError, match=f"invoice number {min(removed)} is missing"):
        _issue(root, "d")
    assert not _file(root, 4).exists()


def test_a_store_without_its_invoices_or_without_its_register_issues_nothing(root: Path) -> None:
    (root / "register.json").rename(root / "kept")
    with pytest.raises(AccountingError, match=r"register.json is missing; restore it"):
        _issue(root, "d")
    (root / "kept").rename(root / "register.json")
    shutil.rmtree(root / "invoices")
    with pytest.raises(AccountingError, match="invoice number 1 is missing"):
        _issue(root, "d")


def test_an_older_register_and_a_document_of_elsewhere_are_noticed(root: Path) -> None:
    old = (root / "register.json").read_text(encoding="utf-8")
    _issue(root, "d")
    (root / "register.json").write_text(old, encoding="utf-8")
    with pytest.raises(AccountingError, match=r"HPC-2026-00004 in .* is not in .*register.json"):
        _issue(root, "e")


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"version": 1}', '{"version": 9, "pending": []}',
                                  '{"version": 1, "sequence": "3", "digest": "", "pending": []}'])  # fmt: skip
def test_a_register_that_cannot_be_read_is_named(root: Path, text: str) -> None:
    (root / "register.json").write_text(text, encoding="utf-8")
    with pytest.raises(AccountingError, match=r"register.json (cannot be read|has version)") as raised:
        _issue(root, "d")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["", "[]", '{"number": 3}', '{"number": "HPC-2026-00003"}', "[" * 100_000])
def test_a_document_that_cannot_be_read_is_named(root: Path, text: str) -> None:
    _file(root, 3).write_text(text, encoding="utf-8")
    with pytest.raises(AccountingError, match=r"HPC-2026-00003.json (cannot be read|is not)") as raised:
        invoice_files.read_all(root)
    assert "\n" not in str(raised.value)


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """A store as hami_hpc wrote it before there was a register: two documents with digests of their content."""
    (tmp_path / "s" / "invoices").mkdir(parents=True)
    for sequence, account in enumerate("ab", 1):
        fields = {"number": f"HPC-2026-{sequence:05d}", "sequence": sequence, "kind": "invoice", "refers_to": "",
                  "issued": "2026-10-01", "issuer": ["We"],
                  "content": invoice_files._content_fields(_content(account))}  # fmt: skip
        raw = {"version": 1, "digest": invoice_files.content_digest(_content(account)), **fields}
        _file(tmp_path / "s", sequence).write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")
    return tmp_path / "s"


def test_a_store_of_before_the_register_is_read_and_gets_one_with_the_next_invoice(before: Path) -> None:
    documents = invoice_files.read_all(before)
    assert [document.version for document in documents] == [1, 1]
    assert not (before / "register.json").exists()
    # On paper it has the digest that it always had.
    assert invoice_files.content_digest(documents[0].content) in html.invoice(documents[0])
    texts = [_file(before, sequence).read_bytes() for sequence in (1, 2)]
    assert _issue(before, "a", "b") == ()
    assert (before / "register.json").exists()
    _issue(before, "c")
    assert [document.version for document in invoice_files.read_all(before)] == [1, 1, 2]
    assert [_file(before, sequence).read_bytes() for sequence in (1, 2)] == texts
    for edit in EDITS[:3]:  # what its own digest does not cover, the next one's does
        _edit(_file(before, 1), edit)
        with pytest.raises(AccountingError, match="was changed after it was issued"):
            invoice_files.read_all(before)
        _file(before, 1).write_bytes(texts[0])


def test_an_invoice_of_before_is_corrected_as_others_are(before: Path) -> None:
    note, new = _issue(before, "a", total="3.00")
    documents = invoice_files.read_all(before)
    assert (note.kind, note.refers_to, note.content) == ("credit note", documents[0].number, documents[0].content)
    assert documents[2:] == (note, new)
    assert issuing.Issued(documents).standing("a", "2026-09") == new


def test_a_copy_beside_the_invoices_is_named(root: Path) -> None:
    shutil.copy(_file(root, 3), root / "invoices" / "copy.json")
    with pytest.raises(AccountingError, match=r"copy.json is not the invoice .* keep copies elsewhere"):
        invoice_files.read_all(root)


def test_the_content_of_a_document_of_before_is_still_checked(before: Path) -> None:
    _edit(_file(before, 2), EDITS[4])
    with pytest.raises(AccountingError, match=r"00002.json was changed after it was issued"):
        invoice_files.read_all(before)


def moments_of(root: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> Iterator[Path]:
    """Yields copies of ``root`` as a kill -9 before or after each call that changes the disk would leave it."""
    copies: list[Path] = []
    copying = False

    def copy() -> None:
        nonlocal copying
        if not copying:
            copying = True
            copies.append(shutil.copytree(root, root.parent / f"moment-{len(copies)}"))
            copying = False

    def watched(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*words: Any, **options: Any) -> Any:
            copy()
            result = original(*words, **options)
            copy()
            return result

        return call

    with monkeypatch.context() as patch:
        for name in ("fsync", "write", "link", "rename", "unlink", "open", "mkdir"):
            patch.setattr(os, name, watched(getattr(os, name)))
        act()
    assert len(copies) > 10
    yield from copies


@pytest.mark.parametrize("torn", [False, True])
def test_a_kill_at_any_moment_leaves_all_invoices_of_a_run_or_none(
    root: Path, monkeypatch: pytest.MonkeyPatch, torn: bool
) -> None:
    """``a`` gets a credit note and a new invoice, ``d`` an invoice: three documents, 4 to 6."""
    moments = list(moments_of(root, monkeypatch, lambda: _issue(root, "a", "d", total="2.00")))
    seen = set()
    for moment in moments:
        if torn:  # a file that was being written is there in part
            for path in moment.rglob(".*"):
                path.write_bytes(path.read_bytes()[:10])
        documents = invoice_files.read_all(moment)
        seen.add(len(documents))
        assert len(documents) in (3, 6)
        # The next run finishes what is issued, or issues it: the same documents, each number once.
        _issue(moment, "a", "d", total="2.00")
        assert invoice_files.read_all(moment) == invoice_files.read_all(root)
        assert sorted(path.name for path in (moment / "invoices").glob("*.json")) == [
            _file(root, sequence).name for sequence in range(1, 7)
        ]
        assert not list(moment.rglob(".*"))
        assert json.loads((moment / "register.json").read_text(encoding="utf-8"))["pending"] == []
    assert seen == {3, 6}


@pytest.mark.parametrize("fails_at", range(1, 13))
def test_a_disk_that_is_full_at_any_moment_loses_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    calls = 0
    sync = os.fsync

    def full(handle: int) -> None:
        nonlocal calls
        calls += 1
        if calls >= fails_at:
            raise OSError(28, "No space left on device")
        sync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        try:
            _issue(root, "a", "d", total="2.00")
        except AccountingError as error:
            assert "the invoices are issued, and" in str(error)  # noqa: PT017
            assert len(invoice_files.read_all(root)) == 6
        except OSError:
            pass
    assert len(invoice_files.read_all(root)) in (3, 6)
    _issue(root, "a", "d", total="2.00")
    assert len(invoice_files.read_all(root)) == 6
    assert len(list((root / "invoices").iterdir())) == 6


def test_a_number_that_somebody_took_by_hand_is_not_written_over(root: Path) -> None:
    _file(root, 4).write_text("mine", encoding="utf-8")
    with pytest.raises(AccountingError, match=r"HPC-2026-00004.json cannot be read"):
        _issue(root, "d")
    assert _file(root, 4).read_text(encoding="utf-8") == "mine"


def test_a_link_in_place_of_a_temporary_file_is_not_written_through(root: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine", encoding="utf-8")
    (root / "invoices" / ".HPC-2026-00004").symlink_to(tmp_path / "victim")
    (root / ".register.json").symlink_to(tmp_path / "victim")
    _issue(root, "d")
    assert (tmp_path / "victim").read_text(encoding="utf-8") == "mine"


def test_a_reader_beside_a_writer_sees_the_state_before_or_after(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a reader lists the files, a writer issues two more: what it has read does not fit, and it reads again."""
    original = invoice_files._read_file
    writers = ["d"]

    def read(path: Path) -> Any:
        if writers:
            _issue(root, writers.pop(), "e")
        return original(path)

    monkeypatch.setattr(invoice_files, "_read_file", read)
    assert len(invoice_files.read_all(root)) == 5


def test_one_account_is_issued_as_the_command_does(root: Path) -> None:
    (fourth,) = issue_one(root, "d", lambda _: _content("d"))
    assert (fourth.number, issue_one(root, "d", lambda _: _content("d"))) == ("HPC-2026-00004", (fourth,))


def test_many_documents_are_synced_at_once_before_the_register_lets_them_go(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pending: list[int] = []

    def sync() -> None:
        pending.append(len(json.loads((root / "register.json").read_text(encoding="utf-8"))["pending"]))
        pending.append(len(list((root / "invoices").glob("*.json"))))

    monkeypatch.setattr(os, "sync", sync)
    _issue(root, *(f"x{number}" for number in range(invoice_files._FEW)))
    assert pending == []
    _issue(root, *(f"y{number}" for number in range(invoice_files._FEW + 1)))
    assert pending == [invoice_files._FEW + 1, 3 + invoice_files._FEW + invoice_files._FEW + 1]
    assert len(invoice_files.read_all(root)) == 204
