# SPDX-License-Identifier: Apache-2.0
"""Compares the records with sreport: device-hours of gres/gpu and gres/vgpu by account and user.

sreport counts devices, not shares (a MIG instance and a vGPU slice are 1 each), and counts a suspended job's GPUs as
held. So the records are counted here in sreport's way. Every difference that remains is an error of one side; its
reason is given if it is known.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import duckdb

from hami_hpc.accounting.errors import AccountingError, command_failed
from hami_hpc.accounting.sources.tres import AllocatedGpus
from hami_hpc.accounting.store.job_records import JobRecords
from hami_hpc.accounting.times import Period

COMPARED = ("gres/gpu", "gres/vgpu")
_HOUR_S = 3600
Key = tuple[str, str, str, str]  # cluster, account, user, tres


@dataclass(frozen=True, slots=True)
class Difference:
    """Device-seconds in which sreport and the records differ. reasons: possible explanations; may be empty."""

    cluster: str
    account: str
    user: str
    tres: str
    sreport_s: int
    records_s: int
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a comparison.

    compared: number of keys in sreport or the records. suspended_s: device-seconds of gres/gpu that sreport counts as
    held and the bill does not.
    """

    compared: int
    sreport_s: int
    records_s: int
    suspended_s: int
    differences: tuple[Difference, ...]


def read_sreport(period: Period, clusters: str = "", sreport: str = "sreport") -> dict[Key, int]:
    """Runs sreport. Returns device-seconds by cluster, account, user and TRES. Raises AccountingError on failure."""
    call = [sreport, "-n", "-P", "-t", "Seconds", "-T", ",".join(COMPARED)]
    call += ["-M", clusters] if clusters else ["--local"]
    call += ["cluster", "AccountUtilizationByUser", f"start=uts{period.start_s}", f"end=uts{period.end_s}"]
    call += ["format=Cluster,Account,Login,TresName,Used"]
    environment = {**os.environ, "TZ": "UTC", "LC_ALL": "C"}
    try:
        process = subprocess.run(call, capture_output=True, env=environment, check=False, text=True, errors="replace")
    except OSError as error:
        raise AccountingError(f"cannot run {sreport}: {error.strerror}; install slurm-client") from error
    if process.returncode:
        raise command_failed("sreport", process.returncode, process.stderr)
    return parse_sreport(process.stdout)


def parse_sreport(text: str) -> dict[Key, int]:
    """Parses sreport's lines with a user. Lines without one are sums over an account's users and sub-accounts."""
    device_s: dict[Key, int] = {}
    for line in text.splitlines():
        cells = line.split("|")
        if len(cells) != 5 or not cells[4].isdigit():
            raise AccountingError(f"sreport printed '{line[:80]}', which is not Cluster|Account|Login|TresName|Used")
        cluster, account, user, tres, seconds = cells
        if user and int(seconds):
            key = (cluster, account, user, tres)
            device_s[key] = device_s.get(key, 0) + int(seconds)
    return device_s


def devices(allocated: AllocatedGpus) -> dict[str, int]:
    """Returns the devices that sreport counts for a run, by TRES."""
    counts = {
        "gres/gpu": sum(count for _, count in allocated.gpus),
        "gres/vgpu": allocated.vgpu + allocated.whole_units,
    }
    return {tres: count for tres, count in counts.items() if count}


def device_seconds(records: JobRecords, period: Period) -> tuple[dict[Key, int], dict[Key, int]]:
    """Returns (device-seconds as sreport counts them, the suspended part of them) from the records."""
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
    """Compares both sides key by key. reasons: what is known about a key. Pure."""
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
    """Returns for each key the known reasons why the sides may differ."""
    open_runs = _counts(
        records.con, "SELECT cluster, account, username, count(*) FROM checked_runs WHERE end_s IS NULL"
    )
    left_out = _counts(
        records.con,
        f"SELECT cluster, account, username, count(*) FROM {records.rejects} "
        f"WHERE coalesce(start_s, 0) < {period.end_s} AND coalesce(end_s, {period.end_s}) > {period.start_s}",
    )
    resized = _counts(
        records.con,
        "SELECT cluster, account, username, count(DISTINCT job_id) FROM checked_runs WHERE state = 'RESIZING'",
    )
    users = {(cluster, account, user) for cluster, account, user, _ in sreport}
    reasons: dict[Key, list[str]] = {}
    for key in keys:
        cluster, account, user, tres = key
        key_reasons = reasons.setdefault(key, [])
        if period.start_s % _HOUR_S or period.end_s % _HOUR_S:
            key_reasons.append("sreport counts whole hours only, and the period begins or ends within one")
        if period.end_s > now_s - now_s % _HOUR_S:
            key_reasons.append("slurmdbd sums up each hour after it has ended: the last one is not in sreport yet")
        if count := left_out.get((cluster, account, user)):
            key_reasons.append(f"{count} lines of the user are left out of the bill (hami-hpc bill lists them)")
        if count := open_runs.get((cluster, account, user)):
            key_reasons.append(f"{count} jobs of the user had not ended: the records count them up to when last read")
        if count := resized.get((cluster, account, user)):
            key_reasons.append(
                f"{count} jobs of the user gave up nodes while they ran: sreport counts their time before that again "
                "with the nodes they kept"
            )
        if (cluster, account, user) not in users:
            if user.startswith("uid:"):
                key_reasons.append("the user has no association in slurmdbd (deleted): sreport leaves such jobs out")
            else:
                key_reasons.append(
                    f"sreport has no {tres} of the user: check that AccountingStorageTRES has it and that the user's "
                    "association was not deleted"
                )
    return reasons


def compare_records(records: JobRecords, period: Period, now_s: int, clusters: str = "") -> Comparison:
    """Runs sreport and compares. The store must have been read up to the end of the period or later."""
    sreport_s = read_sreport(period, clusters)
    records_s, suspended_s = device_seconds(records, period)
    keys = {*sreport_s, *records_s}
    return compare(sreport_s, records_s, suspended_s, reasons_for(records, keys, sreport_s, period, now_s))


def _counts(con: duckdb.DuckDBPyConnection, query: str) -> dict[tuple[str, str, str], int]:
    return {(row[0], row[1], row[2]): row[3] for row in con.execute(f"{query} GROUP BY ALL").fetchall()}
