# SPDX-License-Identifier: Apache-2.0
"""Reads the tables of rates.toml whose entries refer to one another: conditions, time windows, discounts, prices of
resources, credit rules and budgets."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Sequence
from datetime import date, time
from decimal import Decimal
from itertools import chain, combinations

from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.pricing import windows
from hami_hpc.accounting.pricing.gpu_share import Mode
from hami_hpc.accounting.pricing.matching import C, ambiguity, shown
from hami_hpc.accounting.pricing.rates import CREDIT_CAUSES, Budget, CreditRule, Discount, Rates, ResourcePrice
from hami_hpc.accounting.pricing.toml_table import Table, refuse_overlaps
from hami_hpc.accounting.pricing.windows import DAY_MIN, DAYS, Window
from hami_hpc.node.config import class_name_fault

FACTOR_CONDITIONS = ("cluster", "account", "user", "partition", "qos", "model", "mode", "class", "window")
RATE_CONDITIONS = ("cluster", "partition", "mode", "window")
RESOURCE_CONDITIONS = ("cluster", "partition", "window")
TERMS_CONDITIONS = ("model", "mode", "partition")
RULE_CONDITIONS = ("cluster", "account", "user", "partition", "qos", "model", "mode", "class")
DISCOUNT_KINDS = ("tier", "all")
DISCOUNT_PERIODS = ("month", "run")
_RESOURCES = "cpu, mem, or license/NAME with the name that AllocTRES has"


def conditions(table: Table, names: Sequence[str]) -> dict[str, str]:
    """Returns the conditions that an entry gives. names: those that it may give."""
    where = {name: table.text(name, "") for name in names if table.take(name) is not None}
    for name, value in where.items():
        if not value:
            raise table.refuse(name, "a name")
    modes = tuple(mode.value for mode in Mode)
    if "mode" in where and where["mode"] not in modes:
        raise table.refuse("mode", " or ".join(modes))
    if "class" in where and class_name_fault(where["class"], ()):
        raise table.refuse("class", "the name of a class of service, as in [classes.NAME] of the settings")
    return where


def discount(table: Table) -> Discount:
    """Reads an entry of [[discounts]]."""
    hours = table.decimal("from_gpu_hours", "0", "1000000000", 4)
    percent = table.decimal("percent", "0", "100", 4)
    kind, per = (_one_of(table, key, allowed) for key, allowed in (("kind", DISCOUNT_KINDS), ("per", DISCOUNT_PERIODS)))
    return Discount(table.text("account", ""), hours, percent, table.months(), table.text("model", ""), kind, per)


def window(table: Table) -> Window:
    """Reads an entry of [[windows]]."""
    name = table.text("name", "", r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
    if not name:
        raise table.refuse("name", 'a name for factors and rates to refer to, such as "night"')
    days = table.take("days", list(DAYS))
    if not isinstance(days, list) or not days or not all(day in DAYS for day in days) or len(set(days)) < len(days):
        raise table.refuse("days", f"a list of days on which it begins, each once: {', '.join(DAYS)}")
    start, end = _minute(table, "start", "00:00"), _minute(table, "end", "24:00")
    if start in (end, DAY_MIN):
        raise table.refuse("start", "a time before 24:00 other than end; a whole day is 00:00 to 24:00")
    valid = table.validity()
    return Window(name, tuple(sorted(map(DAYS.index, days))), start, end, valid.start, valid.end)


def resource(table: Table) -> ResourcePrice:
    """Reads an entry of [[resources]]."""
    name = table.text("resource", "")
    if not re.fullmatch(r"cpu|mem|license/[^=,;\s]{1,100}", name):
        raise table.refuse("resource", _RESOURCES)
    price = table.decimal("per_hour", "0", "1000000", 6)
    return ResourcePrice(name, price, table.validity(), conditions(table, RESOURCE_CONDITIONS))


def credit_rule(table: Table) -> CreditRule:
    """Reads an entry of [[credit_rules]]."""
    name = table.text("name", "")
    if not name:
        raise table.refuse("name", 'what bills and invoices call it, such as "Node fault"')
    on = table.text("on", "")
    if on not in CREDIT_CAUSES:
        raise table.refuse("on", " or ".join(CREDIT_CAUSES))
    least = Decimal(0)
    if on == "slo_miss":
        least = table.decimal("from_percent", "0.0001", "100", 4)
    elif table.take("from_percent") is not None:
        raise table.refuse("from_percent", "given with on = slo_miss only: the least part of the requests that missed")
    percent = table.decimal("percent", "0.0001", "100", 4)
    return CreditRule(name, on, percent, least, table.validity(), conditions(table, RULE_CONDITIONS))


def budget(table: Table) -> Budget:
    """Reads an entry of [[budgets]]."""
    account = table.text("account", "")
    if not account:
        raise table.refuse("account", "the account that has the budget")
    hours, amount = (
        table.decimal(key, "0", "1000000000", 4) if table.take(key) is not None else None
        for key in ("gpu_hours", "amount")
    )
    if hours is None and amount is None:
        raise AccountingError(f"{table.where}: give gpu_hours, amount, or both")
    valid = table.validity()
    if date.min == valid.start or date.max == valid.end:
        missing = "from" if valid.start == date.min else "until"
        raise table.refuse(missing, "a date: a budget is for a time")
    return Budget(account, hours, amount, valid)


def check(path: str, rates: Rates) -> None:
    """Raises AccountingError for entries that do not go together."""
    for model in dict.fromkeys(rate.model for rate in rates.rates):
        _refuse_ambiguity(path, "rates", model, [rate for rate in rates.rates if rate.model == model])
    _refuse_ambiguity(path, "terms", "", rates.terms)
    for name in dict.fromkeys(price.resource for price in rates.resources):
        _refuse_ambiguity(path, "resources", name, [price for price in rates.resources if price.resource == name])
    if found := windows.overlap(rates.windows):
        first, second, when = found
        raise AccountingError(
            f"{path}: the [[windows]] {first.name} and {second.name} overlap on {when}; a moment is in one window, so "
            "change days, start or end of one"
        )
    known = {entry.name for entry in rates.windows}
    for table in ("factors", "rates", "resources"):
        for entry in getattr(rates, table):
            _refuse_unknown(path, table, entry.where.get("window", ""), known)
    names = [rule.name for rule in rates.credit_rules]
    if doubled := [name for name in names if names.count(name) > 1]:
        raise AccountingError(f"{path}: two [[credit_rules]] have the name {doubled[0]}; give each a name of its own")
    _check_discounts(path, rates)


def _check_discounts(path: str, rates: Rates) -> None:
    refuse_overlaps(path, "discounts", rates.discounts, _tier)
    accounts = dict.fromkeys(entry.account for entry in rates.discounts)
    for first, second in chain.from_iterable(combinations(rates.discounts_of(account), 2) for account in accounts):
        same = first.model == second.model and first.valid.overlaps(second.valid)
        for key in ("kind", "per"):
            if same and getattr(first, key) != getattr(second, key):
                raise AccountingError(
                    f"{path}: the [[discounts]] from {first.from_gpu_hours} and from {second.from_gpu_hours} GPU-hours "
                    f"count together and have different {key}: give both {key} = {getattr(first, key)} or "
                    f"{getattr(second, key)}"
                )
    priced = {rate.model for rate in rates.rates}
    for entry in rates.discounts:
        if entry.model and entry.model not in priced:
            near = difflib.get_close_matches(entry.model, priced, 1)
            hint = f"did you mean {near[0]}?" if near else "give one, or remove the discount"
            raise AccountingError(f"{path}: [[discounts]] of model {entry.model}, which has no [[rates]]; {hint}")


def _tier(entry: Discount) -> str:
    return f"{entry.account}{' ' if entry.model else ''}{entry.model} {entry.from_gpu_hours.normalize():f}"


def _refuse_ambiguity(path: str, key: str, name: str, entries: Sequence[C]) -> None:
    found = ambiguity(entries)
    if found is None:
        return
    first, second, day = found
    if first.where == second.where:
        what = f"{name} ({shown(first.where)})" if first.where else name
        raise AccountingError(f"{path}: two [[{key}]] {what} are valid on {day}; set from and until")
    raise AccountingError(
        f"{path}: two [[{key}]] {name} may hold for one job on {day}: ({shown(first.where)}) and "
        f"({shown(second.where)}); give a third with the conditions of both, or give one of them another value"
    )


def _refuse_unknown(path: str, table: str, name: str, known: Collection[str]) -> None:
    if name and name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(known)) or 'none'}"
        raise AccountingError(f"{path}: window = {name} in [[{table}]] is not in [[windows]]; {hint}")


def _one_of(table: Table, key: str, allowed: Sequence[str]) -> str:
    value = table.text(key, allowed[0])
    if value not in allowed:
        raise table.refuse(key, " or ".join(allowed))
    return value


def _minute(table: Table, key: str, default: str) -> int:
    value = table.take(key, default)
    if isinstance(value, time) and value == value.replace(second=0, microsecond=0):
        value = f"{value:%H:%M}"  # a local time of TOML, 22:00:00
    match = re.fullmatch(r"([01][0-9]|2[0-3]):([0-5][0-9])|24:00", value) if isinstance(value, str) else None
    if match is None:
        raise table.refuse(key, 'a time of the day in quotes, "00:00" to "24:00"')
    return DAY_MIN if value == "24:00" else int(match[1]) * 60 + int(match[2])
