# SPDX-License-Identifier: Apache-2.0
"""The files of many invoices: what a power failure leaves of them, and that their text is what json makes of them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_hpc.accounting.documents import invoice_files
from hami_hpc.accounting.documents.invoice import InvoiceLine
from hami_hpc.accounting.documents.invoice_files import Document
from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.store import synced_files

from .test_register import _content, _edit, _file, _issue


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with three invoices."""
    (tmp_path / "s").mkdir()
    _issue(tmp_path / "s", "a", "b", "c")
    return tmp_path / "s"


@pytest.mark.parametrize("left", [b"", b"\0" * 400, b'{"number": "HPC-2026-0'])
def test_files_that_a_power_failure_left_empty_are_written_again(
    root: Path, monkeypatch: pytest.MonkeyPatch, left: bytes
) -> None:
    """Files of many documents are synced together; the power fails before that, and their names alone are there."""
    names = [f"x{number}" for number in range(invoice_files._FEW + 1)]

    def fail() -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "sync", fail)
        with pytest.raises(AccountingError, match="the invoices are issued"):
            _issue(root, *names)
    texts = {path: path.read_bytes() for path in (root / "invoices").iterdir()}
    torn = [path for path in texts if int(path.stem[-5:]) > 3]
    for path in torn:
        path.write_bytes(left)
    assert len(torn) == len(names)
    assert len(invoice_files.read_all(root)) == 3 + len(names)
    assert _issue(root, *names) == ()
    assert {path: path.read_bytes() for path in (root / "invoices").iterdir()} == texts
    assert json.loads((root / "register.json").read_text(encoding="utf-8"))["pending"] == []


def test_a_pending_document_is_not_written_over_another_one(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(invoice_files, "write_register", _only_once(invoice_files.write_register))
        with pytest.raises(InterruptedError):
            _issue(root, "d")
    _edit(_file(root, 4), lambda raw: raw["content"].update(total="0.01"))
    edited = _file(root, 4).read_bytes()
    with pytest.raises(AccountingError, match="exists already, with other content"):
        _issue(root, "e")
    assert _file(root, 4).read_bytes() == edited


def _only_once(write: Callable[..., None]) -> Callable[..., None]:
    calls: list[object] = []

    def once(*words: Any) -> None:
        if calls:
            raise InterruptedError
        calls.append(words)
        write(*words)

    return once


@pytest.mark.parametrize("pending", ['{"number": ["a"]}', "{}", "3", '"a"', "null"])
def test_a_pending_document_without_a_number_is_named(root: Path, pending: str) -> None:
    text = (root / "register.json").read_text(encoding="utf-8")
    (root / "register.json").write_text(text.replace('"pending": []', f'"pending": [{pending}]'), encoding="utf-8")
    with pytest.raises(AccountingError, match=r"register.json cannot be read"):
        invoice_files.read_all(root)


def test_a_write_in_parts_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, data[:7]))
    synced_files.write_new(tmp_path / "f", "zwölf Boxkämpfer jagen", False)
    assert (tmp_path / "f").read_text(encoding="utf-8") == "zwölf Boxkämpfer jagen"


_LABELS = st.tuples(st.text(), st.text())


@settings(deadline=None)
@given(
    lines=st.lists(st.builds(InvoiceLine, _LABELS, st.integers(), st.text(), st.text(), st.text())),
    notes=st.lists(st.text()),
)
def test_a_files_text_is_what_json_makes_of_the_document(lines: list[InvoiceLine], notes: list[str]) -> None:
    """asdict and json.dumps are the plain form; ``quantity`` is absent where it says nothing."""
    content = replace(_content("ä|\u2028"), lines=tuple(lines), users=tuple(lines), notes=tuple(notes))
    document = invoice_files.sealed(Document("N-1", 1, "invoice", "", "2026-10-01", ("We",), content), None)
    plain = asdict(document)
    for line in (*plain["content"]["lines"], *plain["content"]["users"]):
        if not line["quantity"]:
            del line["quantity"]
    for name in ("discount_steps", "credited"):
        del plain["content"][name]
    del plain["billing"]
    text = invoice_files._text(invoice_files._fields(document))
    rest = {name: value for name, value in plain.items() if name != "content"}
    assert text == f'{json.dumps(rest)[:-1]},\n "content": {json.dumps(plain["content"])}}}\n'
    digest = plain.pop("digest")
    assert digest == hashlib.sha256(json.dumps(["", plain], sort_keys=True).encode()).hexdigest()
