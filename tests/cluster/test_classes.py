# SPDX-License-Identifier: Apache-2.0
"""A class of service is the QoS's, where Slurm checks who may use which QoS; nobody gets one by typing its name."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from harness import cluster as private_cluster
from harness import jobs
from harness.layout import CHECKOUT, Layout
from test_requests import units

from hami_hpc.contract import constants as c

USER = "games"
REQUEST = "--gres=vgpu:mem=1G,cores=5"
LINE = "gets class std and not the class of QoS '{qos}', because Slurm does not check here who may use a QoS"


def submit(layout: Layout, *options: str) -> jobs.Done:
    return jobs.run_as(layout, USER, ("sbatch", "--parsable", REQUEST, *options), stdin="#!/bin/sh\ntrue\n")


@pytest.fixture
def only_std(cluster: Layout) -> Iterator[Layout]:
    """The user may use std and no other QoS."""
    change = ("sacctmgr", "-i", "modify", "user", USER, "set")
    jobs.admin(cluster, *change, "qos=std", "defaultqos=std")
    yield cluster
    private_cluster.up(cluster.root)
    jobs.wait(cluster, lambda: submit(cluster, "--qos=be", "--hold").status == 0, "slurmctld to know the QoS again", 20)
    jobs.admin(cluster, "scancel", f"--user={USER}")


@pytest.mark.parametrize("qos", ["lc", "be", "nosuch"])
def test_slurm_itself_refuses_a_qos_that_the_user_may_not_use(only_std: Layout, qos: str) -> None:
    def is_refused() -> bool:  # slurmctld learns of the change a moment after sacctmgr has made it
        done = submit(only_std, f"--qos={qos}", "--hold")
        return done.status != 0 and "Invalid qos specification" in done.err

    jobs.wait(only_std, is_refused, f"--qos={qos} to be refused", 20)


@pytest.fixture
def unchecked(restored: Layout) -> Iterator[Layout]:
    """A cluster that checks associations, but not who may use a QoS."""
    text = restored.slurm_conf.read_text()
    assert "AccountingStorageEnforce=associations,qos\n" in text
    restored.slurm_conf.write_text(text.replace("associations,qos", "associations,limits"))
    private_cluster.restart(restored, "slurmctld")
    yield restored
    jobs.admin(restored, "scancel", f"--user={USER}")


def test_a_class_that_anybody_could_type_is_std_and_the_user_is_told(unchecked: Layout) -> None:
    for qos in ("lc", "be"):
        done = submit(unchecked, f"--qos={qos}", "--hold")
        assert done.status == 0, done.err
        assert LINE.format(qos=qos) in done.err
        assert "AccountingStorageEnforce=associations,limits" in done.err
        job = done.out.strip()
        assert units(unchecked, job)["vgpu:std"] == 1
        again = jobs.run_as(unchecked, USER, ("scontrol", "update", f"jobid={job}", "gres=vgpu:mem=2G;cores=5"))
        assert again.status == 0, again.text
        assert units(unchecked, job)["vgpu:std"] == 1
    plain = submit(unchecked, "--hold")
    assert plain.status == 0
    assert "hami_hpc" not in plain.err


def test_a_class_that_the_administrator_gives_by_default_stands(unchecked: Layout) -> None:
    change = ("sacctmgr", "-i", "modify", "user", USER, "set")
    jobs.admin(unchecked, *change, "defaultqos=be")
    try:

        def has_class() -> bool:
            job = submit(unchecked, "--hold").out.strip()
            return units(unchecked, job).get("vgpu:be") == 1

        jobs.wait(unchecked, has_class, "slurmctld to know the new default QoS", 20)
    finally:
        jobs.admin(unchecked, *change, "defaultqos=std")


def limits_field(layout: Layout, job: str, name: str) -> int:
    offset, width, _ = c.LIMITS_FIELDS[name]
    return int.from_bytes((layout.run_dir / "jobs" / job / c.FILE_JOB_LIMITS).read_bytes()[offset:][:width], "little")


def start(layout: Layout, qos: str, key: str = "", script: str = "sleep 120") -> str:
    """A job of REQUEST and `key` (",slo=10ms"), once its prolog has written its record."""
    job = str(jobs.submit(layout, USER, f"--qos={qos}", REQUEST + key, script=script))
    record = layout.run_dir / "jobs" / job / c.FILE_JOB_LIMITS
    jobs.wait(layout, record.exists, f"the prolog of job {job}", 60)
    return job


@pytest.fixture
def cancelled(cluster: Layout) -> Iterator[Layout]:
    """The cluster; the test's jobs are cancelled after it."""
    yield cluster
    jobs.admin(cluster, "scancel", f"--user={USER}")


@pytest.mark.parametrize(("key", "policy"), [(",policy=cap", "cap"), (",policy=burst", "burst"), ("", "burst")])
def test_a_job_has_the_policy_that_it_asks_for_where_its_class_allows_it(
    cancelled: Layout, key: str, policy: str
) -> None:
    job = start(cancelled, "be", key)
    assert limits_field(cancelled, job, "policy") == c.POLICIES[policy]
    assert limits_field(cancelled, job, "latency") == 0


@pytest.mark.parametrize("options", [(REQUEST + ",policy=burst",), (REQUEST, "--constraint=vgpu_policy_burst")])
def test_a_policy_of_another_class_is_refused_at_submit(cluster: Layout, options: tuple[str, ...]) -> None:
    done = jobs.run_as(cluster, USER, ("sbatch", *options), stdin="#!/bin/sh\ntrue\n")
    assert done.status != 0
    assert "policy=burst is not allowed in class std, whose policies are: cap" in done.err
    assert "be (QoS be); lc (QoS lc)" in done.err


def test_a_policy_that_came_by_a_constraint_of_alternatives_is_refused_on_the_node(cluster: Layout) -> None:
    command = ("srun", "--time=1", REQUEST, "--constraint=vgpu_policy_burst|vgpu_share", "true")
    done = jobs.run_as(cluster, USER, command)
    assert done.status != 0
    assert "policy=burst is not allowed in class std" in done.err


@pytest.mark.parametrize(("key", "slo_us"), [(",slo=500us", 500), (",slo=60s", 60_000_000), ("", 0)])
def test_an_slo_travels_from_the_request_to_the_record(cancelled: Layout, key: str, slo_us: int) -> None:
    job = start(cancelled, "lc", key)
    assert limits_field(cancelled, job, "slo_us") == slo_us
    assert limits_field(cancelled, job, "latency") == 1


def test_an_slo_is_in_the_environment_of_a_step(cluster: Layout) -> None:
    command = ("srun", "--time=1", "--qos=lc", REQUEST + ",slo=10ms", "printenv", "HAMI_HPC_SLO_US")
    done = jobs.run_as(cluster, USER, command)
    assert (done.status, done.out) == (0, "10000\n"), done.err


def test_an_slo_of_another_class_is_refused_at_submit(cluster: Layout) -> None:
    done = jobs.run_as(cluster, USER, ("sbatch", REQUEST + ",slo=10ms"), stdin="#!/bin/sh\ntrue\n")
    assert done.status != 0
    assert "slo=10ms needs a latency-critical class, and class std is none" in done.err
    assert "--qos=lc --gres=vgpu:mem=8G,cores=50,slo=10ms" in done.err


def test_best_effort_jobs_beside_a_latency_critical_one_take_turns(cancelled: Layout) -> None:
    first, second, critical = (start(cancelled, qos) for qos in ("be", "be", "lc"))
    gpus = {limits_field(cancelled, job, "gpu_minor") for job in (first, second, critical)}
    assert len(gpus) == 1, "small jobs share a GPU"

    def has_turns() -> bool:
        lengths = [limits_field(cancelled, job, "turn_length_permille") for job in (first, second, critical)]
        return lengths == [500, 500, 0]

    jobs.wait(cancelled, has_turns, "the jobs to be told of the latency-critical one", 20)
    assert limits_field(cancelled, first, "latency_others") == 1
    assert limits_field(cancelled, critical, "latency") == 1
    jobs.admin(cancelled, "scancel", critical)
    jobs.wait(cancelled, lambda: limits_field(cancelled, first, "latency_others") == 0, "the jobs to be told", 60)
    assert limits_field(cancelled, second, "turn_length_permille") == 500, "for when sharing serves somebody badly"


def test_latency_critical_jobs_of_one_gpu_are_ordered_by_their_slo(cancelled: Layout) -> None:
    started = [start(cancelled, "lc", key) for key in ("", ",slo=50ms", ",slo=10ms")]

    def above(*wanted: int) -> None:
        def told() -> bool:
            return [limits_field(cancelled, job, "latency_above") for job in started] == list(wanted)

        jobs.wait(cancelled, told, "the jobs to be told of their order", 20)

    assert len({limits_field(cancelled, job, "gpu_minor") for job in started}) == 1, "they share a GPU"
    above(2, 1, 0)
    assert [limits_field(cancelled, job, "latency_others") for job in started] == [2, 2, 2]
    jobs.admin(cancelled, "scancel", started.pop())
    above(1, 0)


def test_of_latency_critical_jobs_who_wants_more_than_its_cores_gives_way_while_it_does(cancelled: Layout) -> None:
    program = cancelled.home / USER / "spin_for"
    shutil.copy(CHECKOUT / "build/native/compute/spin_for", program)
    batch, service = (start(cancelled, qos) for qos in ("be", "lc"))
    greedy = start(cancelled, "lc", script=f"srun {program} 8000 1000; sleep 120")
    assert len({limits_field(cancelled, job, "gpu_minor") for job in (batch, service, greedy)}) == 1, "they share a GPU"

    def told(*latency_others: int) -> bool:
        return [limits_field(cancelled, job, "latency_others") for job in (batch, service, greedy)] == [*latency_others]

    def named() -> list[str]:
        lines = jobs.admin(cancelled, "hami-hpc", "ps").splitlines()
        return [line.split()[1] for line in lines if line.endswith("wants more than its cores")]

    jobs.wait(cancelled, lambda: told(1, 0, 1), "the job that works to give way", 30)
    assert limits_field(cancelled, greedy, "latency_beyond") == 1
    jobs.wait(cancelled, lambda: named() == [greedy], "the agent to name it", 20)
    jobs.wait(cancelled, lambda: told(2, 1, 1), "the job to be latency-critical again when it rests", 30)
    jobs.wait(cancelled, lambda: not named(), "the agent to name it no more", 20)
