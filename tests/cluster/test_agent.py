# SPDX-License-Identifier: Apache-2.0
"""The agent on real Slurm: who evades the interposer is found and acted on, and nobody else (docs/agent.md)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import cluster as private_cluster
from harness import daemons, jobs, node
from harness.agent import events_since, log_size
from harness.config import NODE, PYTHON, driver_environment, write
from harness.layout import CHECKOUT, Layout

from hami_hpc.core.agent_state import AgentState
from hami_hpc.node import agent_file, boot

USER, NEIGHBOUR = "games", "news"
SMALL = ("--gres=vgpu:mem=2G,cores=10",)
# Starts a program by a loader of the user's own, which reads no /etc/ld.so.preload.
OWN_LOADER = (
    "LC_ALL=C sed s#/etc/ld.so.preload#/etc/ld.so.preloax# /lib64/ld-linux-x86-64.so.2 >ld; chmod +x ld; "
    'evade() { env -u LD_PRELOAD ./ld $(command -v slice) "$@"; }; '
)


def set_actions(layout: Layout, **actions: str) -> None:
    """Starts the agent again with these actions."""
    table = "".join(f'{kind} = "{action}"\n' for kind, action in actions.items())
    write(layout.site_config, layout.site_config.read_text() + f"[agent.actions]\n{table}")
    private_cluster.restart(layout, "agent")


def state_of(layout: Layout) -> AgentState:
    state = agent_file.read(str(layout.run_dir), boot.boot_id())
    assert state is not None
    return state


def copy_of(layout: Layout, program: Path) -> Path:
    """Copies a program, with the library beside it, to where users reach it."""
    target = layout.home / USER / "evaders"
    target.mkdir(exist_ok=True)
    for path in (program, program.with_name("libpreloaded_first.so")):
        if path.exists():
            shutil.copy(path, target)
    return target / program.name


@pytest.fixture
def neighbour(restored: Layout) -> Iterator[None]:
    """A job on the same GPU, which nothing may happen to."""
    job = jobs.submit(restored, NEIGHBOUR, *SMALL, script="slice --use 1000 --until done; echo status $?")
    jobs.wait(restored, lambda: "ok" in jobs.output(restored, NEIGHBOUR, job), "the neighbour's memory")
    yield
    done = restored.home / NEIGHBOUR / "done"
    done.touch()
    jobs.wait_for_state(restored, job, "COMPLETED")
    assert jobs.output(restored, NEIGHBOUR, job).splitlines()[-1] == "status 0"
    done.unlink()


@pytest.mark.findings("no_interposer", "uncounted", "memory_over")
@pytest.mark.usefixtures("neighbour")
def test_a_program_without_the_interposer_is_killed(restored: Layout) -> None:
    set_actions(restored, no_interposer="kill")
    job = jobs.submit(restored, USER, *SMALL, script=f"{OWN_LOADER} evade --use 9000 --hold 60; echo status $?")
    jobs.wait_for_state(restored, job, "COMPLETED")
    text = jobs.output(restored, USER, job)
    assert "status 137" in text, text
    assert f"of job {job} runs without the interposer, so nothing limits it. These processes are killed" in text, text


@pytest.mark.findings("no_interposer", "uncounted", "memory_over")
@pytest.mark.usefixtures("neighbour")
def test_a_job_above_its_memory_is_ended_with_a_comment(restored: Layout) -> None:
    set_actions(restored, memory_over="fail")
    job = jobs.submit(restored, USER, *SMALL, script=f"{OWN_LOADER} evade --use 9000 --hold 60; sleep 60")
    jobs.wait_for_state(restored, job, "CANCELLED")
    text = jobs.admin(restored, "scontrol", "show", "job", str(job))
    assert f"AdminComment=hami_hpc: job {job} holds 9" in text, text
    assert "granted are 2048 MiB" in text


STRICT = dict.fromkeys(("memory_over", "uncounted", "no_interposer"), "kill")
# Each holds memory that the interposer does not count (tests/native/evaders). The first takes less than its grant.
EVADERS = {"raw": 200} | dict.fromkeys(("static", "own_loader", "preloaded_first", "dlmopen", "edited_counters"), 3000)


@pytest.mark.findings("no_interposer", "uncounted", "memory_over", "time_over")
@pytest.mark.usefixtures("neighbour")
def test_every_evasion_is_found_and_its_processes_are_killed(restored: Layout) -> None:
    set_actions(restored, **STRICT)
    found = {}
    for name, mib in EVADERS.items():
        start = log_size(restored)
        program = CHECKOUT / "build/native/evaders" / name
        job = jobs.submit(restored, USER, *SMALL, script=f"{copy_of(restored, program)} {mib} 60; echo status $?")
        jobs.wait_for_state(restored, job, "COMPLETED")
        # Who goes past the interposer goes past its share of the time, too; whether that is seen depends on the moment.
        found[name] = {event.kind for event in events_since(restored, start)} - {"time_over"}
        assert not jobs.output(restored, USER, job).endswith("status 0\n"), jobs.output(restored, USER, job)
    assert found["raw"] == {"uncounted"}
    assert "no_interposer" in found["static"] & found["own_loader"]
    assert all(found.values()), found


@pytest.mark.findings("uncounted", "memory_over")
def test_edited_charges_are_found_and_by_default_the_job_is_warned(cluster: Layout) -> None:
    script = (
        "usage=${HAMI_HPC_LIMITS%/*}/shared/usage; cp $usage fresh; slice --use 1000 --until end >first & "
        "until grep -qs ok first; do sleep 0.1; done; cat fresh 1<>$usage; slice --use 1200 --until end >second & "
        "until grep -qs granted slurm-$SLURM_JOB_ID.out; do sleep 0.2; done; touch end; wait; rm end first second fresh"
    )
    job = jobs.submit(cluster, USER, *SMALL, script=script)
    jobs.wait_for_state(cluster, job, "COMPLETED")
    assert "granted are 2048 MiB. This is recorded" in jobs.output(cluster, USER, job)


@pytest.mark.findings("wrong_gpu", "no_job", "no_grant")
def test_a_process_on_another_gpu_of_no_job_and_of_a_job_without_gpu(restored: Layout) -> None:
    set_actions(restored, no_job="kill")
    start = log_size(restored)
    hold = (
        "env -u LD_PRELOAD CUDA_VISIBLE_DEVICES=1 slice --use 1000 --until end & until [ -e end ]; do sleep 0.2; done"
    )
    loader = OWN_LOADER.replace("env -u LD_PRELOAD", "env -u LD_PRELOAD CUDA_VISIBLE_DEVICES=1")
    with_slice = jobs.submit(restored, USER, *SMALL, script=f"{loader} evade --use 1000 --until end")
    without = jobs.submit(restored, USER, script=hold)
    outside = jobs.run_as(restored, NEIGHBOUR, ("slice", "--use", "500", "--hold", "60"))
    assert outside.status == -signal.SIGKILL
    jobs.wait(restored, lambda: len({e.kind for e in events_since(restored, start)}) >= 3, "three findings")
    by_kind = {event.kind: event for event in events_since(restored, start)}
    assert by_kind["wrong_gpu"].job_id == with_slice
    assert by_kind["no_grant"].job_id == without
    assert by_kind["no_job"].job_id == 0
    (restored.home / USER / "end").touch()
    jobs.wait_for_state(restored, with_slice, "COMPLETED")
    jobs.wait_for_state(restored, without, "COMPLETED")
    (restored.home / USER / "end").unlink()


@pytest.mark.findings("no_interposer", "uncounted", "memory_over")
def test_one_task_of_an_array_is_ended_and_the_others_go_on(restored: Layout) -> None:
    """The last task's job id is that of the array, with which scancel ends all of them."""
    set_actions(restored, memory_over="fail")
    evade = f"{OWN_LOADER} evade --use 9000 --hold 60; sleep 60"
    script = f"if [ $SLURM_ARRAY_TASK_ID = 2 ]; then {evade}; else slice --use 100 --until end; fi"
    array = jobs.submit(restored, USER, *SMALL, "--array=1-2", script=script)
    jobs.wait_for_state(restored, f"{array}_2", "CANCELLED")
    (restored.home / USER / "end").touch()
    jobs.wait_for_state(restored, f"{array}_1", "COMPLETED")
    (restored.home / USER / "end").unlink()


def test_whole_gpus_and_whole_nodes_are_left_alone(cluster: Layout) -> None:
    script = "env -u LD_PRELOAD slice --use 9000 --hold 5"
    whole = [jobs.submit(cluster, USER, *how, script=script) for how in (("--gres=gpu:1",), ("--exclusive",))]
    for job in whole:
        jobs.wait_for_state(cluster, job, "COMPLETED")


def test_the_agent_may_be_killed_at_any_time_and_goes_on_with_its_sums(restored: Layout) -> None:
    job = jobs.submit(restored, USER, *SMALL, script="slice --use 1500 --until half; slice --use 100 --until end")
    jobs.wait(restored, lambda: any(j.used_bytes > 1500 << 20 for j in state_of(restored).jobs), "the agent's look")
    before = state_of(restored)
    pid = daemons.running_pid(restored, "agent")
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    (restored.home / USER / "half").touch()
    private_cluster.restart(restored, "agent")
    jobs.wait(restored, lambda: state_of(restored).jobs[0].used_bytes < 1500 << 20, "the second program")
    (old,), (new,) = before.jobs, state_of(restored).jobs
    assert new.peak_bytes == old.peak_bytes > new.used_bytes
    assert new.watched_ns > old.watched_ns
    (restored.home / USER / "end").touch()
    jobs.wait_for_state(restored, job, "COMPLETED")
    node.wait_until_clean(restored)
    for name in ("half", "end"):
        (restored.home / USER / name).unlink()


def test_a_second_agent_is_refused_and_once_shows_what_there_is(cluster: Layout) -> None:
    command = [str(PYTHON.with_name("hami-hpc")), "agent", "--node", NODE]
    environment = {**os.environ, **driver_environment(cluster), "HAMI_HPC_CONFIG": str(cluster.site_config)}
    environment["SLURM_CONF"] = str(cluster.slurm_conf)
    second = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (second.returncode, "already running" in second.stderr) == (1, True), second.stderr
    once = subprocess.run([*command, "--once", "--format=json"], env=environment, capture_output=True, text=True)
    assert (once.returncode, json.loads(once.stdout)) == (0, []), once.stderr
