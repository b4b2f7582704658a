# SPDX-License-Identifier: Apache-2.0
"""Builds the SQL statements that read an export, without running them.

Only file names, zone offsets and column names from a fixed list become part of a statement, never the text of a record.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from hami_hpc.accounting.sources.sacct import OPTIONAL, REQUIRED, Export
from hami_hpc.accounting.store.database import literal, parquet

_NO_TIME = "('', 'Unknown', 'None', 'N/A')"
_DAY_S = 86400
_NO_VALUE = 0xFFFFFFFE  # Slurm's NO_VAL; NO_VAL64 is beyond a BIGINT
# A run in one of these states may have no end yet.
OPEN_STATES = ("RUNNING", "SUSPENDED", "COMPLETING", "RESIZING", "PENDING", "REQUEUED", "STOPPED", "SIGNALING",
               "STAGE_OUT", "CONFIGURING", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD", "REVOKED")  # fmt: skip
# Of files that only this ingest reads. Numbers are written as differences, and a column of many different texts is soon
# no dictionary: both take less time than Parquet's usual form.
SCRATCH_FORMAT = "FORMAT parquet, COMPRESSION snappy, PARQUET_VERSION v2, DICTIONARY_SIZE_LIMIT 4096"
_EPOCH_RANGE = (0, 4102444800)  # 1970 to 2100: times outside are faulty, and clock changes there are not computed


def rejects(checked: Path) -> str:
    """Returns the statement that creates the table ``rejects`` from a checked file."""
    return f"""
CREATE OR REPLACE TEMP TABLE rejects AS
SELECT verdict AS reason, cluster, account, username, job_id, submit_s, start_s, end_s, detail FROM {parquet(checked)}
WHERE verdict NOT IN ('record', 'step', 'never started')
"""


def stage(export: Export, target: Path) -> str:
    """Returns the first pass: writes the columns to ``target``, times and durations as numbers, the rest unchanged."""
    times = [f"{_time(export, name)} AS {name.lower()}_t" for name in ("Submit", "Start", "End")]
    times.append(f"{_time(export, 'Eligible')} AS eligible_t")
    bad_times = " OR ".join(
        f"({_raw(name)} NOT IN {_NO_TIME} AND {_time(export, name)} IS NULL)" for name in ("Submit", "Start", "End")
    )
    elapsed = "ElapsedRaw" if "ElapsedRaw" in export.columns else "Elapsed"
    job = _raw("JobIDRaw")
    number = f"TRY_CAST({job} AS UINTEGER)::BIGINT"  # Slurm's numbers have 32 bits
    selected = [
        f"{number} AS job_id",
        f"contains({job}, '.') AS is_step",
        f"CASE WHEN {number} IS NULL THEN {job} END AS odd_id",
        # Most jobs have their number as JobID; NULL saves a second column of text.
        f"nullif(nullif({_text(export, 'JobID')}, {job}), '') AS display_id",
        f"{_username(export)} AS username",
        *(f"{_text(export, name)} AS {name}" for name in ("Account", "Partition", "QOS", "State", "AllocTRES")),
        *(f"{_text(export, name)} AS {name}" for name in ("NodeList", "Constraints", "Cluster")),
        f"{_energy(export)} AS energy_j",
        *times,
        f"({bad_times}) AS time_bad",
        f"{_duration(export, elapsed)} AS elapsed_s",
        f"{_duration(export, 'Suspended')} AS suspended_s",
        f"({_duration_bad(export, elapsed)} OR {_duration_bad(export, 'Suspended')}) AS duration_bad",
        f"({_negative(export, elapsed)}) AS negative",
    ]
    return (
        f"COPY (SELECT {', '.join(selected)} FROM {_read_csv(export)} {_without_cut_line(export)}) "
        f"TO {literal(str(target))} ({SCRATCH_FORMAT})"
    )


_CHECK = """
COPY (
WITH zoned AS (
  SELECT *, coalesce(suspended_s, 0) AS suspended0_s,
    {submit} AS submit_s, {eligible} AS eligible_s,
    {start_early} AS start_early, {start_late} AS start_late,
    {end_early} AS end_early, {end_late} AS end_late,
    coalesce(split_part(State, ' ', 1), '') AS state_word
  FROM {staged}
), folded AS (
  SELECT *, elapsed_s + suspended0_s AS wall_s,
    CASE WHEN start_early = start_late AND (end_t IS NULL OR end_early = end_late) THEN 0
         WHEN end_early - start_early = elapsed_s + suspended0_s THEN 0
         WHEN end_late - start_early = elapsed_s + suspended0_s THEN 1
         WHEN end_early - start_late = elapsed_s + suspended0_s THEN 2
    END AS fold
  FROM zoned
), placed AS (
  SELECT *, CASE WHEN fold = 2 THEN start_late ELSE start_early END AS start_s,
    CASE WHEN fold = 1 THEN end_late ELSE end_early END AS end_s
  FROM folded
), begun AS (
  -- A job that goes on with fewer nodes has one record more, submitted then, whose start may still be the job's.
  SELECT *, CASE WHEN submit_s BETWEEN start_s AND coalesce(end_s, submit_s) THEN submit_s ELSE start_s END AS began_s
  FROM placed
)
SELECT coalesce(nullif(Cluster, ''), {cluster}) AS cluster, job_id,
  display_id, coalesce(Account, '') AS account, username,
  coalesce(Partition, '') AS partition, coalesce(QOS, '') AS qos, state_word AS state, submit_s, eligible_s,
  began_s AS start_s, end_s, least(suspended0_s, coalesce(end_s, start_s + wall_s) - began_s) AS suspended_s,
  coalesce(held, '') AS held,
  CASE WHEN contains(NodeList, '[')
    THEN regexp_replace(NodeList, '^([^\\[,]*)(?:\\[([^\\],-]*)[^\\]]*\\]([^,\\[]*))?.*$', '\\1\\2\\3')
    ELSE split_part(NodeList, ',', 1) END AS host,
  CASE WHEN held = '' THEN '' ELSE coalesce(Constraints, '') END AS features,
  CASE WHEN end_s IS NULL THEN coalesce(start_s + wall_s, {observed_s}) ELSE {observed_s} END AS observed_s, energy_j,
  coalesce(cpus, 0) AS cpus, coalesce(mem_mib, 0) AS mem_mib, coalesce(licenses, '') AS licenses,
  CASE
    WHEN is_step THEN 'step'
    WHEN job_id IS NULL THEN 'job'
    WHEN time_bad OR submit_t IS NULL THEN 'time'
    WHEN start_t IS NULL AND state_word NOT IN ('RUNNING', '') THEN 'never started'
    WHEN start_t IS NULL THEN 'time'
    WHEN duration_bad THEN 'duration'
    WHEN negative THEN 'negative'
    WHEN end_t IS NULL AND state_word NOT IN ({open_states}) THEN 'no end'
    WHEN end_t < start_t AND end_late < start_early THEN 'negative'
    WHEN submit_s IS NULL OR start_s IS NULL OR (end_t IS NOT NULL AND end_s IS NULL) OR fold IS NULL THEN 'clock'
    WHEN end_s < start_s THEN 'negative'
    WHEN end_s - start_s < suspended0_s THEN 'suspended'
    WHEN end_s - start_s <> wall_s THEN 'elapsed'
    WHEN fault <> '' THEN 'tres'
    ELSE 'record'
  END AS verdict,
  CASE verdict
    WHEN 'tres' THEN fault || ': ' || left(AllocTRES, 80)
    WHEN 'job' THEN 'JobIDRaw ' || left(odd_id, 40)
    WHEN 'record' THEN NULL
    ELSE 'State ' || coalesce(State, '') || ', start ' || coalesce(start_t::VARCHAR, '-') || ', end '
      || coalesce(end_t::VARCHAR, '-') || ', elapsed ' || coalesce(elapsed_s::VARCHAR, '-') || ' s, suspended '
      || suspended0_s || ' s'
  END AS detail
FROM begun LEFT JOIN parsed ON coalesce(begun.AllocTRES, '') = parsed.tres
) TO {checked} ({format})
"""


def classify(
    staged: Path,
    checked: Path,
    export: Export,
    tz: ZoneInfo,
    local_range: tuple[int, int],
    cluster: str,
    observed_s: int,
) -> str:
    """Returns the second pass: writes one row per line to ``checked``, with its verdict and, a reject's fault."""
    early, late = ("{0}", "{0}") if export.epoch_times else _zone_cases(tz, local_range)
    return _CHECK.format(
        submit=early.format("submit_t"),
        eligible=early.format("eligible_t"),
        start_early=early.format("start_t"),
        start_late=late.format("start_t"),
        end_early=early.format("end_t"),
        end_late=late.format("end_t"),
        staged=parquet(staged),
        cluster=literal(cluster),
        observed_s=observed_s,
        open_states=", ".join(literal(state) for state in OPEN_STATES),
        checked=literal(str(checked)),
        format=SCRATCH_FORMAT,
    )


def _read_csv(export: Export) -> str:
    columns = ", ".join(f"{name}: 'VARCHAR'" for name in _raw_names(export))
    return (
        f"read_csv({literal(str(export.path))}, delim={literal(export.delimiter)}, header=true, quote='', escape='', "
        f"comment='', new_line='\\n', auto_detect=false, strict_mode=true, null_padding=false, "
        f"store_rejects=true, rejects_limit=0, "
        f"columns={{{columns}}})"
    )


def _without_cut_line(export: Export) -> str:
    """Returns the condition that drops a last line without newline, because more may have followed it."""
    if not export.cut_line:
        return ""
    line = f" || {literal(export.delimiter)} || ".join(f"coalesce({name}, '')" for name in _raw_names(export))
    return f"WHERE {line} <> {literal(export.cut_line)}"


def _raw_names(export: Export) -> list[str]:
    """Returns names for the file's columns that cannot be SQL keywords."""
    known = REQUIRED + OPTIONAL
    return [_raw(name) if name in known else f"other_{index}" for index, name in enumerate(export.columns)]


def _raw(name: str) -> str:
    return f"raw_{name.lower()}"


def _text(export: Export, name: str) -> str:
    assert name in REQUIRED + OPTIONAL
    return _raw(name) if name in export.columns else literal("")


def _username(export: Export) -> str:
    """Returns the user's name, or uid:NUMBER for an unknown user: 22.05 prints nothing, later versions the number."""
    user, uid = _text(export, "User"), _text(export, "UID")
    return (
        f"CASE WHEN {user} BETWEEN '0' AND ':' AND regexp_full_match({user}, '[0-9]+') THEN 'uid:' || {user} "
        f"ELSE coalesce(nullif({user}, ''), 'uid:' || nullif({uid}, ''), '(unknown)') END"
    )


def _energy(export: Export) -> str:
    """Returns joules, NULL where Slurm did not measure: it then prints nothing, 0, or a number that means no value."""
    tres = _text(export, "AllocTRES")
    # A text without the name is not searched for its number: most have none, and the search takes ten times as long.
    number = f"regexp_extract({tres}, '(?:^|,)energy=([0-9]+)(?:,|$)', 1)"
    allocated = f"CASE WHEN contains({tres}, 'energy=') THEN {number} END"
    known = (f"TRY_CAST({text} AS BIGINT)" for text in (allocated, _text(export, "ConsumedEnergyRaw")))
    measured = (f"CASE WHEN {number} NOT IN (0, {_NO_VALUE}) THEN {number} END" for number in known)
    return f"coalesce({', '.join(measured)})"


def _time(export: Export, name: str) -> str:
    if name not in export.columns:
        return "NULL::BIGINT"
    raw = _raw(name)
    if export.epoch_times:
        return f"TRY_CAST({raw} AS UINTEGER)::BIGINT"  # to 2106; with more, sums of times would overflow
    # 2026-11-21T10:30:00 and nothing more: DuckDB would apply an offset after it, and the zone would be applied again.
    return f"CASE WHEN length({raw}) = 19 AND {raw}[17] = ':' THEN epoch(TRY_CAST({raw} AS TIMESTAMP))::BIGINT END"


def _duration(export: Export, name: str) -> str:
    """Returns seconds from a plain number or [days-]hours:minutes:seconds; NULL for other text."""
    if name not in export.columns:
        return "NULL::BIGINT"
    raw = _raw(name)
    plain = f"TRY_CAST({raw} AS INTEGER)::BIGINT"  # to 68 years, as times
    if name == "ElapsedRaw":
        return plain
    clock = f"split_part({raw}, '-', -1)"
    days = f"CASE WHEN {raw} LIKE '%-%' THEN TRY_CAST(split_part({raw}, '-', 1) AS INTEGER)::BIGINT ELSE 0 END"
    parts = [f"TRY_CAST(split_part({clock}, ':', {index}) AS INTEGER)::BIGINT" for index in (1, 2, 3)]
    return (
        f"CASE WHEN {raw} = '00:00:00' THEN 0 WHEN {raw} LIKE '%:%:%' "
        f"THEN ({days}) * {_DAY_S} + {parts[0]} * 3600 + {parts[1]} * 60 + {parts[2]} "
        f"ELSE {plain} END"
    )


def _duration_bad(export: Export, name: str) -> str:
    """Returns the condition that the duration exists and cannot be parsed."""
    return f"({_raw(name)} <> '' AND {_duration(export, name)} IS NULL)" if name in export.columns else "false"


def _negative(export: Export, name: str) -> str:
    return f"starts_with({_raw(name)}, '-')" if name in export.columns else "false"


def _zone_cases(tz: ZoneInfo, local_range: tuple[int, int]) -> tuple[str, str]:
    """Returns two expressions that convert local seconds to UTC, the earlier and the later possible time.

    They differ in the hour that repeats when the clocks go back, and are NULL in the hour that is skipped when the
    clocks go forward.
    """
    early, late = [], []
    changes = _clock_changes(tz, local_range)
    for at_s, before_s, after_s in changes:
        early.append(f"WHEN {{0}} < {at_s + before_s} THEN {{0}} - ({before_s})")
        late.append(f"WHEN {{0}} < {at_s + min(before_s, after_s)} THEN {{0}} - ({before_s})")
        if after_s > before_s:
            early.append(f"WHEN {{0}} < {at_s + after_s} THEN NULL")
            late.append(f"WHEN {{0}} < {at_s + after_s} THEN NULL")
    last_s = changes[-1][2] if changes else _offset(tz, local_range[0])
    final = f"ELSE {{0}} - ({last_s}) END"
    return (
        f"(CASE {' '.join(early) or 'WHEN false THEN 0'} {final})",
        f"(CASE {' '.join(late) or 'WHEN false THEN 0'} {final})",
    )


def _clock_changes(tz: ZoneInfo, local_range: tuple[int, int]) -> list[tuple[int, int, int]]:
    """Returns (instant, offset before, offset after) in seconds for each change of the zone's offset in the range."""
    low = max(_EPOCH_RANGE[0], local_range[0] - 2 * _DAY_S)
    high = min(_EPOCH_RANGE[1], local_range[1] + 2 * _DAY_S)
    changes = []
    for day in range(low, high, _DAY_S):
        before_s, after_s = _offset(tz, day), _offset(tz, day + _DAY_S)
        if before_s == after_s:
            continue
        left, right = day, day + _DAY_S
        while right - left > 1:
            middle = (left + right) // 2
            left, right = (middle, right) if _offset(tz, middle) == before_s else (left, middle)
        changes.append((right, before_s, after_s))
    return changes


def _offset(tz: ZoneInfo, instant_s: int) -> int:
    moment = datetime.fromtimestamp(instant_s, UTC).astimezone(tz)
    return int((moment.utcoffset() or timedelta()).total_seconds())
