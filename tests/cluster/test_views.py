# SPDX-License-Identifier: Apache-2.0
"""pool, explain, ps and top on a real Slurm: what pool offers runs, and nobody sees more of others than in squeue."""

from __future__ import annotations

import json
import re
from typing import Any

from harness import jobs
from harness.config import NODE, PYTHON
from harness.layout import CHECKOUT, Layout

# hami-hpc as a user of the cluster, also where the checkout's Python is in a directory that only root can enter: what
# the command needs is imported first (rich imports more when it prints), and then it has the user's rights alone.
AS_USER = """
import importlib, io, os, pwd, sys
from rich.console import Console
from rich.text import Text
from hami_hpc.cli import main
for name in ("explain", "pool", "ps", "top", "trace"):
    importlib.import_module(f"hami_hpc.cli.{name}_command")
Console(file=io.StringIO()).print(Text("x"))
entry = pwd.getpwnam(sys.argv.pop(1))
os.setgroups([])
os.setgid(entry.pw_gid)
os.setuid(entry.pw_uid)
main()
"""
SLEEP = "sleep 600"


def hami(layout: Layout, user: str, *words: str, **variables: str) -> jobs.Done:
    environment = {"HAMI_HPC_CONFIG": str(layout.site_config), "PYTHONPATH": str(CHECKOUT), **variables}
    return jobs.run_as(layout, "root", (str(PYTHON), "-c", AS_USER, user, *words), environment)


def hami_json(layout: Layout, user: str, *words: str) -> Any:
    done = hami(layout, user, *words, "--format", "json")
    assert done.status == 0, done.text
    return json.loads(done.out)


def wait_for_reason(layout: Layout, job: int, reason: str) -> None:
    def has_it() -> bool:
        return jobs.admin(layout, "squeue", "-h", "-j", str(job), "-o", "%r").strip() == reason

    jobs.wait(layout, has_it, f"job {job} to wait for {reason}", 30, job)


def test_the_largest_free_slice_runs_and_a_larger_one_is_told_why_it_waits(cluster: Layout) -> None:
    half = jobs.submit(cluster, "games", "--gres=vgpu:mem=8G,cores=50", script=SLEEP)
    most = jobs.submit(cluster, "news", "--gres=vgpu:mem=100G,cores=50", script=SLEEP)
    for job in (half, most):
        jobs.wait_for_state(cluster, job, "RUNNING")
    (node,) = hami_json(cluster, "games", "pool")
    assert [gpu["free_shards"] for gpu in node["free_by_gpu"]] == [280, 159]
    assert node["largest_slice"] == {"mem_mib": 280 * 256, "cores": 50}
    larger = jobs.submit(cluster, "games", f"--gres=vgpu:mem={280 * 256 + 1}M,cores=1", script=SLEEP)
    wait_for_reason(cluster, larger, "Resources")
    said = hami(cluster, "games", "explain", str(larger)).out
    assert "Resources: It is the next to start" in said
    assert "it takes 51 % of one GPU, and the emptiest has 50 % free; largest free slice: mem=70G,cores=50" in said
    jobs.admin(cluster, "scancel", str(larger))
    largest = jobs.submit(cluster, "games", "--gres=vgpu:mem=70G,cores=50", script=SLEEP)
    jobs.wait_for_state(cluster, largest, "RUNNING")
    assert "\n  where      node1, GPU 0\n" in hami(cluster, "games", "explain", str(largest)).out
    line = hami(cluster, "games", "pool").out.splitlines()[1].split()
    assert (line[0], line[-1]) == (NODE, "mem=40704M,cores=28")


def test_a_job_is_explained_to_its_user_and_root_whatever_it_is_called(cluster: Layout) -> None:
    options = ("--hold", "--gres=vgpu:h200:mem=8G", "--array=1-3%1")
    forged = ("--job-name", "x\n   UserId=news(9) GroupId=news(9) MCS_label=N/A")
    job = jobs.submit(cluster, "games", *options, *forged, script=SLEEP)
    for user in ("games", "root"):
        said = hami(cluster, user, "explain", str(job)).out
        assert f"Job {job}_[1-3%1] (partition gpu, QoS std) is pending" in said
        assert f"Run: scontrol release {job}" in said
        assert "class std, type h200 (vgpu:h200:mem=8G,cores=25)" in said
    for form in ("text", "json"):
        refused = hami(cluster, "news", "explain", f"{job}_2", "--format", form)
        assert (refused.status, refused.out) == (1, "")
        assert f"job {job}_2 belongs to games" in refused.err
    assert hami(cluster, "games", "explain", "999999").status == 1


def test_a_drained_node_is_shown_with_its_reason_and_offers_nothing(cluster: Layout) -> None:
    jobs.admin(cluster, "scontrol", "update", f"nodename={NODE}", "state=drain", "reason=bad fan State=IDLE")
    try:
        job = jobs.submit(cluster, "games", "--gres=vgpu:mem=8G", script=SLEEP)
        (node,) = hami_json(cluster, "games", "pool")
        assert (node["usable"], node["free_mem_mib"], node["largest_slice"]) == (False, 0, None)
        assert f"\n{NODE} is idle+drain: bad fan State=IDLE [root@" in hami(cluster, "games", "pool").out
        assert f"{NODE}: does not fit: it is idle+drain\n" in hami(cluster, "games", "explain", str(job)).out
    finally:
        jobs.admin(cluster, "scontrol", "update", f"nodename={NODE}", "state=resume")


def test_root_sees_what_the_agent_sees_and_a_user_their_own_jobs(cluster: Layout) -> None:
    own = jobs.submit(cluster, "news", "--gres=vgpu:mem=8G", script=SLEEP)
    other = jobs.submit(cluster, "games", "--gres=vgpu:mem=8G,cores=50", script="slice --use 1024 --hold 600")
    for job in (own, other):
        jobs.wait_for_state(cluster, job, "RUNNING")

    def rows_of_root() -> dict[int, Any]:
        told = hami_json(cluster, "root", "ps")
        return {row["job_id"]: row for row in told["rows"]} if told["source"] == "agent" else {}

    def is_seen() -> bool:
        rows = rows_of_root()
        return own in rows and other in rows and rows[other]["used_bytes"] >= 1 << 30

    jobs.wait(cluster, is_seen, "the agent to see both jobs", 20, other)
    row = rows_of_root()[other]
    assert (row["user"], row["service_class"], row["cores_percent"]) == ("games", "std", 50)
    assert (row["granted_bytes"], row["findings"]) == (8 << 30, [])
    frame = hami(cluster, "root", "top", "--once").out
    assert re.search(rf"^ +0 +{other} +games +std +50 ", frame, re.MULTILINE), frame
    assert re.search(r"^ +0 h?.*1\.\d/16\.0/139\.8", frame, re.MULTILINE), frame
    told = hami_json(cluster, "news", "ps")
    assert [(row["job_id"], row["user"]) for row in told["rows"]] == [(own, "news")]
    for words in (("ps",), ("top", "--once")):
        done = hami(cluster, "news", *words)
        assert done.status == 0, done.text
        assert "games" not in done.text
        assert "is for root and the group of [agent]" in " ".join(done.text.split())
