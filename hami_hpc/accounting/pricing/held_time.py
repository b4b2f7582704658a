# SPDX-License-Identifier: Apache-2.0
"""Sums the GPU time held in a period: millions of records to a few thousand groups, in the database's table ``held``.

Times are exact: a run is clipped to each segment of the period in whole seconds, shares are whole millionths, and sums
are of integers. If a suspended run crosses the edge of a segment, its suspended time is spread evenly over the run,
because Slurm reports only the sum. The parts still add up to the whole.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import duckdb

from hami_hpc.accounting.pricing import billing_sql
from hami_hpc.accounting.pricing.cluster_gpus import ClusterGpus
from hami_hpc.accounting.pricing.gpu_share import Mode, Part, ShareError, shares_held
from hami_hpc.accounting.pricing.segment import Segment
from hami_hpc.accounting.sources.tres import AllocatedGpus
from hami_hpc.accounting.store.database import literal
from hami_hpc.accounting.times import Period

PPM_SECONDS_PER_HOUR = 3_600_000_000
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Runs that are not on any line of the bill, and why. examples: a few of their job ids."""

    reason: str
    runs: int
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a reader must know of the runs of a period, or of one account's.

    still_running: number of runs counted up to when they were last read. spread: number of suspended runs that cross an
    edge of a segment.
    """

    left_out: tuple[LeftOut, ...] = ()
    still_running: int = 0
    spread: int = 0


@dataclass(frozen=True, slots=True)
class Extras:
    """What beside GPU time, rates and plain terms a sum depends on.

    disturbed: a table of the disturbed runs, each once (store/disturbed_runs.py); empty if there are none. rules: SQL
    conditions of the credit rules, by index, the one that counts first first. resources: the priced ones.
    """

    disturbed: str = ""
    rules: Mapping[int, str] = field(default_factory=dict)
    resources: tuple[str, ...] = ()


NO_EXTRAS = Extras()

# What runs of one kind can be kept apart by beside their kind -> column. Each makes more groups.
_COLUMNS = {"cluster": "cluster", "account": "account", "user": "username", "partition": "partition", "qos": "qos"}
LABELS = frozenset(_COLUMNS)

# A run is counted in a period if it held GPUs in it, or began in it and lasted less than a second.
_ACTIVE = """
SELECT *, {host} AS placed_on, {place} AS placed_in, {era} AS era
FROM (SELECT *, coalesce(end_s, greatest(observed_s, start_s)) AS until_s FROM {source})
WHERE {kept}start_s < {end} AND (until_s > {start} OR start_s >= {start})
"""

# What can be kept of the runs beside their group -> SQL.
NOTHING = "''"
JOB = "coalesce(r.display_id, r.job_id::VARCHAR)"
RUN = "concat(r.job_id, ' ', r.submit_s)"

# The table ``held``: one row for each group in each segment, with its GPU time in millionths of a GPU times seconds.
# held_ppm_s: while not suspended. off_ppm_s: of it, while the memory was off the GPU, spread evenly over held_ppm_s of
# the whole run. suspended_ppm_s: while suspended. top_up_ppm_s: added up to the minimum time. runs:
# those whose first held second of the whole period is in this segment. billable: not ended in an unbilled state, and
# neither disturbed nor hit by a fault of the GPU where that is unbilled. rule: index of the credit rule, or -1.
# is_gpu: whether it is of GPUs; else model names the resource, and for a share of a GPU stands a number of it.
_GROUPS = """
WITH placed AS (
  SELECT r.*, {what}, s.number AS segment, {minimum} AS minimum_s, {detail} AS detail,
    {billable} AS billable, {rule} AS rule, until_s - start_s AS wall, until_s - start_s - suspended_s AS net,
    greatest(start_s, s.from_s) AS a, least(until_s, s.to_s) AS b,
    {off} AS off_s, {counts}greatest(start_s, {start}) >= s.from_s AS begins,
    end_s IS NOT NULL AND state <> 'RESIZING' AND until_s > start_s AND until_s > s.from_s AND until_s <= s.to_s
      AS ends
  FROM {runs}
  JOIN segments AS s ON r.start_s < s.to_s AND (r.until_s > s.from_s OR r.start_s >= s.from_s)
  {joined}
  WHERE {condition}
), spread AS (
  SELECT *, CASE WHEN suspended_s = 0 THEN a - start_s ELSE net * (a - start_s) // wall END AS on_until_a,
    CASE WHEN suspended_s = 0 THEN b - start_s ELSE net * (b - start_s) // wall END AS on_until_b
  FROM placed
), timed AS (
  SELECT *, on_until_b - on_until_a AS on_s,
    CASE WHEN off_s = 0 THEN 0 ELSE off_s * on_until_b // net - off_s * on_until_a // net END AS off_on_s
  FROM spread
)
SELECT {labels}model, mode, class, segment, billable, rule, detail,
  {is_gpu} AS is_gpu, count(*) FILTER (begins) AS runs,
  sum(on_s * share)::HUGEINT AS held_ppm_s, sum(off_on_s * share)::HUGEINT AS off_ppm_s,
  sum((b - a - on_s) * share)::HUGEINT AS suspended_ppm_s,
  sum(CASE WHEN ends AND minimum_s > net THEN (minimum_s - net) * share ELSE 0 END)::HUGEINT AS top_up_ppm_s
FROM timed GROUP BY ALL
"""

_OF_GPUS = {
    "what": "p.model, p.mode, p.class, p.share",
    "runs": """active AS r JOIN parts AS p
    ON r.held = p.held AND r.placed_in = p.partition AND r.placed_on = p.host AND r.features = p.features
    AND r.era = p.era""",
    "condition": "p.problem = ''",
    "counts": "",
    "is_gpu": "true",
}
# p: a struct, so that the conditions of terms and rules are the same text for both.
_OF_RESOURCES = {
    "what": "p.model, p.mode, p.class, p.share",
    "condition": "p.share > 0",
    "counts": "p.counts AND ",
    "off": "0",
    "is_gpu": "false",
}

# Seconds of a run off the GPU while it was not suspended, of all slices on average: the least that they can be, because
# it is not recorded when the memory was away, and suspended time has another price.
_OFF = (
    f"if(p.slices > 0, greatest(least(coalesce(d.off_gpu_ns, 0) // ({_NS} * greatest(p.slices, 1)), until_s - start_s) "
    "- suspended_s, 0), 0)"
)

_DISTURBED = "LEFT JOIN {table} AS d ON d.cluster = r.cluster AND d.job_id = r.job_id AND d.submit_s = r.submit_s"

_LEFT_OUT = """
SELECT {account}p.problem, count(*), list(coalesce(r.display_id, r.job_id::VARCHAR) ORDER BY r.job_id, r.submit_s)[:5]
FROM active AS r JOIN parts AS p
  ON r.held = p.held AND r.placed_in = p.partition AND r.placed_on = p.host AND r.features = p.features
    AND r.era = p.era
WHERE p.problem <> '' GROUP BY {account}p.problem ORDER BY {account}p.problem
"""

_NOTES = """
SELECT count(*) FILTER (end_s IS NULL),
  count(*) FILTER (suspended_s > 0 AND EXISTS (
    FROM segments AS s WHERE (s.from_s > start_s AND s.from_s < until_s) OR (s.to_s > start_s AND s.to_s < until_s)))
FROM (FROM counted WHERE end_s IS NULL OR suspended_s > 0)
"""

_NOTES_BY_ACCOUNT = """
SELECT account, count(*) FILTER (end_s IS NULL), count(*) FILTER (is_spread) FROM (
  SELECT *, suspended_s > 0 AND EXISTS (
    FROM (SELECT unnest($1::BIGINT[]) AS edge_s) WHERE edge_s > start_s AND edge_s < until_s) AS is_spread
  FROM counted)
WHERE end_s IS NULL OR is_spread GROUP BY 1
"""


def sum_held_time(
    con: duckdb.DuckDBPyConnection,
    source: str,
    gpus: ClusterGpus,
    segments: Sequence[Segment],
    extras: Extras = NO_EXTRAS,
    detail: str = NOTHING,
    labels: Collection[str] = LABELS,
) -> RunFacts:
    """Sums the GPU time that the records of ``source`` (a table or table function) held in each segment.

    Creates the tables ``held``, ``segments`` and ``parts`` and the views ``active`` (runs with GPUs) and ``counted``
    (all that are charged). The segments must follow one another without a gap. detail: one of those above. labels:
    those of LABELS that ``held`` has.
    """
    span = Period(segments[0].period.start_s, segments[-1].period.end_s)
    host = "coalesce(host, '')" if gpus.nodes else "''"
    for view, kept in (("active", "held <> '' AND "), ("active_all", "")):
        of_gpus = {"host": host, "place": placed_in(gpus), "era": _era(gpus)}
        query = _ACTIVE.format(source=source, start=span.start_s, end=span.end_s, kept=kept, **of_gpus)
        con.execute(f"CREATE OR REPLACE TEMP VIEW {view} AS {query}")
    _keep_segments(con, segments)
    _find_shares(con, gpus)
    common = {
        "start": span.start_s,
        "detail": detail,
        "labels": "".join(f"{column}, " for label, column in _COLUMNS.items() if label in labels),
        "minimum": billing_sql.minimum(segments),
        "billable": billing_sql.billable(segments, bool(extras.disturbed)),
        "rule": billing_sql.rule(extras.rules),
        "joined": _DISTURBED.format(table=extras.disturbed) if extras.disturbed else "",
    }
    off = _OFF if extras.disturbed else "0"
    con.execute(f"CREATE OR REPLACE TEMP TABLE held AS {_GROUPS.format(**common, **_OF_GPUS, off=off)}")
    charged = "active"
    if extras.resources:
        runs = f"{billing_sql.resource_runs(extras.resources)} AS r"
        con.execute(f"INSERT INTO held {_GROUPS.format(**common, **_OF_RESOURCES, runs=runs)}")
        charged = "active_all"
    con.execute(f"CREATE OR REPLACE TEMP VIEW counted AS FROM {charged}")
    left_out = tuple(
        LeftOut(row[0], row[1], tuple(row[2])) for row in con.execute(_LEFT_OUT.format(account="")).fetchall()
    )
    notes = con.execute(_NOTES).fetchone() or (0, 0)
    return RunFacts(left_out, notes[0], notes[1])


def _keep_segments(con: duckdb.DuckDBPyConnection, segments: Sequence[Segment]) -> None:
    con.execute(
        "CREATE OR REPLACE TEMP TABLE segments AS "
        "SELECT unnest($1::BIGINT[]) AS number, unnest($2::BIGINT[]) AS from_s, unnest($3::BIGINT[]) AS to_s, "
        "unnest($4::BIGINT[]) AS minimum_s, unnest($5::VARCHAR[][]) AS unbilled, "
        "unnest($6::BOOLEAN[]) AS unbilled_disturbed, unnest($7::BOOLEAN[]) AS unbilled_gpu_fault, "
        "unnest($8::BIGINT[][]) AS rules, unnest($9::BIGINT[]) AS cases",
        [
            [segment.number for segment in segments],
            [segment.period.start_s for segment in segments],
            [segment.period.end_s for segment in segments],
            [segment.minimum_s for segment in segments],
            [list(segment.unbilled_states) for segment in segments],
            [segment.unbilled_disturbed for segment in segments],
            [segment.unbilled_gpu_fault for segment in segments],
            [list(segment.rules) for segment in segments],
            billing_sql.case_numbers(segments),
        ],
    )


def facts_by_account(con: duckdb.DuckDBPyConnection, edges: Sequence[int]) -> dict[str, RunFacts]:
    """Returns the facts of each account that has any, of the runs that were last summed by ``con``.

    edges: the instants at which a suspended run has its suspended time spread.
    """
    left_out: dict[str, list[LeftOut]] = {}
    for account, reason, runs, examples in con.execute(_LEFT_OUT.format(account="r.account, ")).fetchall():
        left_out.setdefault(account, []).append(LeftOut(reason, runs, tuple(examples)))
    notes = {row[0]: row[1:] for row in con.execute(_NOTES_BY_ACCOUNT, [list(edges)]).fetchall()}
    return {
        account: RunFacts(tuple(left_out.get(account, ())), *notes.get(account, (0, 0)))
        for account in sorted({*left_out, *notes})
    }


def placed_in(gpus: ClusterGpus) -> str:
    """Returns SQL for a run's partition as the settings name it: CLUSTER/PARTITION where they have that."""
    named = ", ".join(literal(name) for name in sorted(gpus.partitions) if "/" in name)
    full = "concat(cluster, '/', partition)"
    return f"CASE WHEN {full} IN ({named}) THEN {full} ELSE partition END" if named else "partition"


def _era(gpus: ClusterGpus) -> str:
    """Returns SQL for the index of a run's time in gpus.eras(): what a run was granted is decided when it starts."""
    cases = " ".join(f"WHEN start_s < {until_s} THEN {index}" for index, (until_s, _) in enumerate(gpus.former))
    return f"CASE {cases} ELSE {len(gpus.former)} END" if cases else "0"


def _find_shares(con: duckdb.DuckDBPyConnection, gpus: ClusterGpus) -> None:
    """Creates the table ``parts``: what each distinct kind of run holds, or why it cannot be computed."""
    kinds = con.execute("SELECT DISTINCT held, placed_in, placed_on, features, era FROM active").fetchall()
    eras = gpus.eras()
    rows: list[tuple[str | int, ...]] = []
    for held, partition, host, features, era in kinds:
        kind = (held, partition, host, features, era)
        try:
            parts = shares_held(AllocatedGpus.from_key(held), partition, host, features, eras[era])
        except ShareError as error:
            rows.append((*kind, "", "", "", 0, 0, error.reason))
            continue
        rows += [
            (*kind, part.model, part.mode.value, part.service_class, part.share_ppm, _slices(held, part), "")
            for part in parts
        ]
    names = ("held", "partition", "host", "features", "era", "model", "mode", "class", "share", "slices", "problem")
    types = {name: "BIGINT[]" if name in ("era", "share", "slices") else "VARCHAR[]" for name in names}
    selected = ", ".join(f"unnest(${index}::{types[name]}) AS {name}" for index, name in enumerate(names, 1))
    columns = [[row[index] for row in rows] for index in range(len(names))]
    con.execute(f"CREATE OR REPLACE TEMP TABLE parts AS SELECT {selected}", columns)


def _slices(held: str, part: Part) -> int:
    """Returns the number of slices of a part; 0 of what hami_hpc does not divide."""
    return AllocatedGpus.from_key(held).vgpu if part.mode is Mode.VGPU else 0
