# SPDX-License-Identifier: Apache-2.0
"""The private cluster's accounts, users and QoS in slurmdbd.

Jobs need users without privileges. The cluster adds none to /etc/passwd: it uses accounts that every Debian has
(base-passwd) and that own no files.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

from .layout import ClusterError, Layout
from .services import clean_environment

CLUSTER = "demo"


@dataclass(frozen=True, slots=True)
class Account:
    """An account of the site and the Unix users who may charge it."""

    name: str
    users: tuple[str, ...]


ACCOUNTS = (Account("physics", ("games", "root")), Account("vision", ("news",)))
USERS = ("games", "news")  # those without privileges
QOS = ("std", "lc", "be")


def _sacctmgr(layout: Layout, *words: str) -> str:
    done = subprocess.run(
        ("sacctmgr", "--immediate", "--quiet", "--noheader", "--parsable2", *words),
        env=clean_environment(layout),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode != 0:
        raise ClusterError(f"sacctmgr {' '.join(words)} failed: {(done.stdout + done.stderr).strip()}")
    return done.stdout


def _listed(layout: Layout, what: str, columns: str, *conditions: str) -> set[str]:
    return set(_sacctmgr(layout, "list", what, f"format={columns}", *conditions).splitlines())


def make_accounts(layout: Layout, cluster: str = CLUSTER) -> None:
    """Adds the missing ones of the cluster, QoS, accounts and users. slurmdbd must be running."""
    if cluster not in _listed(layout, "cluster", "cluster"):
        _sacctmgr(layout, "add", "cluster", cluster)
    for qos in sorted(set(QOS) - _listed(layout, "qos", "name")):
        _sacctmgr(layout, "add", "qos", qos)
    known = _listed(layout, "associations", "account,user", f"cluster={cluster}")
    for account in ACCOUNTS:
        if f"{account.name}|" not in known:
            _sacctmgr(layout, "add", "account", account.name, f"cluster={cluster}")
        for user in account.users:
            if f"{account.name}|{user}" not in known:
                _sacctmgr(layout, "add", "user", user, f"account={account.name}", f"cluster={cluster}")
        _allow_every_qos(layout, account, cluster)


def _allow_every_qos(layout: Layout, account: Account, cluster: str) -> None:
    """Gives the account and its users all QoS: after a QoS was deleted and added again, nobody has it."""
    rows = _listed(layout, "associations", "account,user,qos,defaultqos", f"cluster={cluster}")
    every = {"normal", *QOS}
    for user in ("", *account.users):
        allowed = next(row.split("|")[2:] for row in rows if row.startswith(f"{account.name}|{user}|"))
        if allowed[1] != "std" or set(allowed[0].split(",")) != every:
            kind = "user" if user else "account"
            values = (f"qos={','.join(sorted(every))}", "defaultqos=std")
            of_which = (f"name={user or account.name}", f"cluster={cluster}")
            _sacctmgr(layout, "modify", kind, "set", *values, "where", *of_which)
