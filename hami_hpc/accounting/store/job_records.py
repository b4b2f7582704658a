# SPDX-License-Identifier: Apache-2.0
"""One question to the accounting: which settings, which records, which period, and the usage that they come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from zoneinfo import ZoneInfo

import duckdb

from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.pricing import held_time as usage
from hami_hpc.accounting.pricing import price, rates
from hami_hpc.accounting.pricing.cluster_gpus import GpuModel, Site
from hami_hpc.accounting.pricing.held_time import Segment, Usages
from hami_hpc.accounting.pricing.price import Priced
from hami_hpc.accounting.pricing.rates import Rates
from hami_hpc.accounting.sources import sacct
from hami_hpc.accounting.store import export_reader as intake
from hami_hpc.accounting.store import store_files as store
from hami_hpc.accounting.times import Bucket, Period, iso_local
from hami_hpc.shell.config import Settings


@dataclass(frozen=True, slots=True)
class Records:
    """A DuckDB session and the table in it that holds the records; ``rejects`` is the table of what was left out.
    read_until_s: up to when a store that is fed from Slurm was read; None where records came otherwise."""

    con: duckdb.DuckDBPyConnection
    source: str
    rejects: str
    read_until_s: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The usage of a period, priced when there are rates."""

    segments: tuple[Segment, ...]
    usages: Usages
    priced: tuple[Priced, ...]
    rejected: tuple[str, ...] = field(default=())


def site_of(settings: Settings, prices: Rates | None) -> Site:
    """What hami-hpc.toml says of the GPUs, and what rates.toml adds."""
    extra = prices or Rates()
    models = {name: GpuModel(name, total_mib) for name, total_mib in settings.gpu_models.items()}
    doubled = sorted(
        name for name in models if name in extra.models and models[name].total_mib != extra.models[name].total_mib
    )
    if doubled:
        raise AccountingError(f"total_mib of {doubled[0]} differs between {settings.path} and rates.toml; correct one")
    return Site(
        {**models, **extra.models},
        {**settings.partitions, **extra.partitions},
        settings.shard_mib,
        settings.memory_scaling,
        extra.nodes,
        extra.aliases,
    )


def from_store(root: Path, period: Period | None, memory_mib: int = 1024) -> Records:
    """The stored records that touch ``period`` (all without one). AccountingError when there is no store."""
    manifest = store.read_manifest(root)
    if not manifest.generation:
        raise AccountingError(
            f"there is no accounting store in {root}; run hami-hpc ingest, or see --store and --input"
        )
    con = intake.connect(memory_mib)
    until_s = min(manifest.read_until_s.values(), default=None)
    return Records(con, store.records(root, manifest, period), store.rejects(root, manifest), until_s)


def read_until(root: Path, tz: ZoneInfo) -> str:
    """Up to when the store was read from Slurm, for people."""
    until_s = min(store.read_manifest(root).read_until_s.values(), default=None)
    how = "from files only" if until_s is None else f"up to {iso_local(until_s, tz)}"
    return f"the store {root} was read {how}"


def gaps(records: Records, period: Period, tz: ZoneInfo) -> list[str]:
    """What of the period the store cannot know; nothing when it was read past it, or fed from files."""
    if records.read_until_s is None or records.read_until_s >= period.end_s:
        return []
    return [
        f"the store was read up to {iso_local(records.read_until_s, tz)}: later jobs, and later ends, are not in it"
    ]


def from_export(export: sacct.Export, tz: ZoneInfo, made_s: int, scratch: Path) -> Records:
    """The records of one export, read now. ``scratch`` must stay while they are used."""
    con = intake.connect(spill=scratch)
    intake.load(con, export, tz, "", made_s, scratch)
    con.execute(_ONCE)
    return Records(con, "once", "rejects")


def ask(records: Records, site: Site, prices: Rates | None, buckets: Sequence[Bucket], tz: ZoneInfo) -> Answer:
    """The usage in each bucket. The buckets follow one another without a gap."""
    table = prices or Rates()
    segments = rates.segments(table, buckets, tz)
    usages = usage.summarise(records.con, records.source, site, segments)
    priced = price.price(usages.usages, segments, table, tz)
    span = Period(segments[0].period.start_s, segments[-1].period.end_s)
    return Answer(segments, usages, priced, _rejected(records, span))


def _rejected(records: Records, span: Period) -> tuple[str, ...]:
    """Lines left out that may belong to the period: those known to lie outside it are not mentioned."""
    rows = records.con.execute(
        f"SELECT reason, count(*), list(coalesce(job_id::VARCHAR, left(detail, 40)) ORDER BY job_id, detail)[:5] "
        f"FROM {records.rejects} WHERE coalesce(start_s, submit_s, $1) < $2 "
        "AND coalesce(greatest(end_s, start_s), $1) >= $1 GROUP BY 1 ORDER BY 1",
        [span.start_s, span.end_s],
    ).fetchall()
    said = []
    for reason, count, examples in rows:
        more = ", ..." if count > len(examples) else ""
        said.append(
            f"{count:,} line{'' if count == 1 else 's'}: {intake.REASONS[reason]} (job {', '.join(examples)}{more})"
        )
    return tuple(said)


# One file may hold a run twice (two exports joined): the store's rule for which version counts, for one session.
_ONCE = """
CREATE TEMP VIEW once AS FROM records
QUALIFY row_number() OVER (PARTITION BY cluster, job_id, submit_s
  ORDER BY end_s IS NULL, observed_s DESC, end_s DESC, start_s DESC, suspended_s DESC, held, state, account,
    username) = 1
"""
