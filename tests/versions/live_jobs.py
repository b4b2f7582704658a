# SPDX-License-Identifier: Apache-2.0
"""Jobs that really ran on the Slurm at hand, in the forms that its records take: text, JSON and the bill agree.

Its gres are plain counters, without plugins of ours: a record only says how many of what a job held.
See live_week.py for how this is run and recorded.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import bare_slurm
import pytest
from billed_week import read
from harness import cluster as private_cluster
from harness import config, jobs
from harness.layout import CHECKOUT, Layout, open_or_create
from live_week import JSON, keep, sacct_into
from test_billing import hami

from hami_hpc.accounting.sources import sacct
from hami_hpc.accounting.times import Period

ROOT = CHECKOUT / "build" / "versions-jobs"
WHOLE, HALF = "--gres=gpu:h200:1", "--gres=vgpu:std:1,vgpu_mem:8192,vgpu_cores:50"
TRES = "gres/gpu,gres/gpu:h200,gres/vgpu,gres/vgpu:std,gres/vgpu_mem,gres/vgpu_cores"
DEVICES = ("null", "zero", "full", "random")  # slurmd wants a device for a GPU, whichever
COUNTS = {"gpu:h200": len(DEVICES), "vgpu:std": 64, "vgpu_mem": 1_000_000, "vgpu_cores": 6400}
# Runs that began. The requeued job's second life is cancelled before.
STATES = {"COMPLETED": 6, "FAILED": 1, "CANCELLED": 1, "TIMEOUT": 1, "REQUEUED": 1, "RUNNING": 1}
# What is kept of a job's JSON: all that accounting could read, and no path, command or environment.
KEPT = ("account", "array", "association", "cluster", "constraints", "flags", "het", "job_id", "nodes", "partition",
        "qos", "restart_cnt", "state", "time", "tres", "user")  # fmt: skip


@pytest.fixture(scope="module")
def cluster() -> Iterator[Layout]:
    """All of Slurm's daemons, with gres that are only counted."""
    private_cluster.remove(ROOT)
    layout = open_or_create(ROOT)
    gres = ",".join(f"{name}:{count}" for name, count in COUNTS.items())
    config.write(layout.site_config, config.site_toml(layout))
    config.write(layout.slurm_conf, config.slurm_conf(layout))
    config.write(layout.etc / "slurm-hami-hpc.conf",
                 f"SelectType=select/cons_tres\nGresTypes=gpu,vgpu,vgpu_mem,vgpu_cores\nAccountingStorageTRES={TRES}\n"
                 f"NodeName={config.NODE} {config.node_parameters(layout)} Gres={gres}\n")  # fmt: skip
    config.write(layout.etc / "gres.conf", _gres_conf())
    with bare_slurm.started(layout):
        yield layout


def _gres_conf() -> str:
    lines = [f"Name=gpu Type=h200 File=/dev/{device}" for device in DEVICES]
    for name, count in COUNTS.items():
        kind, _, gres_type = name.partition(":")
        if kind != "gpu":
            lines.append(f"Name={kind} {f'Type={gres_type} ' if gres_type else ''}Count={count} Flags=CountOnly")
    return "".join(f"NodeName={config.NODE} {line}\n" for line in lines)


def test_jobs_of_every_form_are_the_same_records_in_text_json_and_the_bill(cluster: Layout, tmp_path: Path) -> None:
    since_s = int(time.time()) - 60
    names = _live(cluster)
    period = Period(since_s, int(time.time()) + 60)
    text, document = tmp_path / "jobs.txt", tmp_path / "jobs.json"
    sacct_into(cluster, sacct.command(period), text)
    sacct_into(cluster, ["sacct", *JSON, "-S", f"uts{period.start_s}", "-E", f"uts{period.end_s}"], document)
    _trim(document)
    keep(text, document)
    records, rejects = read(text, tmp_path)
    assert not rejects
    assert read(document, tmp_path) == (records, [])
    # For a job that was cancelled before it started, 22.05 has a run of no length.
    assert Counter(record["state"] for record in records if record["end_s"] != record["start_s"]) == STATES
    assert {record["display_id"] for record in records} == {*names, None}
    words = ("--start", "2026-01-01", "--by", "account", "--format", "json")
    bill = json.loads(hami(cluster, "bill", "--input", str(text), *words))
    assert [(line["jobs"], line["gpu_microseconds_held"]) for line in bill["lines"]] == [_held(text)]
    assert not bill["rejected"]

    root = ("--store", str(tmp_path / "store"))
    hami(cluster, "ingest", "--since", "2026-01-01", "--window-days", "366", *root)
    stored = json.loads(hami(cluster, "bill", *words, *root))
    assert (stored["lines"][0]["jobs"], stored["still_running"]) == (bill["lines"][0]["jobs"], 1)


def _live(layout: Layout) -> set[str]:
    """Jobs of every form, until all that end have ended and slurmdbd knows. Names of those whose name is no number."""

    def submit(*options: str, script: str) -> int:
        return jobs.submit(layout, "news", *options, script=script)

    done = submit(WHOLE, script="sleep 2")
    failed = submit(HALF, script="sleep 1; exit 3")
    timed_out = submit(HALF, "--time=1", script="sleep 600")
    array = submit(HALF, "--array=1-2", script="sleep 1")
    cancelled, requeued, suspended = (submit(HALF, script=f"sleep {length}") for length in (600, 600, 6))
    submit(WHOLE, script="sleep 600")  # goes on
    submit(WHOLE, "--begin=now+1hour", script="true")  # never starts
    withdrawn = submit(WHOLE, "--begin=now+1hour", script="true")
    for job in (cancelled, requeued, suspended):
        jobs.wait_for_state(layout, job, "RUNNING")
    jobs.admin(layout, "scontrol", "suspend", str(suspended))
    time.sleep(3)
    jobs.admin(layout, "scontrol", "resume", str(suspended))
    jobs.admin(layout, "scontrol", "requeue", str(requeued))
    jobs.admin(layout, "scancel", str(cancelled), str(withdrawn))
    jobs.wait(layout, lambda: jobs.state(layout, requeued) == "PENDING", "the requeued job to be pending", 60, requeued)
    jobs.admin(layout, "scancel", str(requeued))
    ends = {done: "COMPLETED", failed: "FAILED", cancelled: "CANCELLED", suspended: "COMPLETED", timed_out: "TIMEOUT"}
    for job, state in ends.items():
        jobs.wait_for_state(layout, job, state, timeout_s=180)
    # The backfill scheduler wants a node for each component, and keeps others waiting for them: last, and on two nodes.
    het = submit(WHOLE, ":", "--partition=cpu", script="sleep 2")
    jobs.wait_for_state(layout, het, "COMPLETED", timeout_s=180)
    time.sleep(5)  # until then slurmdbd may know an end but not when the job was eligible, and sacct misses it
    return {f"{array}_1", f"{array}_2", f"{het}+0", f"{het}+1"}


def _trim(path: Path) -> None:
    """Only what is kept of each job."""
    document = json.loads(path.read_text(encoding="utf-8"))
    kept = [{key: job[key] for key in KEPT if key in job} for job in document["jobs"]]
    path.write_text(json.dumps({"jobs": kept}, indent=1) + "\n", encoding="utf-8")


def _held(text: Path) -> tuple[int, str]:
    """(runs that held GPUs, millionths of a GPU times seconds) by sacct's own columns."""
    header, *rows = (line.split(sacct.DELIMITER) for line in text.read_text(encoding="utf-8").splitlines())
    elapsed, tres = header.index("ElapsedRaw"), header.index("AllocTRES")
    shares = [
        (int(row[elapsed]), 1_000_000 if "gres/gpu=" in row[tres] else 500_000) for row in rows if "gres/" in row[tres]
    ]
    return len(shares), str(sum(seconds * share for seconds, share in shares))
