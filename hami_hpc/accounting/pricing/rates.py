# SPDX-License-Identifier: Apache-2.0
"""The values of the site's rates.toml: what GPU time costs, and when. Pure; rates_file.py reads the file."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import ROUND_HALF_EVEN, Decimal
from itertools import pairwise
from typing import Protocol, TypeVar
from zoneinfo import ZoneInfo

from hami_hpc.accounting.pricing import windows as time_windows
from hami_hpc.accounting.pricing.cluster_gpus import GpuModel
from hami_hpc.accounting.pricing.matching import most_specific
from hami_hpc.accounting.pricing.segment import Segment, TermsCase
from hami_hpc.accounting.pricing.validity import ALWAYS
from hami_hpc.accounting.pricing.validity import Validity as Validity
from hami_hpc.accounting.pricing.windows import Window
from hami_hpc.accounting.store.geometry_file import Geometry
from hami_hpc.accounting.times import Bucket, Period, day_start, local_date

MICRO = 1_000_000


class Dated(Protocol):
    """An entry of rates.toml with a validity."""

    @property
    def valid(self) -> Validity: ...


@dataclass(frozen=True, slots=True)
class Rate:
    """Price of one whole GPU of a model for one hour, in the currency. where: further conditions (mode, partition,
    cluster, window)."""

    model: str
    per_gpu_hour: Decimal
    valid: Validity = ALWAYS
    where: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ResourcePrice:
    """Price of one CPU (``cpu``), one GiB of a node's memory (``mem``) or one licence (``license/NAME``) for one hour,
    for jobs with and without GPUs. where: as of Rate, without mode."""

    resource: str
    per_hour: Decimal
    valid: Validity = ALWAYS
    where: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CreditRule:
    """A rule by which ``percent`` of a run's charge is credited, under ``name``.

    on: what must have happened to the run: a name in CREDIT_CAUSES. from_percent: of slo_miss, the least part of the
    run's requests that missed. where: further conditions, as of Factor without window.
    """

    name: str
    on: str
    percent: Decimal
    from_percent: Decimal = Decimal(0)
    valid: Validity = ALWAYS
    where: Mapping[str, str] = field(default_factory=dict)


CREDIT_CAUSES = ("node_fault", "gpu_fault", "disturbed", "slo_miss")


@dataclass(frozen=True, slots=True)
class Budget:
    """What an account may use up from one day until another, in GPU-hours charged, in money (before discounts), or
    both. None: not limited."""

    account: str
    gpu_hours: Decimal | None
    amount: Decimal | None
    valid: Validity


@dataclass(frozen=True, slots=True)
class Factor:
    """A factor on the price of the groups that match ``where``; all matching factors are multiplied.

    where: name (class, mode, partition, account, qos, user, cluster, model, window) -> value; all must be equal.
    """

    where: Mapping[str, str]
    factor: Decimal
    valid: Validity = ALWAYS


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms of billing.

    minimum_s: shortest time billed for a run that held a GPU. suspended_factor: part of the price charged for suspended
    time. off_gpu_factor: the same for time held while the memory was off the GPU. unbilled_states: runs that ended in
    one of these, such as NODE_FAIL, cost nothing. unbilled_disturbed: so do runs with a usage record whose
    disturbed_count is not 0. unbilled_gpu_fault: so do runs whose gpu_fault is not. where: conditions (model, mode,
    partition). given: the keys that the entry gives; of one with conditions the others are those of the entry without.
    """

    minimum_s: int = 0
    suspended_factor: Decimal = Decimal(0)
    off_gpu_factor: Decimal = Decimal(1)
    unbilled_states: tuple[str, ...] = ()
    unbilled_disturbed: bool = False
    unbilled_gpu_fault: bool = False
    valid: Validity = ALWAYS
    where: Mapping[str, str] = field(default_factory=dict)
    given: frozenset[str] = field(default=frozenset(), compare=False)


@dataclass(frozen=True, slots=True)
class Discount:
    """A discount on an account's GPU-hours of one calendar month from ``from_gpu_hours`` on.

    account: empty for every account without a discount of its own. model: empty for the hours of all models together
    that have no discount of their own. kind: ``tier``: off the hours beyond; ``all``: off all hours, once so many are
    reached. per: ``month``: the account's hours are counted together; ``run``: those of each run by themselves.
    """

    account: str
    from_gpu_hours: Decimal
    percent: Decimal
    valid: Validity = ALWAYS
    model: str = ""
    kind: str = "tier"
    per: str = "month"


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
    valid: Validity = ALWAYS
    formerly: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Quota:
    """GPU-hours that an account or a user should not exceed in a calendar month. Only warns; limits are Slurm's."""

    account: str
    user: str
    gpu_hours: Decimal
    valid: Validity = ALWAYS


@dataclass(frozen=True, slots=True)
class DatedGeometry:
    """Sizes of slices that runs had which started in a time other than today's settings are of."""

    geometry: Geometry
    valid: Validity = ALWAYS


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
    windows: tuple[Window, ...] = ()
    resources: tuple[ResourcePrice, ...] = ()
    credit_rules: tuple[CreditRule, ...] = ()
    budgets: tuple[Budget, ...] = ()
    geometry: tuple[DatedGeometry, ...] = ()
    models: Mapping[str, GpuModel] = field(default_factory=dict)
    partitions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    nodes: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    gpu_counts: Mapping[str, int] = field(default_factory=dict)
    shards_per_gpu: Mapping[str, int] = field(default_factory=dict)
    _credits_of: Mapping[str, list[Credit]] = field(init=False, repr=False, compare=False)
    _discounts_of: Mapping[str, list[Discount]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Sorts what is of one account by account: thousands of accounts may have thousands of entries."""
        object.__setattr__(self, "_credits_of", _by_account(self.credits))
        object.__setattr__(self, "_discounts_of", _by_account(self.discounts))

    def credits_of(self, account: str) -> Sequence[Credit]:
        """Returns the credits that an account has at any time, in the order of rates.toml."""
        return self._credits_of.get(account, ())

    def discounts_of(self, account: str) -> Sequence[Discount]:
        """Returns the discounts of an account alone at any time; of the empty text, those for every other account."""
        return self._discounts_of.get(account, ())

    def terms_on(self, day: date, labels: Mapping[str, str] | None = None) -> Terms:
        """Returns the terms of a day for what has these labels; the default Terms() if none are given. labels: model,
        mode and partition; None for the terms without conditions."""
        plain = next((terms for terms in self.terms if not terms.where and terms.valid.holds_on(day)), Terms())
        special = most_specific((terms for terms in self.terms if terms.where), labels, day) if labels else None
        return replace(plain, **{key: getattr(special, key) for key in special.given}) if special else plain

    @property
    def needs_usage(self) -> bool:
        """Whether prices depend on usage records."""
        return any(
            terms.unbilled_disturbed or terms.unbilled_gpu_fault or terms.off_gpu_factor != 1 for terms in self.terms
        ) or any(rule.on != "node_fault" for rule in self.credit_rules)


OfAccount = TypeVar("OfAccount", Credit, Discount)


def _by_account(entries: Iterable[OfAccount]) -> dict[str, list[OfAccount]]:
    found: dict[str, list[OfAccount]] = {}
    for entry in entries:
        found.setdefault(entry.account, []).append(entry)
    return found


class RateMissing(LookupError):  # noqa: N818 - a result of the lookup, which the caller handles
    """There is no rate for this model on this day."""


def effective_rate(rates: Rates, labels: Mapping[str, str], day: date) -> int:
    """Returns the price of one GPU-hour on a day, in millionths of the currency, rounded half to even.

    labels: what was held and by whom, by the names that a factor can have; at least the model. Raises RateMissing.
    """
    model = labels["model"]
    base = most_specific((rate for rate in rates.rates if rate.model == model), labels, day)
    if base is None:
        raise RateMissing(f"no rate for {model}")
    return _multiplied(rates, base.per_gpu_hour, labels, day)


def resource_rate(rates: Rates, labels: Mapping[str, str], day: date) -> int:
    """Returns the price of one hour of the resource that is labelled as model, as effective_rate does; 0 if it has
    none on that day."""
    base = most_specific((price for price in rates.resources if price.resource == labels["model"]), labels, day)
    return _multiplied(rates, base.per_hour, labels, day) if base else 0


def _multiplied(rates: Rates, price: Decimal, labels: Mapping[str, str], day: date) -> int:
    for factor in rates.factors:
        if factor.valid.holds_on(day) and all(labels.get(name, "") == value for name, value in factor.where.items()):
            price *= factor.factor
    return int((price * MICRO).to_integral_value(ROUND_HALF_EVEN))


def segments(rates: Rates, buckets: Sequence[Bucket], tz: ZoneInfo) -> tuple[Segment, ...]:
    """Returns the buckets, split further where a rate, factor, terms or a time window begin or end.

    All segments with one bucket, one window and between two days on which prices change have the same number.
    """
    dated = sorted({edge for entry in _all_dated(rates) for edge in _edges(entry.valid, tz)})
    whole = Period(buckets[0].period.start_s, buckets[-1].period.end_s)
    spans = time_windows.spans(rates.windows, whole, tz)
    edges = sorted({*dated, *(edge for span in spans for edge in (span.start_s, span.end_s))})
    numbers: dict[tuple[str, int, str], int] = {}
    result: list[Segment] = []
    for bucket in buckets:
        inner = edges[bisect_right(edges, bucket.period.start_s) : bisect_left(edges, bucket.period.end_s)]
        for start_s, end_s in pairwise([bucket.period.start_s, *inner, bucket.period.end_s]):
            before = bisect_right(spans, start_s, key=lambda span: span.start_s)
            window = spans[before - 1].name if before and start_s < spans[before - 1].end_s else ""
            number = numbers.setdefault((bucket.label, bisect_right(dated, start_s), window), len(numbers))
            result.append(_segment(rates, number, bucket.label, Period(start_s, end_s), window, tz))
    return tuple(result)


def _segment(rates: Rates, number: int, label: str, period: Period, window: str, tz: ZoneInfo) -> Segment:
    day = local_date(period.start_s, tz)
    plain = rates.terms_on(day)
    special = sorted(
        (terms for terms in rates.terms if terms.where and terms.valid.holds_on(day)),
        key=lambda terms: -len(terms.where),
    )
    return Segment(
        label,
        period,
        plain.minimum_s,
        plain.unbilled_states,
        plain.unbilled_disturbed,
        plain.unbilled_gpu_fault,
        number,
        window,
        tuple(_case(terms.where, rates.terms_on(day, terms.where)) for terms in special),
        tuple(index for index, rule in enumerate(rates.credit_rules) if rule.valid.holds_on(day)),
        plain.off_gpu_factor != 1,
    )


def _case(where: Mapping[str, str], terms: Terms) -> TermsCase:
    return TermsCase(
        where,
        terms.minimum_s,
        terms.unbilled_states,
        terms.unbilled_disturbed,
        terms.unbilled_gpu_fault,
        terms.off_gpu_factor != 1,
    )


def _all_dated(rates: Rates) -> Iterable[Dated]:
    yield from rates.rates
    yield from rates.factors
    yield from rates.terms
    yield from rates.resources
    yield from rates.credit_rules


def _edges(valid: Validity, tz: ZoneInfo) -> list[int]:
    return [day_start(day, tz) for day in (valid.start, valid.end) if day not in (date.min, date.max)]
