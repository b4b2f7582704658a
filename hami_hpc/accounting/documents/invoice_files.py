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

from hami_hpc.accounting.documents.credits import CreditUse
from hami_hpc.accounting.documents.invoice import Content, InvoiceLine
from hami_hpc.accounting.errors import AccountingError

# Documents of version 1 have a digest of their content only, and were kept without a register.
VERSION = 2
VERSIONS = (1, 2)
REGISTER_VERSION = 1
INVOICE = "invoice"
CREDIT_NOTE = "credit note"
_FEW = 100  # documents whose files are synced one by one
_READS = 10  # attempts of a reader to see the files while no writer changes them
_Raw = dict[str, Any]


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

    @property
    def printed_digest(self) -> str:
        """The digest on paper: of version 1 and of drafts, that of the content."""
        return self.digest if self.digest and self.version > 1 else content_digest(self.content)


@dataclass(frozen=True, slots=True)
class Register:
    """The contents of register.json. sequence, digest: of the newest document. pending: documents, as their files have
    them, that may have no file yet."""

    sequence: int
    digest: str
    pending: tuple[_Raw, ...] = ()


def content_digest(content: Content) -> str:
    """Returns the SHA-256 of the content."""
    return _content_digest(_content_fields(content))


def sealed(document: Document, previous: Document | None) -> Document:
    """Returns the document with its digest. previous: the document before it."""
    return replace(document, digest=_link(previous.digest if previous else "", _fields(document)))


def read_all(root: Path) -> tuple[Document, ...]:
    """Reads all documents in the order of their numbers. Raises AccountingError for a missing or changed one."""
    for _ in range(_READS):
        register = _read_register(root)
        try:
            documents = _read_documents(root, register)
        except AccountingError:
            if _read_register(root) == register:
                raise
            continue
        if _read_register(root) == register:  # else a writer was at work meanwhile
            return documents
    raise AccountingError(f"{root}/register.json changes all the time; run this again when others have issued invoices")


def settle(root: Path, documents: Sequence[Document]) -> None:
    """Writes the files that a writer who died has left out, and makes the register of a store that has none yet.

    The store must be locked. documents: all there are (read_all).
    """
    register = _read_register(root)
    if register is None and documents:
        _write_register(root, Register(len(documents), documents[-1].digest))
    if register is not None and register.pending:
        _write_pending(root, register)


def commit(root: Path, documents: Sequence[Document]) -> None:
    """Keeps new documents: all of them or, if this fails or the process dies before they are in the register, none.

    The store must be locked and settled. documents: new ones, in order, sealed.
    """
    newest = documents[-1]
    register = Register(newest.sequence, newest.digest, tuple(map(_fields, documents)))
    _write_register(root, register)
    _write_pending(root, register)


def _write_pending(root: Path, register: Register) -> None:
    folder = root / "invoices"
    try:
        folder.mkdir(mode=0o750, exist_ok=True)
        is_many = len(register.pending) > _FEW
        for raw in register.pending:
            _write_document(folder, raw, not is_many)
        if is_many:
            os.sync()  # one wait for all files; until then the register has them
        _sync(folder)
    except OSError as error:
        raise AccountingError(
            f"{folder} cannot be written ({error.strerror}): the invoices are issued, and {root}/register.json has "
            "them; make room, and run this again, which writes their files"
        ) from error
    _write_register(root, replace(register, pending=()))


def _write_document(folder: Path, raw: _Raw, synced: bool) -> None:
    """Writes a document's file completely or not at all, and never over another."""
    path = folder / f"{raw['number']}.json"
    text = _text(raw)
    temporary = folder / f".{raw['number']}"
    if path.exists() and _read_file(path)[1] == json.loads(text):
        temporary.unlink(missing_ok=True)
        return
    _write_new(temporary, text, synced)
    try:
        os.link(temporary, path)
    except FileExistsError as error:
        raise AccountingError(f"{path} exists already, with other content; restore it from a backup") from error
    finally:
        temporary.unlink()


def _text(raw: _Raw) -> str:
    """Returns a document as its file has it: a line for its content, one for the rest. json's own indent would take ten
    times as long, which 20,000 invoices show."""
    rest = {name: value for name, value in raw.items() if name != "content"}
    return f'{json.dumps(rest)[:-1]},\n "content": {json.dumps(raw["content"])}}}\n'


def _write_register(root: Path, register: Register) -> None:
    """Replaces the register. Raises OSError, and then it is as it was."""
    temporary = root / ".register.json"
    fields = {"sequence": register.sequence, "digest": register.digest, "pending": register.pending}
    _write_new(temporary, json.dumps({"version": REGISTER_VERSION, **fields}) + "\n", True)
    temporary.rename(root / "register.json")
    _sync(root)


def _write_new(path: Path, text: str, synced: bool) -> None:
    """Writes a new file, also where a writer that died has left one. synced: waits until it is on the disk."""
    path.unlink(missing_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        if synced:
            os.fsync(handle)


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _read_register(root: Path) -> Register | None:
    path = root / "register.json"
    try:
        fields: _Raw = json.loads(path.read_text(encoding="utf-8"))
        version = fields.pop("version")
        register = Register(**{**fields, "pending": tuple(fields["pending"])})
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise AccountingError(f"{path} cannot be read: {error.strerror}") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise AccountingError(f"{path} cannot be read ({error}); restore it from a backup") from error
    if version != REGISTER_VERSION or type(register.sequence) is not int:
        raise AccountingError(f"{path} has version {version}; this hami_hpc reads version {REGISTER_VERSION}")
    return register


def _read_documents(root: Path, register: Register | None) -> tuple[Document, ...]:
    """Returns all documents, with their digests checked one after the other and against the register."""
    folder = root / "invoices"
    paths = sorted(folder.iterdir()) if folder.exists() else []
    found = [_read_file(path) for path in paths if path.suffix == ".json" and not path.name.startswith(".")]
    in_files = {raw.get("number") for _, raw in found}
    for raw in register.pending if register else ():
        if isinstance(raw, dict) and raw.get("number") not in in_files:
            found.append((root / "register.json", raw))
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
                    }
                ),
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
    return hashlib.sha256(json.dumps([previous, fields], sort_keys=True).encode()).hexdigest()


def _content_digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _fields(document: Document) -> _Raw:
    """Returns what the document's file has: as asdict does, but faster."""
    return {**_plain(document), "content": _content_fields(document.content)}


def _content_fields(content: Content) -> _Raw:
    parts = {name: [_plain(part) for part in getattr(content, name)] for name in ("lines", "users", "credits")}
    return {**_plain(content), **parts}


def _plain(value: Document | Content | InvoiceLine | CreditUse) -> _Raw:
    return {name: getattr(value, name) for name in value.__slots__}


def _lines(raw: Sequence[Mapping[str, Any]]) -> tuple[InvoiceLine, ...]:
    return tuple(InvoiceLine(**{**line, "labels": tuple(line["labels"])}) for line in raw)
