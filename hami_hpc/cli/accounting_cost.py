# SPDX-License-Identifier: Apache-2.0
"""What a running job has cost so far, for `hami-hpc usage` on a node that has rates.toml and hami-hpc[accounting]."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import duckdb

from hami_hpc.accounting.documents.bill import to_money
from hami_hpc.accounting.pricing.price import UNPRICED
from hami_hpc.accounting.pricing.priced_period import price_period
from hami_hpc.accounting.sources.tres import TresError, parse_alloc_tres
from hami_hpc.accounting.store.database import connect
from hami_hpc.accounting.store.export_reader import JOB_COLUMNS, beside_gpus
from hami_hpc.accounting.store.job_records import JobRecords
from hami_hpc.accounting.times import Bucket, Period
from hami_hpc.cli.accounting_options import SiteOptions
from hami_hpc.core.grant import Grant
from hami_hpc.slurm import cluster_view, commands

# What usage records say that prices depend on (store/disturbed_runs.py). What else there is of it counts at the end.
_USED = (
    "CREATE TEMP TABLE used AS SELECT '' AS cluster, $1::BIGINT AS job_id, unnest($2::VARCHAR[]) AS gpu_uuid, "
    "$3::BIGINT * 1000000000 AS start_unix_ns, 0 AS disturbed_count, 0 AS gpu_fault, 0 AS request_count, "
    "0 AS slo_miss_count, unnest($4::BIGINT[]) AS off_gpu_ns"
)
_NOTHING = (
    "CREATE TEMP TABLE nothing AS SELECT '' AS reason, '' AS account, 0 AS job_id, 0 AS submit_s, 0 AS start_s, "
    "0 AS end_s, '' AS detail WHERE false"
)
_RUN_TIME = re.compile(r"(?:(\d{1,6})-)?(\d\d):(\d\d):(\d\d)")


def so_far(config: Path | None, grants: Sequence[Grant], now_s: int, off_gpu_ns: Mapping[str, int] | None) -> str:
    """Returns what a job has cost up to now on all of its nodes, before discounts and credits, as a bill of now would
    say: a currency and an amount, or why it is not known; empty if there are no rates. Slurm is asked for what the job
    holds, and whose it is. grants: of the job's slices here. off_gpu_ns: GPU's UUID -> time in which a slice's memory
    was off the GPU; None where that is not known.

    Raises HamiError when Slurm or the settings cannot be read.
    """
    setup = SiteOptions(config, None, None, None).read()
    if setup.prices is None:
        return ""
    job_id = grants[0].job_id
    record = cluster_view.record_of(commands.show_jobs(str(job_id), "%s"), job_id)
    if not record:
        return "not known: Slurm has no such job"
    if cluster_view.value(record, "ResizeTime"):
        return "not known: the job gave up nodes, and is billed as two runs"
    start, run_time = cluster_view.value(record, "StartTime"), _seconds(cluster_view.value(record, "RunTime"))
    if not start.isdigit() or run_time is None:
        return "not known: Slurm does not say since when the job runs"
    tres = cluster_view.value(record, "AllocTRES") or cluster_view.value(record, "TRES")
    try:
        held = parse_alloc_tres(tres)
    except TresError as error:
        return f"not known: {error}"
    if not held.vgpu:
        return "not known: Slurm does not record gres/vgpu (AccountingStorageTRES), so that no bill has it"
    start_s = int(start)
    con = connect(256)
    _enter(
        con,
        record,
        tres,
        {
            "job_id": job_id,
            "start_s": start_s,
            "observed_s": now_s,
            "held": held.key(),
            "cluster": commands.configuration()["ClusterName"].lower(),
            "suspended_s": max(0, now_s - start_s - run_time),
            "features": f"vgpu_type_{grants[0].model}",
        },
    )
    con.execute(_NOTHING)
    off = off_gpu_ns or {}
    uuids = [grant.gpu_uuid for grant in grants]
    con.execute(_USED, [job_id, uuids, start_s, [off.get(uuid, 0) for uuid in uuids]])
    period = Period(start_s, max(start_s + 1, now_s))
    priced_period = price_period(
        JobRecords(con, "job", "nothing", used="used"), setup.gpus, setup.prices, [Bucket("", period)], setup.tz
    )
    sums = priced_period.sums("cluster")
    if left_out := priced_period.facts.left_out:
        return f"not known: {left_out[0].reason}"
    if gap := priced_period.sums("problem", condition=UNPRICED):
        return f"not known: {gap[0].labels[0]}"
    amount = to_money([sum(entry.charge for entry in sums)], setup.prices.digits)[0]
    con.close()
    spares = any(terms.off_gpu_factor != 1 for terms in setup.prices.terms)
    whole = ""
    if spares and (off_gpu_ns is None or held.vgpu > len(grants)):
        elsewhere = "" if off_gpu_ns is None else " on other nodes"
        whole = f", with any time off the GPU{elsewhere} at the whole price"
    return f"{setup.prices.currency} {amount:,} so far, before discounts and credits{whole}"


def _enter(con: duckdb.DuckDBPyConnection, record: str, tres: str, known: Mapping[str, object]) -> None:
    """Creates the table ``job`` with the run of the job's record. known: of its columns, what is not in the record."""
    cpus, mem_mib, licenses = beside_gpus(con, tres)
    values = {
        **known,
        "account": cluster_view.value(record, "Account"),
        "username": cluster_view.value(record, "UserId").partition("(")[0],
        "partition": cluster_view.value(record, "Partition"),
        "qos": cluster_view.value(record, "QOS"),
        "state": "RUNNING",
        "submit_s": known["start_s"],
        "host": cluster_view.value(record, "BatchHost"),
        "cpus": cpus,
        "mem_mib": mem_mib,
        "licenses": licenses,
    }
    selected = ", ".join(f"${number}::{kind} AS {name}" for number, (name, kind) in enumerate(JOB_COLUMNS.items(), 1))
    con.execute(f"CREATE TEMP TABLE job AS SELECT {selected}", [values.get(name) for name in JOB_COLUMNS])


def _seconds(run_time: str) -> int | None:
    """Returns the seconds of a RunTime, which has no suspended time: 1-02:03:04. None for anything else."""
    match = _RUN_TIME.fullmatch(run_time)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
