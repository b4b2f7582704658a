# SPDX-License-Identifier: Apache-2.0
"""[qos.NAME] of the settings: the QoS that `hami-hpc qos` keeps in slurmdbd. Prolog and epilog do not import this."""

from __future__ import annotations

import re
from collections.abc import Callable

from hami_hpc.contract import constants as c
from hami_hpc.core import qos as core
from hami_hpc.core.qos import NONE, Field, Kind, Qos
from hami_hpc.core.request import parse
from hami_hpc.core.request_keys import MemMib
from hami_hpc.errors import NodeError, RequestError
from hami_hpc.node.config import Settings, _Table
from hami_hpc.node.settings_lines import where

# Slurm keeps numbers in 32 bits and has the two largest for "none" and "not set".
NUMBER_MAX = 2**32 - 3
TRES_MAX = 2**53
FACTOR_MAX = 1_000_000
NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*")  # sacctmgr writes every name in lower case


def read_qos(settings: Settings) -> tuple[Qos, ...]:
    """Returns the QoS of the settings. Raises NodeError, with file, table and key, for whatever is wrong with them."""
    path = settings.path
    found = []
    for name, value in settings.qos.items():
        if not NAME.fullmatch(name):
            raise NodeError(
                f"{where(path, 'qos', name)}: '{name}' is no name of a QoS: small letters (as Slurm keeps them), "
                "digits, '-', '_' and '.' only"
            )
        found.append(_qos(path, name, value))
    core.check_circles(found, {}, path)
    return tuple(found)


def _qos(path: str, name: str, value: object) -> Qos:
    table = _Table(path, f"qos.{name}", value)
    values: dict[tuple[str, str], str] = {}
    for field in core.FIELDS:
        given = table.take(field.key)
        if given is None:
            continue
        if field.kind is Kind.TRES:
            values |= _tres(path, name, field, given)
        else:
            values[field.key, ""] = _READERS[field.kind](table, field, given)
    if name in core.split(values.get(("preempt", ""), "")):
        table.refuse("preempt", name, "a list of other QoS")
    table.close()
    return Qos(name, values)


def _is_whole(given: object) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and 0 <= given <= NUMBER_MAX


def _number(table: _Table, field: Field, given: object) -> str:
    has_none = field.key != "priority"  # every QoS has a priority
    if not _is_whole(given) and not (has_none and given == NONE):
        or_none = f', or "{NONE}"' if has_none else ""
        table.refuse(field.key, given, f"a whole number from 0 to {NUMBER_MAX}{or_none}")
    return str(given)


def _factor(table: _Table, field: Field, given: object) -> str:
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= FACTOR_MAX:
        table.refuse(field.key, given, f"a number from 0 to {FACTOR_MAX}")
        return ""
    return f"{given:g}"


def _seconds(table: _Table, field: Field, given: object) -> str:
    if not _is_whole(given):
        table.refuse(field.key, given, f"a whole number of seconds from 0 to {NUMBER_MAX}")
    return str(given)


def _exempt_time(table: _Table, field: Field, given: object) -> str:
    return NONE if given == NONE else core.time_text(int(_seconds(table, field, given)))


def _wall(table: _Table, field: Field, given: object) -> str:
    """Returns a time limit, which Slurm keeps in minutes."""
    if given == NONE:
        return NONE
    try:
        seconds = core.time_seconds(given) if isinstance(given, str) else 0
    except ValueError:
        seconds = 0
    if seconds < 60 or seconds % 60 or seconds // 60 > NUMBER_MAX:
        table.refuse(field.key, given, f'whole minutes as a text such as "90", "12:00:00" or "1-00:00:00", or "{NONE}"')
    return core.time_text(seconds)


def _time(table: _Table, field: Field, given: object) -> str:
    return _wall(table, field, given) if field.key == "max_wall" else _exempt_time(table, field, given)


def _names(table: _Table, field: Field, given: object) -> str:
    if not isinstance(given, list) or not all(isinstance(name, str) and NAME.fullmatch(name) for name in given):
        table.refuse(field.key, given, "a list of QoS, in small letters")
        return ""
    return core.joined(set(given))


def _flags(table: _Table, field: Field, given: object) -> str:
    known = {flag.lower(): flag for flag in core.FLAGS}
    if not isinstance(given, list) or not all(isinstance(name, str) and name.lower() in known for name in given):
        table.refuse(field.key, given, f"a list of: {', '.join(core.FLAGS)}")
        return ""
    return core.joined({known[name.lower()] for name in given})


def _mode(table: _Table, field: Field, given: object) -> str:
    if given not in core.MODES:
        table.refuse(field.key, given, " or ".join(f'"{mode}"' for mode in core.MODES))
    return str(given)


_READERS: dict[Kind, Callable[[_Table, Field, object], str]] = {
    Kind.NUMBER: _number,
    Kind.FACTOR: _factor,
    Kind.SECONDS: _seconds,
    Kind.TIME: _time,
    Kind.NAMES: _names,
    Kind.FLAGS: _flags,
    Kind.MODE: _mode,
}


def _tres(path: str, name: str, field: Field, given: object) -> dict[tuple[str, str], str]:
    """Returns the limits of one field; vgpu_mem may be a size, as in a request."""
    table = _Table(path, f"qos.{name}.{field.key}", given)
    values = {}
    for key, tres in core.TRES.items():
        amount = table.take(key)
        if amount is None:
            continue
        if key == c.GRES_MEM:
            amount = _mib(amount)
        if amount != NONE and (type(amount) is not int or not 0 <= amount <= TRES_MAX):
            size = ' or a size such as "40G"' if key == c.GRES_MEM else ""
            table.refuse(key, amount, f'a whole number{size}, or "{NONE}"')
        values[field.key, tres] = str(amount)
    table.close()
    return values


def _mib(given: object) -> object:
    """Returns the MiB of a size, as a request gives it; anything else as it is."""
    if not isinstance(given, str) or not given.isalnum():
        return given
    try:
        parsed = parse(f"{c.REQUEST_NAME}:mem={given}")
    except RequestError:
        return given
    mem = parsed.request.mem if parsed is not None else None
    return mem.mib if isinstance(mem, MemMib) else given
