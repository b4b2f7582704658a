# SPDX-License-Identifier: Apache-2.0
"""The values of the site's rates.toml: what GPU time costs, and when. Pure; rates_file.py reads the file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import ROUND_HALF_EVEN, Decimal
from itertools import pairwise
from typing import Protocol
from zoneinfo import ZoneInfo

from hami_hpc.accounting.pricing.cluster_gpus import GpuModel
from hami_hpc.accounting.pricing.held_time import Segment
from hami_hpc.accounting.store.geometry_file import Geometry
from hami_hpc.accounting.times import Bucket, Period, day_start, local_date

MICRO = 1_000_000
_EVER = date.max


@dataclass(frozen=True, slots=True)
class Validity:
    """The time from the start of one local day up to the start of another."""

    start: date = date.min
    end: date = _EVER

    def holds_on(self, day: date) -> bool:
        """Returns whether ``day`` is in this time."""
        return self.start <= day < self.end

    def overlaps(self, other: Validity) -> bool:
        """Returns whether some day is in both."""
        return self.start < other.end and other.start < self.end


class Dated(Protocol):
    """An entry of rates.toml with a validity."""

    @property
    def valid(self) -> Validity: ...


@dataclass(frozen=True, slots=True)
class Rate:
    """Price of one whole GPU of a model for one hour, in the currency."""

    model: str
    per_gpu_hour: Decimal
    valid: Validity = Validity()


@dataclass(frozen=True, slots=True)
class Factor:
    """A factor on the price of the groups that match ``where``; all matching factors are multiplied.

    where: name (class, mode, partition, account, qos, user, cluster, model) -> value; all must be equal.
    """

    where: Mapping[str, str]
    factor: Decimal
    valid: Validity = Validity()


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms of billing.

    minimum_s: shortest time billed for a run that held a GPU. suspended_factor: part of the price charged for suspended
    time. unbilled_states: runs that ended in one of these, such as NODE_FAIL, cost nothing. unbilled_disturbed: so do
    runs with a usage record whose disturbed_count is not 0. unbilled_gpu_fault: so do runs whose gpu_fault is not.
    """

    minimum_s: int = 0
    suspended_factor: Decimal = Decimal(0)
    unbilled_states: tuple[str, ...] = ()
    unbilled_disturbed: bool = False
    unbilled_gpu_fault: bool = False
    valid: Validity = Validity()


@dataclass(frozen=True, slots=True)
class Discount:
    """A discount on an account's GPU-hours of one calendar month beyond ``from_gpu_hours``.

    account: empty for every account without a discount of its own.
    """

    account: str
    from_gpu_hours: Decimal
    percent: Decimal
    valid: Validity = Validity()


@dataclass(frozen=True, slots=True)
class Credit:
    """Money that an account may spend from one day until another. Invoices use the credit that ends first.

    id: by which invoices know it; no two credits have the same. formerly: texts by which invoices of before the ids
    name it.
    """

    id: str
    account: str
    amount: Decimal
    note: str = ""
    valid: Validity = Validity()
    formerly: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Quota:
    """GPU-hours that an account or a user should not exceed in a calendar month. Only warns; limits are Slurm's."""

    account: str
    user: str
    gpu_hours: Decimal
    valid: Validity = Validity()


@dataclass(frozen=True, slots=True)
class DatedGeometry:
    """Sizes of slices that runs had which started in a time other than today's settings are of."""

    geometry: Geometry
    valid: Validity = Validity()


@dataclass(frozen=True, slots=True)
class Rates:
    """The contents of rates.toml.

    digits: of the currency's smallest unit (2: cents). gpu_counts: model -> number of GPUs in the cluster, if the site
    gives it. shards_per_gpu: partition -> shards of one GPU, if the site gives it.
    """

    currency: str = "EUR"
    digits: int = 2
    timezone: str = "UTC"
    issuer: tuple[str, ...] = ()
    invoice_prefix: str = "GPU"
    rates: tuple[Rate, ...] = ()
    factors: tuple[Factor, ...] = ()
    terms: tuple[Terms, ...] = ()
    discounts: tuple[Discount, ...] = ()
    credits: tuple[Credit, ...] = ()
    quotas: tuple[Quota, ...] = ()
    geometry: tuple[DatedGeometry, ...] = ()
    models: Mapping[str, GpuModel] = field(default_factory=dict)
    partitions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    nodes: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    gpu_counts: Mapping[str, int] = field(default_factory=dict)
    shards_per_gpu: Mapping[str, int] = field(default_factory=dict)

    def terms_on(self, day: date) -> Terms:
        """Returns the terms of a day; the default Terms() if none are given."""
        return next((terms for terms in self.terms if terms.valid.holds_on(day)), Terms())


class RateMissing(LookupError):  # noqa: N818 - a result of the lookup, which the caller handles
    """There is no rate for this model on this day."""


def effective_rate(rates: Rates, labels: Mapping[str, str], day: date) -> int:
    """Returns the price of one GPU-hour on a day, in millionths of the currency, rounded half to even.

    labels: what was held and by whom, by the names that a factor can have; at least the model. Raises RateMissing.
    """
    model = labels["model"]
    base = next((r for r in rates.rates if r.model == model and r.valid.holds_on(day)), None)
    if base is None:
        raise RateMissing(f"no rate for {model}")
    price = base.per_gpu_hour
    for factor in rates.factors:
        if factor.valid.holds_on(day) and all(labels[name] == value for name, value in factor.where.items()):
            price *= factor.factor
    return int((price * MICRO).to_integral_value(ROUND_HALF_EVEN))


def segments(rates: Rates, buckets: Sequence[Bucket], tz: ZoneInfo) -> tuple[Segment, ...]:
    """Returns the buckets, split further where a rate, factor or terms begin or end."""
    edges = sorted({edge for dated in _all_dated(rates) for edge in _edges(dated.valid, tz)})
    result: list[Segment] = []
    for bucket in buckets:
        inner = [edge for edge in edges if bucket.period.start_s < edge < bucket.period.end_s]
        cuts = [bucket.period.start_s, *inner, bucket.period.end_s]
        for start_s, end_s in pairwise(cuts):
            terms = rates.terms_on(local_date(start_s, tz))
            period = Period(start_s, end_s)
            result.append(
                Segment(
                    bucket.label,
                    period,
                    terms.minimum_s,
                    terms.unbilled_states,
                    terms.unbilled_disturbed,
                    terms.unbilled_gpu_fault,
                )
            )
    return tuple(result)


def _all_dated(rates: Rates) -> Iterable[Dated]:
    yield from rates.rates
    yield from rates.factors
    yield from rates.terms


def _edges(valid: Validity, tz: ZoneInfo) -> list[int]:
    return [day_start(day, tz) for day in (valid.start, valid.end) if day not in (date.min, _EVER)]
