# SPDX-License-Identifier: Apache-2.0
"""GPUs whose memory is oversold, on a real Slurm of their own and with a real agent (docs/adr/080): what the node
offers, what jobs hold of it, and how they take turns.

No other test shares the cluster: what slurmctld keeps of a node that had three times the shards would be in their way.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator

import pytest
from harness import cluster as private_cluster
from harness import config, daemons, jobs, node
from harness.layout import CHECKOUT, ClusterError, Layout
from test_resize_live import USER
from test_swap_live import used_mib
from test_views import hami

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
ROOT = CHECKOUT / f".cluster-test-oversold-{WORKER}"
SLICE_MIB = 128768  # 90 % of an H200 in whole shards; three times its memory holds three of them, and 168 shards more
# Has memory with a content of its own, compares it again and again, and counts. Ends when the file `go` is there.
TURN = """
import ctypes, os, sys, time
name = sys.argv[1]
cu, context, memory, n = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64(), 300 << 20
assert cu.cuInit(0) == 0
print("asks", flush=True)
assert cu.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
assert cu.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(n)) == 0
want = os.urandom(1 << 20) * 300
assert cu.cuMemcpyHtoD_v2(memory, want, ctypes.c_size_t(n)) == 0
print("begins", flush=True)
count, back = 0, ctypes.create_string_buffer(n)
while not os.path.exists("go"):
    assert cu.cuMemcpyDtoH_v2(back, memory, ctypes.c_size_t(n)) == 0
    assert back.raw == want
    count += 1
    with open(f"count.{name}.new", "w") as out:
        out.write(str(count))
    os.rename(f"count.{name}.new", f"count.{name}")
    time.sleep(0.05)
print("same", flush=True)
"""
BE = "--qos=be"


def change_settings(layout: Layout) -> None:
    text = layout.site_config.read_text().replace("[vgpu]\n", "[vgpu]\nmemory_scaling = 3\nturn_s = 2\n", 1)
    config.write(layout.site_config, text.replace("[classes.be]\n", "[classes.be]\nswap = true\n"))
    config.render(layout)
    # slurmd first: a node that reports less than slurmctld expects is drained.
    for name in (*layout.slurmds, "slurmctld", "agent"):
        private_cluster.restart(layout, name)


@pytest.fixture(scope="module")
def oversold() -> Iterator[Layout]:
    """A cluster with three times the memory of its two GPUs."""
    private_cluster.remove(ROOT)
    try:
        layout = private_cluster.up(ROOT)
        change_settings(layout)
        yield layout
    finally:
        if not os.environ.get("HAMI_HPC_KEEP_CLUSTER"):
            private_cluster.remove(ROOT)


@pytest.fixture
def both(oversold: Layout) -> Iterator[Layout]:
    yield oversold
    end_all(oversold)


@pytest.fixture(scope="module")
def _one_gpu(oversold: Layout) -> Iterator[Layout]:
    (other,) = [str(gpu["uuid"]) for gpu in gpus(oversold) if gpu["minor"] == 1]
    done = hami(oversold, "root", "gpu", "drain", other, "--node", oversold.node, "--reason", "test")
    assert done.status == 0, done.text
    yield oversold
    done = hami(oversold, "root", "gpu", "resume", other, "--node", oversold.node)
    assert done.status == 0, done.text


@pytest.fixture
def one_gpu(_one_gpu: Layout) -> Iterator[Layout]:
    """The cluster with one GPU in service, so that all jobs meet."""
    home = _one_gpu.home / USER
    (home / "turn.py").write_text(TURN)
    for path in (home / "go", *home.glob("count.*")):
        path.unlink(missing_ok=True)
    yield _one_gpu
    end_all(_one_gpu)


def end_all(layout: Layout) -> None:
    jobs.admin(layout, "scancel", f"--user={USER}")
    jobs.wait(layout, lambda: not of_user(layout), "all jobs to be gone", 60)
    jobs.wait(layout, lambda: not node.grants(layout), "their grants to be gone", 60)


def gpus(layout: Layout) -> list[dict[str, object]]:
    state = json.loads((layout.run_dir / "agent/state.json").read_text())
    return list(state["gpus"])


def of_user(layout: Layout) -> str:
    return jobs.admin(layout, "squeue", "-h", f"--user={USER}")


def start(layout: Layout, name: str, *options: str, mem: str = "1G", cores: int = 60) -> int:
    request = f"--gres=vgpu:mem={mem},cores={cores}"
    job = jobs.submit(layout, USER, *options, request, script=f"python3 turn.py {name}")
    jobs.wait_for_state(layout, job, "RUNNING")
    return job


def count(layout: Layout, name: str) -> int:
    path = layout.home / USER / f"count.{name}"
    return int(path.read_text()) if path.exists() else 0


def goes_on(layout: Layout, name: str, patience_s: float = 60) -> None:
    before = count(layout, name)
    jobs.wait(layout, lambda: count(layout, name) > before, f"{name} to go on", patience_s)


def end(layout: Layout, *ids: int) -> None:
    (layout.home / USER / "go").touch()
    for job in ids:
        jobs.wait_for_state(layout, job, "COMPLETED", timeout_s=120)
        assert jobs.output(layout, USER, job).split()[-1] == "same"


def submit(layout: Layout, *options: str) -> int:
    return jobs.submit(layout, USER, "--qos=be", *options, script="sleep 300")


def test_each_gpu_takes_three_jobs_with_all_of_it_and_then_small_ones(both: Layout) -> None:
    facts = jobs.admin(both, "scontrol", "show", "node", config.NODE)
    counted = facts.partition("CfgTRES=")[2].split()[0].split(",")
    assert {"gres/shard=3354", "gres/vgpu:be=3354", "gres/vgpu_mem=858936", "gres/vgpu_cores=668"} <= set(counted)
    assert "State=IDLE" in facts, facts
    held = [submit(both, "--gres=vgpu:mem=100%,cores=100") for _ in range(6)]
    for job in held:
        jobs.wait_for_state(both, job, "RUNNING")
    jobs.wait(both, lambda: len(node.grants(both)) == 6, "six grants")
    sums: dict[str, int] = {}
    for grant in node.grants(both):
        sums[grant.gpu_uuid] = sums.get(grant.gpu_uuid, 0) + grant.mem_mib
    assert list(sums.values()) == [3 * SLICE_MIB] * 2
    more = submit(both, "--gres=vgpu:mem=8G,cores=1")
    jobs.wait_for_state(both, more, "RUNNING")
    last = submit(both, "--gres=vgpu:mem=100%")
    tried = ("Resources", "Priority")
    jobs.wait(both, lambda: jobs.job_facts(both, last)["Reason"] in tried, "Slurm to try the job", 30, last)
    pool = jobs.admin(both, "hami-hpc", "pool", config.NODE)
    assert "mem=34G,cores=27" in pool or "mem=42G,cores=33" in pool, pool
    with pytest.raises(ClusterError, match=f"the largest, h200, has {SLICE_MIB}M"):
        submit(both, f"--gres=vgpu:mem={SLICE_MIB + 1}M")


def test_what_is_never_moved_waits_in_the_queue_for_room_and_others_start(both: Layout) -> None:
    """Two latency-critical jobs with all of a GPU each; a third one would wait on the GPU for its whole time limit."""

    def whole(qos: str) -> int:
        return jobs.submit(both, USER, qos, "--gres=vgpu:mem=100%,cores=100", script="sleep 300")

    first, second = whole("--qos=lc"), whole("--qos=lc")
    for job in (first, second):
        jobs.wait_for_state(both, job, "RUNNING")
    movable = whole("--qos=be")
    jobs.wait_for_state(both, movable, "RUNNING")
    third = whole("--qos=lc")
    tried = ("Resources", "Priority")
    jobs.wait(both, lambda: jobs.job_facts(both, third)["Reason"] in tried, "Slurm to try the job", 30, third)
    assert jobs.job_facts(both, third)["JobState"] == "PENDING"
    told = hami(both, "root", "explain", str(third)).out
    assert "never moved" in told, told
    jobs.admin(both, "scancel", str(first))
    jobs.wait_for_state(both, third, "RUNNING")


def test_a_gpu_out_of_service_takes_no_place_of_those_that_are_never_moved(both: Layout) -> None:
    """One of two is out of service: a second job with all of a GPU waits in the queue, and starts when it is back."""
    uuid = str(gpus(both)[1]["uuid"])

    def gpu(word: str, *more: str) -> None:
        done = hami(both, "root", "gpu", word, uuid, "--node", both.node, *more)
        assert done.status == 0, done.text

    gpu("drain", "--reason", "test")
    try:
        first = jobs.submit(both, USER, "--qos=lc", "--gres=vgpu:mem=100%,cores=100", script="sleep 300")
        movable = submit(both, "--gres=vgpu:mem=8G,cores=1")
        for job in (first, movable):
            jobs.wait_for_state(both, job, "RUNNING")
        second = jobs.submit(both, USER, "--qos=lc", "--gres=vgpu:mem=100%,cores=100", script="sleep 300")
        tried = ("Resources", "Priority")
        jobs.wait(both, lambda: jobs.job_facts(both, second)["Reason"] in tried, "Slurm to try the job", 30, second)
        assert jobs.job_facts(both, second)["JobState"] == "PENDING"
    finally:
        gpu("resume")
    jobs.wait_for_state(both, second, "RUNNING")


def test_a_job_with_the_whole_node_has_whole_gpus(both: Layout) -> None:
    job = submit(both, "--exclusive")
    jobs.wait_for_state(both, job, "RUNNING")
    mark = both.run_dir / "jobs" / str(job) / "whole"
    jobs.wait(both, mark.exists, "the mark of a job with whole GPUs", 30, job)
    assert f"job {job} holds the whole node" in mark.read_text()
    assert node.grants(both) == []


def test_jobs_take_turns_and_each_keeps_its_memory(one_gpu: Layout) -> None:
    """Three, each with 60 % of the GPU's time, of which one fits."""
    names = ("a", "b", "c")
    ids = [start(one_gpu, name, BE) for name in names]
    for _ in range(2):
        for name in names:
            goes_on(one_gpu, name)
    log = (one_gpu.state_dir / "events.jsonl").read_text()
    for job in ids:
        assert f"job {job} leaves GPU" in log
    shown = json.loads(jobs.admin(one_gpu, "hami-hpc", "ps", "--format", "json"))
    assert len(shown) >= len(ids), shown
    table = jobs.admin(one_gpu, "hami-hpc", "ps")
    assert "TURN" in table.splitlines()[0], table

    def waiting() -> int:
        texts = [hami(one_gpu, "root", "usage", str(job)).out for job in ids]
        return sum("until it is the job's turn" in text for text in texts)

    jobs.wait(one_gpu, lambda: waiting() == 2, "two to wait, as one leaves before another comes")
    jobs.wait(one_gpu, lambda: gpus(one_gpu)[0]["waiting"] == 2, "the agent to say so")
    end(one_gpu, *ids)
    records = [json.loads((one_gpu.state_dir / f"usage/{job}.json").read_text()) for job in ids]
    assert {record["usage"] for record in records} == {"ok"}
    jobs.wait(one_gpu, lambda: used_mib(one_gpu) == 0, "the GPU to be empty")


def test_a_job_that_is_never_moved_takes_the_place_of_one_that_is(one_gpu: Layout) -> None:
    """By memory: 100 GiB of each. It begins within seconds, keeps the GPU, and the other loses nothing."""
    low = start(one_gpu, "low", BE, mem="100G", cores=1)
    goes_on(one_gpu, "low")
    urgent = start(one_gpu, "urgent", "--qos=lc", mem="100G", cores=1)
    goes_on(one_gpu, "urgent")
    before = count(one_gpu, "low")
    time.sleep(6)
    assert count(one_gpu, "low") == before
    goes_on(one_gpu, "urgent")
    assert "until it is the job's turn" in hami(one_gpu, "root", "usage", str(low)).out
    jobs.admin(one_gpu, "scancel", str(urgent))
    goes_on(one_gpu, "low")
    end(one_gpu, low)


def test_while_no_agent_runs_everybody_stays(one_gpu: Layout) -> None:
    """Killed at any moment of the turns; a new one goes on with what the records say."""
    ids = [start(one_gpu, name, BE) for name in ("a", "b")]
    goes_on(one_gpu, "a")
    goes_on(one_gpu, "b")
    for _ in range(3):
        pid = daemons.running_pid(one_gpu, "agent")
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        time.sleep(1)
        before = [count(one_gpu, name) for name in ("a", "b")]
        time.sleep(4)
        after = [count(one_gpu, name) for name in ("a", "b")]
        assert sum(new > old for new, old in zip(after, before, strict=True)) <= 1, "never both"
        private_cluster.restart(one_gpu, "agent")
        goes_on(one_gpu, "a")
        goes_on(one_gpu, "b")
    end(one_gpu, *ids)
