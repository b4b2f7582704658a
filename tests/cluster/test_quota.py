# SPDX-License-Identifier: Apache-2.0
"""hami-hpc quota on a real Slurm: slices and whole GPUs count together, limits hold, and guarantees are won back."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from harness import cluster as private_cluster
from harness import config, jobs
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
GRACE_S = 15
LATE_S = 30  # how long Slurm may take to see that a grace time is over (docs/qos.md)
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
        limits = ("GrpTRES=billing=-1", "GrpTRESMins=billing=-1", "MaxTRESPerJob=billing=-1")
        values = ("Fairshare=1", *limits, "DefaultQOS=std")
        for account in ("physics", "vision"):
            jobs.admin(restored, *sacctmgr, "modify", "account", "where", f"name={account}", "set", *values)
        jobs.admin(restored, *sacctmgr, "delete", "qos", "guarantee-physics")


def submit(layout: Layout, user: str, name: str, request: str, *options: str, script: str = "sleep 600") -> int:
    return jobs.submit(layout, user, request, f"--qos={name}", "--time=30", *options, script=script)


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


def test_where_cpus_weigh_too_a_job_weighs_what_it_has_most_of(limited: Layout) -> None:
    """By PriorityFlags=MAX_TRES, which `quota render` names as long as it is not there."""
    weights, text = "TRESBillingWeights=", limited.slurm_conf.read_text()
    assert weights in text
    text = text.replace(weights, f"{weights}CPU=10,")
    write(limited.slurm_conf, text)
    assert "PriorityFlags=MAX_TRES" in quota(limited, "render").text
    write(limited.slurm_conf, text + "PriorityFlags=MAX_TRES\n")
    private_cluster.restart(limited, "slurmctld")
    rendered = quota(limited, "render")
    assert rendered.status == 0, "the site's own weight stays"
    assert "PriorityFlags" not in rendered.text, rendered.text
    for request, cpus, most in ((HALF, 1, 499), (HALF, 70, 700), (WHOLE, 70, 1000)):
        job = submit(limited, "news", "std", request, f"--cpus-per-task={cpus}")
        jobs.wait_for_state(limited, job, "RUNNING")
        assert billing(limited, job) == most


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


# ---------------------------------------------------------------------------------------------------- grace time


@pytest.fixture
def graceful(limited: Layout) -> Iterator[Layout]:
    """The cluster with QUOTAS, whose borrowers have GRACE_S from when they are chosen until they have to go."""
    modify = ("sacctmgr", "-i", "-Q", "modify", "qos", "be", "set")
    jobs.admin(limited, *modify, f"GraceTime={GRACE_S}")
    try:
        yield limited
    finally:
        jobs.admin(limited, *modify, "GraceTime=0")


def unix_s(layout: Layout, job: int, key: str) -> float | None:
    """Returns a time of a job in s since 1970; None where it has none."""
    text = jobs.job_facts(layout, job).get(key, "")
    return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S")) if text[:1].isdigit() else None


@pytest.mark.parametrize("options", [(), ("--no-requeue",)], ids=["requeued", "ended"])
def test_a_borrower_works_until_its_grace_time_is_over_and_the_guaranteed_job_runs_then(
    graceful: Layout, options: tuple[str, ...]
) -> None:
    layout = graceful
    whole = submit(layout, "news", "be", WHOLE)
    older = submit(layout, "news", "be", HALF)
    for job in (whole, older):
        jobs.wait_for_state(layout, job, "RUNNING")
    time.sleep(1.1)  # the youngest is preempted, and Slurm knows start times in seconds
    # It touches a file of its run as long as it works.
    script = "while touch beat-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}; do sleep 0.2; done"
    borrower = submit(layout, "news", "be", HALF, *options, script=script)
    beat = layout.home / "news" / f"beat-{borrower}-0"
    jobs.wait(layout, beat.exists, "the borrower to work", 30, borrower)

    owner = submit(layout, "games", "guarantee-physics", HALF)

    def is_chosen() -> bool:
        return unix_s(layout, borrower, "PreemptTime") is not None

    jobs.wait(layout, is_chosen, "the borrower to be chosen", 20, owner)
    chosen = unix_s(layout, borrower, "PreemptTime") or 0.0
    assert unix_s(layout, borrower, "EndTime") == chosen + GRACE_S
    while time.time() < chosen + GRACE_S - 1:
        assert [jobs.state(layout, job) for job in (borrower, owner)] == ["RUNNING", "PENDING"]
        time.sleep(0.5)

    jobs.wait_for_state(layout, owner, "RUNNING", timeout_s=LATE_S + 30)
    start = unix_s(layout, owner, "StartTime") or 0.0
    assert chosen + GRACE_S <= start <= chosen + GRACE_S + LATE_S + 10
    assert beat.stat().st_mtime >= chosen + GRACE_S, "it worked until its grace time was over"
    facts = jobs.job_facts(layout, borrower)
    assert (facts["JobState"], facts["Restarts"]) == (("PREEMPTED", "0") if options else ("PENDING", "1"))
    for job in (whole, older):
        assert (jobs.state(layout, job), jobs.job_facts(layout, job)["Restarts"]) == ("RUNNING", "0")


def test_two_borrowers_that_have_to_go_have_one_grace_time(graceful: Layout) -> None:
    """A slice of a GPU's whole time takes the two youngest halves, and no others."""
    layout = graceful
    older = [submit(layout, "news", "be", HALF) for _ in range(2)]
    for job in older:
        jobs.wait_for_state(layout, job, "RUNNING")
    time.sleep(1.1)  # the youngest are preempted, and Slurm knows start times in seconds
    halves = [submit(layout, "news", "be", HALF) for _ in range(2)]
    for job in halves:
        jobs.wait_for_state(layout, job, "RUNNING")
    owner = submit(layout, "games", "guarantee-physics", "--gres=vgpu:mem=8G,cores=100")

    def chosen() -> list[int]:
        return [job for job in (*older, *halves) if unix_s(layout, job, "PreemptTime") is not None]

    jobs.wait(layout, lambda: chosen() == halves, "both to be chosen", 20, owner)
    first = min(unix_s(layout, job, "PreemptTime") or 0.0 for job in halves)
    jobs.wait_for_state(layout, owner, "RUNNING", timeout_s=GRACE_S + LATE_S + 30)
    start = unix_s(layout, owner, "StartTime") or 0.0
    assert first + GRACE_S <= start <= first + GRACE_S + LATE_S + 10
    assert [jobs.job_facts(layout, job)["Restarts"] for job in (*older, *halves)] == ["0", "0", "1", "1"]


def test_beside_a_whole_gpu_in_use_slurm_before_25_05_preempts_in_vain_and_too_few(limited: Layout) -> None:
    """docs/qos.md: the copy of a node in which it tries whom to preempt does not know which GPUs are held whole."""
    is_wrong = config.slurm_release() < (25, 5)
    jobs.admin(
        limited, "sacctmgr", "-i", "-Q", "modify", "account", "where", "name=physics", "set", "GrpTRES=billing=-1"
    )
    firm = [submit(limited, "games", "std", request) for request in (WHOLE, "--gres=vgpu:mem=8G,cores=60")]
    borrower = submit(limited, "news", "be", "--gres=vgpu:mem=8G,cores=20")
    for job in (*firm, borrower):
        jobs.wait_for_state(limited, job, "RUNNING")
    hopeless = submit(limited, "games", "guarantee-physics", "--gres=vgpu:mem=8G,cores=80")
    wait_for_reason(limited, hopeless, "Resources")
    time.sleep(4)
    assert jobs.job_facts(limited, borrower)["Restarts"] == ("1" if is_wrong else "0")
    assert {jobs.state(limited, job) for job in firm} == {"RUNNING"}

    jobs.admin(limited, "scancel", str(hopeless), str(borrower), str(firm[1]))
    halves = [submit(limited, "news", "be", HALF) for _ in range(2)]
    for job in halves:
        jobs.wait_for_state(limited, job, "RUNNING")
    owner = submit(limited, "games", "guarantee-physics", "--gres=vgpu:mem=8G,cores=100")
    if is_wrong:
        wait_for_reason(limited, owner, "Resources")
        time.sleep(4)
    else:
        jobs.wait_for_state(limited, owner, "RUNNING")
    restarts = [jobs.job_facts(limited, job)["Restarts"] for job in halves]
    assert sorted(restarts) == (["0", "1"] if is_wrong else ["1", "1"])


# ---------------------------------------------------------------------------------------------------- GPU-hours


def test_an_account_whose_gpu_hours_are_used_up_waits_until_there_are_more(limited: Layout) -> None:
    quotas = limited.site_config.with_name("quotas.toml")

    def give(amount: str) -> None:
        write(quotas, f"{QUOTAS}gpu_hours = {amount}\n")
        applied = quota(limited, "apply")
        assert applied.status == 0, applied.text

    give("0.001")  # 3.6 s of a GPU
    jobs.admin(limited, "sacctmgr", "-i", "-Q", "modify", "account", "where", "name=vision", "set", "RawUsage=0")
    beside = submit(limited, "news", "std", HALF)
    last = submit(limited, "news", "std", WHOLE, script="sleep 6")
    jobs.wait_for_state(limited, last, "COMPLETED")

    waiting = submit(limited, "news", "std", HALF)
    said = wait_for_reason(limited, waiting, "AssocGrpBillingMinutes")
    assert "Its account or user has a limit of minutes of billing units" in said
    assert "the administrator raises it" in said
    rows = [line.split() for line in quota(limited, "show").out.splitlines()]
    (used,) = [row[4] for row in rows if row[:4] == ["vision", "gpu_hours", "0.001", "0.001"]]
    assert float(used) >= 0.001
    other = submit(limited, "games", "std", HALF)
    jobs.wait_for_state(limited, other, "RUNNING")
    jobs.wait_for_state(limited, beside, "TIMEOUT")  # what runs is ended
    assert jobs.state(limited, waiting) == "PENDING"

    give("1")
    jobs.wait_for_state(limited, waiting, "RUNNING")
    jobs.admin(limited, "scancel", str(waiting))
    give("0.001")
    lifted = submit(limited, "news", "std", HALF)
    wait_for_reason(limited, lifted, "AssocGrpBillingMinutes")
    give('"none"')
    jobs.wait_for_state(limited, lifted, "RUNNING")
