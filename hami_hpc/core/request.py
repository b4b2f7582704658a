# SPDX-License-Identifier: Apache-2.0
"""The grammar of a vgpu request within a whole --gres list.

    vgpu[:TYPE][:COUNT][:KEY=VALUE{,|;}...]  as users write it; COUNT may also be last
    vgpu[:[TYPE;]KEY~VALUE;...]             as the client's filter rewrites it for Slurm's own parsers

Slurm runs the same grammar in Lua, slurm-plugins/lua/hami_hpc_request.lua; tests/vectors and a differential fuzz test
check that both agree. Slurm's client splits a list at commas and prefixes each piece
(`gres:vgpu:mem=8G,gres:cores=50` on 22.05, `gres/` on later versions), so a piece KEY=VALUE after vgpu is part of it.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any, Final

from hami_hpc.contract import constants as contract
from hami_hpc.core.request_keys import (
    KEYS,
    TYPE,
    MemMib,
    MemPercent,
    bad_value,
    types_in,
)
from hami_hpc.errors import Refusal, request_error

_NAME: Final = re.compile(r"[A-Za-z0-9_.\-]*")
_COUNT: Final = re.compile(r"[+\-]?[0-9]+[KkMmGgTtPp]?")
# Slurm looks for "gres:" (22.05) or "gres" (later) anywhere in a list: "x gres:vgpu_mem:9" asks for vgpu_mem.
_HIDDEN: Final = re.compile(
    rf"gres[:/]?({contract.REQUEST_NAME}|{contract.GRES_MEM}|{contract.GRES_CORES}|{contract.GRES_SLO}|{contract.GRES_FIXED})"
    r"(?![A-Za-z0-9_.\-])"
)
_SHARDS: Final = re.compile(rf"{contract.GRES_SHARD}(?:[:=]([0-9]{{1,6}}))?")
_STRAY_KEY: Final = re.compile(r"([a-z]+)=")
_KEY_VALUE: Final = re.compile(r"[^:=]*=")
_ASSIGNMENT: Final = re.compile(r"([^=~]*)[=~](.*)")
_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e]")
_RAW: Final = frozenset({contract.GRES_MEM, contract.GRES_CORES, contract.GRES_SLO, contract.GRES_FIXED})
_CONFLICTS: Final = {"gpu": "E_WITH_GPU", "mps": "E_WITH_GPU", contract.GRES_SHARD: "E_WITH_SHARD"}
TYPE_EXAMPLE: Final = "--gres=vgpu:h200:mem=8G"


@dataclass(frozen=True, slots=True)
class Request:
    """What a user asks for. None means the site's default (mem, cores) or no preference (the others)."""

    gpu_type: str | None = None
    preset: str | None = None
    type: str | None = None  # several GPU types, or those to avoid; a single one is gpu_type
    count: int | None = None  # slices on a node, 2 or more
    mem: MemMib | MemPercent | None = None
    cores: int | None = None
    mode: str | None = None
    mig: str | None = None  # name of a MIG profile
    isolation: str | None = None
    policy: str | None = None
    slo: int | None = None  # us


@dataclass(frozen=True, slots=True)
class Parsed:
    """A --gres list with a vgpu request. `others` are its other tokens, unchanged and in order."""

    request: Request
    others: tuple[str, ...]
    prefix: str


@dataclass(frozen=True, slots=True)
class Shards:
    """A --gres list that asks for bare shards. `others` and `prefix` as in Parsed."""

    count: int
    others: tuple[str, ...]
    prefix: str


@dataclass(slots=True)
class _Draft:
    """A request while it is parsed. `classes` are the site's."""

    classes: Collection[str]
    gpu_type: str | None = None
    values: dict[str, Any] = field(default_factory=dict)  # by key, for the fields of Request
    has_parameters: bool = False


def _assign(draft: _Draft, piece: str) -> None:
    """Reads one KEY=VALUE into `draft`."""
    match = _ASSIGNMENT.fullmatch(piece)
    if not match:
        if piece in KEYS:
            raise bad_value("E_VALUE_EMPTY", piece, "")
        raise request_error("E_FORM", Refusal(given=piece))
    key, value = match[1], match[2]
    if key not in KEYS:
        raise request_error("E_KEY_UNKNOWN", Refusal(key=key, given=piece, allowed=", ".join(KEYS)))
    if key in draft.values:
        raise request_error("E_KEY_DOUBLE", Refusal(key=key, given=piece))
    if value == "":
        raise bad_value("E_VALUE_EMPTY", key, "")
    if key == "type" and draft.gpu_type is not None:
        raise request_error("E_KEY_DOUBLE", Refusal(key=key, given=f"{draft.gpu_type} and {piece}"))
    draft.values[key] = KEYS[key].parse(value)
    if key == "type":
        _check_type(draft, value, piece)


def _check_type(draft: _Draft, value: str, piece: str) -> None:
    """Refuses what vgpu:TYPE could not say either: a key, a count or a class is no GPU type."""
    if value in KEYS or _COUNT.fullmatch(value):
        raise bad_value("E_TYPE_LIST", "type", value)
    if value in draft.classes or value in contract.CLASS_NAMES:
        raise request_error("E_RAW_UNITS", Refusal(given=piece))


def _set_type_or_count(draft: _Draft, text: str, body: str) -> None:
    if _COUNT.fullmatch(text):
        _assign(draft, f"count={text}")
        return
    if draft.has_parameters or draft.gpu_type is not None or "count" in draft.values:
        raise request_error("E_FORM", Refusal(given=body))
    if text in KEYS:
        raise bad_value("E_VALUE_EMPTY", text, "")
    if not TYPE.fullmatch(text):
        raise request_error("E_TYPE_FORM", Refusal(given=text, example=TYPE_EXAMPLE))
    if text in draft.classes or text in contract.CLASS_NAMES:
        raise request_error("E_RAW_UNITS", Refusal(given=body))
    draft.gpu_type = text


def _feed_pieces(draft: _Draft, segment: str, body: str) -> None:
    """Reads pieces between semicolons; the first may be the type or the count."""
    for piece in segment.split(";"):
        if piece and not draft.has_parameters and "=" not in piece and "~" not in piece:
            _set_type_or_count(draft, piece, body)
        else:
            _assign(draft, piece)
        draft.has_parameters = True


def _feed(draft: _Draft, text: str, body: str) -> None:
    """Reads the segments between colons of what follows `vgpu:` in `body`, or of a later piece of the same request."""
    for segment in text.split(":"):
        if segment == "":
            raise request_error("E_EMPTY", Refusal(given=body))
        if any(mark in segment for mark in "=~;"):
            _feed_pieces(draft, segment, body)
        else:
            _set_type_or_count(draft, segment, body)


def _split_prefix(token: str) -> tuple[str, str]:
    """Splits `gres:vgpu:1` into `gres:` and `vgpu:1`; the prefix may be empty."""
    return (token[:5], token[5:]) if token.startswith(("gres:", "gres/")) else ("", token)


def _name_of(body: str) -> str:
    return match[0] if (match := _NAME.match(body)) else ""


def _tokens(text: str) -> list[str]:
    return [token for token in text.split(",") if token]


def _mentions(text: str) -> bool:
    if contract.REQUEST_NAME not in text:
        return False
    if len(text) > contract.REQUEST_MAX_LENGTH:
        return True  # too long to parse: treated as ours, then refused
    names = {_name_of(token) for token in _tokens(text)}
    return contract.REQUEST_NAME in names or not _RAW.isdisjoint(names) or _HIDDEN.search(text) is not None


def _open(body: str, text: str, previous: _Draft | None, classes: Collection[str]) -> _Draft:
    if previous is not None:
        raise request_error("E_DOUBLE_VGPU", Refusal(given=text))
    draft = _Draft(classes)
    rest = body[len(contract.REQUEST_NAME) :]
    if rest:
        if not rest.startswith(":"):
            raise request_error("E_FORM", Refusal(given=body))
        _feed(draft, rest[1:], body)
    return draft


def _check_other(body: str) -> tuple[str, str] | None:
    """Returns (code, body) for a gres that cannot be combined with a vgpu, else None.

    Raises E_FORM for a key without its vgpu and for what Slurm might read as another gres (see _HIDDEN).
    """
    match = _STRAY_KEY.match(body)
    if (match[1] if match else body) in KEYS or "gres" in body:
        raise request_error("E_FORM", Refusal(given=body))
    code = _CONFLICTS.get(_name_of(body))
    return (code, body) if code else None


def _request_of(draft: _Draft) -> Request:
    """Returns the request of a complete draft. One type is what vgpu:TYPE asks for, so that a request has one form."""
    request = Request(draft.gpu_type, **draft.values)
    if request.preset is not None and request.count is not None:
        example = "--gres=vgpu:2:mem=8G,cores=50"
        refusal = Refusal(given=str(request.count), key=request.preset, example=example)
        raise request_error("E_PRESET_COUNT", refusal)
    names, is_negated = types_in(request.type or "")
    if request.type is None or is_negated or len(names) > 1:
        return request
    return replace(request, gpu_type=request.type, type=None)


def parse(text: str, classes: Collection[str] = ()) -> Parsed | None:
    """Parses a whole --gres list, in any form in which Slurm passes it. Returns None if it has nothing of hami_hpc's.

    `classes` are the names of the site's classes: no user may write one, as it is the type of the units.
    Undecodable bytes may be given as surrogates. Raises RequestError with one of the contract's codes.
    """
    data = text.encode("utf-8", "surrogateescape").decode("latin-1")  # one character a byte, as Lua sees it
    if not _mentions(data):
        return None
    if len(data) > contract.REQUEST_MAX_LENGTH:
        refusal = Refusal(key="--gres", given=str(len(data)), allowed=str(contract.REQUEST_MAX_LENGTH))
        raise request_error("E_TOO_LONG", refusal)
    if _UNPRINTABLE.search(data):
        raise request_error("E_CHARS", Refusal(given=text))
    draft: _Draft | None = None
    request_prefix, is_open = "", False
    others: list[str] = []
    conflict: tuple[str, str] | None = None
    for token in _tokens(data):
        prefix, body = _split_prefix(token)
        name = _name_of(body)
        if name == contract.REQUEST_NAME:
            draft = _open(body, data, draft, classes)
            request_prefix, is_open = prefix, True
        elif name in _RAW:
            raise request_error("E_RAW_UNITS", Refusal(given=body))
        elif draft is not None and is_open and (_KEY_VALUE.match(body) or body in KEYS):
            _feed(draft, body + "=" if body in KEYS else body, body)
        elif body:
            other_conflict = _check_other(body)
            conflict = conflict or other_conflict
            others.append(token)
            is_open = False
    if conflict:
        raise request_error(conflict[0], Refusal(given=conflict[1]))
    assert draft is not None  # _mentions found vgpu, and a raw unit would have raised
    return Parsed(_request_of(draft), tuple(others), request_prefix)


def parse_shards(text: str) -> Shards | None:
    """Parses a whole --gres list that asks for shards and for no other part of a GPU. Returns None for other lists."""
    data = text.encode("utf-8", "surrogateescape").decode("latin-1")
    if len(data) > contract.REQUEST_MAX_LENGTH:
        return None
    shards: Shards | None = None
    others: list[str] = []
    for token in _tokens(data):
        prefix, body = _split_prefix(token)
        name = _name_of(body)
        if name == contract.GRES_SHARD:
            match = _SHARDS.fullmatch(body)
            if shards is not None or not match or int(match[1] or 1) < 1:
                return None
            shards = Shards(int(match[1] or 1), (), prefix)
        elif name in _CONFLICTS or "gres" in body:
            return None
        elif body:
            others.append(token)
    return shards and replace(shards, others=tuple(others))


def canonical(request: Request) -> str:
    """Returns the canonical text of `request`; parsing it gives the same request."""
    values = ((key, getattr(request, key)) for key in KEYS)
    parts = [f"{key}={KEYS[key].text(value)}" for key, value in values if value is not None]
    head = contract.REQUEST_NAME if request.gpu_type is None else f"{contract.REQUEST_NAME}:{request.gpu_type}"
    return f"{head}:{';'.join(parts)}" if parts else head
