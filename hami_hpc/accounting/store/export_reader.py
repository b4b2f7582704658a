# SPDX-License-Identifier: Apache-2.0
"""Reads an export of sacct into typed records, in two passes of DuckDB over its columns.

Every line becomes exactly one of: a record, a reject with its reason, a step, or a run that never started.
tres.py parses AllocTRES, once for each distinct text.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from zoneinfo import ZoneInfo

import duckdb

from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.sources.sacct import Export
from hami_hpc.accounting.sources.tres import TresError, parse_alloc_tres
from hami_hpc.accounting.store import export_sql
from hami_hpc.accounting.store.database import literal, one_row, parquet

# The columns of a record. Times are seconds since 1970, durations seconds.
JOB_COLUMNS = {
    "cluster": "VARCHAR",
    "job_id": "BIGINT",  # Slurm's own number; with submit_s the key of one run
    "display_id": "VARCHAR",  # as users write it, if that is different: 100_3, 200+1
    "account": "VARCHAR",
    "username": "VARCHAR",
    "partition": "VARCHAR",
    "qos": "VARCHAR",
    "state": "VARCHAR",
    "submit_s": "BIGINT",
    "eligible_s": "BIGINT",
    "start_s": "BIGINT",
    "end_s": "BIGINT",  # NULL while it runs
    "suspended_s": "BIGINT",
    "held": "VARCHAR",  # tres.AllocatedGpus.key(); empty without GPU
    "host": "VARCHAR",  # the first node
    "features": "VARCHAR",
    "observed_s": "BIGINT",  # when the record was read from Slurm
    "energy_j": "BIGINT",  # as Slurm measured it; NULL if it did not
    "cpus": "BIGINT",  # of all its nodes; with the next two NULL in files of an older hami_hpc
    "mem_mib": "BIGINT",  # of its nodes, not of GPUs
    "licenses": "VARCHAR",  # name=count;name=count
}
# Reasons for rejecting a line, in the order in which they are checked.
REASONS = {
    "line": "the number of fields differs from the header's (truncated, or a '|' inside a field: docs/accounting.md "
    "has the export that cannot have one)",
    "job": "JobIDRaw is not the number of a job",
    "time": "Submit, Start or End is not a time as sacct prints it (unset SLURM_TIME_FORMAT, or set it to %s)",
    "clock": "a local time that does not exist, or exists twice and Elapsed does not decide it (clock change)",
    "negative": "it ended before it started, or Elapsed is negative",
    "duration": "Elapsed or Suspended cannot be parsed",
    "suspended": "it was suspended for longer than it ran",
    "elapsed": "Elapsed is not End - Start - Suspended",
    "no end": "its state says that it ended, but End is unknown (sacctmgr show runawayjobs)",
    "tres": "AllocTRES is malformed",
}


@dataclass(frozen=True, slots=True)
class Counts:
    """How many lines of an export became what; ``lines`` is the sum of the others."""

    lines: int
    records: int
    rejected: int
    steps: int
    never_started: int


def load(
    con: duckdb.DuckDBPyConnection, export: Export, tz: ZoneInfo, cluster: str, observed_s: int, scratch: Path
) -> Counts:
    """Reads an export into ``records`` (a view) and ``rejects`` (a table) of ``con``.

    tz: the zone of its local times; not used when it has seconds since 1970. cluster: the name for records without
    one. observed_s: when the export was made, for runs that had not ended and have no Elapsed.
    scratch: an empty directory on disk, which must exist while ``records`` is read.
    """
    staged, checked = scratch / "staged.parquet", scratch / "checked.parquet"
    try:
        con.execute(export_sql.stage(export, staged))
    except duckdb.InvalidInputException as error:
        raise AccountingError(f"{export.path} is no list of lines: {str(error).splitlines()[0]}") from error
    (lines,) = one_row(con, f"SELECT count(*) FROM {parquet(staged)}")
    zone_range = _local_range(con, export, staged)
    _parse_tres(con, staged)
    con.execute(export_sql.classify(staged, checked, export, tz, zone_range, cluster, observed_s))
    staged.unlink()
    columns = ", ".join(JOB_COLUMNS)
    con.execute(
        f"CREATE OR REPLACE TEMP VIEW records AS SELECT {columns} FROM {parquet(checked)} WHERE verdict = 'record'"
    )
    con.execute(export_sql.rejects(checked))
    verdicts = dict(con.execute(f"SELECT verdict, count(*) FROM {parquet(checked)} GROUP BY 1").fetchall())
    unread = _add_unread_lines(con, export)
    counts = {verdict: int(verdicts.pop(verdict, 0)) for verdict in ("record", "step", "never started")}
    rejected = sum(verdicts.values()) + unread
    return Counts(lines + unread, counts["record"], rejected, counts["step"], counts["never started"])


def _local_range(con: duckdb.DuckDBPyConnection, export: Export, staged: Path) -> tuple[int, int]:
    """Returns the first and last local time in the file, between which clock changes matter."""
    if export.epoch_times:
        return (0, 0)
    low, high = one_row(con, f"SELECT min(least(submit_t, start_t)), max(greatest(submit_t, end_t, start_t)) "
                          f"FROM {parquet(staged)}")  # fmt: skip
    return (low or 0, high or 0)


def _parse_tres(con: duckdb.DuckDBPyConnection, staged: Path) -> None:
    """Creates the view ``parsed``: each distinct AllocTRES text with what was held, or with its fault.

    Texts that differ only in CPUs, memory and the like, or in numbers that are kept as they are, are parsed once: in
    these numbers all of a kind have 1. A fault names its own text's part.
    """
    con.execute(f"CREATE OR REPLACE TEMP TABLE texts AS SELECT tres, bare FROM {_without_varying(staged)}")
    con.execute(
        f"CREATE OR REPLACE TEMP TABLE bares AS SELECT *, regexp_replace(tres, '{_NO_GRES}', '\\1\\2=0Z', 'g') AS kind "
        "FROM (SELECT bare, bare[2:-2] AS tres FROM (SELECT DISTINCT bare FROM texts))"
    )
    kinds = {kind: _parsed(kind) for (kind,) in con.execute("SELECT DISTINCT kind FROM bares").fetchall()}
    _keep(con, "kinds", {kind: parsed for kind, parsed in kinds.items() if not parsed[1]})
    con.execute(
        f"CREATE OR REPLACE TEMP TABLE read AS SELECT bare, {_PIECES}, {_CPUS} AS cpus, {_MEM_MIB} AS mem_mib, "
        f"{_LICENSES} AS licenses FROM (SELECT bares.*, held FROM bares JOIN kinds ON bares.kind = kinds.tres)"
    )
    faulty = con.execute("SELECT tres FROM texts ANTI JOIN read USING (bare)").fetchall()
    _keep(con, "faulty", {tres: _parsed(tres) for (tres,) in faulty})
    con.execute(
        f"CREATE OR REPLACE TEMP VIEW parsed AS SELECT tres, {_JOINED} AS held, '' AS fault, cpus, mem_mib, licenses "
        "FROM texts JOIN read USING (bare) "
        "UNION ALL SELECT tres, held, fault, NULL, NULL, NULL FROM faulty"
    )


# TRES that are no gres, with a number as Slurm writes it. It becomes one with a suffix, so that what is no number (1K9,
# 1.5.6) becomes none.
_NO_GRES = r"(^|,)(billing|cpu|energy|mem|node|pages|vmem)=[0-9]+(?:\.[0-9]+)?[KMGTPEZ]?"

# Numbers of which there may be as many as runs: of no gres, and of gres of which the parser only asks whether there are
# any. Gres numbers of ten digits and more are left to it (tres.py refuses them).
_VARYING = {
    "billing": "[0-9]+",
    "energy": "[0-9]+",
    "gres/shard": "[1-9][0-9]{0,8}",
    "gres/vgpu_mem": "[1-9][0-9]{0,8}",
}


def _without_varying(staged: Path) -> str:
    """Returns SQL for each distinct text (tres), and for it between commas with 1 for the varying numbers (bare).

    A search for each name, without groups, takes a quarter of the time of one with groups for all names.
    """
    source = f"(SELECT DISTINCT coalesce(AllocTRES, '') AS tres FROM {parquet(staged)})"
    source = f"(SELECT tres, concat(',', tres, ',') AS bare FROM {source})"
    for name, number in _VARYING.items():
        replaced = f"regexp_replace(bare, ',{name}={number},', ',{name}=1,')"
        chosen = f"CASE WHEN contains(bare, ',{name}=') THEN {replaced} ELSE bare END"
        source = f"(SELECT tres, {chosen} AS bare FROM {source})"
    return source


# What a kind holds (AllocatedGpus.key; no type has a semicolon) in two pieces: each ends where a text's own number is
# to follow, if it has one.
_PIECES = """
contains(held, ';mem=1;') AS has_mem, held = 'shard=1' OR ends_with(held, ';shard=1') AS has_shards,
if(has_mem, split_part(held, ';mem=1;', 1) || ';mem=', '') AS first_piece,
if(has_mem, ';' || split_part(held, ';mem=1;', 2), held) AS rest,
if(has_shards, left(rest, -1), rest) AS second_piece"""


def _own(name: str) -> str:
    """Returns SQL for the number that a text has after this name, which it has once: after a comma, or at its start
    (where instr gives 0)."""
    return f"split_part(substr(tres, instr(tres, ',{name}=') + {len(name) + 2}), ',', 1)::UINTEGER"


_JOINED = (
    f"concat(first_piece, CASE WHEN has_mem THEN {_own('gres/vgpu_mem')} END, "
    f"second_piece, CASE WHEN has_shards THEN {_own('gres/shard')} END)"
)


# What a run held beside GPUs, in texts that the parser has accepted. Memory without a suffix is in MiB.
_CPUS = "TRY_CAST(regexp_extract(tres, '(?:^|,)cpu=([0-9]+)', 1) AS BIGINT)"
_MEM = "regexp_extract(tres, '(?:^|,)mem=([0-9]+(?:\\.[0-9]+)?)([KMGTPEZ]?)', ['n', 'unit'])"
_MEM_MIB = (
    f"TRY_CAST(ceil(TRY_CAST({_MEM}.n AS DECIMAL(27, 6)) * CASE {_MEM}.unit "
    "WHEN 'K' THEN 0.0009765625::DECIMAL(11, 10) WHEN 'G' THEN 1024 WHEN 'T' THEN 1048576 "
    "WHEN 'P' THEN 1073741824 ELSE 1 END) AS BIGINT)"
)
_LICENSES = (
    "if(contains(tres, 'license/'), "
    "array_to_string(list_sort(regexp_extract_all(tres, '(?:^|,)license/([^=,]+=[0-9]+)', 1)), ';'), '')"
)


def beside_gpus(con: duckdb.DuckDBPyConnection, tres: str) -> tuple[int, int, str]:
    """Returns CPUs, MiB of the nodes' memory and licences in an AllocTRES text."""
    row = con.execute(
        f"SELECT coalesce({_CPUS}, 0), coalesce({_MEM_MIB}, 0), {_LICENSES} FROM (SELECT $1 AS tres)", [tres]
    ).fetchone()
    assert row is not None
    return row[0], row[1], row[2]


def _parsed(text: str) -> tuple[str, str]:
    """Returns what was held, and the fault."""
    try:
        return parse_alloc_tres(text).key(), ""
    except TresError as error:
        return "", str(error)


def _keep(con: duckdb.DuckDBPyConnection, table: str, parsed: dict[str, tuple[str, str]]) -> None:
    columns = [list(parsed), [held for held, _ in parsed.values()], [fault for _, fault in parsed.values()]]
    con.execute(
        f"CREATE OR REPLACE TEMP TABLE {table} AS SELECT unnest($1::VARCHAR[]) AS tres, "
        "unnest($2::VARCHAR[]) AS held, unnest($3::VARCHAR[]) AS fault",
        columns,
    )


def _run_of_cut(export: Export, line: str, fields_more: int) -> str:
    """Returns SQL for the job number and the submit time of a line that was cut behind them, NULL of any other line.

    fields_more: 1 if a line with all of its fields may be cut in the last one. Local times are not read here.
    """
    fields = f"string_split({line}, {literal(export.delimiter)})"
    whole = len(export.columns) + fields_more

    def field(name: str, kind: str) -> str:
        position = export.columns.index(name) + 1
        is_whole = f"len({fields}) > {position} AND len({fields}) < {whole} AND {str(export.epoch_times).lower()}"
        return f"CASE WHEN {is_whole} THEN TRY_CAST({fields}[{position}] AS {kind})::BIGINT END"

    return f"{field('JobIDRaw', 'UINTEGER')}, {field('Submit', 'UINTEGER')}"


def _add_unread_lines(con: duckdb.DuckDBPyConnection, export: Export) -> int:
    """Adds lines that DuckDB could not split, and a last line without newline, to ``rejects``. Returns their number.

    A line that was cut has the run that it is of, if that is before the cut: then it is forgotten once the run is read.
    """
    (before,) = one_row(con, "SELECT count(*) FROM rejects")
    con.execute(
        f"INSERT INTO rejects SELECT 'line', '', '', '', {_run_of_cut(export, 'any_value(csv_line)', 0)}, NULL, NULL, "
        "left(any_value(csv_line), 120) FROM reject_errors GROUP BY line"
    )
    if export.cut_line:
        con.execute(
            f"INSERT INTO rejects SELECT 'line', '', '', '', {_run_of_cut(export, '$2::VARCHAR', 1)}, NULL, NULL, "
            "'the last line has no newline: ' || $1 "
            "WHERE NOT EXISTS (FROM rejects WHERE reason = 'line' AND ends_with(detail, $1))",
            [export.cut_line[:120], export.cut_line],
        )
    con.execute("DROP TABLE reject_errors")
    con.execute("DROP TABLE reject_scans")
    (after,) = one_row(con, "SELECT count(*) FROM rejects")
    return after - before
