# SPDX-License-Identifier: Apache-2.0
"""Usage records of jobs with whole GPUs, and the time line of a job, on real Slurm beside a real agent."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from harness import cluster as private_cluster
from harness import daemons, jobs, node
from harness.config import GPU_COUNT, PYTHON
from harness.layout import CHECKOUT, Layout

from hami_hpc.core.agent_state import AgentState
from hami_hpc.node import agent_file, boot

USER, OTHER = "games", "news"
MIB = 1 << 20
# Holds 1 GiB on each visible GPU and computes on them in turn, for half of the time, until the file exists.
COMPUTE = """
import ctypes, os, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *arguments):
    result = getattr(cuda, name)(*arguments)
    assert result == 0, (name, result)
call("cuInit", 0)
count = ctypes.c_int()
call("cuDeviceGetCount", ctypes.byref(count))
tools = []
for gpu in range(count.value):
    context, address, module, function = (ctypes.c_void_p() for _ in range(4))
    call("cuCtxCreate_v2", ctypes.byref(context), 0, gpu)
    call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(1 << 30))
    call("cuModuleLoadData", ctypes.byref(module), b"image")
    call("cuModuleGetFunction", ctypes.byref(function), module, b"sim_spin_ns")
    tools.append((context, address, function))
host = ctypes.create_string_buffer(1 << 20)
print("computes", flush=True)
end = time.monotonic() + 100
while not os.path.exists(sys.argv[1]) and time.monotonic() < end:
    for context, address, function in tools:
        call("cuCtxSetCurrent", context)
        ns = ctypes.c_uint64(100_000_000)
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(ns))
        call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, arguments, None)
        call("cuMemcpyHtoD_v2", address, host, ctypes.c_size_t(1 << 20))
        call("cuCtxSynchronize")
    time.sleep(0.1)
"""
# hami-hpc with the rights of a user alone; what it imports is read before (tests/cluster/test_views.py).
AS_USER = """
import importlib, os, pwd, sys
import hami_hpc.cli.usage_command
from hami_hpc.cli import main
entry = pwd.getpwnam(sys.argv.pop(1))
os.setgroups([])
os.setgid(entry.pw_gid)
os.setuid(entry.pw_uid)
main()
"""


def start(layout: Layout, *options: str) -> int:
    """Submits a job that computes until `finish`."""
    program = layout.home / USER / "compute.py"
    program.write_text(COMPUTE)
    (layout.home / USER / "end").unlink(missing_ok=True)
    job = jobs.submit(layout, USER, *options, script="exec /usr/bin/python3 compute.py end")
    jobs.wait(layout, lambda: "computes" in jobs.output(layout, USER, job), "the program", 40, job)
    return job


def finish(layout: Layout, job: int) -> None:
    (layout.home / USER / "end").touch()
    jobs.wait_for_state(layout, job, "COMPLETED")
    (layout.home / USER / "end").unlink()
    node.wait_until_clean(layout)


def state_of(layout: Layout) -> AgentState:
    state = agent_file.read(str(layout.run_dir), boot.boot_id())
    assert state is not None
    return state


def seen(layout: Layout, job: int, seconds: float) -> bool:
    """Whether the agent saw the job compute for so long."""
    state = state_of(layout)
    return any(one.job_id == job and one.busy_ns > seconds * 1e9 for one in (*state.jobs, *state.gpu_jobs))


def records(layout: Layout, job: int) -> list[dict[str, Any]]:
    folder = layout.state_dir / "usage"
    found = [path for path in folder.glob("*.json") if path.name.startswith((f"{job}.", f"{job}-"))]
    return [json.loads(path.read_text()) for path in sorted(found)]


def history(layout: Layout, user: str, job: int, *options: str) -> jobs.Done:
    environment = {"HAMI_HPC_CONFIG": str(layout.site_config), "PYTHONPATH": str(CHECKOUT), "COLUMNS": "80"}
    command = (str(PYTHON), "-c", AS_USER, user, "usage", str(job), "--history", *options)
    return jobs.run_as(layout, "root", command, environment)


def test_a_job_with_a_whole_gpu_has_a_record_that_efficiency_shows(cluster: Layout, tmp_path: Path) -> None:
    job = start(cluster, "--gres=gpu:1")
    jobs.wait(cluster, lambda: seen(cluster, job, 1), "the agent to see it", 40, job)
    finish(cluster, job)
    (record,) = records(cluster, job)
    assert (record["mode"], record["usage"], record["gpu_count"], record["cores"]) == ("gpu", "observed", 1, 100)
    assert record["gpu_uuid"].startswith("GPU-")
    assert record["observed_peak_bytes"] >= 1024 * MIB
    assert record["observed_busy_ns"] >= 10**9
    assert record["observed_pcie_bytes"] >= MIB
    assert record["history"].startswith("0:")
    jobs.wait_until_recorded(cluster, job)
    root = ("--store", str(tmp_path / "store"))
    jobs.admin(cluster, "hami-hpc", "ingest", "--since", "2026-01-01", "--window-days", "366", *root)
    jobs.admin(cluster, "hami-hpc", "collect-usage", "--input", str(cluster.state_dir / "usage"), *root)
    (run,) = json.loads(jobs.admin(cluster, "hami-hpc", "efficiency", str(job), "--format", "json", *root))
    assert (run["measured"], run["damaged"], run["watched_gpus"], run["slices"]) == (True, False, 1, 0)
    assert run["gpu_busy_s"] == record["observed_busy_ns"] / 1e9
    assert "as the agent saw it" in jobs.admin(cluster, "hami-hpc", "efficiency", str(job), *root)


def test_a_job_with_the_whole_node_has_one_record_of_all_its_gpus(restored: Layout) -> None:
    """Although the agent is killed while it runs."""
    job = start(restored, "--exclusive")
    jobs.wait(restored, lambda: seen(restored, job, 1), "the agent to see it", 40, job)
    pid = daemons.running_pid(restored, "agent")
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    private_cluster.restart(restored, "agent")
    jobs.wait(restored, lambda: seen(restored, job, 2), "the new agent to go on", 40, job)
    finish(restored, job)
    (record,) = records(restored, job)
    assert (record["gpu_count"], record["cores"]) == (GPU_COUNT, 100 * GPU_COUNT)
    assert len(set(record["gpu_uuid"].split(","))) == GPU_COUNT
    assert record["observed_peak_bytes"] >= GPU_COUNT * 1024 * MIB
    assert record["observed_busy_ns"] >= 2 * 10**9


def test_a_run_that_is_requeued_has_its_record_before_the_next_begins(cluster: Layout) -> None:
    job = start(cluster, "--gres=gpu:1", "--requeue")
    jobs.wait(cluster, lambda: seen(cluster, job, 1), "the agent to see it", 40, job)
    jobs.admin(cluster, "scontrol", "requeue", str(job))
    jobs.wait(cluster, lambda: len(records(cluster, job)) == 1, "the first run's record", 60, job)
    jobs.admin(cluster, "scancel", str(job))
    node.wait_until_clean(cluster)
    (record,) = records(cluster, job)
    assert record["observed_busy_ns"] >= 10**9


def test_the_history_of_a_slice_is_its_users_while_it_runs_and_in_its_record_then(cluster: Layout) -> None:
    job = start(cluster, "--gres=vgpu:mem=4G,cores=50")
    jobs.wait(cluster, lambda: seen(cluster, job, 1), "the agent to see it", 40, job)

    def told_mib() -> int:
        minutes = json.loads(history(cluster, USER, job, "--json").out)["minutes"]
        return max([one["mem_mib"] for one in minutes], default=0)

    jobs.wait(cluster, lambda: told_mib() >= 1024, "its history", 40, job)  # written now and then
    told = json.loads(history(cluster, USER, job, "--json").out)
    assert (told["mem_mib"], told["end_unix_ns"]) == (4096, 0)
    drawn = history(cluster, USER, job)
    assert drawn.status == 0, drawn.text
    assert "memory, of 4,096 MiB" in drawn.out
    refused = history(cluster, OTHER, job)
    assert (refused.status, refused.out) == (1, "")
    assert f"only the user of job {job}, root and the group of [agent] can read its history" in refused.err
    finish(cluster, job)
    (record,) = records(cluster, job)
    assert record["mode"] == "share"
    ended = json.loads(history(cluster, "root", job, "--json").out)
    assert ended["minutes"][0]["mem_mib"] >= 1024
    assert ended["end_unix_ns"] == record["end_unix_ns"]


@pytest.mark.parametrize("gres", ["none", "gpu:1"])
def test_a_job_that_computes_nothing_is_told_apart_by_its_record(cluster: Layout, gres: str) -> None:
    job = jobs.submit(cluster, USER, f"--gres={gres}", script="sleep 4")
    jobs.wait_for_state(cluster, job, "COMPLETED")
    node.wait_until_clean(cluster)
    found = records(cluster, job)
    assert [(one["observed_busy_ns"], one["observed_peak_bytes"]) for one in found] == [(0, 0)] * (gres == "gpu:1")
