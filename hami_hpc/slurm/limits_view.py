# SPDX-License-Identifier: Apache-2.0
"""Parses what `scontrol --oneliner show assoc_mgr flags=assoc,qos` prints of limits and their use. Pure."""

from __future__ import annotations

import re

# Names of accounts and QoS have no blanks; a user's name and id, a QoS's id stand in brackets.
_ACCOUNT = re.compile(r"ClusterName=(\S+) Account=(\S+) UserName= Partition= ")
_QOS = re.compile(r"QOS=(\S+)\(\d+\) ")
_BILLING = re.compile(r" (GrpTRES|GrpTRESMins)=(?:\S*,)?billing=[^,()\s]*\((\d+)\)")


def billing_in_use(text: str, cluster: str) -> dict[tuple[str, str], str]:
    """Returns (account or QoS, GrpTRES or GrpTRESMins) -> billing units, or minutes of them, in use."""
    found = {}
    for line in text.splitlines():
        account, qos = _ACCOUNT.match(line), _QOS.match(line)
        if account is not None and account[1] != cluster:
            continue
        owner = account[2] if account else qos[1] if qos else ""
        if owner:
            found.update({(owner, limit): used for limit, used in _BILLING.findall(line)})
    return found
