# SPDX-License-Identifier: Apache-2.0
"""What slurm.conf needs so that Slurm preempts and limits as the QoS of the settings say. Pure.

Without the three parameters Slurm preempts the oldest job, or jobs on a GPU where they are of no use: docs/adr/027.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hami_hpc.core.qos import LIMITS, Qos
from hami_hpc.render.merging import Merge
from hami_hpc.slurm.lines import Setting, pair_text

# Passes over the candidates after the first two: one less than the jobs that one job may have to preempt.
REORDER_COUNT = 10
PARAMETERS = ("youngest_first", "strict_order", f"reorder_count={REORDER_COUNT}")
SLURM_23_02 = 23 << 16 | 2 << 8

Site = Mapping[str, Sequence[Setting]]


def merge_lines(wanted: Sequence[Qos], site: Site, version: int, path: str) -> list[Merge]:
    """Returns what is left to write into slurm.conf, whose settings are `site`; new keys are for the file `path`."""
    return merge_pairs(needed_pairs(wanted, site, version), site, path)


def merge_pairs(pairs: Iterable[tuple[str, str]], site: Site, path: str) -> list[Merge]:
    """Returns a merge for each key that the site sets otherwise, and one with the keys that it lacks."""
    merges: list[Merge] = []
    new: list[str] = []
    for key, value in pairs:
        given = site.get(key.lower())
        if not given:
            new.append(pair_text(key, value))
        elif value.lower() != given[-1].value.lower():
            merges.append(
                Merge(f"{given[-1].where}: instead of {key}={given[-1].value} write:", (pair_text(key, value),))
            )
    if new:
        merges.append(Merge(f"{path}: add:", tuple(new)))
    return merges


def needed_pairs(
    wanted: Sequence[Qos], site: Site, version: int, account_limits: bool = False
) -> list[tuple[str, str]]:
    """Returns each key with the value that serves the site and the QoS: the site's own where that is enough.

    account_limits: accounts have limits, too.
    """
    lines: list[tuple[str, str]] = []
    if wanted or account_limits:
        limits = ["limits"] if account_limits or has_limits(wanted) else []
        needed = ["associations", *limits, *(["qos"] if wanted else [])]
        lines.append(("AccountingStorageEnforce", _enforce(_value(site, "AccountingStorageEnforce"), needed)))
    if not any(qos.preempts for qos in wanted):
        return lines
    lines.append(("PreemptType", "preempt/qos"))
    mode = _value(site, "PreemptMode")
    # CANCEL preempts, too: the site decides.
    lines.append(("PreemptMode", mode if {"requeue", "cancel"} & set(mode.lower().split(",")) else "REQUEUE"))
    if _value(site, "JobRequeue") == "0":
        lines.append(("JobRequeue", "1"))
    key, prefix = ("PreemptParameters", "") if version >= SLURM_23_02 else ("SchedulerParameters", "preempt_")
    lines.append((key, _parameters(_value(site, key), [prefix + parameter for parameter in PARAMETERS])))
    return lines


def has_limits(wanted: Sequence[Qos]) -> bool:
    return any(key in LIMITS for qos in wanted for key, _ in qos.values)


def remarks(wanted: Sequence[Qos], site: Site) -> list[str]:
    """Returns what the settings say and Slurm ignores."""
    weight = _value(site, "PriorityWeightQOS")
    if any(int(qos.values.get(("priority", ""), "0")) for qos in wanted) and weight in ("", "0"):
        return ["the Priority of a QoS orders jobs only with PriorityType=priority/multifactor and PriorityWeightQOS"]
    return []


def _value(site: Site, key: str) -> str:
    given = site.get(key.lower())
    value = given[-1].value if given else ""
    return "" if value in ("(null)", "none") else value


def _enforce(value: str, needed: Sequence[str]) -> str:
    items = [item for item in value.split(",") if item]
    there = {item.lower() for item in items}
    if "all" in there:
        return value
    # safe sets limits, and all of them set associations (accounting_enforce in Slurm).
    implied = {"limits"} if "safe" in there else set()
    implied |= {"associations"} if there & {"limits", "qos", "safe", "wckeys"} else set()
    return ",".join([*items, *(item for item in needed if item not in there | implied)])


def _parameters(value: str, needed: Sequence[str]) -> str:
    """Returns the site's parameters with those needed; a larger count of the site's stays."""
    items = [item for item in value.split(",") if item]
    for parameter in needed:
        name, _, count = parameter.partition("=")
        there = [item for item in items if item.lower().partition("=")[0] == name]
        if any(_count(item) >= int(count or 0) for item in there):
            continue
        items = [item for item in items if item not in there] + [parameter]
    return ",".join(items)


def _count(item: str) -> int:
    text = item.partition("=")[2]
    return int(text) if text.isascii() and text.isdigit() else 0
