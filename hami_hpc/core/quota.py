# SPDX-License-Identifier: Apache-2.0
"""Quotas of accounts: what quotas.toml wants, what slurmdbd has, and the sacctmgr commands between them. Pure.

A GPU weighs GPU_WEIGHT billing units, whole or in slices (docs/adr/071), so that one limit on `billing` holds for both.
What an account is guaranteed is the limit of a QoS of its own, whose jobs may preempt those of the QoS that borrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from hami_hpc.core import qos as core
from hami_hpc.core.qos import NONE, Command, Qos

GPU_WEIGHT = 1000  # billing units of a GPU
HOUR_MINUTES = 60
BILLING = "billing"
GUARANTEE = "guarantee-"  # and the account: the name of its QoS
COLUMNS = ("Account", "User", "ParentName", "Fairshare", "GrpTRES", "GrpTRESMins", "MaxTRES", "QOS", "DefaultQOS")


@dataclass(frozen=True, slots=True)
class Limit:
    """A key of quotas.toml that is a field of an account. unit: billing units of 1; 0: the number itself."""

    key: str
    option: str
    column: str
    unit: int

    def text(self, amount: Decimal) -> str:
        """Returns the amount as slurmdbd keeps it. Raises ValueError when it is finer than that."""
        units = amount * (self.unit or 1)
        if units != int(units):
            raise ValueError(f"{amount} is finer than {Decimal(1) / self.unit:f}")
        return str(int(units))

    def shown(self, value: str) -> str:
        """Returns slurmdbd's value in the unit of quotas.toml."""
        if not self.unit or not value.isdigit():
            return value
        return f"{Decimal(value) / self.unit:f}"


LIMITS = (
    Limit("fairshare", "Fairshare", "Fairshare", 0),
    Limit("gpus", "GrpTRES", "GrpTRES", GPU_WEIGHT),
    Limit("gpu_hours", "GrpTRESMins", "GrpTRESMins", GPU_WEIGHT * HOUR_MINUTES),
    Limit("gpus_per_job", "MaxTRESPerJob", "MaxTRES", GPU_WEIGHT),
)
BY_KEY = {limit.key: limit for limit in LIMITS}
GUARANTEED = Limit("guaranteed_gpus", "GrpTRES", "GrpTRES", GPU_WEIGHT)  # of the account's QoS


@dataclass(frozen=True, slots=True)
class Quota:
    """What quotas.toml says of an account: key of LIMITS -> slurmdbd's value or NONE. guaranteed: of its QoS, or ""."""

    account: str
    values: Mapping[str, str] = field(default_factory=dict)
    guaranteed: str = ""

    @property
    def qos(self) -> str:
        return GUARANTEE + self.account


@dataclass(frozen=True, slots=True)
class Quotas:
    """quotas.toml. borrowers: the QoS whose jobs may be preempted for a guarantee."""

    accounts: tuple[Quota, ...] = ()
    borrowers: tuple[str, ...] = ()

    @property
    def guarantees(self) -> tuple[Qos, ...]:
        """The QoS of the accounts that are guaranteed something."""
        return tuple(
            Qos(each.qos, {("grp_tres", BILLING): each.guaranteed, ("preempt", ""): core.joined(self.borrowers)})
            for each in self.accounts
            if each.guaranteed
        )


@dataclass(frozen=True, slots=True)
class Association:
    """A row of slurmdbd: an account of this cluster, or a user of one. values: by key of LIMITS, or NONE."""

    account: str
    user: str
    parent: str
    values: Mapping[str, str]
    qos: frozenset[str]
    default_qos: str


def read_association(row: Mapping[str, str]) -> Association:
    """Returns the association of a row of `sacctmgr list associations`, by column."""
    values = {limit.key: _value(limit, row[limit.column]) for limit in LIMITS}
    return Association(
        row["Account"],
        row["User"],
        row["ParentName"],
        values,
        frozenset(core.split(row["QOS"])),
        row["DefaultQOS"],
    )


def _value(limit: Limit, text: str) -> str:
    if not limit.unit:
        return text or NONE
    pairs = dict(item.partition("=")[::2] for item in text.split(",") if item)
    return pairs.get(BILLING, NONE)


@dataclass(frozen=True, slots=True)
class Present:
    """What slurmdbd has for this cluster: its associations and, by name, all QoS."""

    associations: tuple[Association, ...]
    qos: Mapping[str, Qos]

    def account(self, name: str) -> Association | None:
        return next((row for row in self.associations if row.account == name and not row.user), None)

    def below(self, account: str) -> list[Association]:
        """Returns the users of an account and of those under it, after these accounts themselves."""
        names = {account}
        while True:
            more = {row.account for row in self.associations if not row.user and row.parent in names} - names
            if not more:
                break
            names |= more
        rows = [row for row in self.associations if row.account in names and (row.user or row.account != account)]
        return sorted(rows, key=lambda row: (row.user != "", row.account, row.user))


@dataclass(frozen=True, slots=True)
class Compared:
    """One value of an account beside slurmdbd's, in the unit of quotas.toml. None: not named, or not there."""

    account: str
    key: str
    quotas: str | None
    slurmdbd: str | None

    @property
    def differs(self) -> bool:
        return self.quotas is not None and self.quotas != self.slurmdbd


def compare(wanted: Quotas, present: Present) -> list[Compared]:
    """Returns every value that quotas.toml names, or that an account of it has in slurmdbd."""
    rows = []
    for quota in wanted.accounts:
        there = present.account(quota.account)
        for limit in LIMITS:
            want = quota.values.get(limit.key)
            have = there.values[limit.key] if there else None
            if want is not None or have not in (None, NONE):
                rows.append(Compared(quota.account, limit.key, _shown(limit, want), _shown(limit, have)))
        qos = present.qos.get(quota.qos)
        if quota.guaranteed or qos:
            has = qos.values.get(("grp_tres", BILLING), NONE) if qos else None
            want = quota.guaranteed or None
            rows.append(Compared(quota.account, GUARANTEED.key, _shown(GUARANTEED, want), _shown(GUARANTEED, has)))
    return rows


def _shown(limit: Limit, value: str | None) -> str | None:
    return None if value is None else limit.shown(value)


def unknown_accounts(wanted: Quotas, present: Present) -> list[str]:
    """Returns the accounts of quotas.toml that slurmdbd does not have."""
    return [quota.account for quota in wanted.accounts if present.account(quota.account) is None]


def plan(wanted: Quotas, present: Present, cluster: str) -> list[Command]:
    """Returns the words of the sacctmgr commands that come next, none when slurmdbd is as quotas.toml says.

    A default QoS is refused while one user of the account may not use it, and which users have a list of their own
    slurmdbd does not tell. So the commands after the account's own list are known only when that is written: the
    caller reads slurmdbd again and asks for the next ones.
    """
    commands = core.plan(wanted.guarantees, present.qos)
    for quota in wanted.accounts:
        there = present.account(quota.account)
        if there is not None:
            differing = ((key, want) for key, want in quota.values.items() if want != there.values[key])
            words = [_word(BY_KEY[key], want) for key, want in differing]
            if words:
                commands.append(("modify", "account", *_account(quota.account, cluster), "set", *words))
            commands += _access(quota, there, present, cluster)
    return commands


def _word(limit: Limit, want: str) -> str:
    if not limit.unit:
        return f"{limit.option}={want}"
    return f"{limit.option}={BILLING}={'-1' if want == NONE else want}"


def _account(name: str, cluster: str) -> tuple[str, ...]:
    return ("where", f"name={name}", f"cluster={cluster}")


def _access(quota: Quota, there: Association, present: Present, cluster: str) -> Iterable[Command]:
    """Yields the next commands after which the account's jobs are in its QoS unless they name another."""
    if not quota.guaranteed:
        return
    more = f"qos+={quota.qos}"
    if quota.qos not in there.qos:
        yield ("modify", "account", *_account(quota.account, cluster), "set", more)
        return
    lacking = [row for row in present.below(quota.account) if quota.qos not in row.qos]
    accounts = {row.account for row in lacking if not row.user}
    for row in lacking:
        # What is under an account that lacks it may get it from there.
        if row.user and row.account not in accounts:
            where = ("where", f"name={row.user}", f"account={row.account}", f"cluster={cluster}")
            yield ("modify", "user", *where, "set", more)
        elif not row.user and row.parent not in accounts:
            yield ("modify", "account", *_account(row.account, cluster), "set", more)
    if not lacking and there.default_qos != quota.qos:
        yield ("modify", "account", *_account(quota.account, cluster), "set", f"DefaultQOS={quota.qos}")


def remarks(wanted: Quotas, present: Present, gpus: int) -> list[str]:
    """Returns what quotas.toml says and Slurm cannot keep as it stands. gpus: of the cluster, 0 where not known."""
    found = []
    guaranteed = sum(int(quota.guaranteed) for quota in wanted.accounts if quota.guaranteed)
    if gpus and guaranteed > gpus * GPU_WEIGHT:
        found.append(
            f"{GUARANTEED.shown(str(guaranteed))} GPUs are guaranteed and the cluster has {gpus}: not all guarantees "
            "can be kept at once"
        )
    if not guaranteed:
        return found
    free = {GUARANTEE + quota.account for quota in wanted.accounts} | set(wanted.borrowers)
    firm = sorted(name for name in present.qos if name not in free)
    if firm:
        found.append(
            f"jobs of QoS {', '.join(firm)} are not preempted for a guarantee: limit these QoS, or add them to "
            "borrowers, where their jobs can fill the GPUs"
        )
    for quota in wanted.accounts:
        there = present.account(quota.account)
        if not quota.guaranteed or there is None:
            continue
        if not there.qos & set(wanted.borrowers):
            names = " or ".join(wanted.borrowers)
            found.append(
                f"account {quota.account} may not use QoS {names}, so its jobs cannot borrow: sacctmgr modify account "
                f"{quota.account} set qos+={wanted.borrowers[0]}"
            )
        own = [row for row in present.below(quota.account) if row.user and row.default_qos not in ("", quota.qos)]
        if own:
            users = ", ".join(sorted({row.user for row in own})[:5]) + (", ..." if len(own) > 5 else "")
            found.append(
                f"{users} of account {quota.account} have a default QoS of their own, and their jobs are not in "
                f"{quota.qos} unless they name it"
            )
    return found


def unused(wanted: Quotas, present: Present) -> list[str]:
    """Returns the QoS of guarantees that quotas.toml does not name any more."""
    named = {quota.qos for quota in wanted.accounts if quota.guaranteed}
    return sorted(name for name in present.qos if name.startswith(GUARANTEE) and name not in named)


def billing_weight(shards: int) -> str:
    """Returns the weight of a shard of a GPU that has so many: all of them weigh as much as the GPU, or little more.

    Slurm drops what is behind the point of a job's billing, so the last digit is rounded up.
    """
    return str(-(-GPU_WEIGHT * 10**6 // shards) / Decimal(10**6))


def billing_weights(shards: Sequence[int], site: str) -> str:
    """Returns TRESBillingWeights of a partition whose models' GPUs have so many shards each, with the site's others.

    A shard weighs the same on all models (as MiB count the same, docs/adr/066), and so much as one of the largest.
    """
    own = {"gres/gpu": str(GPU_WEIGHT), "gres/shard": billing_weight(max(shards))}
    kept = [item for item in site.split(",") if item and item.partition("=")[0].strip().lower() not in own]
    return ",".join([*kept, *(f"{name}={weight}" for name, weight in own.items())])
