# SPDX-License-Identifier: Apache-2.0
"""Reads rates.toml into Rates. Refuses unknown keys; reads numbers as decimals, never as floating point."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.pricing import rates_tables
from hami_hpc.accounting.pricing.cluster_gpus import GpuModel
from hami_hpc.accounting.pricing.rates import (
    Credit,
    DatedGeometry,
    Factor,
    Quota,
    Rate,
    Rates,
    Terms,
)
from hami_hpc.accounting.pricing.toml_table import Table, each, refuse_overlaps
from hami_hpc.accounting.store.geometry_file import Geometry
from hami_hpc.contract import constants as contract
from hami_hpc.core.hostlist import HostlistError, expand
from hami_hpc.node.config import settings_path

VERSION = 1
DEFAULT_PATH = Path(settings_path({})).with_name("rates.toml")
# Slurm's states of a run that has ended and may have held a GPU.
ENDED_STATES = (
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
    *("PREEMPTED", "RECONFIG_FAIL", "REQUEUED", "REQUEUE_HOLD", "RESIZING", "REVOKED", "SPECIAL_EXIT", "TIMEOUT"),
)
MAX_BYTES = 8 << 20
# Currencies without a smaller unit, and those of which that is a thousandth (ISO 4217).
_WHOLE_UNITS = (
    *("BIF", "CLP", "DJF", "GNF", "ISK", "JPY", "KMF", "KRW", "PYG", "RWF", "UGX", "VND", "VUV", "XAF", "XOF", "XPF"),
)
_THOUSANDTHS = ("BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND")
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
    top = Table(path, document)
    currency = top.text("currency", "EUR", r"[A-Z]{3}")
    if top.take("version") != VERSION:
        raise AccountingError(f"{path} needs version = {VERSION}; this hami_hpc reads no other version")
    gpus, partitions = _named(top, "gpus"), _named(top, "partitions")
    rates = Rates(
        currency=currency,
        digits=_digits(top, currency),
        timezone=_zone(top),
        issuer=top.texts("issuer"),
        invoice_prefix=top.text("invoice_prefix", "GPU", r"[A-Za-z0-9][A-Za-z0-9-]{0,15}"),
        rates=tuple(each(top, "rates", _rate)),
        factors=tuple(each(top, "factors", _factor)),
        terms=tuple(each(top, "terms", _terms)),
        discounts=tuple(each(top, "discounts", rates_tables.discount)),
        credits=tuple(each(top, "credits", _credit)),
        quotas=tuple(each(top, "quotas", _quota)),
        windows=tuple(each(top, "windows", rates_tables.window)),
        resources=tuple(each(top, "resources", rates_tables.resource)),
        credit_rules=tuple(each(top, "credit_rules", rates_tables.credit_rule)),
        budgets=tuple(each(top, "budgets", rates_tables.budget)),
        geometry=tuple(each(top, "geometry", _geometry)),
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
    rates_tables.check(path, rates)
    refuse_overlaps(path, "geometry", rates.geometry, lambda _: "")
    _check_credits(path, rates)
    return rates


def _digits(top: Table, currency: str) -> int:
    """Reads digits; of a currency whose smallest unit is no hundredth, they must be there."""
    usual = 0 if currency in _WHOLE_UNITS else 3 if currency in _THOUSANDTHS else 2
    if usual != 2 and top.take("digits") is None:
        raise AccountingError(
            f"{top.where}: digits is missing, and two are not those of {currency}: write digits = {usual}, or 2 for "
            "amounts that are as before"
        )
    return top.whole("digits", 2, 0, 4)


def _rate(table: Table) -> Rate:
    model = table.text("model", "")
    if not model:
        raise table.refuse("model", "the name of a GPU model")
    price = table.decimal("per_gpu_hour", "0", "1000000", 6)
    return Rate(model, price, table.validity(), rates_tables.conditions(table, rates_tables.RATE_CONDITIONS))


def _factor(table: Table) -> Factor:
    where = rates_tables.conditions(table, rates_tables.FACTOR_CONDITIONS)
    if not where:
        names = ", ".join(rates_tables.FACTOR_CONDITIONS)
        raise AccountingError(f"{table.where}: has no condition; give one or more of {names}")
    return Factor(where, table.decimal("factor", "0", "1000", 6), table.validity())


_TERMS_KEYS = (
    *("minimum_s", "suspended_factor", "off_gpu_factor", "unbilled_states", "unbilled_disturbed", "unbilled_gpu_fault"),
)


def _terms(table: Table) -> Terms:
    return Terms(
        table.whole("minimum_s", 0, 0, 86400),
        table.decimal("suspended_factor", "0", "1", 4, "0"),
        table.decimal("off_gpu_factor", "0", "1", 4, "1"),
        _states(table),
        table.flag("unbilled_disturbed", False),
        table.flag("unbilled_gpu_fault", False),
        table.validity(),
        rates_tables.conditions(table, rates_tables.TERMS_CONDITIONS),
        frozenset(key for key in _TERMS_KEYS if key in table.values),
    )


def _states(table: Table) -> tuple[str, ...]:
    states = table.texts("unbilled_states")
    for state in states:
        if state not in ENDED_STATES:
            near = difflib.get_close_matches(state.upper(), ENDED_STATES, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(ENDED_STATES)}"
            raise AccountingError(
                f"{table.where}: '{state[:40]}' in unbilled_states is no state that ends a run; {hint}"
            )
    return states


def _credit(table: Table) -> Credit:
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


def _quota(table: Table) -> Quota:
    account, user = table.text("account", ""), table.text("user", "")
    if bool(account) == bool(user):
        raise AccountingError(f"{table.where}: give either account or user")
    return Quota(account, user, table.decimal("gpu_hours", "0.0001", "1000000000", 4), table.months())


def _geometry(table: Table) -> DatedGeometry:
    shard_mib = table.whole("shard_mib", 0, 1, contract.MEM_MIB_MAX)
    scaling = table.decimal("memory_scaling", "0.1", f"{contract.MEMORY_SCALING_MAX:g}", 6)
    return DatedGeometry(Geometry(shard_mib, float(scaling)), table.validity())


def _model(name: str, table: Table) -> GpuModel:
    table.known |= {"nodes", "aliases"}
    return GpuModel(
        name,
        table.whole("total_mib", 0, 1, contract.MEM_MIB_MAX),
        table.whole("mig_slices", 7, 1, 64),
        table.whole("mig_memory_slices", 8, 1, 64),
    )


def _hosts(table: Table) -> list[str]:
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


def _zone(top: Table) -> str:
    name = top.text("timezone", "UTC")
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise top.refuse("timezone", "a zone such as Europe/Berlin") from error
    return name


def _named(top: Table, key: str) -> dict[str, Table]:
    values = Table(f"{top.where}, [{key}]", top.take(key, {})).values
    gpu_keys = ("total_mib", "mig_slices", "mig_memory_slices", "aliases", "nodes", "count")
    known = {"gpus": gpu_keys, "partitions": ("gpu_models", "shards_per_gpu")}
    tables = {name: Table(f"{top.where}, [{key}.{name}]", entry) for name, entry in values.items()}
    for table in tables.values():
        table.known.update(known[key])
        table.close()
    return tables
