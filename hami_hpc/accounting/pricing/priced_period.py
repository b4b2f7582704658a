# SPDX-License-Identifier: Apache-2.0
"""Computes the GPU time that the records of a period held, and what it costs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from zoneinfo import ZoneInfo

import duckdb

from hami_hpc.accounting.pricing import price, rates
from hami_hpc.accounting.pricing.billing_sql import rule_condition
from hami_hpc.accounting.pricing.cluster_gpus import ClusterGpus
from hami_hpc.accounting.pricing.held_time import LABELS, NOTHING, Extras, RunFacts, sum_held_time
from hami_hpc.accounting.pricing.price import Sum
from hami_hpc.accounting.pricing.rates import Rates
from hami_hpc.accounting.pricing.segment import Segment, TermsCase
from hami_hpc.accounting.store import disturbed_runs, overlaps
from hami_hpc.accounting.store.job_records import JobRecords, rejected_lines
from hami_hpc.accounting.times import Bucket, Period

NO_USAGE = (
    "there are no usage records here: {keys} of rates.toml is not applied, and {effect}; "
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

    def sums(self, *by: str, condition: str = "true", numbers: Sequence[str] = price.USUAL) -> list[Sum]:
        """Returns the sums as price.sums does."""
        return price.sums(self.con, by, condition, numbers)

    def sums_by_column(
        self, *by: str, numbers: Sequence[str]
    ) -> tuple[list[tuple[str, ...]], list[int], dict[str, list[int]]]:
        """Returns the sums as price.sums_by_column does."""
        return price.sums_by_column(self.con, by, "true", numbers)


def price_period(
    records: JobRecords,
    gpus: ClusterGpus,
    prices: Rates | None,
    buckets: Sequence[Bucket],
    tz: ZoneInfo,
    detail: str = NOTHING,
    by: Collection[str] | None = None,
) -> PricedPeriod:
    """Returns the GPU time held in each bucket, priced. The buckets must follow one another without a gap.

    detail: what can be summed by besides, one of held_time.py's. by: the only labels of held_time.LABELS that will be
    summed by (others then raise an error of the database); None for all. Fewer take less time.
    """
    table = prices or Rates()
    segments = rates.segments(table, buckets, tz)
    span = Period(segments[0].period.start_s, segments[-1].period.end_s)
    disturbed, gaps = _disturbed(records, table, segments, span)
    resources = tuple(dict.fromkeys(entry.resource for entry in table.resources))
    rules = {
        index: rule_condition(rule.on, int(rule.from_percent * 10_000), rule.where, bool(disturbed))
        for index, rule in sorted(enumerate(table.credit_rules), key=lambda entry: -entry[1].percent)
    }
    extras = Extras(disturbed, rules, resources)
    labels = LABELS if by is None else price.needed(by, table)
    facts = sum_held_time(records.con, records.source, gpus, segments, extras, detail, labels)
    price.price(records.con, segments, table, tz)
    gaps = (*gaps, *overlaps.notes(records, span), *_unknown_resources(records, resources))
    return PricedPeriod(records.con, segments, facts, rejected_lines(records, span), gaps)


def _disturbed(
    records: JobRecords, table: Rates, segments: Sequence[Segment], span: Period
) -> tuple[str, tuple[str, ...]]:
    """Returns the table of what usage records say of runs that prices depend on (empty text if there are none or no
    price does), and notes."""
    terms: list[Segment | TermsCase] = [*segments, *(case for segment in segments for case in segment.cases)]
    wanted = {
        key: name
        for key, name in (("unbilled_disturbed", "disturbed"), ("unbilled_gpu_fault", "faulted"))
        if any(getattr(entry, key) for entry in terms)
    }
    spares = any(entry.spares_off_gpu for entry in terms)
    rules = [table.credit_rules[index].on for segment in segments for index in segment.rules]
    by_rule = sorted({on for on in rules if on != "node_fault"})
    if not (wanted or by_rule or spares):
        return "", ()
    if records.used:
        return (disturbed_runs.TABLE if disturbed_runs.find(records, span) else ""), ()
    keys = [*wanted, *(["off_gpu_factor"] if spares else []), *(f"[[credit_rules]] on {on}" for on in by_rule)]
    runs = " and ".join(wanted.values())
    effects = [f"{runs} runs are billed"] if wanted else []
    effects += ["time off the GPU costs the whole price"] if spares else []
    effect = " and ".join(effects) or "nothing is credited by it"
    return "", (NO_USAGE.format(keys=" and ".join(keys), effect=effect),)


def _unknown_resources(records: JobRecords, resources: Sequence[str]) -> tuple[str, ...]:
    """Returns a note if there are runs of which the store does not know the priced resources."""
    if not resources:
        return ()
    row = records.con.execute("SELECT count(*) FROM counted WHERE cpus IS NULL").fetchone()
    if not row or not row[0]:
        return ()
    return (
        f"of {row[0]:,} job{'' if row[0] == 1 else 's'} CPUs, memory and licences are not known, and not charged: an "
        "older hami_hpc read them; hami-hpc ingest --input FILE, of an export, reads them again",
    )
