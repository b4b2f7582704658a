# SPDX-License-Identifier: Apache-2.0
"""Computes the GPU time that the records of a period held, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from zoneinfo import ZoneInfo

from hami_hpc.accounting.pricing import price, rates
from hami_hpc.accounting.pricing.cluster_gpus import ClusterGpus
from hami_hpc.accounting.pricing.held_time import HeldTimes, Segment, sum_held_time
from hami_hpc.accounting.pricing.price import Priced
from hami_hpc.accounting.pricing.rates import Rates
from hami_hpc.accounting.store.job_records import JobRecords, rejected_lines
from hami_hpc.accounting.times import Bucket, Period


@dataclass(frozen=True, slots=True)
class PricedPeriod:
    """The GPU time held in a period, priced if there are rates. rejected: notes on rejected lines."""

    segments: tuple[Segment, ...]
    held_times: HeldTimes
    priced: tuple[Priced, ...]
    rejected: tuple[str, ...] = field(default=())


def price_period(
    records: JobRecords, gpus: ClusterGpus, prices: Rates | None, buckets: Sequence[Bucket], tz: ZoneInfo
) -> PricedPeriod:
    """Returns the GPU time held in each bucket, priced. The buckets must follow one another without a gap."""
    table = prices or Rates()
    segments = rates.segments(table, buckets, tz)
    held_times = sum_held_time(records.con, records.source, gpus, segments)
    priced = price.price(held_times.groups, segments, table, tz)
    span = Period(segments[0].period.start_s, segments[-1].period.end_s)
    return PricedPeriod(segments, held_times, priced, rejected_lines(records, span))
