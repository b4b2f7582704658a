# SPDX-License-Identifier: Apache-2.0
"""Clients of MPS beside slices on a real GPU: prints the table of docs/benchmarks/time.md.

Usage: HAMI_BENCH_WORK=work python3 tests/gpu/mps_beside.py [WORD ...], for the cases whose names have one of the words,
as tests/gpu/mps.py says. The clients are programs of jobs with mode=mps, with the interposer and what root tells them
of the others, as a prolog would; where somebody latency-critical wants everything, also with what an agent decides.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/native"), str(ROOT / "tests/gpu")]

import mps_jobs as mps  # noqa: E402
from beyond import Job, Root  # noqa: E402
from conformance import make_slice  # noqa: E402
from tenants import (  # noqa: E402
    GRANT,
    KERNELS,
    LC,
    LC_A,
    LC_B,
    SECONDS,
    WORK,
    Numbers,
    Tenant,
    alone,
    answer,
    grants_of,
    prepare,
    row,
)

from hami_hpc.contract import constants as c  # noqa: E402
from hami_hpc.core.turns import make_turns  # noqa: E402

BUSY = {cores: Tenant(KERNELS, cores, "burst") for cores in (20, 40)}
A, B = Tenant(LC_A, 40, "burst", LC), Tenant(LC_B, 40, "burst", LC)
GREEDY = [Tenant(KERNELS, cores, "burst", LC) for cores in (40, 20)]
# Name; slices; cores and clients of each MPS job, all of one user; what clients do; whether they have the interposer.
CASES: Sequence[tuple[str, list[Tenant], tuple[tuple[int, int], ...], tuple[str, ...], bool]] = (
    ("(a), client without the interposer", [A], ((20, 1),), KERNELS, False),
    ("(a)", [A], ((20, 1),), KERNELS, True),
    ("(b)", [B], ((20, 1),), KERNELS, True),
    ("(a), two clients of one job", [A], ((20, 2),), KERNELS, True),
    ("(a), two jobs", [A], ((20, 1), (20, 1)), KERNELS, True),
    ("(a), copies both ways", [A], ((20, 1),), ("transfers",), True),
    ("(a), graphs of 100 kernels", [A], ((20, 1),), ("graph",), True),
    ("(a) and (b)", [replace(A, cores=20), B], ((20, 1),), KERNELS, True),
    ("(a), burst 20", [A, BUSY[20]], ((20, 1),), KERNELS, True),
    ("(b), burst 20", [B, BUSY[20]], ((20, 1),), KERNELS, True),
    ("(a), cap 40", [A, replace(BUSY[40], policy="cap")], ((20, 1),), KERNELS, True),
    ("(a), burst 20, 40", [replace(A, cores=20), BUSY[20], BUSY[40]], ((20, 1),), KERNELS, True),
    ("(a), burst 20, two clients of one job", [A, BUSY[20]], ((20, 2),), KERNELS, True),
    ("(a), burst 20, two jobs", [A, BUSY[20]], ((20, 1), (20, 1)), KERNELS, True),
    ("(a), burst 20, copies both ways", [A, BUSY[20]], ((20, 1),), ("transfers",), True),
    ("(a), burst 20, graphs of 100 kernels", [A, BUSY[20]], ((20, 1),), ("graph",), True),
    ("(a), burst 20, client without the interposer", [A, BUSY[20]], ((20, 1),), KERNELS, False),
    ("one wants everything, 40", GREEDY[:1], ((20, 1),), KERNELS, True),
    ("two want everything, 40, 20", GREEDY, ((20, 1),), KERNELS, True),
    ("two want everything, 40, 20; burst 20", [*GREEDY, BUSY[20]], ((20, 1),), KERNELS, True),
    ("one wants everything, 40; two jobs", GREEDY[:1], ((20, 1), (20, 1)), KERNELS, True),
    ("one wants everything, 40; two clients of one job", GREEDY[:1], ((20, 2),), KERNELS, True),
    ("one wants everything, 40; burst 20", [*GREEDY[:1], BUSY[20]], ((20, 1),), KERNELS, True),
    ("burst 20, nobody latency-critical", [BUSY[20]], ((20, 1),), KERNELS, True),
    ("nobody", [], ((20, 1), (20, 1)), KERNELS, True),
)

SETTLED_S = 9.0  # until the agent has decided


def told(slices: Sequence[Tenant], cores: Sequence[int]) -> tuple[list[Tenant], list[dict[str, int]]]:
    """The slices with what root tells them, and what it tells each job of MPS."""
    grants = grants_of(slices)
    grants += [GRANT._replace(job_id=100 + i, cores_percent=n, mode="mps") for i, n in enumerate(cores)]
    turns = make_turns(grants)
    jobs = [replace(t, fields=t.fields | turns[i]._asdict()) for i, t in enumerate(slices)]
    return jobs, [turns[100 + i]._asdict() for i in range(len(cores))]


def beside(
    name: str,
    slices: list[Tenant],
    jobs: Sequence[tuple[int, int]],
    work: tuple[str, ...],
    limited: bool,
    has_agent: bool = False,
) -> tuple[list[Numbers], list[Numbers]]:
    """Runs all at once, with an agent that has decided by then, or without one. Returns what the slices say, and the
    clients."""
    slices, fields = told(slices, [cores for cores, _ in jobs])
    with ExitStack() as stack:
        held = [stack.enter_context(mps.Job(cores)) for cores, _ in jobs]
        settled_s = SETTLED_S if has_agent else 0.0
        begin = f"begin={time.time() + settled_s + 2.5 + 0.5 * (len(slices) + sum(n for _, n in jobs)):.3f}"
        made = [tenant.slice() for tenant in slices]
        known = [Job(i, t.cores, t.fields.get("latency", 0), made[i], t.policy) for i, t in enumerate(slices)]
        clients = []
        for i, (cores, count) in enumerate(jobs):
            folder = mps.bench.folder / f"{name}-{i}"
            job = make_slice(
                folder,
                None,
                mps.bench.uuid,
                job_mib=12000,
                cores_percent=cores,
                policy="none",
                mode="mps",
                fields=fields[i],
            )
            known.append(Job(100 + i, cores, 0, job, "none", "mps"))
            more = {k: v for k, v in job.environment().items() if k in ("LD_PRELOAD", c.ENV_LIMITS)}
            clients += [held[i].start(*mps.work(work, begin), **(more if limited else {})) for _ in range(count)]
        stack.enter_context(Root(known).agent() if has_agent else nullcontext())
        started = [t.start(begin, environment=made[i].environment()) for i, t in enumerate(slices)]
        mine = [answer(process) for process in started]
        return mine, [answer(process) for process in clients]


def main() -> None:
    prepare()
    native = {work: alone(Tenant(work))["rate"] for work in {case[3] for case in CASES}}
    os.environ["HAMI_BENCH_WORK"] = str(WORK)
    mps.SECONDS = SECONDS
    try:
        mps.prepare()
        row("beside MPS", "slices: requests/s, p50, p99 us, or percent of native", "clients: percent of native")
        row(*["---"] * 3)
        words = sys.argv[1:]
        for name, slices, jobs, work, limited in CASES:
            if words and not any(word in name for word in words):
                continue
            for has_agent in (False, True) if slices[:1] == GREEDY[:1] else (False,):
                mine, theirs = beside(f"{name}-{has_agent}", slices, jobs, work, limited, has_agent)
                said = [
                    f"{n['rate']:.0f}, {n['p50']:.0f}, {n['p99']:.0f}"
                    if "p50" in n
                    else f"{100 * n['rate'] / native[KERNELS]:.1f} %"
                    for n in mine
                ]
                clients = "; ".join(f"{100 * n['rate'] / native[work]:.1f}" for n in theirs)
                row(name + ", with an agent" * has_agent, "; ".join(said), clients)
    finally:
        mps.end()


if __name__ == "__main__":
    main()
