# SPDX-License-Identifier: Apache-2.0
"""The grammar of a vgpu request within a whole --gres list.

    vgpu[:TYPE][:KEY=VALUE{,|;}...][:1]     as users write it
    vgpu[:[TYPE;]KEY~VALUE;...]             as the client's filter rewrites it for Slurm's own parsers

Slurm runs the same grammar in Lua, slurm-plugins/lua/hami_hpc_request.lua; tests/vectors and a differential fuzz test
check that both agree. Slurm's client splits a list at commas and prefixes each piece
(`gres:vgpu:mem=8G,gres:cores=50` on 22.05, `gres/` on later versions), so a piece KEY=VALUE after vgpu is part of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from hami_hpc.contract import constants as contract
from hami_hpc.errors import Refusal, RequestError, request_error

_MIB: Final = {"M": 1, "G": 1024, "T": 1024 * 1024}
_US: Final = {"us": 1, "ms": 1000, "s": 1_000_000}
_NAME: Final = re.compile(r"[A-Za-z0-9_.\-]*")
_MEM: Final = re.compile(r"([0-9]+)([MmGgTt%]?)")
_MEM_NEGATIVE: Final = re.compile(r"-[0-9]+[MmGgTt%]?")
_MEM_FRACTION: Final = re.compile(r"-?[0-9]*\.[0-9]*[MmGgTt%]?")
_CORES: Final = re.compile(r"(-?)([0-9]+)")
_SLO: Final = re.compile(r"([0-9]+)(us|ms|s)")
_MIG: Final = re.compile(r"[1-9][0-9]?g\.[1-9][0-9]*gb([+\-][a-z.]+)?")
_COUNT: Final = re.compile(r"[+\-]?[0-9]+[KkMmGgTtPp]?")
_TYPE: Final = re.compile(r"[A-Za-z0-9_\-]+")
# Slurm looks for "gres:" (22.05) or "gres" (later) anywhere in a list: "x gres:vgpu_mem:9" asks for vgpu_mem.
_HIDDEN: Final = re.compile(
    rf"gres[:/]?({contract.REQUEST_NAME}|{contract.GRES_MEM}|{contract.GRES_CORES}|{contract.GRES_SLO})"
    r"(?![A-Za-z0-9_.\-])"
)
_SHARDS: Final = re.compile(rf"{contract.GRES_SHARD}(?:[:=]([0-9]{{1,6}}))?")
_STRAY_KEY: Final = re.compile(r"([a-z]+)=")
_KEY_VALUE: Final = re.compile(r"[^:=]*=")
_ASSIGNMENT: Final = re.compile(r"([^=~]*)[=~](.*)")
_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e]")
_RAW: Final = frozenset({contract.GRES_MEM, contract.GRES_CORES, contract.GRES_SLO})
_CONFLICTS: Final = {"gpu": "E_WITH_GPU", "mps": "E_WITH_GPU", contract.GRES_SHARD: "E_WITH_SHARD"}
_MEM_RANGE: Final = f"1M to {contract.MEM_MIB_MAX // _MIB['T']}T, or {contract.PERCENT_MIN}% to {contract.PERCENT_MAX}%"
TYPE_EXAMPLE: Final = "--gres=vgpu:h200:mem=8G"


@dataclass(frozen=True, slots=True)
class MemMib:
    """An absolute amount of GPU memory, MiB."""

    mib: int


@dataclass(frozen=True, slots=True)
class MemPercent:
    """A share of the GPU's memory, 1 to 100."""

    percent: int


@dataclass(frozen=True, slots=True)
class Request:
    """What a user asks for. None means the site's default (mem, cores) or no preference (the others)."""

    gpu_type: str | None = None
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
    has_count: bool = False


def _example(key: str) -> str:
    """Returns a request that has `key`. A MIG profile stands alone: it says how much memory and cores it has."""
    example = contract.REQUEST_EXAMPLE
    if key == "mig":
        return f"--gres={contract.REQUEST_NAME}:{contract.KEY_EXAMPLE[key]}"
    return example if f"{key}=" in example else f"{example},{contract.KEY_EXAMPLE[key]}"


def _bad_value(code: str, key: str, value: str) -> RequestError:
    return request_error(code, Refusal(key=key, given=value, allowed=contract.KEY_FORM[key], example=_example(key)))


def _mem_out_of_range(value: str) -> RequestError:
    return request_error("E_MEM_RANGE", Refusal(given=value, allowed=_MEM_RANGE))


def _parse_mem(value: str) -> MemMib | MemPercent:
    match = _MEM.fullmatch(value)
    if not match:
        if _MEM_NEGATIVE.fullmatch(value):
            raise _mem_out_of_range(value)
        is_fraction = _MEM_FRACTION.fullmatch(value) and any("0" <= c <= "9" for c in value)
        raise _bad_value("E_MEM_FRACTION" if is_fraction else "E_MEM_FORM", "mem", value)
    number, unit = int(match[1]), match[2].upper()
    if unit == "":
        raise _bad_value("E_MEM_UNIT", "mem", value)
    if unit == "%":
        if not contract.PERCENT_MIN <= number <= contract.PERCENT_MAX:
            raise _mem_out_of_range(value)
        return MemPercent(number)
    if not 1 <= number * _MIB[unit] <= contract.MEM_MIB_MAX:
        raise _mem_out_of_range(value)
    return MemMib(number * _MIB[unit])


def _parse_cores(value: str) -> int:
    match = _CORES.fullmatch(value)
    if not match:
        raise _bad_value("E_CORES_FORM", "cores", value)
    if match[1] or not contract.CORES_MIN <= int(match[2]) <= contract.CORES_MAX:
        raise _bad_value("E_CORES_RANGE", "cores", value)
    return int(match[2])


def _parse_mode(value: str) -> str:
    if value not in contract.MODES and value != contract.MODE_AUTO:
        raise _bad_value("E_MODE", "mode", value)
    return value


def is_mig_name(text: str) -> bool:
    """Returns whether a MIG profile can have this name."""
    return len(text) <= contract.MIG_NAME_MAX and _MIG.fullmatch(text) is not None


def _parse_mig(value: str) -> str:
    if not is_mig_name(value):
        raise _bad_value("E_MIG_FORM", "mig", value)
    return value


def _parse_isolation(value: str) -> str:
    if value != contract.ISOLATION_HARD:
        raise _bad_value("E_ISOLATION", "isolation", value)
    return value


def _parse_policy(value: str) -> str:
    if value not in contract.POLICIES:
        raise _bad_value("E_POLICY", "policy", value)
    return value


def _parse_slo(value: str) -> int:
    match = _SLO.fullmatch(value)
    if not match:
        raise _bad_value("E_SLO_FORM", "slo", value)
    slo_us = int(match[1]) * _US[match[2]]
    if not contract.SLO_US_MIN <= slo_us <= contract.SLO_US_MAX:
        raise _bad_value("E_SLO_RANGE", "slo", value)
    return slo_us


def slo_text(slo_us: int) -> str:
    """Returns an slo as text with the largest unit that divides it: 10ms, 1500us, 1s."""
    unit = next((u for u in ("s", "ms") if slo_us % _US[u] == 0), "us")
    return f"{slo_us // _US[unit]}{unit}"


def mem_text(mem: MemMib | MemPercent) -> str:
    """Returns a mem value as text with the largest unit that divides it: 8G, 1536M, 50%."""
    if isinstance(mem, MemPercent):
        return f"{mem.percent}%"
    unit = next((u for u in ("T", "G") if mem.mib % _MIB[u] == 0), "M")
    return f"{mem.mib // _MIB[unit]}{unit}"


class _Key(NamedTuple):
    """How the value of one key is parsed from a request and written as text."""

    parse: Callable[[str], Any]
    text: Callable[[Any], str]


# One row for each key of the contract, in its order; each is a field of Request by the same name.
_KEYS: Final[Mapping[str, _Key]] = {
    "mem": _Key(_parse_mem, mem_text),
    "cores": _Key(_parse_cores, str),
    "mode": _Key(_parse_mode, str),
    "mig": _Key(_parse_mig, str),
    "isolation": _Key(_parse_isolation, str),
    "policy": _Key(_parse_policy, str),
    "slo": _Key(_parse_slo, slo_text),
}
KEYS: Final = tuple(_KEYS)


def _assign(draft: _Draft, piece: str) -> None:
    """Reads one KEY=VALUE into `draft`."""
    match = _ASSIGNMENT.fullmatch(piece)
    if not match:
        if piece in _KEYS:
            raise _bad_value("E_VALUE_EMPTY", piece, "")
        raise request_error("E_FORM", Refusal(given=piece))
    key, value = match[1], match[2]
    if key not in _KEYS:
        allowed = ", ".join(_KEYS)
        raise request_error("E_KEY_UNKNOWN", Refusal(key=key, given=piece, allowed=allowed))
    if key in draft.values:
        raise request_error("E_KEY_DOUBLE", Refusal(key=key, given=piece))
    if value == "":
        raise _bad_value("E_VALUE_EMPTY", key, "")
    draft.values[key] = _KEYS[key].parse(value)


def _bad_count(text: str) -> RequestError:
    is_several = text.isdigit() and text[0] != "0" and text != "1"
    return request_error("E_COUNT" if is_several else "E_COUNT_FORM", Refusal(given=text))


def _set_type(draft: _Draft, text: str, body: str) -> None:
    if draft.has_parameters or draft.gpu_type is not None:
        raise request_error("E_FORM", Refusal(given=body))
    if text in _KEYS:
        raise _bad_value("E_VALUE_EMPTY", text, "")
    if _COUNT.fullmatch(text):
        raise _bad_count(text)  # vgpu:2;mem=8G
    if not _TYPE.fullmatch(text):
        raise request_error("E_TYPE_FORM", Refusal(given=text, example=TYPE_EXAMPLE))
    if text in draft.classes or text in contract.CLASS_NAMES:
        raise request_error("E_RAW_UNITS", Refusal(given=body))
    draft.gpu_type = text


def _feed_pieces(draft: _Draft, segment: str, body: str) -> None:
    """Reads pieces between semicolons; the first may be the type."""
    for piece in segment.split(";"):
        if piece and not draft.has_parameters and "=" not in piece and "~" not in piece:
            _set_type(draft, piece, body)
        else:
            _assign(draft, piece)
        draft.has_parameters = True


def _feed(draft: _Draft, text: str, body: str) -> None:
    """Reads the segments between colons of what follows `vgpu:` in `body`, or of a later piece of the same request."""
    for segment in text.split(":"):
        if segment == "":
            raise request_error("E_EMPTY", Refusal(given=body))
        if draft.has_count:
            raise request_error("E_FORM", Refusal(given=body))
        if any(mark in segment for mark in "=~;"):
            _feed_pieces(draft, segment, body)
        elif _COUNT.fullmatch(segment):
            if segment != "1":
                raise _bad_count(segment)
            draft.has_count = True
        else:
            _set_type(draft, segment, body)


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
    if (match[1] if match else body) in _KEYS or "gres" in body:
        raise request_error("E_FORM", Refusal(given=body))
    code = _CONFLICTS.get(_name_of(body))
    return (code, body) if code else None


def parse(text: str, classes: Collection[str] = ()) -> Parsed | None:
    """Parses a whole --gres list, in any form in which Slurm passes it. Returns None if it has nothing of hami_hpc's.

    `classes` are the names of the site's classes: no user may write one, as it is the type of the units.
    Undecodable bytes may be given as surrogates. Raises RequestError with one of the contract's codes.
    """
    data = text.encode("utf-8", "surrogateescape").decode("latin-1")  # one character a byte, as Lua sees it
    if not _mentions(data):
        return None
    if len(data) > contract.REQUEST_MAX_LENGTH:
        allowed = str(contract.REQUEST_MAX_LENGTH)
        raise request_error("E_TOO_LONG", Refusal(key="--gres", given=str(len(data)), allowed=allowed))
    if _UNPRINTABLE.search(data):
        raise request_error("E_CHARS", Refusal(given=text))
    draft: _Draft | None = None
    request_prefix = ""
    is_open = False
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
        elif draft is not None and is_open and (_KEY_VALUE.match(body) or body in _KEYS):
            _feed(draft, body + "=" if body in _KEYS else body, body)
        elif body:
            other_conflict = _check_other(body)
            conflict = conflict or other_conflict
            others.append(token)
            is_open = False
    if conflict:
        raise request_error(conflict[0], Refusal(given=conflict[1]))
    assert draft is not None  # _mentions found vgpu, and a raw unit would have raised
    return Parsed(Request(draft.gpu_type, **draft.values), tuple(others), request_prefix)


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
    values = ((key, getattr(request, key)) for key in _KEYS)
    parts = [f"{key}={_KEYS[key].text(value)}" for key, value in values if value is not None]
    head = contract.REQUEST_NAME if request.gpu_type is None else f"{contract.REQUEST_NAME}:{request.gpu_type}"
    return f"{head}:{';'.join(parts)}" if parts else head
