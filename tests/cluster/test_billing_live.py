# SPDX-License-Identifier: Apache-2.0
"""Jobs that really ran, in the forms that Slurm's records take, from sbatch to the bill and the efficiency."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness import jobs
from harness.layout import Layout

HALF, TENTH = "--gres=vgpu:mem=8G,cores=50", "--gres=vgpu:mem=1G,cores=10"
PPM = {HALF: 500_000, TENTH: 100_000}


def _hami(layout: Layout, *words: str) -> str:
    return jobs.admin(layout, "hami-hpc", *words)


def _sacct(layout: Layout, numbers: list[int]) -> list[list[str]]:
    """(JobIDRaw, State, ElapsedRaw, Suspended, AllocTRES) of every run of the jobs and of their array tasks,
    as sacct says."""
    listed = jobs.admin(
        layout, "sacct", "-n", "-P", "-X", "-D", "-j", ",".join(map(str, numbers)),
        "-o", "JobIDRaw,State,ElapsedRaw,Suspended,AllocTRES",
    )  # fmt: skip
    return [line.split("|") for line in listed.splitlines()]


def _held(layout: Layout, account: str, numbers: set[str]) -> int:
    """What the bill of the account says that jobs have held, in millionths of a GPU times seconds."""
    words = ("--start", "2026-01-01", "--live", "--account", account, "--by", "job", "--format", "json")
    bill: Any = json.loads(_hami(layout, "bill", *words))
    return sum(int(line["gpu_microseconds_held"]) for line in bill["lines"] if line["job"].split("_")[0] in numbers)


def test_jobs_that_ran_in_every_form_are_billed_for_the_time_that_sacct_shows(cluster: Layout) -> None:
    done = jobs.submit(cluster, "news", HALF, script="sleep 2")
    failed = jobs.submit(cluster, "news", TENTH, script="sleep 1; exit 3")
    array = jobs.submit(cluster, "news", TENTH, "--array=1-2", script="sleep 1")
    cancelled = jobs.submit(cluster, "news", TENTH, script="sleep 60")
    requeued = jobs.submit(cluster, "news", TENTH, "--requeue", script="sleep 60")
    suspended = jobs.submit(cluster, "news", TENTH, script="sleep 6")
    for job in (cancelled, requeued, suspended):
        jobs.wait_for_state(cluster, job, "RUNNING")
    jobs.admin(cluster, "scontrol", "suspend", str(suspended))
    jobs.wait(cluster, lambda: _elapsed(cluster, cancelled) >= 3, "the jobs to have run for 3 s", 30)
    jobs.admin(cluster, "scontrol", "resume", str(suspended))
    jobs.admin(cluster, "scontrol", "requeue", str(requeued))
    jobs.admin(cluster, "scancel", str(cancelled))
    for job, state in ((done, "COMPLETED"), (failed, "FAILED"), (cancelled, "CANCELLED"), (suspended, "COMPLETED")):
        jobs.wait_for_state(cluster, job, state)
    jobs.wait(
        cluster, lambda: jobs.state(cluster, requeued) == "PENDING", "the requeued job to be pending", 60, requeued
    )
    jobs.admin(cluster, "scancel", str(requeued))
    everything = [done, failed, array, cancelled, requeued, suspended]
    jobs.wait_until_recorded(cluster, *everything)

    rows = [row for row in _sacct(cluster, everything) if row[4]]
    states = {row[1].split(" ")[0] for row in rows}
    assert {"COMPLETED", "FAILED", "CANCELLED", "REQUEUED"} <= states
    assert sum(row[0] == str(requeued) for row in rows) >= 1
    assert len(rows) == 7
    assert any(row[3] != "00:00:00" for row in rows)
    expected = sum(int(row[2]) * (PPM[HALF] if row[0] == str(done) else PPM[TENTH]) for row in rows)
    assert expected >= 3 * PPM[TENTH] * 3
    assert _held(cluster, "vision", {row[0] for row in rows}) == expected


def test_what_a_job_used_goes_from_its_epilog_to_its_efficiency(cluster: Layout, tmp_path: Path) -> None:
    release = cluster.home / "games" / "release"
    release.unlink(missing_ok=True)
    job = jobs.submit(cluster, "games", HALF, script="slice --until release")
    jobs.wait(cluster, lambda: "CUDA says" in jobs.output(cluster, "games", job), "the slice to be filled", 30, job)
    now = json.loads(_hami(cluster, "usage", str(job), "--format", "json"))
    assert (now["usage"]["used_bytes"], now["grant"]["mem_mib"], now["usage"]["oom_count"]) == (8192 << 20, 8192, 1)
    release.touch()
    jobs.wait_for_state(cluster, job, "COMPLETED", "FAILED")
    jobs.wait_until_recorded(cluster, job)
    spool = cluster.state_dir / "usage"
    jobs.wait(cluster, lambda: (spool / f"{job}.json").exists(), "the epilog to have spooled its usage", 60, job)
    assert json.loads((spool / f"{job}.json").read_text(encoding="utf-8"))["cluster"] == "demo"
    root = ("--store", str(tmp_path / "store"))
    _hami(cluster, "ingest", "--since", "2026-01-01", "--window-days", "366", *root)
    _hami(cluster, "collect-usage", "--input", str(spool), *root)
    (run,) = json.loads(_hami(cluster, "efficiency", str(job), "--format", "json", *root))
    release.unlink()
    # The program fills its slice to the last byte and is then refused more.
    assert (run["measured"], run["damaged"], run["mem_mib"], run["peak_bytes"]) == (True, False, 8192, 8192 << 20)
    assert run["oom_count"] >= 1
    assert "mem=8G" in (run["suggestion"] or "mem=8G")


def _elapsed(layout: Layout, job: int) -> int:
    return int(jobs.job_facts(layout, job)["RunTime"].rpartition(":")[2])
