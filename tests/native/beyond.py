# SPDX-License-Identifier: Apache-2.0
"""What root does with the records of the jobs on a GPU, for tests whose jobs were made by make_slice: tells them who is
there, and, as the agent does, which of several latency-critical ones want more than their cores."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from conformance import Slice
from test_resized import change

from hami_hpc.core.grant import Grant
from hami_hpc.core.latency_beyond import OfGpu, Said
from hami_hpc.core.turns import cores_of_tenants, make_turns

PERIOD_S = 0.5


@dataclass
class Job:
    number: int
    cores: int
    latency: int
    made: Slice
    policy: str = "burst"
    mode: str = "share"
    is_beyond: bool = False

    def grant(self) -> Grant:
        return Grant(
            job_id=self.number,
            uid=0,
            gpu_uuid=self.made.gpu_uuid,
            gpu_minor=0,
            gpu_total_mib=143155,
            model="h200",
            mem_mib=8192,
            cores_percent=self.cores,
            service_class="lc" if self.latency else "be",
            policy=self.policy,
            mode=self.mode,
            created_unix_ns=1,
            latency=self.latency,
            floor_percent=5 * self.latency,
        )


class Root:
    """What prologs and the agent do with the records of the jobs on a GPU."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = jobs
        self.rules = OfGpu()
        self.changes: list[tuple[int, bool]] = []
        self.tell()

    def tell(self) -> None:
        beyond = [job.number for job in self.jobs if job.is_beyond]
        turns = make_turns([job.grant() for job in self.jobs], beyond=beyond)
        for job in self.jobs:
            change(job.made, **turns[job.number]._asdict())

    def look(self) -> None:
        said, cores = [], cores_of_tenants(job.grant() for job in self.jobs)
        for job in self.jobs:
            usage, own = job.made.usage(), cores[job.number]
            more_ns, used_ns = usage["more_unix_ns"], usage["time_used"]
            said.append(Said(job.number, own, bool(job.latency), job.is_beyond, more_ns, used_ns))
        changes = self.rules.decide(said, time.time_ns())
        for job in self.jobs:
            job.is_beyond = changes.get(job.number, job.is_beyond)
        self.changes += changes.items()
        if changes:
            self.tell()

    @contextmanager
    def agent(self) -> Iterator[None]:
        end = threading.Event()

        def work() -> None:
            while not end.wait(PERIOD_S):
                self.look()

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()
