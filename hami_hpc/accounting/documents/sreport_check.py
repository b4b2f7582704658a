# SPDX-License-Identifier: Apache-2.0
"""The bill against sreport: device-hours of gres/gpu and gres/vgpu by account and user, difference by difference.

sreport counts devices, not shares (a MIG instance and a vGPU slice are 1 each), and counts a suspended job's GPUs as
held. So the same records are counted here once more in sreport's way, and every difference that is left is a fault,
of either side, with its reason as far as it can be told.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import duckdb

from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.sources.tres import AllocatedGpus
from hami_hpc.accounting.store.job_records import JobRecords
from hami_hpc.accounting.times import Period

COMPARED = ("gres/gpu", "gres/vgpu")
_HOUR_S = 3600
Key = tuple[str, str, str, str]  # cluster, account, user, tres


@dataclass(frozen=True, slots=True)
class Difference:
    """Device-seconds that sreport and the records disagree on. reasons: what may explain it; empty: nothing known."""

    cluster: str
    account: str
    user: str
    tres: str
    sreport_s: int
    records_s: int
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """compared: keys on either side. suspended_s: device-seconds of gres/gpu that sreport counts as held and the bill
    does not."""

    compared: int
    sreport_s: int
    records_s: int
    suspended_s: int
    differences: tuple[Difference, ...]


def read_sreport(period: Period, clusters: str = "", sreport: str = "sreport") -> dict[Key, int]:
    """Device-seconds by cluster, account, user and TRES. AccountingError when sreport cannot be run."""
    call = [sreport, "-n", "-P", "-t", "Seconds", "-T", ",".join(COMPARED)]
    call += ["-M", clusters] if clusters else []
    call += ["cluster", "AccountUtilizationByUser", f"start=uts{period.start_s}", f"end=uts{period.end_s}"]
    call += ["format=Cluster,Account,Login,TresName,Used"]
    environment = {**os.environ, "TZ": "UTC", "LC_ALL": "C"}
    try:
        done = subprocess.run(call, capture_output=True, env=environment, check=False, text=True, errors="replace")
    except OSError as error:
        raise AccountingError(f"cannot run {sreport}: {error.strerror}; install slurm-client") from error
    if done.returncode:
        raise AccountingError(f"sreport failed ({done.returncode}): {done.stderr.strip().splitlines()[-1:]}")
    return parse_sreport(done.stdout)


def parse_sreport(text: str) -> dict[Key, int]:
    """The lines that name a user; those without one are sums over an account's users and sub-accounts."""
    found: dict[Key, int] = {}
    for line in text.splitlines():
        cells = line.split("|")
        if len(cells) != 5 or not cells[4].isdigit():
            raise AccountingError(f"sreport printed '{line[:80]}', which is not Cluster|Account|Login|TresName|Used")
        cluster, account, user, tres, seconds = cells
        if user and int(seconds):
            key = (cluster, account, user, tres)
            found[key] = found.get(key, 0) + int(seconds)
    return found


def devices(held: AllocatedGpus) -> dict[str, int]:
    """What sreport counts of a run, by TRES."""
    counts = {"gres/gpu": sum(count for _, count in held.gpus), "gres/vgpu": held.vgpu + held.whole_units}
    return {tres: count for tres, count in counts.items() if count}


def device_seconds(records: JobRecords, period: Period) -> tuple[dict[Key, int], dict[Key, int]]:
    """(device-seconds in sreport's way, the suspended part of them) from the records."""
    con = records.con
    con.execute(
        f"CREATE OR REPLACE TEMP VIEW checked_runs AS SELECT *, coalesce(end_s, observed_s) AS until_s "
        f"FROM {records.source} WHERE held <> '' AND start_s < {period.end_s} "
        f"AND coalesce(end_s, observed_s) > {period.start_s}"
    )
    rows = con.execute(
        "SELECT cluster, account, username, held, "
        "sum(least(until_s, $2) - greatest(start_s, $1))::BIGINT, "
        "sum(suspended_s * (least(until_s, $2) - greatest(start_s, $1)) // greatest(1, until_s - start_s))::BIGINT "
        "FROM checked_runs GROUP BY ALL",
        [period.start_s, period.end_s],
    ).fetchall()
    sums: dict[Key, int] = {}
    suspended: dict[Key, int] = {}
    for cluster, account, user, held_key, seconds, suspended_s in rows:
        for tres, count in devices(AllocatedGpus.from_key(held_key)).items():
            key = (cluster, account, user, tres)
            sums[key] = sums.get(key, 0) + seconds * count
            suspended[key] = suspended.get(key, 0) + suspended_s * count
    return sums, suspended


def compare(
    sreport: Mapping[Key, int],
    ours: Mapping[Key, int],
    suspended: Mapping[Key, int],
    reasons: Mapping[Key, Sequence[str]],
) -> Comparison:
    """Both sides, key by key. reasons: what is known about a key. Pure."""
    keys = sorted({*sreport, *(key for key, seconds in ours.items() if seconds)})
    differences = tuple(
        Difference(*key, sreport.get(key, 0), ours.get(key, 0), tuple(reasons.get(key, ())))
        for key in keys
        if sreport.get(key, 0) != ours.get(key, 0)
    )
    gpu = [key for key in keys if key[3] == COMPARED[0]]
    return Comparison(
        len(keys),
        sum(sreport.get(key, 0) for key in keys),
        sum(ours.get(key, 0) for key in keys),
        sum(suspended.get(key, 0) for key in gpu),
        differences,
    )


def reasons_for(
    records: JobRecords, keys: Iterable[Key], sreport: Mapping[Key, int], period: Period, now_s: int
) -> dict[Key, list[str]]:
    """What is known about each key that can make the sides differ."""
    open_runs = _counts(
        records.con, "SELECT cluster, account, username, count(*) FROM checked_runs WHERE end_s IS NULL"
    )
    left_out = _counts(
        records.con,
        f"SELECT cluster, account, username, count(*) FROM {records.rejects} "
        f"WHERE coalesce(start_s, 0) < {period.end_s} AND coalesce(end_s, {period.end_s}) > {period.start_s}",
    )
    users = {(cluster, account, user) for cluster, account, user, _ in sreport}
    found: dict[Key, list[str]] = {}
    for key in keys:
        cluster, account, user, tres = key
        said = found.setdefault(key, [])
        if period.start_s % _HOUR_S or period.end_s % _HOUR_S:
            said.append("sreport knows whole hours only, and the period begins or ends within one")
        if period.end_s > now_s - now_s % _HOUR_S:
            said.append("slurmdbd adds up each hour after it is over: the last one is not in sreport yet")
        if count := left_out.get((cluster, account, user)):
            said.append(f"{count} lines of theirs are left out of the bill (hami-hpc bill names them)")
        if count := open_runs.get((cluster, account, user)):
            said.append(f"{count} of their jobs had not ended: the records count them up to when they were read")
        if (cluster, account, user) not in users:
            if user.startswith("uid:"):
                said.append("the user has no association in slurmdbd (deleted): sreport leaves such jobs out")
            else:
                said.append(
                    f"sreport has no {tres} of theirs: is it in AccountingStorageTRES, is the association deleted?"
                )
    return found


def compare_records(records: JobRecords, period: Period, now_s: int, clusters: str = "") -> Comparison:
    """Run sreport and compare. The store must have been read past the period."""
    theirs = read_sreport(period, clusters)
    ours, suspended = device_seconds(records, period)
    keys = {*theirs, *ours}
    return compare(theirs, ours, suspended, reasons_for(records, keys, theirs, period, now_s))


def _counts(con: duckdb.DuckDBPyConnection, query: str) -> dict[tuple[str, str, str], int]:
    return {(row[0], row[1], row[2]): row[3] for row in con.execute(f"{query} GROUP BY ALL").fetchall()}
