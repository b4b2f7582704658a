# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc resize` on real Slurm: a running job's own user, root on the node, and those who may not."""

from __future__ import annotations

import json
import os

import pytest
from harness import jobs
from harness.layout import Layout
from test_requests import total_mib
from test_views import hami

USER, OTHER = "games", "news"
JOB = ("--ntasks=4", "--gres=vgpu:mem=8G,cores=50")


def resize(layout: Layout, job: int | str, *words: str, user: str = USER, **environment: str) -> jobs.Done:
    return hami(layout, user, "resize", str(job), *words, **environment)


def running(layout: Layout, script: str, *options: str) -> int:
    """Starts a job that goes on until its user has a file `end`, and returns its id once it runs."""
    (layout.home / USER / "end").unlink(missing_ok=True)
    job = jobs.submit(layout, USER, *(options or JOB), script=f"{script}\nuntil [ -e end ]; do sleep 0.2; done; wait")
    jobs.wait_for_state(layout, job, "RUNNING")
    jobs.wait(layout, lambda: (layout.run_dir / f"jobs/{job}").exists(), "the prolog")
    return job


def end(layout: Layout, job: int) -> str:
    """Lets the job end, and returns what it printed."""
    (layout.home / USER / "end").touch()
    jobs.wait_for_state(layout, job, "COMPLETED")
    (layout.home / USER / "end").unlink()
    return jobs.output(layout, USER, job)


def test_the_jobs_user_gives_it_another_size_while_its_programs_run(cluster: Layout) -> None:
    """Programs that run already have it, and those that begin later; a step with less keeps what it asked for."""
    script = "rm -f go\nslice --use 16 --until go &\nsrun -n1 --exact --gres=vgpu:mem=3G,cores=20 slice --use 16"
    job = running(cluster, script)
    jobs.wait(cluster, lambda: total_mib(jobs.output(cluster, USER, job)) == [8192, 3072], "both programs")
    done = resize(cluster, job, "mem=16G,cores=40")
    assert done.status == 0, done.text
    assert done.out == f"{cluster.node}: job {job} has 16384 MiB and 40 % of GPU 0 (before: 8192 MiB and 50 %)\n"
    assert done.err == ""
    text = jobs.run_as(
        cluster, USER, ("srun", f"--jobid={job}", "--overlap", "-n1", "slice", "--use", "12000"), timeout_s=60
    ).out
    assert total_mib(text) == [16384]
    assert "ok" in text
    (cluster.home / USER / "go").touch()
    small = ("srun", f"--jobid={job}", "--overlap", "-n1", "--gres=vgpu:mem=3G,cores=20", "slice", "--use", "16")
    assert total_mib(jobs.run_as(cluster, USER, small, timeout_s=60).out) == [3072]
    end(cluster, job)
    assert jobs.job_facts(cluster, job)["TRES"].count("gres/vgpu_mem=8192"), "what is held and billed stays"
    record = json.loads((cluster.state_dir / f"usage/{job}.json").read_text())
    assert (record["mem_mib"], record["cores"], record["usage"]) == (16384, 40, "ok")


def test_a_program_sees_the_new_size_without_a_restart(cluster: Layout) -> None:
    script = "slice --use 9000 --hold 1; srun -n1 --overlap --gres=none --vgpu-resize=mem=10G true; slice --use 9000"
    job = running(cluster, script)
    jobs.wait(cluster, lambda: jobs.output(cluster, USER, job).count("cuMemAlloc") == 2, "both programs")
    text = end(cluster, job)
    first, second = (line for line in text.splitlines() if "cuMemAlloc" in line)
    assert "OUT_OF_MEMORY" in first
    assert "ok" in second, text


def test_it_is_made_smaller_only_below_what_it_uses(cluster: Layout) -> None:
    job = running(cluster, "rm -f go\nslice --use 5000 --until go &")
    jobs.wait(cluster, lambda: "ok" in jobs.output(cluster, USER, job), "the allocation")
    done = resize(cluster, job, "mem=4G")
    assert done.status != 0
    assert f"processes of job {job} hold 5" in done.err, done.text
    assert "which is more than mem=4096M. Free it first" in done.err
    assert resize(cluster, job, "mem=6G").status == 0
    (cluster.home / USER / "go").touch()
    end(cluster, job)


def test_shards_bound_it_and_a_dry_run_changes_nothing(cluster: Layout) -> None:
    job = running(cluster, "")
    done = resize(cluster, job, "mem=100G")
    assert done.status != 0
    assert "shards of GPU 0, which are mem=" in done.err, done.text
    assert "Slurm gives a running job no more shards" in done.err
    tried = resize(cluster, job, "mem=16G", "--dry-run")
    assert (tried.status, "could have 16384 MiB" in tried.out) == (0, True), tried.text
    assert resize(cluster, job, "cores=50").out.endswith("(before: 8192 MiB and 50 %)\n")
    end(cluster, job)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("mem=8",), "has no unit"),
        (("mode=mig",), "is not a size: of a running job mem, cores or both can change, as mem=16G,cores=60"),
        (("mem=1G;true",), "is not understood"),
    ],
)
def test_what_is_no_size_is_said_before_slurm_is_asked(cluster: Layout, words: tuple[str, ...], said: str) -> None:
    done = resize(cluster, 1, *words)
    assert done.status != 0
    assert said in done.err, done.text


def test_nobody_else_resizes_a_job(cluster: Layout) -> None:
    job = running(cluster, "")
    for done in (
        resize(cluster, job, "mem=1G", user=OTHER),
        jobs.run_as(
            cluster, OTHER, ("srun", f"--jobid={job}", "--overlap", "--gres=none", "--vgpu-resize=mem=1G", "true")
        ),
    ):
        assert done.status != 0
        assert "before:" not in done.text
    own = jobs.run_as(cluster, OTHER, ("srun", "-n1", "--vgpu-resize=mem=1G", "true"))
    assert "its job has no vGPU on this node that could be resized" in own.err, own.text
    assert resize(cluster, job, "mem=8G").out.endswith("(before: 8192 MiB and 50 %)\n")
    end(cluster, job)


def test_root_resizes_it_on_its_node(cluster: Layout) -> None:
    job = running(cluster, "")
    said = jobs.admin(cluster, "hami-hpc", "resize", str(job), "mem=2G", "--node", cluster.node)
    assert said == f"job {job} has 2048 MiB and 50 % of GPU 0 (before: 8192 MiB and 50 %)\n"
    assert "2048" in jobs.admin(cluster, "hami-hpc", "jobs")
    end(cluster, job)


def test_what_a_job_has_in_its_environment_is_not_for_the_step_that_resizes_it(cluster: Layout) -> None:
    """A job that resizes itself, and one of another size from which it is done: Slurm's variables of a job would be
    options of that step."""
    job = running(cluster, "env | grep -E '^S(LURM|RUN)_' | grep -v ' ' >variables")
    variables = cluster.home / USER / "variables"
    jobs.wait(cluster, lambda: variables.is_file() and "SLURM_NTASKS=4" in variables.read_text(), "the variables")
    of_job = dict(line.split("=", 1) for line in variables.read_text().splitlines())
    done = resize(cluster, job, "mem=10G", **of_job, SLURM_CPUS_PER_TASK="64", SLURM_LABELIO="1")
    assert (done.status, done.err) == (0, ""), done.text
    assert done.out == f"{cluster.node}: job {job} has 10240 MiB and 50 % of GPU 0 (before: 8192 MiB and 50 %)\n"
    end(cluster, job)


def test_a_task_of_an_array_is_resized_by_its_name_by_its_user_and_on_its_node_by_root(cluster: Layout) -> None:
    array = jobs.submit(cluster, USER, "--array=1-2", "--gres=vgpu:mem=2G,cores=10", script="sleep 600")
    task_2 = f"{array}_2"
    jobs.wait(cluster, lambda: "running" in hami(cluster, USER, "trace", task_2).out, "the task")
    assert hami(cluster, USER, "explain", str(array)).out.count("  where      node1, GPU ") == 2
    raw = jobs.admin(cluster, "squeue", "-h", "-j", task_2, "-o", "%A").strip()
    done = resize(cluster, task_2, "mem=1G")
    assert done.out == f"{cluster.node}: job {raw} has 1024 MiB and 10 % of GPU 0 (before: 2048 MiB and 10 %)\n", done
    said = jobs.admin(cluster, "hami-hpc", "resize", task_2, "mem=512M", "--node", cluster.node)
    assert said == f"job {raw} has 512 MiB and 10 % of GPU 0 (before: 1024 MiB and 10 %)\n"
    jobs.admin(cluster, "scancel", str(array))


def test_sbatch_and_salloc_do_not_know_the_option(cluster: Layout) -> None:
    done = jobs.run_as(cluster, USER, ("sbatch", *JOB, "--vgpu-resize=mem=1G"), stdin="#!/bin/sh\n")
    assert done.status != 0
    assert "unrecognized option" in done.err


def test_a_forged_option_of_a_batch_step_and_wild_texts_do_nothing(cluster: Layout) -> None:
    """Slurm hands options on by variables, which a user can set."""
    name = "_SLURM_SPANK_OPTION_hami_hpc_vgpu_resize"
    job = jobs.submit(
        cluster, USER, *JOB, f"--export=ALL,{name}=mem=1G", script=f"env | grep -c {name}; slice --use 16"
    )
    jobs.wait_for_state(cluster, job, "COMPLETED")
    assert total_mib(jobs.output(cluster, USER, job)) == [8192]
    job = running(cluster, "")
    for text in ("mem=1G;touch /tmp/owned", "mem=$(id)G", "--config=/tmp/x", "mem=1G\n--uid", "dry-run,", "," * 100):
        done = jobs.run_as(
            cluster, USER, ("srun", f"--jobid={job}", "--overlap", "--gres=none", f"--vgpu-resize={text}", "true")
        )
        assert done.status != 0, text
        assert "before:" not in done.text
    assert not os.path.lexists("/tmp/owned")
    assert resize(cluster, job, "mem=8G").out.endswith("(before: 8192 MiB and 50 %)\n")
    end(cluster, job)


def test_many_at_once_leave_one_of_the_sizes(cluster: Layout) -> None:
    job = running(cluster, "")
    sizes = [f"mem={mib}M" for mib in (1024, 2048, 3072, 4096)]
    script = " & ".join(f"srun -n1 --overlap --gres=none --vgpu-resize={size} true" for size in sizes)
    done = jobs.run_as(cluster, USER, ("sh", "-c", f"export SLURM_JOB_ID={job} SLURM_JOBID={job}; {script} & wait"))
    assert done.out.count(f"job {job} has ") == len(sizes), done.text
    limits = jobs.admin(cluster, "hami-hpc", "jobs", "--format", "json")
    assert json.loads(limits)[0]["mem_mib"] in (1024, 2048, 3072, 4096)
    end(cluster, job)


def test_of_a_running_step_slurm_changes_the_time_limit_and_nothing_of_its_slice(cluster: Layout) -> None:
    job = running(cluster, "srun -n1 --exact --gres=vgpu:mem=3G,cores=20 --time=30 sleep 100 &\nslice --use 16")
    jobs.wait(cluster, lambda: total_mib(jobs.output(cluster, USER, job)) == [8192], "the program")
    limits = cluster.run_dir / f"jobs/{job}/step-0.limits"
    jobs.wait(cluster, limits.exists, "the step's slice")
    before = limits.read_bytes()
    for change, said in (("timelimit=10", ""), ("gres=vgpu:mem=1G", "Update of this parameter is not supported")):
        done = jobs.run_as(cluster, USER, ("scontrol", "update", f"stepid={job}.0", change))
        assert (said in done.text, bool(done.text)) == (True, bool(said)), done.text
    assert "TimeLimit=00:10:00" in jobs.admin(cluster, "scontrol", "show", "step", f"{job}.0")
    assert limits.read_bytes() == before
    jobs.admin(cluster, "scancel", f"{job}.0")
    end(cluster, job)
