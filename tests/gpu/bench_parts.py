# SPDX-License-Identifier: Apache-2.0
"""Section "parts" of bench_time.py: busy contexts of a process, and processes of a job, beside a latency-critical job.

There they divide their job's time (docs/adr/095 and 096). Without parts the GPU changes between them every 10 us.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from functools import partial

from tenants import LC, LC_B, REPEATS, SECONDS, Numbers, Tenant, alone, answer, median, rate, row, told, work_command

KERNELS = ("kernels",)
LOADS = {
    "one context": (KERNELS, 1),
    "4 contexts of one process": (("contexts",), 1),
    "8 green contexts": (("green",), 1),
    "two processes": (KERNELS, 2),
}
IDLE = ("requests", "us=100", "every=60000000")


def started(tenant: Tenant, processes: int, begin: float) -> list[subprocess.Popen[str]]:
    """So many processes of one job."""
    environment = tenant.environment()
    command = work_command(tenant.work[0], SECONDS + 1, *tenant.work[1:], f"begin={begin:.3f}")
    return [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(processes)]


def beside_requests(request: tuple[str, ...], work: tuple[str, ...], processes: int) -> tuple[Numbers, float]:
    """What the latency-critical job answers, and the rate of all processes beside it."""
    urgent, other = told([Tenant(request, 40, "burst", LC), Tenant(work, 60, "burst")])
    begin = time.time() + 3
    running = started(other, processes, begin)
    time.sleep(begin - time.time() - 0.5)
    serving = urgent.start(seconds=SECONDS)
    total = sum(answer(process)["rate"] for process in running)
    if request is IDLE:
        serving.kill()
        serving.communicate()
        return {}, total
    return answer(serving), total


def parts() -> None:
    print("\n## Contexts and processes of one best-effort job beside a latency-critical one\n")
    row("best effort", "done beside an idle one, % of native", "beside (b)", "(b) p50 over alone", "(b) p99 over alone")
    row(*["---"] * 5)
    base = [alone(Tenant(LC_B)) for _ in range(REPEATS)]
    base50, base99 = (statistics.median(r[k] for r in base) for k in ("p50", "p99"))
    for name, (work, processes) in LOADS.items():
        native = median(partial(rate, Tenant(KERNELS if work == ("contexts",) else work)))
        idle = [beside_requests(IDLE, work, processes)[1] for _ in range(REPEATS)]
        runs = [beside_requests(LC_B, work, processes) for _ in range(REPEATS)]
        p50, p99 = (statistics.median(r[0][k] for r in runs) for k in ("p50", "p99"))
        done = [100 * statistics.median(rates) / native for rates in (idle, [r[1] for r in runs])]
        row(name, *done, p50 / base50, p99 / base99)
