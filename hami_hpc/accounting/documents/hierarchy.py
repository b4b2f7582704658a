# SPDX-License-Identifier: Apache-2.0
"""Sums a month's GPU time up the tree of accounts, and by user, so that each level adds up to the one above.

Hours and money are rounded once, over all users of all accounts (apportion.py); every other figure is a sum of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from hami_hpc.accounting.documents.bill import to_money
from hami_hpc.accounting.pricing.apportion import apportion
from hami_hpc.accounting.pricing.held_time import PPM_SECONDS_PER_HOUR
from hami_hpc.accounting.pricing.price import Sum
from hami_hpc.accounting.pricing.rates import Rates
from hami_hpc.accounting.sources.account_tree import Key, Tree

MOST_USERS = 25
NOT_IN_TREE = "not in the tree of accounts"
_DIGITS = 2


@dataclass(frozen=True, slots=True)
class Share:
    """GPU time of one user in one account. cost: None without rates."""

    cluster: str
    account: str
    user: str
    jobs: int
    hours: Decimal
    cost: Decimal | None


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the drill-down, with those below it after it. is_user: the last level. opens: has lines below.
    closes: how many lines end with it, itself not counted. percent: of the whole month."""

    label: str
    is_user: bool
    jobs: int
    hours: Decimal
    cost: Decimal | None
    percent: Decimal | None
    opens: bool
    closes: int = 0


def shares(sums: Sequence[Sum], prices: Rates | None) -> list[Share]:
    """Returns the shares. sums: of the month, by cluster, account and user."""
    hours = apportion([entry.held_ppm_s for entry in sums], PPM_SECONDS_PER_HOUR // 10**_DIGITS)
    costs = to_money([entry.charge for entry in sums], prices.digits) if prices else [None] * len(sums)
    return [
        Share(cluster, account, user, entry.runs, Decimal(hour).scaleb(-_DIGITS), cost)
        for entry, hour, cost in zip(sums, hours, costs, strict=True)
        for cluster, account, user in [entry.labels]
    ]


def rows(found: Sequence[Share], tree: Tree) -> list[Row]:
    """Returns the lines from the top down, those with most GPU-hours first; accounts without GPU time are left out."""
    nodes = _Nodes(found, tree)
    total = nodes.sums.get(_TOP, (0, Decimal(0), None))[1]
    lines: list[Row] = []
    # What is still to be written, the next one last; None closes the line before.
    waiting: list[tuple[Key, str] | Share | None] = nodes.ordered(_TOP)[::-1]
    while waiting:
        item = waiting.pop()
        if item is None:
            lines[-1] = replace(lines[-1], closes=lines[-1].closes + 1)
            continue
        if isinstance(item, Share):
            lines.append(_row(item.user, True, (item.jobs, item.hours, item.cost), total, False))
            continue
        key, label = item
        lines.append(_row(label, False, nodes.sums[key], total, True))
        waiting.append(None)
        waiting += nodes.ordered(key)[::-1]
    return lines


_Figures = tuple[int, Decimal, Decimal | None]
_TOP: Key = ("", "")


class _Nodes:
    """The accounts with GPU time, and those above them."""

    def __init__(self, found: Sequence[Share], tree: Tree) -> None:
        self.sums: dict[Key, _Figures] = {}
        self._users: dict[Key, list[Share]] = {}
        self._below: dict[Key, dict[Key, str]] = {}
        self._clusters = {share.cluster for share in found}
        for share in found:
            own = (share.cluster, share.account)
            self._users.setdefault(own, []).append(share)
            below = own
            for key in (own, *self._above(own, tree)):
                if key != own:
                    self._below.setdefault(key, {})[below] = below[1] or "(none)"
                jobs, hours, cost = self.sums.get(key, (0, Decimal(0), None if share.cost is None else Decimal(0)))
                cost = None if cost is None or share.cost is None else cost + share.cost
                self.sums[key] = (jobs + share.jobs, hours + share.hours, cost)
                below = key
        for clusters in self._below.get(_TOP, {}), *(self._below.get((name, "\0"), {}) for name in self._clusters):
            for key in clusters:
                if key[1] == "\0":
                    clusters[key] = key[0] or "(none)"
                elif key[1] == "\1":
                    clusters[key] = NOT_IN_TREE

    def _above(self, key: Key, tree: Tree) -> list[Key]:
        """Returns the keys above an account: its parents, its cluster if there are several, the top."""
        path: list[Key] = []
        at = key
        if tree and key not in tree:
            path.append((key[0], "\1"))
        while parent := tree.get(at, ""):
            at = (at[0], parent)
            path.append(at)
        return [*path, *([(key[0], "\0")] if len(self._clusters) > 1 else []), _TOP]

    def ordered(self, key: Key) -> list[tuple[Key, str] | Share | None]:
        """Returns what is below a key: accounts, then its own users."""
        accounts = sorted(self._below.get(key, {}).items(), key=lambda entry: (-self.sums[entry[0]][1], entry[1]))
        users = sorted(self._users.get(key, []), key=lambda share: (-share.hours, share.user))
        if len(users) > MOST_USERS + 1:
            rest = users[MOST_USERS:]
            costs = [share.cost for share in rest if share.cost is not None]
            users = [
                *users[:MOST_USERS],
                Share(
                    *key,
                    f"{len(rest):,} others",
                    sum(share.jobs for share in rest),
                    sum((share.hours for share in rest), Decimal(0)),
                    sum(costs, Decimal(0)) if len(costs) == len(rest) else None,
                ),
            ]
        return [*accounts, *users]


def _row(label: str, is_user: bool, figures: _Figures, total: Decimal, opens: bool) -> Row:
    jobs, hours, cost = figures
    percent = (100 * hours / total).quantize(Decimal("0.1")) if total else None
    return Row(label, is_user, jobs, hours, cost, percent, opens)


def of_users(found: Sequence[Share]) -> Mapping[str, list[Share]]:
    """Returns each user's shares, those with most GPU-hours first."""
    users: dict[str, list[Share]] = {}
    for share in sorted(found, key=lambda share: (-share.hours, share.cluster, share.account)):
        users.setdefault(share.user, []).append(share)
    return users
