# SPDX-License-Identifier: Apache-2.0
"""Jobs over two nodes, each with a slurmd, GPUs, settings, run directory, spool and agent of its own."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import signal
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import many_nodes
import pytest
from harness import accounts, agent, config, daemons, jobs, node, nodes_story, services
from harness import cluster as private_cluster
from harness.config import GPU_MODEL
from harness.layout import CHECKOUT, Layout, Machine
from test_views import hami

from hami_hpc.contract import constants as c
from hami_hpc.core import in_step
from hami_hpc.core.grant import Grant
from hami_hpc.node import job_dirs

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
ROOT = CHECKOUT / f".cluster-test-nodes-{WORKER}"
MACHINES = (Machine(GPU_MODEL, 2), Machine(GPU_MODEL, 2))
USER = "games"
MANY = 30
PAIR = "--gres=vgpu:2:mem=8G,cores=50"
WHOLE_PAIR = "--gres=vgpu:2:mem=100%,cores=100"
HELD_ON_A_NODE = 2 * 500_000  # in millionths of a GPU
GPUS_HELD = 2 * HELD_ON_A_NODE
MIB = 1 << 20


@pytest.fixture(scope="module")
def _nodes() -> Iterator[Layout]:
    private_cluster.remove(ROOT)
    try:
        yield private_cluster.up(ROOT, MACHINES)
    finally:
        if not os.environ.get("HAMI_HPC_KEEP_CLUSTER"):
            private_cluster.remove(ROOT)


@pytest.fixture
def nodes(_nodes: Layout) -> Iterator[Layout]:
    """A cluster of two nodes with two GPUs each. After the test both are clean and in service, and no agent found
    anything."""
    starts = {name: agent.log_size(_nodes, name) for name in services.agents(_nodes)}
    yield _nodes
    for user in ("root", *accounts.USERS):
        jobs.admin(_nodes, "scancel", f"--user={user}")
    jobs.wait(_nodes, lambda: not jobs.admin(_nodes, "squeue", "-h"), "all jobs to be gone", 60)
    for each in each_node(_nodes):
        node.wait_until_clean(each)
        assert not node.drain_reason(each), jobs.evidence(each)
    for name, start in starts.items():
        assert agent.events_since(_nodes, start, name) == []


def each_node(layout: Layout) -> list[Layout]:
    return [layout.at(name) for name in layout.gpu_nodes]


def directory(layout: Layout, job: int) -> Path:
    return layout.run_dir / "jobs" / str(job)


def started(layout: Layout, *options: str, script: str) -> int:
    """A job on both nodes; its prologs have ended."""
    job = jobs.submit(layout, USER, "-N2", PAIR, *options, script=script)
    jobs.wait_for_state(layout, job, "RUNNING")
    for each in each_node(layout):
        path = directory(each, job)
        jobs.wait(layout, path.exists, f"the job's directory on {each.node}", 30, job)
    return job


def held(layout: Layout, job: int) -> tuple[Grant, ...]:
    """The job's slices by its records on this node."""
    return job_dirs.read_grants(str(directory(layout, job)), owner=0)


def step_begin(layout: Layout, job: int, slice_index: int) -> int:
    offset, size, _ = c.LIMITS_FIELDS["step_begin_permille"]
    name = "job.limits" if slice_index == 0 else f"job.{slice_index}.limits"
    return int.from_bytes((directory(layout, job) / name).read_bytes()[offset : offset + size], "little")


def records(layout: Layout, job: int) -> list[dict[str, object]]:
    """The usage records of a job that has ended, of each node."""
    paths = [each.state_dir / "usage" / f"{job}.json" for each in each_node(layout)]
    jobs.wait(layout, lambda: all(path.exists() for path in paths), "both nodes' usage records", 30, job)
    return [json.loads(path.read_text()) for path in paths]


def check_bill(layout: Layout, job: int) -> int:
    """Checks that the bill has the job's time once, for its slices of both nodes. Returns how long it ran."""
    jobs.wait_until_recorded(layout, job)
    jobs.pass_a_second()  # a bill has nothing of the second in which it is made
    (text,) = jobs.admin(layout, "sacct", "-n", "-P", "-X", "-D", "-j", str(job), "-o", "ElapsedRaw").split()
    assert billed(layout, job) == (int(text) * GPUS_HELD, [])
    return int(text)


def billed(layout: Layout, job: int) -> tuple[int, list[str]]:
    """What the bill has of a job, in millionths of a GPU times seconds, and its notes of records that are wrong."""
    words = ("--start", "2026-01-01", "--live", "--by", "job", "--format", "json")
    bill = json.loads(jobs.admin(layout, "hami-hpc", "bill", *words))
    (line,) = (line for line in bill["lines"] if line["job"] == str(job))
    return int(line["gpu_microseconds_held"]), bill["gaps"]


def check_bill_of_fewer_nodes(layout: Layout, job: int) -> None:
    """Checks the bill of a job that went on with one of its two nodes: slurmdbd has two records of it."""
    jobs.wait_until_recorded(layout, job)
    fields = ("-n", "-P", "-X", "-D", "-j", str(job), "-o", "state,start,submit,end,nnodes")
    rows = [row.split("|") for row in jobs.admin(layout, "sacct", *fields).splitlines()]
    assert [(row[0], row[4]) for row in rows] == [("RESIZING", "2"), ("COMPLETED", "1")]
    (start, _, resized), (_, again, end) = ([datetime.fromisoformat(text) for text in row[1:4]] for row in rows)
    assert again == resized, "one began when the other ended, whatever the start that sacct shows"
    seconds = int((resized - start).total_seconds()), int((end - resized).total_seconds())
    assert billed(layout, job) == (seconds[0] * GPUS_HELD + seconds[1] * HELD_ON_A_NODE, [])


def kill_node(layout: Layout, daemon: str) -> None:
    """Ends slurmd, its steps and their processes at once, as when a node loses its power."""
    name = layout.slurmds[daemon]
    steps = steps_of(layout.at(name))
    daemons.stop(layout, daemon, signal.SIGKILL)
    for pid in [*steps, *(child for step in steps for child in descendants(step))]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def steps_of(layout: Layout) -> list[int]:
    """The slurmstepds of this node: they have its slurm.conf."""
    mine = f"SLURM_CONF={layout.slurm_conf}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if (path / "cmdline").read_bytes().startswith(b"slurmstepd: ["):
                found += [int(path.name)] if mine in (path / "environ").read_bytes().split(b"\0") else []
        except OSError:
            continue  # it has ended
    return found


def descendants(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [number for child in map(int, text) for number in (child, *descendants(child))]


def test_the_demo_on_several_nodes_is_told_to_the_bill(nodes: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    nodes_story.tell(nodes)
    told = capsys.readouterr().out
    for shown in ("gres/vgpu_mem=32768", "1: NVIDIA H200: 8192 MiB in total", "node2# hami-hpc jobs", "works in step"):
        assert shown in told


def test_a_job_on_two_nodes_works_in_step_and_is_billed_once_for_both(nodes: Layout, tmp_path: Path) -> None:
    release = release_file(nodes)
    job = started(nodes, "--ntasks-per-node=1", script=f"srun slice --until {release}")
    for each in each_node(nodes):
        slices = held(each, job)
        gpus = [gpu.uuid for gpu in node.gpus(each)]
        assert [(one.slice_index, one.slice_count, one.gpu_uuid) for one in slices] == [
            (0, 2, gpus[0]),
            (1, 2, gpus[1]),
        ]
        assert {(one.mem_mib, one.cores_percent, one.in_step) for one in slices} == {(8192, 50, 2)}
        assert {step_begin(each, job, number) for number in range(2)} == {expected_begin(slices[0])}
        granted = [(grant.job_id, grant.gpu_uuid, grant.mem_mib) for grant in node.grants(each)]
        assert granted == [(job, uuid, 8192) for uuid in gpus], "no node knows of the other's slices"
    wait_until_full(nodes)
    wait_until_seen(nodes, job)
    release.touch()
    jobs.wait_for_state(nodes, job, "COMPLETED")
    for each, record in zip(each_node(nodes), records(nodes, job), strict=True):
        uuids = ",".join(gpu.uuid for gpu in node.gpus(each))
        assert (record["gpu_count"], record["gpu_uuid"], record["mem_mib"], record["cores"]) == (2, uuids, 16384, 100)
        assert (record["usage"], record["peak_bytes"], record["observed_peak_bytes"]) == ("ok", 8192 * MIB, 8192 * MIB)
    assert check_bill(nodes, job) >= 1
    run = efficiency(nodes, job, tmp_path)
    assert (run["measured"], run["peak_bytes"], run["oom_count"]) == (True, 8192 * MIB, 2)


def expected_begin(grant: Grant) -> int:
    return in_step.make_begins([grant])[grant.job_id]


def release_file(layout: Layout) -> Path:
    path = layout.home / USER / "release"
    path.unlink(missing_ok=True)
    return path


def wait_until_full(layout: Layout) -> None:
    """Waits until a task on each node has filled its first slice."""

    def is_full() -> bool:
        used = [sum(gpu.used_bytes for gpu in node.gpus(each)) for each in each_node(layout)]
        return used == [8192 * MIB] * len(used)

    jobs.wait(layout, is_full, "both tasks to fill their slices", 30)


def wait_until_seen(layout: Layout, job: int) -> None:
    """Waits until each node's agent has seen the memory of its own task, and no other job's or node's."""
    for each in each_node(layout):

        def seen(each: Layout = each) -> bool:
            rows = json.loads(jobs.admin(each, "hami-hpc", "ps", "--format", "json"))["rows"]
            used = {(row["job_id"], row["gpu"]): row["peak_bytes"] for row in rows if row["processes"] >= 0}
            return used == {(job, 0): 8192 * MIB, (job, 1): 0}

        jobs.wait(layout, seen, f"the agent of {each.node} to see the job", 30, job)


def efficiency(layout: Layout, job: int, folder: Path) -> dict[str, object]:
    """What `hami-hpc efficiency` says of the job, from both nodes' spools, each read twice."""
    store = ("--store", str(folder / "store"))
    jobs.admin(layout, "hami-hpc", "ingest", "--since", "2026-01-01", "--window-days", "366", *store)
    spools = [word for each in each_node(layout) for word in ("--input", str(each.state_dir / "usage"))]
    for _ in range(2):
        jobs.admin(layout, "hami-hpc", "collect-usage", *spools, *store)
    (run,) = json.loads(jobs.admin(layout, "hami-hpc", "efficiency", str(job), "--format", "json", *store))
    assert isinstance(run, dict)
    return run


def test_mixed_jobs_at_once_are_never_granted_too_much_and_leave_nothing(nodes: Layout) -> None:
    """The short form of `make bench-nodes`."""
    many_nodes.make_ledgers(nodes)
    seen, by_number = many_nodes.run(nodes, many_nodes.wanted(nodes, 13, MANY, (0, 1)), 120)
    assert not seen.problems
    assert len(seen.looks) > MANY / 4
    assert many_nodes.ends(nodes, list(by_number)) == {"COMPLETED": MANY}


def test_a_job_that_ends_before_the_last_prolog_does_not_run_twice(nodes: Layout) -> None:
    """Slurm starts the batch script when the first node's prolog has ended. The other then asks slurmctld in vain."""
    prolog = nodes.at("node2").etc / "prolog"
    genuine = prolog.read_text()
    config.write(prolog, genuine.replace("exec ", "sleep 2\nexec "), 0o755)
    try:
        job = jobs.submit(nodes, USER, "-N2", "--requeue", PAIR, script="echo ran")
        jobs.wait_for_state(nodes, job, "COMPLETED")
        for each in each_node(nodes):
            node.wait_until_clean(each)
    finally:
        config.write(prolog, genuine, 0o755)
    facts = jobs.job_facts(nodes, job)
    assert (facts["JobState"], facts["Restarts"]) == ("COMPLETED", "0")
    assert jobs.output(nodes, USER, job) == "ran\n"


SHOW = "sh -c 'echo $0 $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES $HAMI_HPC_VGPU $HAMI_HPC_MEM_MIB $HAMI_HPC_CORES"
RANK = "sh -c 'echo $SLURMD_NODENAME $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT'"


def test_ranks_of_both_nodes_meet_at_the_first_and_a_step_may_be_on_one(nodes: Layout) -> None:
    script = "\n".join(
        (
            f"srun --vgpu-torch -N2 --ntasks-per-node=2 {RANK}",
            f"srun -N1 -n1 -w node2 {SHOW}' all",
            f"srun -N1 -n1 -w node2 --gres=vgpu:1 {SHOW}' one",
            f"srun -N1 -n1 -w node1 {SHOW}; cat $HAMI_HPC_LIMITS >/dev/null && echo readable' first",
        )
    )
    job = started(nodes, "--ntasks-per-node=2", script=script)
    jobs.wait_for_state(nodes, job, "COMPLETED")
    lines = [line for line in jobs.output(nodes, USER, job).splitlines() if not line.startswith("srun:")]
    port = 10000 + job % 2000 * 10
    ranks = [(f"node{rank // 2 + 1}", f"{rank}/4", f"{rank % 2}/2", f"node1:{port}") for rank in range(4)]
    assert sorted(lines[:4], key=lambda line: line.split()[1]) == [" ".join(words) for words in ranks]
    assert lines[4] == "all node2 0,1 2 16384 100"
    assert re.fullmatch("one node2 [01] 1 8192 50", lines[5])
    assert lines[6:] == ["first node1 0,1 2 16384 100", "readable"]


def test_a_job_goes_on_while_the_slurmd_of_a_node_is_killed_and_comes_back(nodes: Layout) -> None:
    release = release_file(nodes)
    job = started(nodes, "--ntasks-per-node=1", script=f"srun slice --until {release}")
    wait_until_full(nodes)
    daemons.stop(nodes, "slurmd-2", signal.SIGKILL)
    assert len(held(nodes.at("node2"), job)) == 2
    daemons.start(nodes, services.describe(nodes, "slurmd-2"))
    release.touch()
    jobs.wait_for_state(nodes, job, "COMPLETED")
    assert [record["usage"] for record in records(nodes, job)] == ["ok", "ok"]
    check_bill(nodes, job)


@pytest.mark.parametrize("daemon", ["slurmd", "slurmd-2"])
def test_a_node_that_dies_ends_the_job_and_leaves_nothing_on_either(nodes: Layout, daemon: str) -> None:
    """Be it the node with the batch script or the other. slurmctld would find out by SlurmdTimeout; here the
    administrator says it. No epilog has run on the node that comes back, so reconcile ends the grant there."""
    dead = nodes.at(nodes.slurmds[daemon])
    job = started(nodes, "--no-requeue", "--ntasks-per-node=1", script="srun slice --hold 300; sleep 300")
    wait_until_full(nodes)
    kill_node(nodes, daemon)
    jobs.admin(nodes, "scontrol", "update", f"nodename={dead.node}", "state=down", "reason=lost")
    jobs.wait_for_state(nodes, job, "NODE_FAIL")
    (living,) = (each for each in each_node(nodes) if each.node != dead.node)
    node.wait_until_clean(living)
    assert [grant.job_id for grant in node.grants(dead)] == [job, job]
    jobs.admin(nodes, "scontrol", "update", f"nodename={dead.node}", "state=resume", allowed=(0, 1))  # 1: it came back
    daemons.start(nodes, services.describe(nodes, daemon))
    jobs.admin(dead, "hami-hpc", "reconcile", "--node", dead.node, allowed=(0, 3))
    node.wait_until_clean(dead)
    assert [record["gpu_count"] for record in records(nodes, job)] == [2, 2]
    check_bill(nodes, job)
    again = jobs.submit(nodes, USER, "-N2", PAIR, script="srun true")
    jobs.wait_for_state(nodes, again, "COMPLETED")


def test_a_job_that_gives_up_a_node_frees_its_slices_there_and_is_billed_for_what_it_has(nodes: Layout) -> None:
    release = release_file(nodes)
    go = release.with_name(f"{release.name}-go")
    go.unlink(missing_ok=True)
    script = (
        f"srun slice >/dev/null; until [ -e {go} ]; do sleep 0.1; done\n"
        "scontrol update jobid=$SLURM_JOB_ID numnodes=1; . ./slurm_job_${SLURM_JOB_ID}_resize.sh\n"
        f"echo nodes $SLURM_NNODES; srun slice --until {release}"
    )
    job = started(nodes, "--ntasks=2", script=script)  # 24.11 refuses it to jobs with --ntasks-per-node
    jobs.wait_until_known(nodes, job)
    jobs.pass_a_second()
    go.touch()
    jobs.wait(nodes, lambda: "cuMemAlloc" in jobs.output(nodes, USER, job), "its step on one node", 30, job)
    assert "nodes 1\n" in jobs.output(nodes, USER, job)
    first, second = each_node(nodes)
    node.wait_until_clean(second)
    assert len(held(first, job)) == 2
    assert (second.state_dir / "usage" / f"{job}.json").exists()
    other = jobs.submit(nodes, "news", "-w", "node2", WHOLE_PAIR, script="srun slice")
    jobs.wait_for_state(nodes, other, "COMPLETED")
    release.touch()
    jobs.wait_for_state(nodes, job, "COMPLETED")
    assert [record["usage"] for record in records(nodes, job)] == ["ok", "ok"]
    check_bill_of_fewer_nodes(nodes, job)


def test_a_resize_reaches_all_slices_of_all_nodes_and_leaves_the_bill(nodes: Layout) -> None:
    done_file = nodes.home / USER / "resized"
    done_file.unlink(missing_ok=True)
    job = started(nodes, script="until [ -e resized ]; do sleep 0.2; done")
    done = hami(nodes, USER, "resize", str(job), "mem=16G,cores=40")
    line = f"job {job} has 16384 MiB and 40 % on each of 2 GPUs (before: 8192 MiB and 50 %)"
    assert sorted(done.out.splitlines()) == [f"{each.node}: {line}" for each in each_node(nodes)], done.text
    for each in each_node(nodes):
        assert [(one.mem_mib, one.cores_percent) for one in held(each, job)] == [(16384, 40)] * 2
    done_file.touch()
    jobs.wait_for_state(nodes, job, "COMPLETED")
    done_file.unlink()
    assert [(record["mem_mib"], record["cores"], record["usage"]) for record in records(nodes, job)] == [
        (2 * 16384, 2 * 40, "ok")
    ] * 2
    check_bill(nodes, job)


def test_a_range_of_nodes_has_those_that_are_free(nodes: Layout) -> None:
    states = [functools.partial(node.slurms_state, nodes, name) for name in nodes.gpu_nodes]
    jobs.wait(nodes, lambda: {state() for state in states} == {"IDLE"}, "both nodes to be free", 60)
    for found in (2, 1):
        job = jobs.submit(nodes, USER, "-N1-2", WHOLE_PAIR, script="sleep 60")
        jobs.wait_for_state(nodes, job, "RUNNING")
        assert jobs.job_facts(nodes, job)["NumNodes"] == str(found)
        jobs.admin(nodes, "scancel", str(job))
        if found == 2:
            other = jobs.submit(nodes, "news", "-w", "node2", WHOLE_PAIR, script="sleep 60")
            jobs.wait_for_state(nodes, other, "RUNNING")


def test_a_node_that_left_a_running_job_takes_the_next_one(nodes: Layout) -> None:
    """With --no-kill a job goes on without a node that was down. No epilog runs there, and the node comes back."""
    release = release_file(nodes)
    job = started(nodes, "--no-kill", script=f"until [ -e {release} ]; do sleep 0.1; done")
    jobs.wait_until_known(nodes, job)
    jobs.admin(nodes, "scontrol", "update", "nodename=node2", "state=down", "reason=lost")
    second = nodes.at("node2")
    jobs.admin(nodes, "scontrol", "update", "nodename=node2", "state=resume", allowed=(0, 1))  # 1: slurmd came before
    jobs.wait(nodes, lambda: node.slurms_state(nodes, "node2") == "IDLE", "node2 to be back", 60, job)
    assert [grant.job_id for grant in node.grants(second)] == [job, job]
    other = jobs.submit(nodes, "news", "-w", "node2", WHOLE_PAIR, script="srun slice; sleep 300")
    jobs.wait(nodes, lambda: "out of memory" in jobs.output(nodes, "news", other), "the next job's slice", 30, other)
    assert [grant.job_id for grant in node.grants(second)] == [other, other]
    assert node.slurms_state(nodes, "node2") == "MIXED"
    assert len(held(nodes.at("node1"), job)) == 2, "the job goes on where it is"
    release.touch()
    jobs.wait_for_state(nodes, job, "COMPLETED")
    assert [record["gpu_count"] for record in records(nodes, job)] == [2, 2]
    check_bill_of_fewer_nodes(nodes, job)
