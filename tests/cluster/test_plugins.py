# SPDX-License-Identifier: Apache-2.0
"""The C plugins on a running Slurm: what steps hold comes from the credential, and no step starts without its fence."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from harness import daemons, jobs, services
from harness.layout import Layout

USER = "games"
REQUEST = ("--ntasks=2", "--gres=vgpu:mem=8G,cores=50")
OURS = "env | sort | grep -E '^(HAMI_HPC|LD_PRELOAD|CUDA_VISIBLE_DEVICES)'"


def settings(text: str) -> dict[str, str]:
    """NAME=VALUE lines as a dictionary."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def wait_for_output(layout: Layout, job: int, words: str) -> None:
    jobs.wait(layout, lambda: words in jobs.output(layout, USER, job), f"'{words}' from job {job}", 30, job)


def paused_job(layout: Layout, then: str) -> tuple[int, Path]:
    """A running job that goes on with `then` after resume(); the job's id and its directory on the node."""
    script = f"rm -f resume; echo ready; until [ -e resume ]; do sleep 0.1; done\n{then}"
    job = jobs.submit(layout, USER, *REQUEST, script=script)
    wait_for_output(layout, job, "ready")
    return job, layout.run_dir / "jobs" / str(job)


def resume(layout: Layout, job: int) -> str:
    """Lets a paused job go on, waits for its end and returns what it printed."""
    (layout.home / USER / "resume").touch()
    jobs.wait_for_state(layout, job, "COMPLETED")
    return jobs.output(layout, USER, job)


def test_what_a_user_exports_never_replaces_what_slurm_granted(cluster: Layout) -> None:
    lies = {"HAMI_HPC_VGPU": "9", "HAMI_HPC_MEM_MIB": "999999", "HAMI_HPC_CORES": "100", "HAMI_HPC_CLASS": "lc"}
    lies["HAMI_HPC_LIMITS"] = "/tmp/mine"
    exports = " ".join(f"{name}={value}" for name, value in lies.items())
    script = f'{OURS}; echo --; {exports} srun -n1 --exact --gres=vgpu:mem=3G,cores=20 sh -c "{OURS}"'
    done = jobs.run_as(cluster, USER, ("sbatch", "--parsable", *REQUEST), lies, stdin=f"#!/bin/sh\n{script}\n")
    job = int(done.out)
    jobs.wait_for_state(cluster, job, "COMPLETED")
    batch, step = map(settings, jobs.output(cluster, USER, job).split("--\n"))
    assert (batch["HAMI_HPC_MEM_MIB"], batch["HAMI_HPC_CORES"], batch["HAMI_HPC_VGPU"]) == ("8192", "50", "1")
    assert (step["HAMI_HPC_MEM_MIB"], step["HAMI_HPC_CORES"]) == ("3072", "20")
    folder = cluster.run_dir / "jobs" / str(job)
    assert batch["HAMI_HPC_LIMITS"] == str(folder / "step-4294967291.limits")
    assert step["HAMI_HPC_LIMITS"] == str(folder / "step-0.limits")
    assert batch["HAMI_HPC_CLASS"] == step["HAMI_HPC_CLASS"] == "std"


def test_a_users_own_preloads_stay_behind_ours(cluster: Layout) -> None:
    own = "/usr/lib/x86_64-linux-gnu/libm.so.6"
    script = f"LD_PRELOAD={own}:$LD_PRELOAD srun -n1 sh -c 'echo preload $LD_PRELOAD'"
    job = jobs.submit(cluster, USER, *REQUEST, script=script)
    jobs.wait_for_state(cluster, job, "COMPLETED")
    text = jobs.without_simulation(cluster, jobs.output(cluster, USER, job))
    assert text == f"preload {cluster.interposer}:{own}\n"


def test_a_step_that_asked_for_no_gpu_gets_none(cluster: Layout) -> None:
    script = 'srun -n1 --gres=none sh -c \'echo "devices [$CUDA_VISIBLE_DEVICES]"; slice --use 16; echo status $?;'
    script += " unset CUDA_VISIBLE_DEVICES; slice --use 16; echo again $?'"
    job = jobs.submit(cluster, USER, *REQUEST, script=script)
    jobs.wait_for_state(cluster, job, "COMPLETED")
    text = jobs.output(cluster, USER, job)
    assert "devices []" in text
    assert "status 0" not in text
    assert "again 0" not in text, "a program that brings the device back must not get memory on it"


def test_a_steps_record_goes_with_the_step(cluster: Layout) -> None:
    # srun can be back before the last of slurmstepd has run.
    until_one = "for i in $(seq 50); do set -- step-*; [ $# -gt 1 ] || break; sleep 0.1; done; ls step-*"
    script = f'srun -n1 true; srun -n1 true; cd "$(dirname "$HAMI_HPC_LIMITS")"; {until_one}'
    job = jobs.submit(cluster, USER, *REQUEST, script=script)
    jobs.wait_for_state(cluster, job, "COMPLETED")
    assert jobs.output(cluster, USER, job).split() == ["step-4294967291.limits"]


def test_a_job_submitted_from_a_slice_does_not_inherit_its_fence(cluster: Layout) -> None:
    outer = jobs.submit(cluster, USER, *REQUEST, script=f'sbatch --parsable --gres=gpu:1 --wrap "{OURS}"')
    jobs.wait_for_state(cluster, outer, "COMPLETED")
    inner = int(jobs.output(cluster, USER, outer))
    jobs.wait_for_state(cluster, inner, "COMPLETED")
    text = jobs.without_simulation(cluster, jobs.output(cluster, USER, inner))
    assert settings(text).keys() == {"CUDA_VISIBLE_DEVICES"}


def test_a_step_does_not_start_when_its_jobs_record_is_gone(cluster: Layout) -> None:
    job, folder = paused_job(cluster, "srun -n1 echo it ran; echo status $?")
    (folder / "job.limits").rename(folder / "elsewhere")
    text = resume(cluster, job)
    assert f"hami_hpc: job {job} step 0 is not started" in text
    assert "Prolog=" in text
    assert "status 1" in text
    assert "it ran" not in text
    assert f"hami_hpc: job {job} step 0 is not started" in (cluster.log / "slurmd.log").read_text()


@pytest.mark.parametrize("words", ["can be written by others", "does not belong to root", "of another job"])
def test_a_step_does_not_start_under_a_record_that_is_not_roots(cluster: Layout, words: str) -> None:
    job, folder = paused_job(cluster, "srun -n1 echo it ran; echo status $?")
    record = folder / "job.limits"
    if words == "can be written by others":
        record.chmod(0o666)
    elif words == "does not belong to root":
        os.chown(record, 1, 1)
    else:
        data = bytearray(record.read_bytes())
        data[24:28] = (job + 1).to_bytes(4, "little")
        record.write_bytes(data)
    text = resume(cluster, job)
    assert words in text
    assert "status 1" in text
    assert "it ran" not in text


def test_a_job_fails_with_a_message_where_the_interposer_is_missing(restored: Layout) -> None:
    restored.interposer.unlink()
    job = jobs.submit(restored, USER, *REQUEST, script="echo it ran")
    jobs.wait_for_state(restored, job, "FAILED")
    text = jobs.output(restored, USER, job)
    assert str(restored.interposer) in text
    assert "install hami_hpc" in text
    assert "it ran" not in text
    plain = jobs.submit(restored, USER, script="echo plain")
    jobs.wait_for_state(restored, plain, "COMPLETED")


def refusal(layout: Layout, job: int) -> bool:
    """Whether SPANK has refused the job, or the prolog, which puts it back and drains the node."""
    log = (layout.log / "slurmd.log").read_text()
    return f"hami_hpc: job {job} step" in log or f"[job {job}] prolog failed" in log


def test_no_slice_starts_unfenced_on_a_node_that_lacks_the_gres_plugins(restored: Layout) -> None:
    plugins = sorted(restored.plugins.glob("gres_*.so"))
    assert len(plugins) == 4
    for plugin in plugins:
        plugin.unlink()
    daemons.stop(restored, "slurmd")
    daemons.start(restored, services.describe(restored, "slurmd"))
    job = jobs.submit(restored, USER, *REQUEST, script="echo it ran")
    jobs.wait(restored, lambda: refusal(restored, job), "a refusal", 60, job)
    assert "it ran" not in jobs.output(restored, USER, job)


def test_no_slice_starts_unfenced_under_a_controller_that_lacks_the_gres_plugins(restored: Layout) -> None:
    """slurmctld runs on another machine and may have been upgraded alone: same settings, another PluginDir."""
    other = restored.public / "etc-controller"
    shutil.copytree(restored.etc, other)
    for conf in other.glob("*.conf"):
        text = conf.read_text().replace(f":{restored.plugins}", "").replace(str(restored.etc), str(other))
        conf.write_text(text)
    daemon = services.describe(restored, "slurmctld")
    daemons.stop(restored, "slurmctld")
    daemons.start(restored, replace(daemon, command=(*daemon.command, "-f", str(other / "slurm.conf"))))
    try:
        job = jobs.submit(restored, USER, *REQUEST, script="echo it ran")
        jobs.wait(restored, lambda: refusal(restored, job), "a refusal", 60, job)
        assert "it ran" not in jobs.output(restored, USER, job)
    finally:
        jobs.admin(restored, "scancel", f"--user={USER}")
        daemons.stop(restored, "slurmctld")
        shutil.rmtree(other)
