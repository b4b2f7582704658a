# SPDX-License-Identifier: Apache-2.0
"""What a running job has cost so far, for `hami-hpc usage` on a node that has rates.toml and hami-hpc[accounting]."""

from __future__ import annotations

from pathlib import Path

from hami_hpc.accounting.documents.bill import to_money
from hami_hpc.accounting.pricing.price import UNPRICED
from hami_hpc.accounting.pricing.priced_period import price_period
from hami_hpc.accounting.sources.tres import AllocatedGpus
from hami_hpc.accounting.store.database import connect
from hami_hpc.accounting.store.export_reader import JOB_COLUMNS, beside_gpus
from hami_hpc.accounting.store.job_records import JobRecords
from hami_hpc.accounting.times import Bucket, Period
from hami_hpc.cli.accounting_options import SiteOptions
from hami_hpc.core.grant import Grant
from hami_hpc.slurm import cluster_view, commands

# What usage records say that prices depend on (store/disturbed_runs.py). What else there is of it counts at the end.
_USED = (
    "CREATE TEMP TABLE used AS SELECT '' AS cluster, $1::BIGINT AS job_id, $2 AS gpu_uuid, "
    "$3::BIGINT * 1000000000 AS start_unix_ns, 0 AS disturbed_count, 0 AS gpu_fault, 0 AS request_count, "
    "0 AS slo_miss_count, $4::BIGINT AS off_gpu_ns"
)


def so_far(config: Path | None, grant: Grant, now_s: int, off_gpu_ns: int | None) -> str:
    """Returns what a slice has cost up to now, before discounts and credits: a currency and an amount, or why it is not
    known; empty if there are no rates. Slurm is asked for account, partition, QoS, CPUs and memory. off_gpu_ns: time in
    which its memory was off the GPU; None where that is not known.

    Raises HamiError when Slurm or the settings cannot be read.
    """
    setup = SiteOptions(config, None, None, None).read()
    if setup.prices is None:
        return ""
    record = cluster_view.record_of(commands.show_jobs(str(grant.job_id), "%s"), grant.job_id)
    if not record:
        return "not known: Slurm has no such job"
    start = cluster_view.value(record, "StartTime")
    start_s = int(start) if start.isdigit() else grant.created_unix_ns // 1_000_000_000
    allocated = AllocatedGpus((), grant.service_class, 1, grant.mem_mib, grant.cores_percent)
    tres = cluster_view.value(record, "AllocTRES") or cluster_view.value(record, "TRES")
    con = connect(256)
    cpus, mem_mib, licenses = beside_gpus(con, tres)
    values = {
        "cluster": "",
        "job_id": grant.job_id,
        "account": cluster_view.value(record, "Account"),
        "username": cluster_view.value(record, "UserId").partition("(")[0],
        "partition": cluster_view.value(record, "Partition"),
        "qos": cluster_view.value(record, "QOS"),
        "state": "RUNNING",
        "submit_s": start_s,
        "start_s": start_s,
        "suspended_s": 0,
        "held": allocated.key(),
        "host": "",
        "features": f"vgpu_type_{grant.model}",
        "observed_s": now_s,
        "cpus": cpus,
        "mem_mib": mem_mib,
        "licenses": licenses,
    }
    selected = ", ".join(f"${number}::{kind} AS {name}" for number, (name, kind) in enumerate(JOB_COLUMNS.items(), 1))
    con.execute(f"CREATE TEMP TABLE job AS SELECT {selected}", [values.get(name) for name in JOB_COLUMNS])
    con.execute(
        "CREATE TEMP TABLE nothing AS SELECT '' AS reason, '' AS account, 0 AS job_id, 0 AS submit_s, 0 AS start_s, "
        "0 AS end_s, '' AS detail WHERE false"
    )
    con.execute(_USED, [grant.job_id, grant.gpu_uuid, start_s, off_gpu_ns or 0])
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
    whole = ", with any time off the GPU at the whole price" if spares and off_gpu_ns is None else ""
    return f"{setup.prices.currency} {amount:,} so far, before discounts and credits{whole}"
