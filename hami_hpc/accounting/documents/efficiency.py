# SPDX-License-Identifier: Apache-2.0
"""Computes what runs used of what they held, and the request that would have been enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple
from zoneinfo import ZoneInfo

from hami_hpc.accounting.documents.bill import to_money
from hami_hpc.accounting.pricing.cluster_gpus import ClusterGpus
from hami_hpc.accounting.pricing.gpu_share import PPM, ShareError, part_shares, required_features, shares_held
from hami_hpc.accounting.pricing.held_time import RUN, placed_in
from hami_hpc.accounting.pricing.price import UNPRICED
from hami_hpc.accounting.pricing.priced_period import price_period
from hami_hpc.accounting.pricing.rates import Rates
from hami_hpc.accounting.sources.tres import AllocatedGpus
from hami_hpc.accounting.store import usage_table
from hami_hpc.accounting.store.job_records import JobRecords
from hami_hpc.accounting.times import Bucket, Period
from hami_hpc.contract import constants as c

NO_GPU = "no GPU at all"
# A suggestion is this much larger than the measured use, so that a slightly larger run still fits.
HEADROOM = Fraction(11, 10)
_MIB = 1 << 20
_MEM_STEP_MIB = 256


@dataclass(frozen=True, slots=True)
class RunUse:
    """One run: what it held (GPU-seconds, share of one GPU, MiB and percent per slice), and what it used of that.

    measured: there is a usage record, of whole GPUs one for each of them; else the values of use mean nothing. Of a job
    that changed its nodes while it ran none is measured: its records are of all its time, and Slurm has two runs.
    slices: number of vGPU slices; service_class: of these, empty if none. watched_gpus: whole GPUs of which the agent
    wrote records; mem_mib is then the memory of those of one node. peak_bytes: the largest of any record, which is of
    a slice, of the slices of a node (slices_per_node), or of its whole GPUs. gpu_busy_s, throttled_s, oom_count,
    request_count, slo_miss_count: summed over slices. latency_p99_us: the largest of any slice. gpu_busy_s is the
    time that its work used, for every policy. busiest_s, most_throttled_s: gpu_busy_s and throttled_s of the record
    that has most of it. off_gpu_s: of seconds, those in which its memory was off the GPU, of all slices on
    average. cost: before discounts and credits; None if it has no rate. granted_ppm: the part of a GPU that it could
    use, which is more than it held where memory is oversold; 0: as much as it held.
    """

    cluster: str
    job: str
    account: str
    user: str
    state: str
    start_s: int
    seconds: int
    share_ppm: int
    slices: int
    mem_mib: int
    cores_percent: int
    service_class: str
    measured: bool
    damaged: bool
    peak_bytes: int
    gpu_busy_s: float
    throttled_s: float
    oom_count: int
    request_count: int = 0
    latency_p99_us: int = 0
    slo_miss_count: int = 0
    watched_gpus: int = 0
    busiest_s: float = 0.0
    most_throttled_s: float = 0.0
    mode: str = ""  # that the job's features name
    cost: Decimal | None = None
    slices_per_node: int = 1
    off_gpu_s: float = 0.0
    granted_ppm: int = 0

    @property
    def held_gpu_s(self) -> float:
        """GPU-seconds held: active time times share."""
        return self.seconds * self.share_ppm / PPM

    @property
    def on_gpu_s(self) -> float:
        """GPU-seconds held while its memory was on the GPU: what it could use."""
        return (self.seconds - self.off_gpu_s) * self.share_ppm / PPM

    @property
    def time_measured(self) -> bool:
        """Whether gpu_busy_s was measured. If it is 0 although a slice held memory, its policy did not measure time."""
        return self.measured and (self.gpu_busy_s > 0 or not self.peak_bytes or self.watched_gpus > 0)

    @property
    def used_gpu_s(self) -> float:
        """GPU-seconds used of those held. A busy second of an oversold GPU is the part of it that is held of what was
        granted, so that who uses all that was granted has used all that was held."""
        if self.granted_ppm in (0, self.share_ppm):
            return self.gpu_busy_s
        return self.gpu_busy_s * self.share_ppm / self.granted_ppm

    @property
    def wasted_gpu_s(self) -> float:
        """GPU-seconds that it could use and did not; 0 if the use is not known."""
        return max(0.0, self.on_gpu_s - self.used_gpu_s) if self.time_measured else 0.0

    @property
    def gpu_percent(self) -> float | None:
        """Used of the GPU time that it could use, percent; None if it is not known."""
        return 100 * self.used_gpu_s / self.on_gpu_s if self.time_measured and self.on_gpu_s else None

    @property
    def mem_percent(self) -> float | None:
        """Peak of held memory, percent; None if it is not known."""
        held_bytes = self.mem_mib * _MIB * self.slices_per_node
        return 100 * self.peak_bytes / held_bytes if self.measured and held_bytes else None


def suggestion(run: RunUse) -> str | None:
    """Returns the --gres that would have been enough, with headroom; None if use is not known or the request was right.

    It is what the busiest slice needs, as all slices of a job are equal. Of several slices on a node the sums alone are
    known, and one of them may have had all of it. Does not reduce a value whose limit the run
    reached (out-of-memory events, or throttled for a tenth of its time).
    """
    seconds = run.seconds - run.off_gpu_s
    if not run.measured or run.damaged or seconds <= 0:
        return None
    if not (run.peak_bytes or run.gpu_busy_s or run.oom_count):
        return NO_GPU
    if not run.slices:
        return None
    mem_mib = -(-int(run.peak_bytes * HEADROOM) // (_MIB * _MEM_STEP_MIB)) * _MEM_STEP_MIB
    mem_mib = run.mem_mib if run.oom_count else min(run.mem_mib, max(_MEM_STEP_MIB, mem_mib))
    busy_percent = -(-100 * Fraction(run.busiest_s) * HEADROOM // Fraction(seconds))
    is_throttled = run.most_throttled_s > seconds / 10
    keep_cores = is_throttled or not run.time_measured
    cores = run.cores_percent if keep_cores else min(run.cores_percent, max(1, int(busy_percent)))
    if (mem_mib, cores) == (run.mem_mib, run.cores_percent):
        return None
    mem = f"{mem_mib // 1024}G" if mem_mib % 1024 == 0 else f"{mem_mib}M"
    count = f":{run.slices_per_node}" if run.slices_per_node > 1 else ""
    return f"--gres=vgpu{count}:mem={mem},cores={cores}" + (f",mode={run.mode}" if run.mode else "")


def _mode_of(features: str) -> str:
    """Returns the mode that a job's features name, "" for none."""
    required = required_features(features)
    return next((mode for mode in c.MODES if c.FEATURE_MODE.format(mode=mode) in required), "")


def choose(records: JobRecords, where: str, values: Sequence[object]) -> JobRecords:
    """Returns the GPU runs that meet ``where`` (SQL with placeholders for ``values``), in a table of their own."""
    records.con.execute(
        f"CREATE OR REPLACE TEMP TABLE chosen AS FROM {records.source} WHERE held <> '' AND {where}", list(values)
    )
    return replace(records, source="chosen")


def costs(chosen: JobRecords, gpus: ClusterGpus, prices: Rates, tz: ZoneInfo) -> dict[tuple[str, str], Decimal]:
    """Returns the cost of each of the chosen runs that has a rate, by cluster and run (held_time.RUN)."""
    span = chosen.con.execute(f"SELECT min(start_s), max({_UNTIL}) FROM {chosen.source}").fetchone() or (None, None)
    if span[0] is None:
        return {}
    period = Period(span[0], max(span) + 1)
    priced_period = price_period(chosen, gpus, prices, (Bucket("", period),), tz, RUN)
    sums = priced_period.sums("cluster", "run")
    amounts = to_money([entry.charge for entry in sums], prices.digits)
    unpriced = {entry.labels for entry in priced_period.sums("cluster", "run", condition=UNPRICED)}
    return {
        (entry.labels[0], entry.labels[1]): amount
        for entry, amount in zip(sums, amounts, strict=True)
        if entry.labels not in unpriced
    }


class _Kind(NamedTuple):
    """What runs of one kind held: the share of a GPU, and the part of one that they could use, in millionths, both 0 if
    the settings do not say; and the mode that their features name."""

    allocated: AllocatedGpus
    share_ppm: int
    granted_ppm: int
    mode: str


def _kind(held_key: str, partition: str, host: str, features: str | None, gpus: ClusterGpus) -> _Kind:
    allocated = AllocatedGpus.from_key(held_key)
    try:
        share = part_shares(shares_held(allocated, partition, host, features or "", gpus))
        granted = part_shares(shares_held(allocated, partition, host, features or "", gpus, of_slice=True))
    except ShareError:
        share = granted = 0
    return _Kind(allocated, share, granted, _mode_of(features or ""))


def runs(
    chosen: JobRecords, used: str, gpus: ClusterGpus, costs: Mapping[tuple[str, str], Decimal] | None = None
) -> list[RunUse]:
    """Returns the chosen runs in the order of their start. used: SQL for the usage records. costs: of the runs."""
    matched = usage_table.assigned("timed", used)
    query = _RUNS.format(records=chosen.source, matched=matched, until=_UNTIL, run=RUN, place=placed_in(gpus))
    rows = chosen.con.execute(query).fetchall()
    eras = gpus.eras()
    kinds: dict[tuple[str, str, str, str, int], _Kind] = {}  # half a million runs are of few
    result = []
    for run, cluster, job, account, user, state, start_s, seconds, *held, suspended_s, is_resized in rows:
        kind_key = (*held[:4], gpus.era(start_s))
        kind = kinds.get(kind_key)
        if kind is None:
            kind = kinds[kind_key] = _kind(held[0], held[1], held[2] or "", held[3], eras[kind_key[4]])
        allocated, use = kind.allocated, held[4:]
        record_count, damaged_count, peak_bytes, busy_ns, throttled_ns, oom_count, *more = use
        requests, p99_us, misses, observed_gpus, had_mib, had_cores, busiest_ns, most_throttled_ns, *more = more
        per_node, off_ns = more
        slices = max(allocated.vgpu, 1)
        per_slice = (  # a resized job may have had more than Slurm's counts
            allocated.vgpu,
            max(allocated.vgpu_mem_mib // slices, had_mib // per_node if allocated.vgpu else 0),
            max(allocated.vgpu_cores_percent // slices, had_cores // per_node if allocated.vgpu else 0),
            allocated.vgpu_class,
        )
        watched = 0 if allocated.vgpu else observed_gpus  # of a MIG instance NVML tells the memory and no time
        if watched and not allocated.vgpu:
            per_slice = (0, had_mib, 0, "")
        result.append(
            RunUse(
                cluster,
                job,
                account,
                user,
                state,
                start_s,
                seconds,
                kind.share_ppm,
                *per_slice,
                bool(record_count) and not is_resized and (allocated.vgpu > 0 or watched * PPM >= kind.share_ppm),
                bool(damaged_count),
                peak_bytes,
                busy_ns / 1e9,
                throttled_ns / 1e9,
                oom_count,
                requests,
                p99_us,
                misses,
                watched,
                busiest_ns / 1e9,
                most_throttled_ns / 1e9,
                kind.mode,
                (costs or {}).get((cluster, run)),
                per_node if allocated.vgpu else 1,
                max(0.0, min(seconds, off_ns / slices / 1e9 - suspended_s)) if allocated.vgpu else 0.0,
                kind.granted_ppm,
            )
        )
    return result


_UNTIL = "coalesce(end_s, observed_s)"
_RUNS = """
WITH resized AS (
  SELECT DISTINCT cluster, job_id FROM {records} WHERE state = 'RESIZING'
), timed AS (
  SELECT *, {until} AS until_s, {place} AS placed_in,
    (cluster, job_id) IN (SELECT (cluster, job_id) FROM resized) AS is_resized
  FROM {records}
), matched AS ({matched})
SELECT {run}, r.cluster, coalesce(r.display_id, r.job_id::VARCHAR) AS job, r.account, r.username, r.state, r.start_s,
  r.until_s - r.start_s - r.suspended_s,
  r.held, r.placed_in, r.host, r.features, count(u.start_unix_ns), count(*) FILTER (u.usage NOT IN ('ok', 'observed')),
  coalesce(max(greatest(u.peak_bytes, u.observed_peak_bytes)), 0),
  coalesce(sum(if(u.gpu_busy_ns > 0, u.gpu_busy_ns, u.observed_busy_ns)), 0)::HUGEINT,
  coalesce(sum(u.throttled_ns), 0)::HUGEINT, coalesce(sum(u.oom_count), 0)::HUGEINT,
  coalesce(sum(u.request_count), 0)::HUGEINT, coalesce(max(u.latency_p99_us), 0),
  coalesce(sum(u.slo_miss_count), 0)::HUGEINT,
  coalesce(sum(u.gpu_count) FILTER (u.usage = 'observed'), 0)::HUGEINT,
  coalesce(max(u.mem_mib), 0), coalesce(max(u.cores), 0),
  coalesce(max(if(u.gpu_busy_ns > 0, u.gpu_busy_ns, u.observed_busy_ns)), 0), coalesce(max(u.throttled_ns), 0),
  greatest(coalesce(max(u.gpu_count) FILTER (u.usage <> 'observed'), 1), 1),
  coalesce(sum(u.off_gpu_ns), 0)::HUGEINT, r.suspended_s, r.is_resized
FROM timed AS r LEFT JOIN matched AS u USING (cluster, job_id, submit_s)
GROUP BY ALL ORDER BY r.start_s, job
"""
