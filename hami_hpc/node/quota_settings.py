# SPDX-License-Identifier: Apache-2.0
"""Reads quotas.toml: what accounts may have of the cluster's GPUs, and what each is guaranteed (docs/quotas.md)."""

from __future__ import annotations

import re
import tomllib
from decimal import Decimal
from pathlib import Path

from hami_hpc.core.qos import NONE
from hami_hpc.core.quota import GUARANTEE, GUARANTEED, LIMITS, Limit, Quota, Quotas
from hami_hpc.errors import NodeError
from hami_hpc.node.config import _Table
from hami_hpc.node.settings_text import read_text

FILE = "quotas.toml"  # beside hami-hpc.toml
VERSION = 1
MOST = 2**50  # billing units, or minutes of them; Slurm keeps 64 bits
SHARES_MAX = 2**31 - 2  # Slurm's largest Fairshare has a meaning of its own
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*")  # sacctmgr writes every name in lower case


def read_quotas(path: Path) -> Quotas:
    """Returns the quotas of a file, which for root others may not write. Raises NodeError, with file, table and key,
    for whatever is wrong with it."""
    try:
        document = tomllib.loads(read_text(str(path.absolute())), parse_float=Decimal)
    except OSError as error:
        raise NodeError(f"{path} cannot be read ({error.strerror}); docs/quotas.md says what it holds") from error
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, UnicodeDecodeError, and int's own
        raise NodeError(f"{path} is not TOML: {error}") from error
    top = _Table(str(path), "", document)
    version = top.take("version")
    if version != VERSION or type(version) is not int:
        raise NodeError(f"{path}: version = {VERSION} must be there (found: {version!r}); this hami_hpc reads no other")
    borrowers = top.names("borrowers", ())
    for name in borrowers:
        if not _NAME.fullmatch(name) or name.startswith(GUARANTEE):
            top.refuse("borrowers", name, f"a list of QoS in small letters, none that begins with {GUARANTEE}")
    accounts = top.take("accounts", {})
    top.close()
    table = _Table(str(path), "accounts", accounts)
    quotas = Quotas(tuple(_quota(str(path), name, value) for name, value in table.left.items()), borrowers)
    if quotas.guarantees and not borrowers:
        raise NodeError(
            f'{path}: {GUARANTEED.key} needs borrowers, the QoS whose jobs may be preempted for it: borrowers = ["be"]'
        )
    return quotas


def _quota(path: str, name: str, value: object) -> Quota:
    if not _NAME.fullmatch(name):
        raise NodeError(
            f"{path}: '{name}' in [accounts] is no name of an account: small letters (as Slurm keeps them), digits, "
            "'-', '_' and '.' only"
        )
    table = _Table(path, f"accounts.{name}", value)
    values = {}
    for limit in LIMITS:
        given = table.take(limit.key)
        if given is not None:
            values[limit.key] = _amount(table, limit, given) if limit.unit else _shares(table, limit, given)
    given = table.take(GUARANTEED.key)
    promised = "" if given is None else _amount(table, GUARANTEED, given)
    if promised == NONE:
        table.refuse(GUARANTEED.key, given, "a number of GPUs; without a guarantee leave the line out")
    table.close()
    most = values.get("gpus", NONE)
    if promised and most != NONE and int(promised) > int(most):
        table.refuse(GUARANTEED.key, given, f"at most gpus, {GUARANTEED.shown(most)}")
    return Quota(name, values, promised)


def _shares(table: _Table, limit: Limit, given: object) -> str:
    if type(given) is not int or not 0 <= given <= SHARES_MAX:
        table.refuse(limit.key, given, f"a whole number from 0 to {SHARES_MAX}, relative to the accounts beside it")
    return str(given)


def _amount(table: _Table, limit: Limit, given: object) -> str:
    """Returns a number of GPUs or GPU-hours, 2 or 2.5, as slurmdbd keeps it."""
    if given == NONE:
        return NONE
    allowed = f'a number from 0, such as 2 or 2.5, with three digits behind the point at most, or "{NONE}"'
    if type(given) not in (int, Decimal):
        table.refuse(limit.key, given, allowed)
    amount = Decimal(str(given))
    if not amount.is_finite() or not 0 <= amount * limit.unit <= MOST:
        table.refuse(limit.key, given, allowed)
    try:
        return limit.text(amount)
    except ValueError:
        table.refuse(limit.key, given, allowed)
        raise
