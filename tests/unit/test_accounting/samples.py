# SPDX-License-Identifier: Apache-2.0
"""Records as sacct prints them, for the tests of accounting."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from hami_hpc.accounting.documents import bill, invoice_files, issuing
from hami_hpc.accounting.documents.bill import Bill
from hami_hpc.accounting.pricing.cluster_gpus import ClusterGpus, GpuModel
from hami_hpc.accounting.pricing.priced_period import price_period
from hami_hpc.accounting.pricing.rates import Rates
from hami_hpc.accounting.pricing.rates_file import parse_rates
from hami_hpc.accounting.sources.sacct import ASKED
from hami_hpc.accounting.store import ingest, job_records, store_files
from hami_hpc.accounting.times import Period, zone
from hami_hpc.cli import main

HOUR = 3600
VGPU_HALF = (
    "billing=1,cpu=1,gres/shard=280,gres/vgpu:std=1,gres/vgpu=1,gres/vgpu_cores=50,gres/vgpu_mem=8192,mem=1G,node=1"
)
ONE_H200 = "billing=1,cpu=1,gres/gpu:h200=1,gres/gpu=1,mem=1G,node=1"
GPUS = ClusterGpus(
    {"h200": GpuModel("h200", 143156), "a100": GpuModel("a100", 40337)},
    {"gpu": ("h200",), "old": ("a100",), "mixed": ("a100", "h200")},
)


@dataclass(frozen=True, slots=True)
class Job:
    """One run. Times in seconds since 1970; end None while it runs, start None when it never did."""

    job_id: int = 1
    submit: int = 1_790_000_000
    start: int | None = 1_790_000_000
    end: int | None = 1_790_000_000 + HOUR
    tres: str = ONE_H200
    account: str = "phys"
    user: str = "ann"
    partition: str = "gpu"
    state: str = "COMPLETED"
    suspended: int = 0
    name: str = ""
    elapsed: int | None = None
    cluster: str = "c1"
    qos: str = "normal"
    node: str = "n1"
    constraints: str = ""

    def with_(self, **changes: Any) -> Job:
        """This run with some fields changed."""
        return replace(self, **changes)

    def fields(self) -> dict[str, str]:
        """What sacct prints, by field."""
        clock = f"{self.suspended // 3600:02d}:{self.suspended // 60 % 60:02d}:{self.suspended % 60:02d}"
        wall = (self.end or 0) - (self.start or 0) - self.suspended
        return {
            "JobIDRaw": str(self.job_id),
            "Account": self.account,
            "User": self.user,
            "Partition": self.partition,
            "State": self.state,
            "Submit": str(self.submit),
            "Start": "Unknown" if self.start is None else str(self.start),
            "End": "Unknown" if self.end is None else str(self.end),
            "AllocTRES": self.tres,
            "Cluster": self.cluster,
            "JobID": self.name or str(self.job_id),
            "UID": "1001",
            "QOS": self.qos,
            "Eligible": str(self.submit),
            "ElapsedRaw": str(wall if self.elapsed is None else self.elapsed),
            "Suspended": clock,
            "NodeList": self.node,
            "Constraints": self.constraints,
        }


def write_settings(site: Path) -> None:
    """Writes a site's hami-hpc.toml: one partition, of H200s."""
    text = 'version = 1\n[gpu_models.h200]\ntotal_mib = 143156\n[partitions.gpu]\ngpu_models = ["h200"]\n'
    (site / "hami-hpc.toml").write_text(text, encoding="utf-8")


def run(site: Path, *words: str) -> Result:
    """Runs hami-hpc with a site's settings and store."""
    return CliRunner().invoke(main, [*words, "--config", str(site / "hami-hpc.toml"), "--store", str(site / "store")])


def export_text(jobs: Iterable[Job], columns: tuple[str, ...] = ASKED) -> str:
    """What ``sacct -P`` prints for the jobs."""
    lines = ["|".join(columns)]
    lines += ["|".join(job.fields()[column] for column in columns) for job in jobs]
    return "\n".join(lines) + "\n"


def write_export(path: Path, jobs: Iterable[Job]) -> Path:
    """``export_text`` in a file."""
    path.write_text(export_text(jobs), encoding="utf-8")
    return path


def rates(**tables: Any) -> Rates:
    """Rates as rates.toml would give them."""
    return parse_rates({"version": 1, **tables}, "rates.toml")


def make_bill(
    root: Path,
    period: Period,
    by: str = "account,user",
    prices: Rates | None = None,
    zone_name: str = "UTC",
    site: ClusterGpus = GPUS,
) -> Bill:
    """The bill of what the store holds."""
    tz = zone(zone_name)
    records = job_records.from_store(root, period, 256)
    dimensions = by.split(",")
    priced_period = price_period(records, site, prices, bill.buckets(period, dimensions, tz), tz)
    made = bill.make_bill(priced_period, dimensions, prices)
    records.con.close()
    return made


def fill(root: Path, *batches: Iterable[Job], observed: int = 1_900_000_000) -> list[ingest.Step]:
    """Ingest each batch as an export of its own."""
    root.mkdir(parents=True, exist_ok=True)
    source = ingest.Source(zone("UTC"), is_new_cluster=True, memory_mib=256)
    steps = []
    for batch in batches:
        export = write_export(root.parent / f"{root.name}.export", batch)
        steps.append(ingest_file(root, export, source, observed))
    return steps


def ingest_file(root: Path, export: Path, source: ingest.Source, made_s: int) -> ingest.Step:
    """Ingest one export as if it had been made at ``made_s``."""
    os.utime(export, (made_s, made_s))
    steps: list[ingest.Step] = []
    ingest.ingest_files(root, [export], source, steps.append)
    return steps[0]


def issue_one(
    root: Path,
    account: str,
    build: issuing.Build,
    today: str = "2026-10-01",
    issuer: tuple[str, ...] = (),
    month: str = "2026-09",
) -> tuple[invoice_files.Document, ...]:
    """Issues an account's invoice and keeps it, as `invoice --correct` does, or returns the one that stands."""
    with store_files.locked(root):
        documents = invoice_files.read_all(root)
        invoice_files.settle(root, documents)
        issued = issuing.Issued(documents)
        proposal = issuing.propose(issued, account, month, "EUR", build)
        if proposal.standing and not proposal.differs:
            return (proposal.standing,)
        new = issuing.issue(issued, proposal, issuing.Letterhead(today, issuer, "HPC"))
        invoice_files.commit(root, new)
    return new
