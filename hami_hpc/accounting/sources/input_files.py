# SPDX-License-Identifier: Apache-2.0
"""Opens what --input names: a file, a pipe or standard input, plain or packed by gzip, in UTF-8 or UTF-16.

The readers of exports get a regular file of UTF-8 lines that end with a newline. What is not that is copied to it;
what cannot be is refused in one line. A plain file is not copied: exports may have gigabytes.
"""

from __future__ import annotations

import codecs
import stat
import sys
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from hami_hpc.accounting.errors import AccountingError

STANDARD_INPUT = Path("-")
MOST_BYTES = 64 << 30  # unpacked: some hundred million records
_CHUNK_BYTES = 1 << 20
_GZIP = b"\x1f\x8b"
# The first bytes of other files -> what they are, and the command that unpacks them, if one does.
_OTHERS = {
    b"\xfd7zXZ\x00": ("packed by xz", "xz -dc"),
    b"BZh": ("packed by bzip2", "bzip2 -dc"),
    b"\x28\xb5\x2f\xfd": ("packed by zstd", "zstd -dc"),
    b"PK\x03\x04": ("a zip archive or an office document", "unzip -p"),
    b"PAR1": ("a Parquet file", ""),
    b"\xff\xfe\x00\x00": ("text in UTF-32", "iconv -f UTF-32 -t UTF-8"),
    b"\x00\x00\xfe\xff": ("text in UTF-32", "iconv -f UTF-32 -t UTF-8"),
}
_UTF_16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
# No column that is read can hold it (sacct.SAFE), so it is in the header and nowhere else.
_HEADER_WORD = b"jobidraw"
EXPORT_AGAIN = "export it again, best as JSON: sacct -a -D --json -S FIRST_DAY -E LAST_DAY > FILE"


def shown(path: Path) -> str:
    """Returns what messages call an input."""
    return "standard input" if path == STANDARD_INPUT else str(path)


def made_s(path: Path) -> int:
    """Returns when an input was made, seconds since 1970: now, if it is no file. Raises AccountingError."""
    try:
        status = None if path == STANDARD_INPUT else path.stat()
    except OSError as error:
        raise AccountingError(f"cannot read {path}: {error.strerror}") from error
    return int(status.st_mtime) if status and stat.S_ISREG(status.st_mode) else int(time.time())


def is_json(path: Path) -> bool:
    """Returns whether a file that ``prepare`` returned is a JSON document."""
    with path.open("rb") as file:
        return file.read(64).lstrip()[:1] == b"{"


def prepare(path: Path, scratch: Path) -> Path:
    """Returns a regular file with the input's text. scratch: a directory for copies, which must exist while it is read.

    Raises AccountingError, in one line, for an input that is no text, is empty, or cannot be read.
    """
    name = shown(path)
    try:
        plain = _regular(path, scratch)
        head = _head(plain)
        if head.startswith(_GZIP):
            plain = _written(_begun(_unzipped(plain, name), name), scratch / "unpacked", name)
            head = _head(plain)
        _refuse_others(head, name)
        if encoding := _UTF_16.get(head[:2]):
            plain = _written(_recoded(plain, encoding, name), scratch / "recoded", name)
        elif head.startswith(codecs.BOM_UTF8):
            plain = _written(_chunks(plain, len(codecs.BOM_UTF8)), scratch / "recoded", name)
        if not is_json(plain) and _check_lines(plain, name):
            plain = _written(_with_newlines(plain, name), scratch / "lines", name)
            _check_lines(plain, name)
        return plain
    except OSError as error:
        raise AccountingError(f"cannot read {name}: {error.strerror}") from error


def _regular(path: Path, scratch: Path) -> Path:
    """Returns the input as a regular file."""
    if path == STANDARD_INPUT:
        return _written(_begun(_read(sys.stdin.buffer), shown(path)), scratch / "standard-input", shown(path))
    mode = path.stat().st_mode
    if stat.S_ISREG(mode):
        return path
    if stat.S_ISFIFO(mode):
        with path.open("rb") as pipe:
            return _written(_begun(_read(pipe), str(path)), scratch / "pipe", str(path))
    kind = "a directory" if stat.S_ISDIR(mode) else "a device or socket"
    raise AccountingError(f"{path} is {kind}, and no export; give --input once for each file, or - for standard input")


def _begun(chunks: Iterator[bytes], name: str) -> Iterator[bytes]:
    """Yields the chunks, if the first may begin an export: what has no end is not copied until the disk is full."""
    first = next(filter(None, chunks), b"")
    try:
        text = zlib.decompressobj(wbits=31).decompress(first, _CHUNK_BYTES) if first.startswith(_GZIP) else first
    except zlib.error as error:
        raise _damaged(name, error) from error
    if text:
        _refuse_others(text, name)
        if not text.startswith(tuple(_UTF_16)):
            _refuse_nul(text, name)
            is_short = len(first) < _CHUNK_BYTES  # then what is missing is named when all of it has been read
            if not (is_short or text.lstrip()[:1] == b"{" or _HEADER_WORD in text.lower()):
                raise AccountingError(f"{name} has no header line with JobIDRaw in its first MiB; {EXPORT_AGAIN}")
    yield first
    yield from chunks


def _damaged(name: str, error: zlib.error) -> AccountingError:
    return AccountingError(f"{name} is a damaged gzip file ({error}); copy or export it again")


def _refuse_nul(chunk: bytes, name: str) -> None:
    if b"\0" in chunk:
        raise AccountingError(f"{name} has NUL characters: no text in UTF-8, or a damaged file; {EXPORT_AGAIN}")


def _refuse_others(head: bytes, name: str) -> None:
    if not head.strip():
        raise AccountingError(f"{name} is empty: not even a header line; {EXPORT_AGAIN}")
    for start, (kind, unpack) in _OTHERS.items():
        if head.startswith(start):
            way = f"{unpack} FILE | hami-hpc ... --input -" if unpack else EXPORT_AGAIN
            raise AccountingError(f"{name} is {kind}, and no export; {way}")
    if head.startswith(_GZIP):
        raise AccountingError(f"{name} is packed by gzip twice; unpack it once: gzip -dc FILE | hami-hpc ... --input -")


def _check_lines(path: Path, name: str) -> bool:
    """Checks that this can be one export. Returns whether it has carriage returns. Raises AccountingError."""
    has_returns = False
    before = b""
    headers = 0
    for chunk in _chunks(path):
        _refuse_nul(chunk, name)
        has_returns = has_returns or b"\r" in chunk
        lower = before + chunk.lower()
        headers += lower.count(_HEADER_WORD)
        before = lower[-len(_HEADER_WORD) + 1 :]
        if headers > 1:
            raise AccountingError(
                f"{name} has a second header line: several exports in one file, whose columns may differ; give each "
                "with an --input of its own"
            )
    return has_returns


def _with_newlines(path: Path, name: str) -> Iterator[bytes]:
    """Yields the file with newlines instead of the line ends of Windows."""
    held = b""
    for chunk in _chunks(path):
        whole = held + chunk
        held = b"\r" if whole.endswith(b"\r") else b""
        text = whole[: len(whole) - len(held)].replace(b"\r\n", b"\n")
        if b"\r" in text:
            raise _stray_return(name)
        yield text
    if held:
        raise _stray_return(name)


def _stray_return(name: str) -> AccountingError:
    return AccountingError(f"{name} has carriage returns that end no line, which sacct does not write; {EXPORT_AGAIN}")


def _unzipped(path: Path, name: str) -> Iterator[bytes]:
    unpacker = zlib.decompressobj(wbits=31)
    try:
        for chunk in _chunks(path):
            rest = chunk
            while rest:
                if unpacker.eof:  # gzip files may be joined, and padded with zeros
                    rest = rest.lstrip(b"\0")
                    if not rest:
                        break
                    unpacker = zlib.decompressobj(wbits=31)
                yield unpacker.decompress(rest, _CHUNK_BYTES)
                rest = unpacker.unconsumed_tail or unpacker.unused_data
    except zlib.error as error:
        raise _damaged(name, error) from error
    if not unpacker.eof:
        raise AccountingError(f"{name} is half a gzip file: its end is missing; copy or export it again")


def _recoded(path: Path, encoding: str, name: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        for chunk in _chunks(path, len(codecs.BOM_UTF16)):
            yield decoder.decode(chunk).encode()
        yield decoder.decode(b"", final=True).encode()
    except UnicodeDecodeError as error:
        raise AccountingError(f"{name} begins as UTF-16 and is not ({error.reason}); {EXPORT_AGAIN}") from error


def _written(chunks: Iterable[bytes], target: Path, name: str) -> Path:
    """Writes the chunks to ``target``. Raises AccountingError when there are more than MOST_BYTES."""
    size = 0
    with target.open("wb") as out:
        for chunk in chunks:
            size += len(chunk)
            if size > MOST_BYTES:
                raise AccountingError(f"{name} has more than {MOST_BYTES >> 30} GiB of text; give it month by month")
            try:
                out.write(chunk)
            except OSError as error:
                raise AccountingError(f"{name} cannot be copied to {target.parent}: {error.strerror}") from error
    return target


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(4096)


def _chunks(path: Path, start: int = 0) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(start)
        yield from _read(file)


def _read(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK_BYTES):
        yield chunk
