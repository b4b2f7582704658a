# SPDX-License-Identifier: Apache-2.0
"""Steps inside a job: a smaller request is a smaller limit, and all steps together stay within the job."""

from __future__ import annotations

from harness import jobs
from harness.layout import Layout
from test_requests import total_mib

JOB = ("--ntasks=4", "--gres=vgpu:mem=8G,cores=50")


def run(layout: Layout, script: str, *wanted: str) -> str:
    """Runs a script in a job of 8 GiB and returns what it printed."""
    job = jobs.submit(layout, "games", *JOB, script=script)
    jobs.wait_for_state(layout, job, *(wanted or ("COMPLETED",)))
    return jobs.output(layout, "games", job)


def test_a_step_without_a_request_has_all_that_the_job_has(cluster: Layout) -> None:
    assert total_mib(run(cluster, "slice --use 16; srun -n1 slice --use 16")) == [8192, 8192]


def test_a_step_with_a_smaller_request_has_a_smaller_limit(cluster: Layout) -> None:
    text = run(cluster, "srun -n1 --exact --gres=vgpu:mem=3G,cores=20 slice && slice --use 16")
    assert total_mib(text) == [3072, 8192]
    assert "3072 of 3072 MiB in use" in text


def test_two_steps_at_once_have_limits_of_their_own(cluster: Layout) -> None:
    step = "srun -n1 --exact --gres=vgpu:mem={mib}M,cores=20 --output={name}.out slice --until both"
    script = "rm -f both a.out b.out\n"
    script += step.format(mib=3072, name="a") + " &\n" + step.format(mib=2048, name="b") + " &\n"
    script += "until grep -qs CUDA.says a.out && grep -qs CUDA.says b.out; do sleep 0.1; done; touch both; wait"
    run(cluster, script)
    home = cluster.home / "games"
    for name, mib in (("a", 3072), ("b", 2048)):
        assert f"{mib} of {mib} MiB in use" in (home / f"{name}.out").read_text()


def test_the_tasks_of_a_step_share_its_limit(cluster: Layout) -> None:
    """Two tasks, of which each asks for more than half of the step's memory: one gets it, one does not."""
    job = jobs.submit(
        cluster, "games", *JOB, script="srun -n2 --gres=vgpu:mem=4G,cores=20 slice --use 2200 --hold 3; true"
    )
    jobs.wait_for_state(cluster, job, "COMPLETED")
    text = jobs.output(cluster, "games", job)
    results = [line for line in text.splitlines() if "cuMemAlloc" in line]
    assert total_mib(text) == [4096, 4096]
    assert sorted("OUT_OF_MEMORY" in line for line in results) == [False, True], text


def test_all_processes_of_a_job_share_its_limit(cluster: Layout) -> None:
    text = run(cluster, "slice --use 4400 --hold 3 & sleep 1; slice --use 4400; echo status $?; wait")
    assert "status 3" in text, text


def test_a_step_larger_than_its_job_is_refused(cluster: Layout) -> None:
    text = run(cluster, "srun -n1 --gres=vgpu:mem=9G,cores=20 true; echo status $?")
    assert "hami_hpc: " in text
    assert "status 0" not in text


def test_steps_that_do_not_fit_the_job_together_do_not_run_together(cluster: Layout) -> None:
    script = """\
rm -f go
srun -n1 --exact --gres=vgpu:mem=5G,cores=30 slice --use 1000 --until go &
sleep 2
srun -n1 --exact --immediate=2 --gres=vgpu:mem=5G,cores=30 true; echo "second: status $?"
touch go
wait"""
    text = run(cluster, script)
    assert "second: status" in text
    assert "second: status 0" not in text, text


def test_the_environment_cannot_raise_a_limit(cluster: Layout) -> None:
    script = "export HAMI_HPC_MEM_MIB=90000 HAMI_HPC_CORES=100; srun -n1 slice --use 16"
    job = jobs.submit(
        cluster, "games", *JOB, "--export=ALL,HAMI_HPC_MEM_MIB=90000,HAMI_HPC_LIMITS=/nowhere", script=script
    )
    jobs.wait_for_state(cluster, job, "COMPLETED")
    assert total_mib(jobs.output(cluster, "games", job)) == [8192]
