# SPDX-License-Identifier: Apache-2.0
"""Which documents are paid. Documents never change, so this is kept beside them.

    STORE/payments.jsonl  one line for each time that somebody said so, or took it back, with a digest over all its
                          fields, the document's digest and the digest of the line before it
    STORE/register.json   how many lines count, and the digest of the last of these

A writer appends its lines, and then replaces the register: this is the moment at which they count. What is behind the
lines that count is left over of a writer that died; readers do not see it, and the next writer removes it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from hami_hpc.accounting.documents import invoice_files
from hami_hpc.accounting.documents.invoice_files import Document
from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.store.synced_files import sync

FILE_NAME = "payments.jsonl"


@dataclass(frozen=True, slots=True)
class Payment:
    """One entry. number: of the document. paid: the day on which money came, ISO; empty where it was taken back.
    noted: when it was written, ISO. document: the document's digest."""

    number: str
    paid: str
    noted: str
    document: str


def read(root: Path, documents: Sequence[Document]) -> Mapping[str, str]:
    """Returns the day of payment of each document that is paid, by number.

    documents: all there are (invoice_files.read_all). Raises AccountingError when an entry is missing or was changed.
    """
    register = invoice_files.read_register(root)
    count = register.payments if register else 0
    if not register or not count:
        return {}
    digests = {document.number: document.digest for document in documents}
    days: dict[str, str] = {}
    digest = ""
    lines = _lines(root)
    if len(lines) < count:
        raise _restore(root, f"has {len(lines)} of {count} entries")
    for number, line in enumerate(lines[:count], 1):
        payment, stated = _parsed(root, number, line)
        digest = _link(digest, payment)
        if digest != stated or digests.get(payment.number) != payment.document:
            raise _restore(root, f"was changed at entry {number}")
        days[payment.number] = payment.paid
    if digest != register.payments_digest:
        raise _restore(root, "is not the one that the register counts")
    return {number: day for number, day in days.items() if day}


def append(root: Path, entries: Sequence[Payment]) -> None:
    """Adds entries, all or none. The store must be locked and settled, and read() have found it whole."""
    register = invoice_files.read_register(root)
    assert register is not None
    kept = _lines(root)[: register.payments]
    digest = register.payments_digest
    new = []
    for entry in entries:
        digest = _link(digest, entry)
        new.append(json.dumps({**asdict(entry), "digest": digest}).encode() + b"\n")
    path = root / FILE_NAME
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        with os.fdopen(handle, "r+b") as file:
            file.truncate(sum(map(len, kept)))
            file.seek(0, os.SEEK_END)
            file.write(b"".join(new))
            file.flush()
            os.fsync(file.fileno())
        sync(root)
    except OSError as error:
        raise AccountingError(f"{path} cannot be written ({error.strerror}): nothing was noted; make room") from error
    count = register.payments + len(entries)
    invoice_files.write_register(root, replace(register, payments=count, payments_digest=digest))


def _lines(root: Path) -> list[bytes]:
    """Returns the whole lines of the file, with their newlines."""
    try:
        content = (root / FILE_NAME).read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise AccountingError(f"{root / FILE_NAME} cannot be read: {error.strerror}") from error
    return [line for line in content.splitlines(keepends=True) if line.endswith(b"\n")]


def _parsed(root: Path, number: int, line: bytes) -> tuple[Payment, str]:
    try:
        raw = json.loads(line)
        digest = raw.pop("digest")
        return Payment(**raw), digest
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _restore(root, f"was changed at entry {number}") from error


def _link(previous: str, payment: Payment) -> str:
    return hashlib.sha256(json.dumps([previous, asdict(payment)], sort_keys=True).encode()).hexdigest()


def _restore(root: Path, fault: str) -> AccountingError:
    return AccountingError(f"{root / FILE_NAME} {fault}; restore it and register.json from one backup")
