# SPDX-License-Identifier: Apache-2.0
"""The files of issued invoices and credit notes, which are numbered without gaps and never changed.

    STORE/invoices/NUMBER.json  one document, with a digest over all its fields and the digest of the one before it
    STORE/register.json         how many documents there are, the newest one's digest, and those not yet in invoices/

The register is replaced atomically, together with all documents of one run of `invoice`, and then their files are
written: so documents are either all issued or none, whenever a writer dies, and the next one writes the files that are
still missing. A document that was edited does not fit its digest or the one after it, and the newest ones are missing
when the register counts more. docs/adr/035 says what this does not show.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hami_hpc.accounting.documents import billing as billings
from hami_hpc.accounting.documents.billing import Billing
from hami_hpc.accounting.documents.charged import RuleCredit
from hami_hpc.accounting.documents.credits import CreditUse
from hami_hpc.accounting.documents.invoice import Content, DiscountStep, InvoiceLine
from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.store.synced_files import sync, write_new

# Documents of version 1 have a digest of their content only, and were kept without a register.
# Version 3 has what version 2 does not know: billing, discount_steps. A document without them is of version 2.
VERSION = 2
VERSIONS = (1, 2, 3)
# Version 2 counts payments (payments.py); a register without them is of version 1.
REGISTER_VERSIONS = (1, 2)
INVOICE = "invoice"
CREDIT_NOTE = "credit note"
_FEW = 100  # documents whose files are synced one by one
_READS = 10  # attempts of a reader to see the files while no writer changes them
_Raw = dict[str, Any]
# They write what json.dumps does. What they are given is a tree, so they need not look for circles, which takes a fifth
# of the time.
_encode = json.JSONEncoder(check_circular=False).encode
_encode_sorted = json.JSONEncoder(check_circular=False, sort_keys=True).encode


@dataclass(frozen=True, slots=True)
class Document:
    """One issued invoice or credit note.

    refers_to: for a credit note the invoice that it cancels; for an invoice the one that it replaces; else empty.
    issued: a day, ISO. digest: of all other fields and of the digest of the document before it; empty for a draft.
    """

    number: str
    sequence: int
    kind: str
    refers_to: str
    issued: str
    issuer: tuple[str, ...]
    content: Content
    version: int = VERSION
    digest: str = ""
    billing: Billing | None = None  # None where the site has no finance.toml

    @property
    def payable(self) -> str:
        """What is to be paid, or of a credit note returned, with tax."""
        return self.billing.payable if self.billing else self.content.total

    @property
    def printed_digest(self) -> str:
        """The digest on paper: of version 1 and of drafts, that of the content."""
        return self.digest if self.digest and self.version > 1 else content_digest(self.content)


@dataclass(frozen=True, slots=True)
class Register:
    """The contents of register.json. sequence, digest: of the newest document. pending: documents, as their files have
    them, that may have no file yet. payments, payments_digest: how many entries payments.py has, and the last one's."""

    sequence: int
    digest: str
    pending: tuple[_Raw, ...] = ()
    payments: int = 0
    payments_digest: str = ""


def content_digest(content: Content) -> str:
    """Returns the SHA-256 of the content."""
    return _content_digest(_content_fields(content))


def sealed(document: Document, previous: Document | None) -> Document:
    """Returns the document with its digest. previous: the document before it."""
    if document.billing or document.content.discount_steps:
        document = replace(document, version=3)
    return replace(document, digest=_link(previous.digest if previous else "", _fields(document)))


def read_all(root: Path) -> tuple[Document, ...]:
    """Reads all documents in the order of their numbers. Raises AccountingError for a missing or changed one."""
    for _ in range(_READS):
        register = read_register(root)
        try:
            documents = _read_documents(root, register)
        except AccountingError:
            if read_register(root) == register:
                raise
            continue
        if read_register(root) == register:  # else a writer was at work meanwhile
            return documents
    raise AccountingError(f"{root}/register.json changes all the time; run this again when others have issued invoices")


def settle(root: Path, documents: Sequence[Document]) -> None:
    """Writes the files that a writer who died has left out, and makes the register of a store that has none yet.

    The store must be locked. documents: all there are (read_all).
    """
    register = read_register(root)
    if register is None and documents:
        write_register(root, Register(len(documents), documents[-1].digest))
    if register is not None and register.pending:
        _write_pending(root, register, [_text(raw) for raw in register.pending])


def commit(root: Path, documents: Sequence[Document]) -> None:
    """Keeps new documents: all of them or, if this fails or the process dies before they are in the register, none.

    The store must be locked and settled. documents: new ones, in order, sealed.
    """
    newest = documents[-1]
    before = read_register(root) or Register(0, "")
    register = replace(before, sequence=newest.sequence, digest=newest.digest, pending=tuple(map(_fields, documents)))
    # Encoded once for the register and the files: 20,000 invoices show it.
    texts = [_text(raw) for raw in register.pending]
    write_register(root, register, texts)
    _write_pending(root, register, texts)


def _write_pending(root: Path, register: Register, texts: Sequence[str]) -> None:
    folder = root / "invoices"
    try:
        folder.mkdir(mode=0o750, exist_ok=True)
        is_many = len(register.pending) > _FEW
        present = {path.name for path in folder.iterdir()}  # nobody else adds to them: the store is locked
        for raw, text in zip(register.pending, texts, strict=True):
            _write_document(folder, raw["number"], text, present, not is_many)
        if is_many:
            os.sync()  # one wait for all files; until then the register has them
        sync(folder)
    except OSError as error:
        raise AccountingError(
            f"{folder} cannot be written ({error.strerror}): the invoices are issued, and {root}/register.json has "
            "them; make room, and run this again, which writes their files"
        ) from error
    write_register(root, replace(register, pending=()))


def _write_document(folder: Path, number: str, text: str, present: set[str], synced: bool) -> None:
    """Writes a pending document's file completely or not at all, and never over another document.

    present: the names in the folder. A file of this name that cannot be read is what a power failure left of one that
    was not synced, and is written anew.
    """
    name, temporary = f"{number}.json", folder / f".{number}"
    if name in present:
        path = folder / name
        try:
            is_same = _read_file(path)[1] == json.loads(text)
        except AccountingError:
            path.unlink()
        else:
            if not is_same:
                raise AccountingError(f"{path} exists already, with other content; restore it from a backup")
            temporary.unlink(missing_ok=True)
            return
    write_new(temporary, text, synced)
    temporary.rename(folder / name)


def _text(raw: _Raw) -> str:
    """Returns a document as its file has it: a line for its content, one for the rest. json's own indent would take ten
    times as long, which 20,000 invoices show."""
    rest = {name: value for name, value in raw.items() if name != "content"}
    return f'{_encode(rest)[:-1]},\n "content": {_encode(raw["content"])}}}\n'


def write_register(root: Path, register: Register, pending: Sequence[str] = ()) -> None:
    """Replaces the register. pending: its pending documents, as their files have them. Raises OSError, and then it is
    as it was."""
    temporary = root / ".register.json"
    version = REGISTER_VERSIONS[1 if register.payments else 0]
    fields = {"version": version, "sequence": register.sequence, "digest": register.digest}
    if register.payments:
        fields.update(payments=register.payments, payments_digest=register.payments_digest)
    documents = ",\n".join(text.rstrip() for text in pending)
    write_new(temporary, f'{json.dumps(fields)[:-1]}, "pending": [{documents}]}}\n', True)
    temporary.rename(root / "register.json")
    sync(root)


def read_register(root: Path) -> Register | None:
    """Returns the register, None if there is none. Raises AccountingError."""
    path = root / "register.json"
    try:
        fields: _Raw = json.loads(path.read_text(encoding="utf-8"))
        version = fields.pop("version")
        register = Register(**{**fields, "pending": tuple(fields["pending"])})
        if any(type(raw.get("number")) is not str for raw in register.pending):
            raise ValueError("a pending document has no number")
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise AccountingError(f"{path} cannot be read: {error.strerror}") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise AccountingError(f"{path} cannot be read ({error}); restore it from a backup") from error
    if version not in REGISTER_VERSIONS or type(register.sequence) is not int or type(register.payments) is not int:
        known = " and ".join(map(str, REGISTER_VERSIONS))
        raise AccountingError(f"{path} has version {version}; this hami_hpc reads version {known}")
    return register


def _read_documents(root: Path, register: Register | None) -> tuple[Document, ...]:
    """Returns all documents, with their digests checked one after the other and against the register."""
    folder = root / "invoices"
    pending = {raw["number"]: raw for raw in register.pending} if register else {}
    paths = sorted(folder.iterdir()) if folder.exists() else []
    # Not the files of pending documents: a power failure may have left them empty.
    own = [path for path in paths if path.suffix == ".json" and path.name[0] != "." and path.stem not in pending]
    found = [*map(_read_file, own), *((root / "register.json", raw) for raw in pending.values())]
    parsed = sorted(((_parse(path, raw), raw) for path, raw in found), key=lambda entry: entry[0].sequence)
    documents: list[Document] = []
    for expected, (document, raw) in enumerate(parsed, 1):
        if document.sequence < expected:
            raise AccountingError(f"two files in {folder} have number {document.sequence}; restore them from a backup")
        if document.sequence > expected:
            raise AccountingError(f"invoice number {expected} is missing in {folder}; restore it from a backup")
        documents.append(_checked(folder, document, raw, documents[-1] if documents else None))
    _check_against(root, register, documents)
    return tuple(documents)


def _check_against(root: Path, register: Register | None, documents: Sequence[Document]) -> None:
    folder, path = root / "invoices", root / "register.json"
    if register is None:
        if any(document.version > 1 for document in documents):
            raise AccountingError(f"{path} is missing; restore it and {folder} from one backup")
        return
    count = len(documents)
    if count < register.sequence:
        raise AccountingError(
            f"invoice number {count + 1} is missing in {folder}, and {path} counts {register.sequence}; restore it "
            "from a backup"
        )
    if count > register.sequence:
        raise AccountingError(
            f"{documents[register.sequence].number} in {folder} is not in {path}: one of the two is an older copy; "
            "restore both from one backup"
        )
    if documents and documents[-1].digest != register.digest:
        raise AccountingError(
            f"the documents in {folder} are not those that {path} has registered: one was changed after it was "
            "issued; restore both from one backup"
        )


def _read_file(path: Path) -> tuple[Path, _Raw]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise AccountingError(f"{path} cannot be read ({error}); restore it from a backup") from error
    if not isinstance(raw, dict) or raw.get("number") != path.stem:
        raise AccountingError(
            f"{path} is not the invoice that its name says; restore it from a backup, and keep copies elsewhere"
        )
    return path, raw


def _parse(path: Path, raw: Mapping[str, Any]) -> Document:
    try:
        content = raw["content"]
        document = Document(
            **{
                **raw,
                "issuer": tuple(raw["issuer"]),
                "content": Content(
                    **{
                        **content,
                        "lines": _lines(content["lines"]),
                        "users": _lines(content["users"]),
                        "days": tuple((day, hours) for day, hours in content["days"]),
                        "credits": tuple(CreditUse(**use) for use in content["credits"]),
                        "notes": tuple(content["notes"]),
                        "discount_steps": tuple(DiscountStep(**step) for step in content.get("discount_steps", ())),
                        "credited": tuple(RuleCredit(**entry) for entry in content.get("credited", ())),
                    }
                ),
                "billing": billings.parse(raw["billing"]) if raw.get("billing") else None,
            }
        )
        stated = raw["version"], raw["digest"]
    except (ValueError, KeyError, TypeError) as error:
        raise AccountingError(f"{path} cannot be read ({error}); restore it from a backup") from error
    if stated[0] not in VERSIONS or type(document.sequence) is not int:
        known = " and ".join(map(str, VERSIONS))
        raise AccountingError(f"{path} has version {stated[0]}; this hami_hpc reads version {known}")
    return document


def _checked(folder: Path, document: Document, raw: _Raw, previous: Document | None) -> Document:
    """Returns the document with its digest in the chain. Raises AccountingError when it does not fit."""
    link = _link(previous.digest if previous else "", raw)
    stated = document.digest
    if document.version == 1:
        if previous is not None and previous.version > 1:
            raise AccountingError(f"{document.number} in {folder} has a version of before; restore it from a backup")
        if stated != _content_digest(raw["content"]):
            raise AccountingError(f"{folder}/{document.number}.json was changed after it was issued; restore it")
        return replace(document, digest=link)
    if stated != link:
        before = f", or {previous.number} before it," if previous else ""
        raise AccountingError(
            f"{folder}/{document.number}.json{before} was changed after it was issued; restore from a backup"
        )
    return document


def _link(previous: str, raw: _Raw) -> str:
    """Returns the digest of a document as its file has it, and of the digest of the one before it.

    A document of version 1 has no such digest in its file, but the next one's covers it.
    """
    fields = {name: value for name, value in raw.items() if raw["version"] == 1 or name != "digest"}
    return hashlib.sha256(_encode_sorted([previous, fields]).encode()).hexdigest()


def _content_digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(_encode_sorted(content).encode()).hexdigest()


def _fields(document: Document) -> _Raw:
    """Returns what the document's file has: as asdict does, but faster."""
    raw = {**_plain(document), "content": _content_fields(document.content)}
    billing = raw.pop("billing")
    return {**raw, "billing": billings.fields(billing)} if billing else raw


def _content_fields(content: Content) -> _Raw:
    parts: _Raw = {name: [_line(line) for line in getattr(content, name)] for name in ("lines", "users")}
    for name in ("credits", "discount_steps", "credited"):
        parts[name] = [_plain(part) for part in getattr(content, name)]
    return _without_new(_without_new({**_plain(content), **parts}, "credited"), "discount_steps")


def _line(line: InvoiceLine) -> _Raw:
    """Returns a line as _plain would, and without what is new where it says nothing. A document is mostly lines, and
    this takes a fifth of the time."""
    raw: _Raw = {"labels": line.labels, "jobs": line.jobs, "gpu_hours": line.gpu_hours, "amount": line.amount}
    if line.quantity:
        raw["quantity"] = line.quantity
    return raw


def _plain(value: Document | Content | CreditUse | DiscountStep | RuleCredit) -> _Raw:
    return {name: getattr(value, name) for name in value.__slots__}


def _without_new(fields: _Raw, name: str) -> _Raw:
    """Returns the fields without one that documents of before do not have, where it says nothing: the digests of these
    stay as they are."""
    if not fields.get(name, True):
        del fields[name]
    return fields


def _lines(raw: Sequence[Mapping[str, Any]]) -> tuple[InvoiceLine, ...]:
    return tuple(InvoiceLine(**{**line, "labels": tuple(line["labels"])}) for line in raw)
