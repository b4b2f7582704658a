# SPDX-License-Identifier: Apache-2.0
"""The keys of a vgpu request: how the value of each is parsed and written.

Slurm runs the same in Lua, slurm-plugins/lua/hami_hpc_keys.lua; tests/vectors and a differential fuzz test check that
both agree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from hami_hpc.contract import constants as contract
from hami_hpc.errors import Refusal, RequestError, request_error

_MIB: Final = {"M": 1, "G": 1024, "T": 1024 * 1024}
_US: Final = {"us": 1, "ms": 1000, "s": 1_000_000}
_MEM: Final = re.compile(r"([0-9]+)([MmGgTt%]?)")
_MEM_NEGATIVE: Final = re.compile(r"-[0-9]+[MmGgTt%]?")
_MEM_FRACTION: Final = re.compile(r"-?[0-9]*\.[0-9]*[MmGgTt%]?")
_CORES: Final = re.compile(r"(-?)([0-9]+)")
_SLO: Final = re.compile(r"([0-9]+)(us|ms|s)")
_MIG: Final = re.compile(r"[1-9][0-9]?g\.[1-9][0-9]*gb([+\-][a-z.]+)?")
_WHOLE_COUNT: Final = re.compile(r"[1-9][0-9]*")
TYPE: Final = re.compile(r"[A-Za-z0-9_\-]+")
_MEM_RANGE: Final = f"1M to {contract.MEM_MIB_MAX // _MIB['T']}T, or {contract.PERCENT_MIN}% to {contract.PERCENT_MAX}%"
_COUNT_RANGE: Final = f"slices_max can be {contract.SLICES_MAX} at most"


@dataclass(frozen=True, slots=True)
class MemMib:
    """An absolute amount of GPU memory, MiB."""

    mib: int


@dataclass(frozen=True, slots=True)
class MemPercent:
    """A share of the GPU's memory, 1 to 100."""

    percent: int


def _example(key: str) -> str:
    """Returns a request that has `key`. A MIG profile and a preset stand alone: they say how much memory and cores."""
    example, of_key = contract.REQUEST_EXAMPLE, contract.KEY_EXAMPLE[key].partition(" or ")[0]
    if key in ("mig", "preset"):
        return f"--gres={contract.REQUEST_NAME}:{of_key}"
    return example if f"{key}=" in example else f"{example},{of_key}"


def bad_value(code: str, key: str, value: str) -> RequestError:
    return request_error(code, Refusal(key=key, given=value, allowed=contract.KEY_FORM[key], example=_example(key)))


def _mem_out_of_range(value: str) -> RequestError:
    return request_error("E_MEM_RANGE", Refusal(given=value, allowed=_MEM_RANGE))


def _parse_mem(value: str) -> MemMib | MemPercent:
    match = _MEM.fullmatch(value)
    if not match:
        if _MEM_NEGATIVE.fullmatch(value):
            raise _mem_out_of_range(value)
        is_fraction = _MEM_FRACTION.fullmatch(value) and any("0" <= c <= "9" for c in value)
        raise bad_value("E_MEM_FRACTION" if is_fraction else "E_MEM_FORM", "mem", value)
    number, unit = int(match[1]), match[2].upper()
    if unit == "":
        raise bad_value("E_MEM_UNIT", "mem", value)
    if unit == "%":
        if not contract.PERCENT_MIN <= number <= contract.PERCENT_MAX:
            raise _mem_out_of_range(value)
        return MemPercent(number)
    if not 1 <= number * _MIB[unit] <= contract.MEM_MIB_MAX:
        raise _mem_out_of_range(value)
    return MemMib(number * _MIB[unit])


def _parse_count(value: str) -> int | None:
    """Returns the slices on a node; None for one, so that a request has one form."""
    if not _WHOLE_COUNT.fullmatch(value):
        raise request_error("E_COUNT_FORM", Refusal(given=value))
    if len(value) > 2 or int(value) > contract.SLICES_MAX:
        raise request_error("E_COUNT", Refusal(given=value, allowed=_COUNT_RANGE))
    return int(value) if int(value) > 1 else None


def _parse_preset(value: str) -> str:
    if not is_preset_name(value):
        raise bad_value("E_PRESET_FORM", "preset", value)
    return value


def is_preset_name(text: str) -> bool:
    """Returns whether a preset can have this name."""
    return len(text) <= contract.PRESET_NAME_MAX and TYPE.fullmatch(text) is not None


def types_in(value: str) -> tuple[tuple[str, ...], bool]:
    """Returns the names in the value of `type`, and whether they are those to avoid."""
    return tuple(value.removeprefix("!").split("|")), value.startswith("!")


def _parse_type(value: str) -> str:
    if not all(TYPE.fullmatch(name) for name in types_in(value)[0]):
        raise bad_value("E_TYPE_LIST", "type", value)
    return value


def _parse_cores(value: str) -> int:
    match = _CORES.fullmatch(value)
    if not match:
        raise bad_value("E_CORES_FORM", "cores", value)
    if match[1] or not contract.CORES_MIN <= int(match[2]) <= contract.CORES_MAX:
        raise bad_value("E_CORES_RANGE", "cores", value)
    return int(match[2])


def _parse_mode(value: str) -> str:
    if value not in contract.MODES and value != contract.MODE_AUTO:
        raise bad_value("E_MODE", "mode", value)
    return value


def is_mig_name(text: str) -> bool:
    """Returns whether a MIG profile can have this name."""
    return len(text) <= contract.MIG_NAME_MAX and _MIG.fullmatch(text) is not None


def _parse_mig(value: str) -> str:
    if not is_mig_name(value):
        raise bad_value("E_MIG_FORM", "mig", value)
    return value


def _parse_isolation(value: str) -> str:
    if value != contract.ISOLATION_HARD:
        raise bad_value("E_ISOLATION", "isolation", value)
    return value


def _parse_policy(value: str) -> str:
    if value not in contract.POLICIES:
        raise bad_value("E_POLICY", "policy", value)
    return value


def _parse_slo(value: str) -> int:
    match = _SLO.fullmatch(value)
    if not match:
        raise bad_value("E_SLO_FORM", "slo", value)
    slo_us = int(match[1]) * _US[match[2]]
    if not contract.SLO_US_MIN <= slo_us <= contract.SLO_US_MAX:
        raise bad_value("E_SLO_RANGE", "slo", value)
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


class Key(NamedTuple):
    """How the value of one key is parsed from a request and written as text."""

    parse: Callable[[str], Any]
    text: Callable[[Any], str]


# One row for each key of the contract, in its order; each is a field of Request by the same name.
KEYS: Final[Mapping[str, Key]] = {
    "preset": Key(_parse_preset, str),
    "count": Key(_parse_count, str),
    "type": Key(_parse_type, str),
    "mem": Key(_parse_mem, mem_text),
    "cores": Key(_parse_cores, str),
    "mode": Key(_parse_mode, str),
    "mig": Key(_parse_mig, str),
    "isolation": Key(_parse_isolation, str),
    "policy": Key(_parse_policy, str),
    "slo": Key(_parse_slo, slo_text),
}
