# SPDX-License-Identifier: Apache-2.0
"""Parses the subset of TOML that settings files normally use, without tomllib. Pure.

Prolog and epilog read the settings at every job, and importing tomllib takes as long as an empty Python start
(docs/adr/021). This parser accepts only these lines: `[name.name]`, `key = value`, comments, blank lines. Values are
"text" without escapes, decimal numbers, true, false and one-line lists of texts; a key may be such a text too. It
returns None for any other text, valid or not; the caller then uses tomllib.
"""

from __future__ import annotations

BLANKS = " \t"
BARE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class _NotPlainError(Exception):
    """The text has something that this parser leaves to tomllib."""


def read(text: str) -> dict[str, Any] | None:
    """Returns what tomllib.loads returns; None for a text outside of the subset."""
    document: dict[str, Any] = {}
    table = document
    headers: set[str] = set()
    try:
        for raw in text.split("\n"):
            line = raw.strip(BLANKS)
            if not line:
                continue
            if not line.isprintable():  # TOML forbids control characters, in comments too
                return None
            if line[0] == "[":
                header, end, rest = line[1:].partition("]")
                if not end or header in headers:
                    return None
                _check_end(rest)
                headers.add(header)
                table = _table(document, header)
            elif line[0] != "#":
                key, rest = _key(line)
                if key in table:
                    return None
                table[key] = _value(rest.lstrip(BLANKS))
    except _NotPlainError:
        return None
    return document


def _is_bare(key: str) -> bool:
    return key != "" and BARE.issuperset(key)


def _key(line: str) -> tuple[str, str]:
    """Returns the key of `key = value`, and what follows the equals sign."""
    if line[0] == '"':
        key, rest = _text(line)
        between, equals, rest = rest.partition("=")
        if between.strip(BLANKS) or not equals:
            raise _NotPlainError
        return key, rest
    key, _, rest = line.partition("=")
    key = key.rstrip(BLANKS)
    if not _is_bare(key):
        raise _NotPlainError
    return key, rest


def _table(document: dict[str, Any], header: str) -> dict[str, Any]:
    """Returns the table of a header, creating it if needed. Leaves a header that meets a value to tomllib."""
    names = header.split(".")
    table = document
    for name in names:
        if not _is_bare(name):
            raise _NotPlainError
        table = table.setdefault(name, {})
        if type(table) is not dict:
            raise _NotPlainError
    return table


def _value(text: str) -> Any:
    """Parses one value, which a comment may follow."""
    if text.startswith('"'):
        value, rest = _text(text)
        _check_end(rest)
        return value
    if text.startswith("["):
        return _texts(text[1:].lstrip(BLANKS))
    word = text.partition("#")[0].rstrip(BLANKS)
    return word == "true" if word in ("true", "false") else _number(word)


def _text(text: str) -> tuple[str, str]:
    """Returns the text that begins with a quotation mark, and the rest."""
    value, end, rest = text[1:].partition('"')
    if not end or "\\" in value or rest.startswith('"'):
        raise _NotPlainError
    return value, rest


def _texts(text: str) -> list[str]:
    """Parses the texts of a list after its opening bracket."""
    values: list[str] = []
    while not text.startswith("]"):
        if not text.startswith('"'):
            raise _NotPlainError
        value, text = _text(text)
        values.append(value)
        text = text.lstrip(BLANKS)
        if text.startswith(","):
            text = text[1:].lstrip(BLANKS)
        elif not text.startswith("]"):
            raise _NotPlainError
    _check_end(text[1:])
    return values


def _number(text: str) -> int | float:
    """Parses a decimal number without sign, exponent or leading zeros."""
    whole, point, fraction = text.partition(".")
    if not (whole.isascii() and whole.isdigit()) or (whole[0] == "0" and whole != "0") or len(whole) > 15:
        raise _NotPlainError
    if not point:
        return int(whole)
    if not (fraction.isascii() and fraction.isdigit()):
        raise _NotPlainError
    return float(text)


def _check_end(rest: str) -> None:
    rest = rest.lstrip(BLANKS)
    if rest and not rest.startswith("#"):
        raise _NotPlainError
