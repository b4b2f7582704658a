# SPDX-License-Identifier: Apache-2.0
"""Reads rates.toml into Rates. Refuses unknown keys; reads numbers as decimals, never as floating point."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.pricing.cluster_gpus import GpuModel
from hami_hpc.accounting.pricing.gpu_share import Mode
from hami_hpc.accounting.pricing.rates import (
    Credit,
    DatedGeometry,
    Discount,
    Factor,
    Quota,
    Rate,
    Rates,
    Terms,
    Validity,
)
from hami_hpc.accounting.sources.hostlist import HostlistError, expand
from hami_hpc.accounting.store.geometry_file import Geometry
from hami_hpc.accounting.times import next_month
from hami_hpc.contract import constants as contract
from hami_hpc.node.config import class_name_fault

VERSION = 1
DEFAULT_PATH = Path("/etc/hami-hpc/rates.toml")
CONDITIONS = ("cluster", "account", "user", "partition", "qos", "model", "mode", "class")
# Slurm's states of a run that has ended and may have held a GPU.
ENDED_STATES = (
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
    *("PREEMPTED", "RECONFIG_FAIL", "REQUEUED", "REQUEUE_HOLD", "RESIZING", "REVOKED", "SPECIAL_EXIT", "TIMEOUT"),
)
MAX_BYTES = 8 << 20
_T = TypeVar("_T")


def load_rates(path: Path) -> Rates:
    """Reads and checks rates.toml. Raises AccountingError with file, table and key for any fault."""
    try:
        document = tomllib.loads(_read(path), parse_float=Decimal)
    except OSError as error:
        raise AccountingError(f"{path} cannot be read ({error.strerror}); give another with --rates") from error
    except ValueError as error:  # TOMLDecodeError, UnicodeDecodeError, and int's own for thousands of digits
        raise AccountingError(f"{path} is not valid TOML: {error}") from error
    except RecursionError:
        raise AccountingError(f"{path} is nested too deeply for rates") from None
    return parse_rates(document, str(path))


def _read(path: Path) -> str:
    """The file's text, of bounded length: --rates may name anything."""
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise AccountingError(f"{path} is longer than {MAX_BYTES >> 20} MiB; give another with --rates")
    return data.decode()


def parse_rates(document: Mapping[str, Any], path: str) -> Rates:
    """Returns the rates of a parsed document. ``path`` is used in messages."""
    top = _Table(path, document)
    if top.take("version") != VERSION:
        raise AccountingError(f"{path} needs version = {VERSION}; this hami_hpc reads no other version")
    gpus, partitions = _named(top, "gpus"), _named(top, "partitions")
    rates = Rates(
        currency=top.text("currency", "EUR", r"[A-Z]{3}"),
        digits=top.whole("digits", 2, 0, 4),
        timezone=_zone(top),
        issuer=top.texts("issuer"),
        invoice_prefix=top.text("invoice_prefix", "GPU", r"[A-Za-z0-9][A-Za-z0-9-]{0,15}"),
        rates=tuple(_each(top, "rates", _rate)),
        factors=tuple(_each(top, "factors", _factor)),
        terms=tuple(_each(top, "terms", _terms)),
        discounts=tuple(_each(top, "discounts", _discount)),
        credits=tuple(_each(top, "credits", _credit)),
        quotas=tuple(_each(top, "quotas", _quota)),
        geometry=tuple(_each(top, "geometry", _geometry)),
        models={name: _model(name, table) for name, table in gpus.items()},
        partitions={name: tuple(table.texts("gpu_models")) for name, table in partitions.items()},
        shards_per_gpu={
            name: table.whole("shards_per_gpu", 0, 1, 1_000_000)
            for name, table in partitions.items()
            if table.take("shards_per_gpu") is not None
        },
        nodes=_one_model(path, "node", {name: _hosts(table) for name, table in gpus.items()}),
        gpu_counts={name: table.whole("count", 0, 1, 1_000_000) for name, table in gpus.items() if table.take("count")},
        aliases=_one_model(path, "alias", {name: table.texts("aliases") for name, table in gpus.items()}),
    )
    top.close()
    _refuse_overlaps(path, "rates", rates.rates, lambda rate: rate.model)
    _refuse_overlaps(path, "terms", rates.terms, lambda _: "")
    _refuse_overlaps(
        path, "discounts", rates.discounts, lambda entry: f"{entry.account} {entry.from_gpu_hours.normalize():f}"
    )
    _refuse_overlaps(path, "geometry", rates.geometry, lambda _: "")
    _check_credits(path, rates)
    return rates


class _Table:
    """A TOML table while it is read. close() refuses the keys that were not taken."""

    def __init__(self, where: str, values: Any) -> None:
        self.where = where
        if not isinstance(values, Mapping):
            raise AccountingError(f"{where} is not a table")
        self.values = values
        self.known: set[str] = set()

    def take(self, key: str, default: Any = None) -> Any:
        self.known.add(key)
        return self.values.get(key, default)

    def refuse(self, key: str, allowed: str) -> AccountingError:
        fault = f"= {str(self.values[key])[:40]!r}" if key in self.values else "is missing"
        return AccountingError(f"{self.where}: {key} {fault}; allowed is {allowed}")

    def text(self, key: str, default: str, pattern: str = r"[^\x00-\x1f]{1,200}") -> str:
        value = self.take(key, default)
        if not isinstance(value, str) or not (value == default or re.fullmatch(pattern, value)):
            raise self.refuse(key, f"a text like {pattern}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.take(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            raise self.refuse(key, "a list of texts")
        return tuple(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.take(key, default)
        if not isinstance(value, bool):
            raise self.refuse(key, "true or false")
        return value

    def whole(self, key: str, default: int, least: int, most: int) -> int:
        value = self.take(key, default)
        if type(value) is not int or not least <= value <= most:
            raise self.refuse(key, f"a whole number from {least} to {most}")
        return value

    def decimal(self, key: str, least: str, most: str, digits: int, default: str | None = None) -> Decimal:
        value = self.take(key, default)
        number = Decimal(value) if type(value) in (int, str) and str(value) else value
        if not isinstance(number, Decimal) or isinstance(self.values.get(key), str) or not number.is_finite():
            raise self.refuse(key, f"a number from {least} to {most}")
        if not Decimal(least) <= number <= Decimal(most) or number != round(number, digits):
            raise self.refuse(key, f"a number from {least} to {most} with at most {digits} digits after the point")
        return number

    def validity(self) -> Validity:
        start, end = self._day("from", date.min), self._day("until", date.max)
        if start >= end:
            raise AccountingError(f"{self.where}: from {start} is not before until {end}")
        return Validity(start, end)

    def months(self) -> Validity:
        """Returns the validity of an entry that acts on calendar months as a whole."""
        valid = self.validity()
        for key, day in (("from", valid.start), ("until", valid.end)):
            if day not in (date.min, date.max) and day.day != 1:
                first = next_month(day) if day.year < date.max.year else day.replace(day=1)
                raise self.refuse(key, f"the first day of a month, such as {first}: it acts on whole months")
        return valid

    def _day(self, key: str, default: date) -> date:
        value = self.take(key, default)
        if not isinstance(value, date) or isinstance(value, datetime):
            raise self.refuse(key, "a date such as 2026-01-01, without quotes")
        return value

    def close(self) -> None:
        for key in self.values:
            if key not in self.known:
                near = difflib.get_close_matches(key, self.known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(self.known))}"
                raise AccountingError(f"{self.where}: unknown key '{key[:40]}'; {hint}")


def _rate(table: _Table) -> Rate:
    model = table.text("model", "")
    if not model:
        raise table.refuse("model", "the name of a GPU model")
    return Rate(model, table.decimal("per_gpu_hour", "0", "1000000", 6), table.validity())


def _factor(table: _Table) -> Factor:
    where = {name: table.text(name, "") for name in CONDITIONS if table.take(name) is not None}
    if not where:
        raise AccountingError(f"{table.where}: has no condition; give one or more of {', '.join(CONDITIONS)}")
    modes = tuple(mode.value for mode in Mode)
    if "mode" in where and where["mode"] not in modes:
        raise table.refuse("mode", " or ".join(modes))
    if "class" in where and class_name_fault(where["class"], ()):
        raise table.refuse("class", "the name of a class of service, as in [classes.NAME] of the settings")
    return Factor(where, table.decimal("factor", "0", "1000", 6), table.validity())


def _terms(table: _Table) -> Terms:
    return Terms(
        table.whole("minimum_s", 0, 0, 86400),
        table.decimal("suspended_factor", "0", "1", 4, "0"),
        _states(table),
        table.flag("unbilled_disturbed", False),
        table.flag("unbilled_gpu_fault", False),
        table.validity(),
    )


def _states(table: _Table) -> tuple[str, ...]:
    states = table.texts("unbilled_states")
    for state in states:
        if state not in ENDED_STATES:
            near = difflib.get_close_matches(state.upper(), ENDED_STATES, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(ENDED_STATES)}"
            raise AccountingError(
                f"{table.where}: '{state[:40]}' in unbilled_states is no state that ends a run; {hint}"
            )
    return states


def _discount(table: _Table) -> Discount:
    hours = table.decimal("from_gpu_hours", "0", "1000000000", 4)
    return Discount(table.text("account", ""), hours, table.decimal("percent", "0", "100", 4), table.months())


def _credit(table: _Table) -> Credit:
    name = table.text("id", "", r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
    if not name:
        raise table.refuse("id", 'a name that stays when note, days or amount are edited, such as "grant-4711"')
    account = table.text("account", "")
    if not account:
        raise table.refuse("account", "the account that has the credit")
    amount = table.decimal("amount", "0", "1000000000", 4)
    return Credit(name, account, amount, table.text("note", ""), table.months(), table.texts("formerly"))


def _check_credits(path: str, rates: Rates) -> None:
    """Raises AccountingError for two credits with one id, and for amounts that no invoice can take to the last unit."""
    seen: set[str] = set()
    for credit in rates.credits:
        if credit.id in seen:
            raise AccountingError(f"{path}: two [[credits]] have the id {credit.id}; give each an id of its own")
        seen.add(credit.id)
        if credit.amount != round(credit.amount, rates.digits):
            raise AccountingError(
                f"{path}: the credit {credit.id} has amount = {credit.amount}; digits = {rates.digits} allows "
                f"{rates.digits} digits after the point"
            )


def _quota(table: _Table) -> Quota:
    account, user = table.text("account", ""), table.text("user", "")
    if bool(account) == bool(user):
        raise AccountingError(f"{table.where}: give either account or user")
    return Quota(account, user, table.decimal("gpu_hours", "0.0001", "1000000000", 4), table.months())


def _geometry(table: _Table) -> DatedGeometry:
    shard_mib = table.whole("shard_mib", 0, 1, contract.MEM_MIB_MAX)
    scaling = table.decimal("memory_scaling", "0.1", "100", 6)
    return DatedGeometry(Geometry(shard_mib, float(scaling)), table.validity())


def _model(name: str, table: _Table) -> GpuModel:
    table.known |= {"nodes", "aliases"}
    return GpuModel(
        name,
        table.whole("total_mib", 0, 1, contract.MEM_MIB_MAX),
        table.whole("mig_slices", 7, 1, 64),
        table.whole("mig_memory_slices", 8, 1, 64),
    )


def _hosts(table: _Table) -> list[str]:
    text = table.text("nodes", "")
    try:
        return expand(text) if text else []
    except HostlistError as error:
        raise table.refuse("nodes", f"a host list such as gpu[01-16]: {error}") from error


def _one_model(path: str, kind: str, named: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Returns name -> GPU model. Raises AccountingError for a name under two models: the price would depend on their
    order."""
    models: dict[str, str] = {}
    for model, names in named.items():
        for name in names:
            other = models.setdefault(name, model)
            if other != model:
                raise AccountingError(f"{path}: {kind} {name} is under two models, [gpus.{other}] and [gpus.{model}]")
    return models


def _zone(top: _Table) -> str:
    name = top.text("timezone", "UTC")
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise top.refuse("timezone", "a zone such as Europe/Berlin") from error
    return name


def _each(top: _Table, key: str, read: Callable[[_Table], _T]) -> Iterable[_T]:
    entries = top.take(key, [])
    if not isinstance(entries, list):
        raise top.refuse(key, f"tables, each under [[{key}]]")
    for number, values in enumerate(entries, 1):
        table = _Table(f"{top.where}, [[{key}]] number {number}", values)
        yield read(table)
        table.close()


def _named(top: _Table, key: str) -> dict[str, _Table]:
    values = _Table(f"{top.where}, [{key}]", top.take(key, {})).values
    gpu_keys = ("total_mib", "mig_slices", "mig_memory_slices", "aliases", "nodes", "count")
    known = {"gpus": gpu_keys, "partitions": ("gpu_models", "shards_per_gpu")}
    tables = {name: _Table(f"{top.where}, [{key}.{name}]", entry) for name, entry in values.items()}
    for table in tables.values():
        table.known.update(known[key])
        table.close()
    return tables


def _refuse_overlaps(path: str, key: str, entries: Sequence[Any], identity: Callable[[Any], str]) -> None:
    """Raises AccountingError for two entries for the same thing on one day: the price would depend on their order."""
    for first, second in combinations(entries, 2):
        if identity(first) == identity(second) and first.valid.overlaps(second.valid):
            day = max(first.valid.start, second.valid.start)
            raise AccountingError(f"{path}: two [[{key}]] {identity(first)} are valid on {day}; set from and until")
