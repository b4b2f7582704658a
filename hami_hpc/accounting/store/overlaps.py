# SPDX-License-Identifier: Apache-2.0
"""Finds jobs whose runs overlap in time, which Slurm cannot have run: one of their records is wrong or is there twice.

So it looks when local times were read in two zones: a run's submit time then differs, and with it the key by which the
store knows the run.
"""

from __future__ import annotations

from hami_hpc.accounting.store.job_records import JobRecords
from hami_hpc.accounting.times import Period

_EXAMPLES = 5
# Few jobs have several runs: they are found by counting, which is faster than sorting all runs.
_QUERY = """
WITH held_runs AS (
  SELECT cluster, job_id, submit_s, start_s, coalesce(end_s, greatest(observed_s, start_s)) AS stop_s
  FROM {source} WHERE held <> '' AND start_s < $2 AND coalesce(end_s, greatest(observed_s, start_s)) > $1
), several AS (
  SELECT cluster, job_id FROM held_runs GROUP BY ALL HAVING count(*) > 1
), overlapping AS (
  SELECT cluster, job_id FROM held_runs SEMI JOIN several USING (cluster, job_id)
  QUALIFY start_s < max(stop_s) OVER (PARTITION BY cluster, job_id ORDER BY start_s, submit_s
    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
)
SELECT count(DISTINCT (cluster, job_id)), list(DISTINCT job_id ORDER BY job_id)[:{examples}] FROM overlapping
"""


def notes(records: JobRecords, span: Period) -> tuple[str, ...]:
    """Returns a note if there are such jobs in the period."""
    query = _QUERY.format(source=records.source, examples=_EXAMPLES)
    count, examples = records.con.execute(query, [span.start_s, span.end_s]).fetchone() or (0, [])
    if not count:
        return ()
    listed = ", ".join(map(str, examples)) + (", ..." if count > len(examples) else "")
    jobs = "1 job has" if count == 1 else f"{count:,} jobs have"
    return (
        f"{jobs} runs that overlap in time, and all are billed (job {listed}): a file was read in two time zones, or "
        "two files disagree; hami-hpc store undo takes back the last ingest",
    )
