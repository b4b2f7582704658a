# SPDX-License-Identifier: Apache-2.0
"""hami-hpc quota on a real Slurm: slices and whole GPUs count together, limits hold, and guarantees are won back."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from harness import cluster as private_cluster
from harness import jobs
from harness.files import write
from harness.layout import CHECKOUT, Layout
from harness.merging import merge

QUOTAS = """\
version = 1
borrowers = ["be"]
[accounts.physics]
fairshare = 20
gpus = 1.5
guaranteed_gpus = 1
[accounts.vision]
fairshare = 10
"""
HALF = "--gres=vgpu:mem=8G,cores=50"
WHOLE = "--gres=gpu:1"


def quota(layout: Layout, *words: str) -> jobs.Done:
    command = (str(CHECKOUT / ".venv/bin/hami-hpc"), "quota", *words)
    return jobs.run_as(layout, "root", command, {"HAMI_HPC_CONFIG": str(layout.site_config)}, timeout_s=120)


@pytest.fixture
def limited(restored: Layout) -> Iterator[Layout]:
    """The private cluster with QUOTAS; afterwards the accounts are as the other tests know them."""
    quotas = restored.site_config.with_name("quotas.toml")
    write(quotas, QUOTAS)
    sacctmgr = ("sacctmgr", "-i", "-Q")
    try:
        applied = quota(restored, "apply")
        assert applied.status == 0, applied.text
        rendered = quota(restored, "render")
        assert rendered.status == 3, rendered.text
        merge(restored, rendered.out)
        assert quota(restored, "render").status == 0
        private_cluster.restart(restored, "slurmctld")
        yield restored
    finally:
        for user in ("games", "news"):
            jobs.admin(restored, "scancel", f"--user={user}")
        quotas.unlink()
        values = ("Fairshare=1", "GrpTRES=billing=-1", "MaxTRESPerJob=billing=-1", "DefaultQOS=std")
        for account in ("physics", "vision"):
            jobs.admin(restored, *sacctmgr, "modify", "account", "where", f"name={account}", "set", *values)
        jobs.admin(restored, *sacctmgr, "delete", "qos", "guarantee-physics")


def submit(layout: Layout, user: str, name: str, request: str) -> int:
    return jobs.submit(layout, user, request, f"--qos={name}", "--time=30", script="sleep 600")


def billing(layout: Layout, job: int) -> int:
    tres = dict(item.split("=") for item in jobs.job_facts(layout, job)["TRES"].split(","))
    return int(tres["billing"])


def wait_for_reason(layout: Layout, job: int, reason: str) -> str:
    """Waits until Slurm names the reason; returns what explain says of it."""
    jobs.wait(layout, lambda: jobs.job_facts(layout, job)["Reason"] == reason, f"job {job} to have {reason}", 30, job)
    return jobs.admin(layout, "hami-hpc", "explain", str(job))


def test_slices_weigh_their_part_limits_hold_for_all_gpus_and_a_guarantee_is_won_back(limited: Layout) -> None:
    whole = submit(limited, "news", "be", WHOLE)
    jobs.wait_for_state(limited, whole, "RUNNING")
    time.sleep(1.1)  # the youngest is preempted, and Slurm knows start times in seconds
    halves = [submit(limited, "news", "be", HALF) for _ in range(2)]
    for job in halves:
        jobs.wait_for_state(limited, job, "RUNNING")
    assert billing(limited, whole) == 1000
    assert {billing(limited, job) for job in halves} == {499}, "279 of 559 shards"

    owner = submit(limited, "games", "guarantee-physics", HALF)
    jobs.wait_for_state(limited, owner, "RUNNING", timeout_s=30)
    assert jobs.state(limited, whole) == "RUNNING"
    restarted = [int(jobs.job_facts(limited, job)["Restarts"]) for job in halves]
    assert sorted(restarted) == [0, 1], "one borrower had to go"

    more = submit(limited, "games", "guarantee-physics", WHOLE)
    said = wait_for_reason(limited, more, "QOSGrpBilling")
    assert "billing units" in said
    assert "1000 are a GPU" in said
    in_use = quota(limited, "show").out
    assert ["physics", "guaranteed_gpus", "1", "1", "0.499"] in [line.split() for line in in_use.splitlines()]

    jobs.admin(limited, "scancel", "--user=news")
    firm = submit(limited, "games", "std", WHOLE)
    jobs.wait_for_state(limited, firm, "RUNNING")
    beyond = submit(limited, "games", "std", HALF)
    assert "account" in wait_for_reason(limited, beyond, "AssocGrpBilling")
    jobs.admin(limited, "scancel", str(owner), str(more))
    jobs.wait_for_state(limited, beyond, "RUNNING")


def test_an_account_without_gpus_gets_no_slice_and_one_jobs_limit_holds_for_slices(limited: Layout) -> None:
    quotas = limited.site_config.with_name("quotas.toml")
    for limit, reason, words in (
        ("gpus = 0", "AssocGrpBilling", "all of its jobs together"),
        ('gpus = "none"\ngpus_per_job = 0.4', "AssocMaxBillingPerJob", "billing units"),
    ):
        write(quotas, QUOTAS + limit + "\n")
        assert quota(limited, "apply").status == 0
        for request in (HALF, "--gres=vgpu:mem=100%,cores=100", WHOLE):
            job = submit(limited, "news", "std", request)
            assert words in wait_for_reason(limited, job, reason)
    small = submit(limited, "news", "std", "--gres=vgpu:mem=8G,cores=40")
    jobs.wait_for_state(limited, small, "RUNNING")
