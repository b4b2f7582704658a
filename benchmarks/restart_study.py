# SPDX-License-Identifier: Apache-2.0
"""The study's part on what changes of timeslices cost others, since each makes the GPU begin its round anew."""

from __future__ import annotations

from gpu_time import MS, US, Gpu, Load, Tenant, tenants_of
from gpu_time import S as SECOND
from study import BUSY, Study, shown


def crowd(cores: int, processes: int, others: list[int]) -> list[Tenant]:
    """The processes of a job, and then other jobs of one process."""
    jobs = tenants_of([(c, "burst", BUSY) for c in (cores, *others)])
    return [*(Tenant(jobs[0].terms, BUSY, job="crowd") for _ in range(processes)), *jobs[1:]]


def restarts(study: Study) -> None:
    """Shares, with changes of timeslices that nobody else feels, and with ones that begin the round anew."""
    steps, light = Load(think=(2 * MS, MS)), Load(think=(13 * US, 987 * US), full=False)
    forty, quarter = (40, "burst", BUSY), (25, "burst", BUSY)
    rows = []
    for name, make in (
        ("50 of 16 processes, 50", lambda: crowd(50, 16, [50])),
        ("50 of 8 processes, 25, 25", lambda: crowd(50, 8, [25, 25])),
        ("10 of 8 processes, 90", lambda: crowd(10, 8, [90])),
        ("40, 40, 20 with 13 us each ms", lambda: tenants_of([forty, forty, (20, "burst", light)])),
        ("25, 25, 25, 25 with 2 ms of work, 1 of waiting", lambda: tenants_of([quarter] * 3 + [(25, "burst", steps)])),
    ):
        row = []
        for is_anew, in_turn in ((False, 1), (True, 1), (True, -1)):
            tenants = make()[::in_turn]
            gpu = Gpu(tenants, is_anew)
            gpu.run(study.end)
            shares = [100 * tenant.worked_ns / study.end for tenant in tenants[::in_turn]]
            of_job = sum(tenant.job != "" for tenant in tenants)
            row.append(shown([sum(shares[:of_job]), *shares[of_job:]] if of_job else shares))
            if is_anew:
                row.append(f"{gpu.restart_count * SECOND / study.end:.0f}")
            for share, tenant in zip(shares[of_job:], tenants[::in_turn][of_job:], strict=True):
                if tenant.load is BUSY:
                    study.claim(share >= tenant.terms.cores_percent * 0.83, f"changes, {name}: {share:.1f} %")
        rows.append((name, *row))
    head = ("felt by nobody, %", "anew, %", "a second", "anew, the last one first, %", "a second")
    study.table("restarts", ("tenants", *head), rows)
