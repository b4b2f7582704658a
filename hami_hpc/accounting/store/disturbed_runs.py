# SPDX-License-Identifier: Apache-2.0
"""Finds the runs whose usage records say what prices depend on: a disturbed_count above 0, a gpu_fault, requests that
missed their target, or time off the GPU (docs/agent.md)."""

from __future__ import annotations

from hami_hpc.accounting.store.job_records import JobRecords
from hami_hpc.accounting.store.usage_table import SLACK_S, assigned
from hami_hpc.accounting.times import Period

TABLE = "disturbed_runs"
_NS = 1_000_000_000


def find(records: JobRecords, span: Period) -> int:
    """Creates the table TABLE (cluster, job_id, submit_s, disturbed, gpu_fault, off_gpu_ns, slo_miss_ppm) of such runs,
    with at least those that overlap ``span``. off_gpu_ns: the sum over all slices of the run. slo_miss_ppm: of all
    requests of the run, those that missed, in millionths, rounded down.

    Returns how many there are. ``records.used`` must not be empty.
    """
    con = records.con
    con.execute(
        f"CREATE OR REPLACE TEMP TABLE disturbed_usage AS "
        f"SELECT cluster, job_id, gpu_uuid, start_unix_ns, disturbed_count > 0 AS disturbed, "
        f"gpu_fault > 0 AS gpu_fault, off_gpu_ns, request_count, slo_miss_count FROM {records.used} "
        # A run may have records without a miss beside one with misses, and their requests count.
        f"WHERE job_id IN (SELECT job_id FROM {records.used} "
        "WHERE disturbed_count > 0 OR gpu_fault > 0 OR slo_miss_count > 0 OR off_gpu_ns > 0)"
    )
    in_span = (
        f"(SELECT * FROM {records.source} WHERE start_s < {span.end_s} "
        f"AND coalesce(end_s, greatest(observed_s, start_s)) >= {span.start_s})"
    )
    bounds = con.execute(
        f"SELECT min(start_unix_ns) // {_NS}, max(start_unix_ns) // {_NS} FROM ({assigned(in_span, 'disturbed_usage')})"
    ).fetchone()
    if bounds is None or bounds[0] is None:
        return 0
    # A record of a run in the span may be nearer to another run of the job, which need not be in the span.
    around = Period(bounds[0] - SLACK_S, bounds[1] + SLACK_S + 1)
    runs = records.overlapping(around) if records.overlapping else records.source
    con.execute(
        f"CREATE OR REPLACE TEMP TABLE {TABLE} AS "
        f"SELECT cluster, job_id, submit_s, bool_or(disturbed) AS disturbed, bool_or(gpu_fault) AS gpu_fault, "
        "sum(off_gpu_ns)::HUGEINT AS off_gpu_ns, "
        "(sum(slo_miss_count)::HUGEINT * 1000000 // greatest(1, sum(request_count)))::HUGEINT AS slo_miss_ppm "
        f"FROM ({assigned(runs, 'disturbed_usage')}) GROUP BY ALL"
    )
    (count,) = con.execute(f"SELECT count(*) FROM {TABLE}").fetchone() or (0,)
    return int(count)
