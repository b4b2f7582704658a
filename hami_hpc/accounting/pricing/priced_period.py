# SPDX-License-Identifier: Apache-2.0
"""Computes the GPU time that the records of a period held, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from zoneinfo import ZoneInfo

import duckdb

from hami_hpc.accounting.pricing import price, rates
from hami_hpc.accounting.pricing.cluster_gpus import ClusterGpus
from hami_hpc.accounting.pricing.held_time import NOTHING, RunFacts, Segment, sum_held_time
from hami_hpc.accounting.pricing.price import Sum
from hami_hpc.accounting.pricing.rates import Rates
from hami_hpc.accounting.store import disturbed_runs, overlaps
from hami_hpc.accounting.store.job_records import JobRecords, rejected_lines
from hami_hpc.accounting.times import Bucket, Period

NO_USAGE = (
    "there are no usage records here: {keys} of rates.toml is not applied, and {runs} runs are billed; "
    "hami-hpc collect-usage reads usage records into the store, and --store names a store that has them"
)


@dataclass(frozen=True, slots=True)
class PricedPeriod:
    """The GPU time held in a period, priced if there are rates. ``con`` has it and must stay open.

    rejected: notes on rejected lines. gaps: notes on terms of billing that could not be applied, and on
    runs that are billed twice.
    """

    con: duckdb.DuckDBPyConnection
    segments: tuple[Segment, ...]
    facts: RunFacts
    rejected: tuple[str, ...] = field(default=())
    gaps: tuple[str, ...] = field(default=())

    def sums(self, *by: str, condition: str = "true") -> list[Sum]:
        """Returns the sums by these names of price.COLUMNS. condition: one of price.py's."""
        return price.sums(self.con, by, condition)


def price_period(
    records: JobRecords,
    gpus: ClusterGpus,
    prices: Rates | None,
    buckets: Sequence[Bucket],
    tz: ZoneInfo,
    detail: str = NOTHING,
) -> PricedPeriod:
    """Returns the GPU time held in each bucket, priced. The buckets must follow one another without a gap.

    detail: what can be summed by besides, one of held_time.py's.
    """
    table = prices or Rates()
    segments = rates.segments(table, buckets, tz)
    span = Period(segments[0].period.start_s, segments[-1].period.end_s)
    disturbed = ""
    gaps: tuple[str, ...] = ()
    runs = {
        "unbilled_disturbed": ("disturbed", any(segment.unbilled_disturbed for segment in segments)),
        "unbilled_gpu_fault": ("faulted", any(segment.unbilled_gpu_fault for segment in segments)),
    }
    wanted = {key: name for key, (name, is_wanted) in runs.items() if is_wanted}
    if wanted:
        disturbed, gaps = _disturbed(records, span, wanted)
    facts = sum_held_time(records.con, records.source, gpus, segments, disturbed, detail)
    price.price(records.con, segments, table, tz)
    gaps = (*gaps, *overlaps.notes(records, span))
    return PricedPeriod(records.con, segments, facts, rejected_lines(records, span), gaps)


def _disturbed(records: JobRecords, span: Period, wanted: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """Returns the table of the runs that may be unbilled (empty text if there are none), and notes. wanted: the keys of
    the terms that ask for it, each with what its runs are called."""
    if not records.used:
        return "", (NO_USAGE.format(keys=" and ".join(wanted), runs=" and ".join(wanted.values())),)
    return (disturbed_runs.TABLE if disturbed_runs.find(records, span) else ""), ()
