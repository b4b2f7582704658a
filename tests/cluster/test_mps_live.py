# SPDX-License-Identifier: Apache-2.0
"""mode=mps from sbatch to the epilog: each user's jobs on a GPU are clients of one daemon, gone after the last one."""

from __future__ import annotations

import json
import pwd
from collections.abc import Iterator

import pytest
from harness import cluster as private_cluster
from harness import config, jobs, node
from harness.accounts import USERS
from harness.layout import CHECKOUT, Layout

from hami_hpc.contract import constants as c
from hami_hpc.node import job_dirs, mps_processes

PROGRAM = CHECKOUT / "build/native/sim/nvidia-cuda-mps-control"
CLIENT = (CHECKOUT / "tests/gpu/mps_client.py").read_text()
FIRST, SECOND = USERS[:2]
CONTEXT_MIB = 512  # of the simulation; the interposer counts it, MPS does not
NAMES = ("PIPE_DIRECTORY", "ACTIVE_THREAD_PERCENTAGE", "PINNED_DEVICE_MEM_LIMIT", "CLIENT_PRIORITY")
SCRIPT = f"""#!/bin/sh
cat >client-$SLURM_JOB_ID.py <<'EOT'
{CLIENT}
EOT
env | grep -E '^CUDA_'
/usr/bin/python3 client-$SLURM_JOB_ID.py take 16384
echo ready
srun --overlap --gres=none env | grep -c '^CUDA_MPS_'
sleep 120
"""


def offer(layout: Layout) -> None:
    text = config.site_toml(layout).replace("[vgpu]\n", '[vgpu]\nmodes = ["share", "mps"]\n')
    config.write(layout.site_config, f'{text}[mps]\ncontrol = "{PROGRAM}"\n')
    config.render(layout)
    for name in ("slurmd", "slurmctld"):
        private_cluster.restart(layout, name)


@pytest.fixture
def with_mps(restored: Layout) -> Iterator[Layout]:
    """A cluster whose administrator has added mode=mps, as docs/modes.md says."""
    offer(restored)
    yield restored
    for user in USERS:
        jobs.admin(restored, "scancel", f"--user={user}")
    jobs.wait(restored, lambda: not jobs.admin(restored, "squeue", "-h"), "the jobs to end", 60)
    node.wait_until_clean(restored)


def daemons(layout: Layout) -> list[tuple[int, str]]:
    """Returns pid and place of the control daemons of this cluster."""
    found = (process for process in mps_processes.processes() if process.pipe.startswith(f"{layout.run_dir}/mps/"))
    return sorted((process.pid, process.pipe.rpartition("/")[2]) for process in found if not process.is_server)


def start(layout: Layout, user: str, request: str) -> tuple[int, dict[str, str], dict[str, float]]:
    """Starts a job, and returns its id, its variables of CUDA, and what a CUDA process in it got."""
    job = jobs.submit(layout, user, f"--gres=vgpu:{request},mode=mps", script=SCRIPT)
    jobs.wait(layout, lambda: "ready" in jobs.output(layout, user, job), "the job's program", 90, job)
    lines = jobs.output(layout, user, job).splitlines()
    variables = dict(line.split("=", 1) for line in lines if line.startswith("CUDA_"))
    return job, variables, json.loads(next(line for line in lines if line.startswith("{")))


def ended(layout: Layout, job: int) -> None:
    jobs.admin(layout, "scancel", str(job))
    spooled = layout.state_dir / "usage" / f"{job}.json"
    jobs.wait(layout, spooled.exists, "the epilog", 60, job)
    assert json.loads(spooled.read_text())["mode"] == "mps"


def test_jobs_of_two_users_have_daemons_of_their_own_and_leave_none(with_mps: Layout) -> None:
    first, variables, got = start(with_mps, FIRST, "mem=8G,cores=75")
    pipe, percent, memory, priority = (variables[f"CUDA_MPS_{name}"] for name in NAMES)
    assert pipe == f"{with_mps.run_dir}/mps/0-{pwd.getpwnam(FIRST).pw_uid}"
    assert (percent, memory, priority) == ("75", "0=8192M", "1")
    assert variables["CUDA_VISIBLE_DEVICES"].startswith("GPU-")
    assert (got["sms"], got["taken_mib"]) == (99, 8192 - CONTEXT_MIB)
    [(pid, place)] = daemons(with_mps)

    second, variables, got = start(with_mps, FIRST, "mem=2G,cores=25")
    assert (variables["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"], got["sms"], got["taken_mib"]) == (
        "25",
        33,
        2048 - CONTEXT_MIB,
    )
    assert daemons(with_mps) == [(pid, place)], "one daemon for the user's two jobs"

    third, variables, _got = start(with_mps, SECOND, "mem=2G,cores=25")
    assert variables["CUDA_MPS_PIPE_DIRECTORY"] != pipe
    assert len(daemons(with_mps)) == 2
    assert jobs.run_as(with_mps, SECOND, ("ls", pipe)).status != 0, "another user's daemon cannot be reached"
    shown = json.loads(jobs.admin(with_mps, "hami-hpc", "mps", "status", "--format", "json"))
    assert {(row["state"], *row["jobs"]) for row in shown if row["daemon"]} == {
        ("answers", first, second),
        ("answers", third),
    }

    ended(with_mps, first)
    assert (pid, place) in daemons(with_mps), "its other job needs it"
    ended(with_mps, second)
    ended(with_mps, third)
    jobs.wait(with_mps, lambda: not daemons(with_mps), "the daemons to end", 30)
    left = [path.name for path in (with_mps.run_dir / "mps").iterdir() if path.suffix != ".lock"]
    assert left == []


@pytest.fixture
def with_partitions(with_mps: Layout) -> Iterator[Layout]:
    """The same with a driver that has static SM partitions (docs/adr/087)."""
    file = with_mps.machine / "mps-static"
    config.write(with_mps.site_config, with_mps.site_config.read_text() + 'static_partitions = "auto"\n')
    file.write_text("15 8 132\n")
    note = with_mps.run_dir / "mps-no-partitions"
    note.unlink(missing_ok=True)
    yield with_mps
    file.unlink()
    note.unlink(missing_ok=True)


def test_with_a_driver_that_has_them_each_jobs_steps_have_its_partition(with_partitions: Layout) -> None:
    site = with_partitions
    first, variables, got = start(site, FIRST, "mem=4G,cores=50")
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in variables
    mine = variables["CUDA_MPS_SM_PARTITION"]
    assert mine.startswith(variables["CUDA_VISIBLE_DEVICES"] + "/")
    assert (got["sms"], got["taken_mib"]) == (64, 4096 - CONTEXT_MIB)
    second, variables, got = start(site, FIRST, "mem=2G,cores=50")
    assert variables["CUDA_MPS_SM_PARTITION"] != mine
    assert got["sms"] == 56
    rows = json.loads(jobs.admin(site, "hami-hpc", "mps", "status", "--format", "json"))
    [shown] = [row for row in rows if row["daemon"]]
    assert (shown["state"], shown["chunks"]) == ("answers", {str(first): 8, str(second): 7})
    ended(site, first)
    ended(site, second)
    jobs.wait(site, lambda: not daemons(site), "the daemons to end", 30)


def test_a_job_for_which_no_chunk_is_free_waits_in_the_queue_and_the_node_stays(with_partitions: Layout) -> None:
    site = with_partitions
    (site.machine / "mps-static").write_text("2 8 132\n")
    small = [start(site, FIRST, "mem=1G,cores=5")[0] for _ in range(2)]
    waits = jobs.submit(site, FIRST, "--gres=vgpu:mem=1G,cores=50,mode=mps", script=SCRIPT)
    jobs.wait(
        site,
        lambda: "chunks of multiprocessors" in jobs.admin(site, "scontrol", "show", "job", str(waits)),
        "the reason in its comment",
        60,
        waits,
    )
    jobs.wait_for_state(site, waits, "PENDING")
    assert "drain" not in jobs.admin(site, "sinfo", "-h", "-o", "%T")
    jobs.admin(site, "scancel", str(waits))
    for job in small:
        ended(site, job)


def test_a_job_with_a_share_beside_one_with_mps_keeps_its_slice(with_mps: Layout) -> None:
    """Both have their memory and cores of the GPU by the ledger; MPS's server is one more program there."""
    share = "env | grep -c '^CUDA_MPS_'; slice --use 1000; echo full; slice --hold 120"
    beside = jobs.submit(with_mps, FIRST, "--gres=vgpu:mem=8G,cores=50", script=share)
    jobs.wait(with_mps, lambda: "full" in jobs.output(with_mps, FIRST, beside), "the share's memory", 60, beside)
    assert jobs.output(with_mps, FIRST, beside).splitlines()[0] == "0", "no client of its user's daemon"
    client, variables, got = start(with_mps, FIRST, "mem=4G,cores=25")
    assert (variables["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"], got["taken_mib"]) == ("25", 4096 - CONTEXT_MIB)
    held = {grant.job_id: grant for grant in node.grants(with_mps)}
    assert held[beside].gpu_uuid == held[client].gpu_uuid, "Slurm has put both on one GPU"
    assert (held[beside].mem_mib, held[client].mem_mib) == (8192, 4096)
    record = job_dirs.read_bounded(f"{with_mps.run_dir}/jobs/{beside}/{c.FILE_JOB_LIMITS}", c.LIMITS_SIZE, 0) or b""

    def told(name: str) -> int:
        offset, width, _kind = c.LIMITS_FIELDS[name]
        return int.from_bytes(record[offset : offset + width], "little")

    assert told("turn_length_permille") == 0, "nobody is latency-critical: the server keeps to no turn"
    assert told("others_least_cores") == 25, "the server's timeslice follows from its jobs' cores"
    third = jobs.submit(with_mps, SECOND, "--gres=vgpu:mem=1G,cores=50,mode=mps", script="true")
    jobs.wait_for_state(with_mps, third, "COMPLETED")
    ended(with_mps, client)
    assert jobs.state(with_mps, beside) == "RUNNING"
    jobs.admin(with_mps, "scancel", str(beside))


def test_a_step_without_gpu_is_no_client_and_a_plain_job_inherits_nothing(with_mps: Layout) -> None:
    """A job that was submitted from within one with mode=mps has the variables of a daemon that is not its own."""
    inner = "#!/bin/sh\nenv | grep -c '^CUDA_MPS_'\nexit 0\n"
    script = f"#!/bin/sh\nsbatch -W --gres=vgpu:mem=1G,cores=5 -o inner.out <<'EOT'\n{inner}EOT\ncat inner.out\n"
    job = jobs.submit(with_mps, FIRST, "--gres=vgpu:mem=1G,cores=5,mode=mps", script=script)
    jobs.wait_for_state(with_mps, job, "COMPLETED")
    assert jobs.output(with_mps, FIRST, job).splitlines()[-1] == "0"


def test_a_job_without_its_daemons_file_is_refused_with_a_reason(with_mps: Layout) -> None:
    job = jobs.submit(with_mps, FIRST, "--gres=vgpu:mem=1G,cores=5,mode=mps", script="#!/bin/sh\nsleep 3\nsrun true\n")
    path = with_mps.run_dir / "jobs" / str(job) / c.FILE_MPS
    jobs.wait(with_mps, path.exists, "the prolog", 60, job)
    path.unlink()
    jobs.wait(with_mps, lambda: "has no MPS daemon" in jobs.output(with_mps, FIRST, job), "the reason", 60, job)
