# SPDX-License-Identifier: Apache-2.0
"""What runs used of what they held, and the request that would have sufficed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import duckdb

from hami_hpc.accounting.pricing.cluster_gpus import ClusterGpus
from hami_hpc.accounting.pricing.gpu_share import PPM, ShareError, part_shares, shares_held
from hami_hpc.accounting.sources.tres import AllocatedGpus

NO_GPU = "no GPU at all"
# A suggestion leaves this much room above what was seen, so that the next, slightly larger run still fits.
HEADROOM = Fraction(11, 10)
_MIB = 1 << 20
_MEM_STEP_MIB = 256
# The prolog's clock and slurmctld's: a usage record belongs to a run when it began this close to it or within it.
_SLACK_S = 60


@dataclass(frozen=True, slots=True)
class RunUse:
    """One run: what it held (GPU-seconds, share of one GPU, per slice MiB and percent), and what it used of that.

    measured: a usage record was found; without one the used figures are 0 and mean nothing. slices: its vGPU slices;
    service_class: theirs, empty without. peak_bytes: the largest of any slice. gpu_busy_s, throttled_s, oom_count: all
    slices together. gpu_busy_s is the time that the GPU was open to the run's work, so at least what it used; policy
    burst measures none.
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

    @property
    def held_gpu_s(self) -> float:
        """GPU-seconds held: active time times share."""
        return self.seconds * self.share_ppm / PPM

    @property
    def time_measured(self) -> bool:
        """Whether gpu_busy_s says anything: memory was held, so there was a context, and then a cap counts time."""
        return self.measured and (self.gpu_busy_s > 0 or not self.peak_bytes)

    @property
    def wasted_gpu_s(self) -> float:
        """GPU-seconds held and not used; 0 where use is not known."""
        return max(0.0, self.held_gpu_s - self.gpu_busy_s) if self.time_measured else 0.0

    @property
    def gpu_percent(self) -> float | None:
        """Used of held GPU time, percent; None where it is not known."""
        return 100 * self.gpu_busy_s / self.held_gpu_s if self.time_measured and self.held_gpu_s else None

    @property
    def mem_percent(self) -> float | None:
        """Peak of held memory, percent; None where it is not known."""
        return 100 * self.peak_bytes / (self.mem_mib * _MIB) if self.measured and self.mem_mib else None


def suggestion(run: RunUse) -> str | None:
    """The --gres that would have sufficed, with headroom; None where use is not known or the request fitted.

    A run that met its limits (out-of-memory events, or held back for a tenth of its time) needs no less.
    """
    if not run.measured or run.damaged or not run.slices or not run.seconds:
        return None
    if not (run.peak_bytes or run.gpu_busy_s or run.oom_count):
        return NO_GPU
    mem_mib = -(-int(run.peak_bytes * HEADROOM) // (_MIB * _MEM_STEP_MIB)) * _MEM_STEP_MIB
    mem_mib = run.mem_mib if run.oom_count else min(run.mem_mib, max(_MEM_STEP_MIB, mem_mib))
    busy_percent = -(-100 * Fraction(run.gpu_busy_s) * HEADROOM // (run.seconds * run.slices))
    held_back = run.throttled_s > run.seconds * run.slices / 10
    keep_cores = held_back or not run.time_measured
    cores = run.cores_percent if keep_cores else min(run.cores_percent, max(1, int(busy_percent)))
    if (mem_mib, cores) == (run.mem_mib, run.cores_percent):
        return None
    mem = f"{mem_mib // 1024}G" if mem_mib % 1024 == 0 else f"{mem_mib}M"
    return f"--gres=vgpu:mem={mem},cores={cores}"


def runs(
    con: duckdb.DuckDBPyConnection, records: str, used: str, gpus: ClusterGpus, where: str, values: Sequence[object]
) -> list[RunUse]:
    """The GPU runs that meet ``where`` (SQL of ours with placeholders for ``values``), in the order of their start."""
    rows = con.execute(_RUNS.format(records=records, used=used, where=where, slack=_SLACK_S), list(values)).fetchall()
    found = []
    for cluster, job, account, user, state, start_s, seconds, held_key, partition, host, features, *use in rows:
        held = AllocatedGpus.from_key(held_key)
        try:
            share = part_shares(shares_held(held, partition, host or "", features, gpus))
        except ShareError:
            share = 0
        slices = max(held.vgpu, 1)
        per_slice = (held.vgpu, held.vgpu_mem_mib // slices, held.vgpu_cores_percent // slices, held.vgpu_class)
        records_found, damaged, peak, busy_ns, throttled_ns, oom = use
        found.append(
            RunUse(
                cluster,
                job,
                account,
                user,
                state,
                start_s,
                seconds,
                share,
                *per_slice,
                bool(records_found),
                bool(damaged),
                peak,
                busy_ns / 1e9,
                throttled_ns / 1e9,
                oom,
            )
        )
    return found


# Two runs of a requeued job may lie close together: a usage record belongs to the one that began nearest to it.
_RUNS = """
WITH chosen AS (
  SELECT *, coalesce(end_s, observed_s) AS until_s FROM {records} WHERE held <> '' AND {where}
), matched AS (
  SELECT r.cluster, r.job_id, r.submit_s, u.* EXCLUDE (cluster, job_id)
  FROM chosen AS r JOIN {used} AS u ON r.job_id = u.job_id AND (u.cluster = '' OR u.cluster = r.cluster)
    AND u.start_unix_ns // 1000000000 BETWEEN r.start_s - {slack} AND r.until_s + {slack}
  QUALIFY row_number() OVER (PARTITION BY u.job_id, u.gpu_uuid, u.start_unix_ns
    ORDER BY abs(u.start_unix_ns // 1000000000 - r.start_s)) = 1
)
SELECT r.cluster, coalesce(r.display_id, r.job_id::VARCHAR) AS job, r.account, r.username, r.state, r.start_s,
  r.until_s - r.start_s - r.suspended_s,
  r.held, r.partition, r.host, r.features, count(u.start_unix_ns), count(*) FILTER (u.usage <> 'ok'),
  coalesce(max(u.peak_bytes), 0), coalesce(sum(u.gpu_busy_ns), 0)::BIGINT, coalesce(sum(u.throttled_ns), 0)::BIGINT,
  coalesce(sum(u.oom_count), 0)::BIGINT
FROM chosen AS r LEFT JOIN matched AS u USING (cluster, job_id, submit_s)
GROUP BY ALL ORDER BY r.start_s, job
"""
