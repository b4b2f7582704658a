# SPDX-License-Identifier: Apache-2.0
"""Jobs that take turns on GPUs whose memory is oversold, on real Slurm and with a real agent (docs/adr/080)."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator

import pytest
from harness import cluster as private_cluster
from harness import config, daemons, jobs, services
from harness.layout import Layout
from test_resize_live import USER
from test_swap_live import used_mib
from test_views import hami

MIB = 300
MODEL_MIB = 143156
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


def restart(layout: Layout, *, grows: bool) -> None:
    # A node that reports less than slurmctld expects is drained: slurmd is first where its GPUs have more, else last.
    for name in (*layout.slurmds, "slurmctld", "agent") if grows else ("slurmctld", *layout.slurmds, "agent"):
        private_cluster.restart(layout, name)
    jobs.wait(layout, lambda: services.nodes_answer(layout), "the nodes to answer")


@pytest.fixture(scope="module")
def _oversold(_session_cluster: Layout) -> Iterator[Layout]:
    layout = _session_cluster
    before = layout.site_config.read_text()
    text = config.site_toml(layout).replace("[vgpu]\n", "[vgpu]\nmemory_scaling = 3\nturn_s = 2\n", 1)
    text = text.replace("[classes.be]\n", "[classes.be]\nswap = true\n")
    config.write(layout.site_config, text)
    config.render(layout)
    restart(layout, grows=True)
    # One GPU, so that all jobs meet.
    (other,) = [gpu for gpu in gpus(layout) if gpu["minor"] == 1]
    done = hami(layout, "root", "gpu", "drain", str(other["uuid"]), "--node", layout.node, "--reason", "test")
    assert done.status == 0, done.text
    yield layout
    done = hami(layout, "root", "gpu", "resume", str(other["uuid"]), "--node", layout.node)
    assert done.status == 0, done.text
    config.write(layout.site_config, before)
    config.render(layout)
    restart(layout, grows=False)


def gpus(layout: Layout) -> list[dict[str, object]]:
    state = json.loads((layout.run_dir / "agent/state.json").read_text())
    return list(state["gpus"])


@pytest.fixture
def oversold(_oversold: Layout) -> Iterator[Layout]:
    """The cluster with one GPU in service, which is sold three times."""
    home = _oversold.home / USER
    (home / "turn.py").write_text(TURN)
    for path in (home / "go", *home.glob("count.*")):
        path.unlink(missing_ok=True)
    yield _oversold
    jobs.admin(_oversold, "scancel", f"--user={USER}")
    jobs.wait(_oversold, lambda: not of_user(_oversold), "all jobs to be gone", 60)


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


def test_jobs_take_turns_and_each_keeps_its_memory(oversold: Layout) -> None:
    """Three, each with 60 % of the GPU's time, of which one fits."""
    names = ("a", "b", "c")
    ids = [start(oversold, name, BE) for name in names]
    for _ in range(2):
        for name in names:
            goes_on(oversold, name)
    log = (oversold.state_dir / "events.jsonl").read_text()
    for job in ids:
        assert f"job {job} leaves GPU" in log
    waiting = [hami(oversold, "root", "usage", str(job)).out for job in ids]
    assert sum("until it is the job's turn" in text for text in waiting) == 2, waiting
    assert gpus(oversold)[0]["waiting"] == 2
    end(oversold, *ids)
    records = [json.loads((oversold.state_dir / f"usage/{job}.json").read_text()) for job in ids]
    assert {record["usage"] for record in records} == {"ok"}
    jobs.wait(oversold, lambda: used_mib(oversold) == 0, "the GPU to be empty")


def test_a_job_that_is_never_moved_takes_the_place_of_one_that_is(oversold: Layout) -> None:
    """By memory: 100 GiB of each. It begins within seconds, keeps the GPU, and the other loses nothing."""
    low = start(oversold, "low", BE, mem="100G", cores=1)
    goes_on(oversold, "low")
    urgent = start(oversold, "urgent", "--qos=lc", mem="100G", cores=1)
    goes_on(oversold, "urgent")
    before = count(oversold, "low")
    time.sleep(6)
    assert count(oversold, "low") == before
    goes_on(oversold, "urgent")
    assert "until it is the job's turn" in hami(oversold, "root", "usage", str(low)).out
    jobs.admin(oversold, "scancel", str(urgent))
    goes_on(oversold, "low")
    end(oversold, low)


def test_while_no_agent_runs_everybody_stays(oversold: Layout) -> None:
    """Killed at any moment of the turns; a new one goes on with what the records say."""
    ids = [start(oversold, name, BE) for name in ("a", "b")]
    goes_on(oversold, "a")
    goes_on(oversold, "b")
    for _ in range(3):
        pid = daemons.running_pid(oversold, "agent")
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        time.sleep(1)
        before = [count(oversold, name) for name in ("a", "b")]
        time.sleep(4)
        after = [count(oversold, name) for name in ("a", "b")]
        assert sum(new > old for new, old in zip(after, before, strict=True)) <= 1, "never both"
        private_cluster.restart(oversold, "agent")
        goes_on(oversold, "a")
        goes_on(oversold, "b")
    end(oversold, *ids)
