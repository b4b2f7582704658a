# SPDX-License-Identifier: Apache-2.0
"""Fifty jobs while prologs and epilogs are killed at random: no GPU is granted twice, and nothing is left.

benchmarks/bench_churn.py does the same with 1,000 jobs, 8 GPUs and the other modes.
"""

from __future__ import annotations

import churn
from harness import jobs, node
from harness.layout import Layout

JOBS, SEED, KILL_PERCENT = 50, 5, 8


def test_jobs_whose_prologs_and_epilogs_are_killed_never_get_more_than_the_gpus_have(restored: Layout) -> None:
    jobs.submit(restored, "games", "--wait", "--gres=vgpu:mem=1G,cores=1", script="true")  # so that a ledger is there
    node.wait_until_clean(restored)
    churn.install_stages(restored, KILL_PERCENT)
    requests = list(churn.requests(SEED, JOBS, ("share",) * 5 + ("gpu",), holds_s=(0, 1)))
    with churn.recorded(restored) as path, churn.watched(restored) as findings:
        churn.submit_all(restored, requests)
        jobs.wait(restored, lambda: not jobs.admin(restored, "squeue", "-h"), "all jobs to end", 240)
        jobs.wait(
            restored, lambda: not churn.left_over(restored), "the node to be clean", 120
        )  # a killed stage's leftovers stay for 60 s
        assert churn.over_grants(restored, path) == []
    assert findings.problems == []
    assert findings.looks > 5
    found = churn.runs(restored)
    assert any(run.was_killed for run in found)
    assert {run.status for run in found} <= {0, 137}, "no prolog failed by another's being killed"
