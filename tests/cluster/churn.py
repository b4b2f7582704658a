# SPDX-License-Identifier: Apache-2.0
"""Many jobs of all modes, prologs and epilogs killed at random, and what is looked at from outside meanwhile.

Prolog and epilog run by a script that notes how long they took and kills some of them (SIGKILL to all their processes)
at a random time. A killed prolog runs again. A killed epilog fails, so that slurmd drains the node; what an
administrator does then, reconcile and resume, is done every few seconds.
"""

from __future__ import annotations

import json
import random
import sqlite3
import statistics
import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from harness import config, jobs, node
from harness.accounts import USERS
from harness.layout import CHECKOUT, ClusterError, Layout

MPS_PROGRAM = CHECKOUT / "build/native/sim/nvidia-cuda-mps-control"
LOOK_S, RECONCILE_S = 0.2, 3.0
SUBMITTERS = 4
HOLDS_S = (0, 1, 4, 8)  # how long jobs keep what they took
MEMORY, CORES = ("1G", "2G", "4G", "8G", "10%", "25%", "48G"), (2, 5, 5, 10, 10, 20, 40)
STAGE = """\
#!/bin/bash
set -m
if [ "$1" != genuine ]; then
	present=$(ls '{run_dir}/jobs' 2>/dev/null | wc -l)
	kill_it=$((RANDOM % 1000 < {permille}))
	begin=${{EPOCHREALTIME/./}}
	"$0" genuine & pid=$!
	if [ $kill_it = 1 ]; then
		sleep 0.0$((RANDOM % 90 + 10))
		kill -9 -- -$pid 2>/dev/null
	fi
	wait $pid 2>/dev/null
	status=$?
	end=${{EPOCHREALTIME/./}}
	case "$HAMI_HPC_VGPU,$SLURM_JOB_CONSTRAINTS" in
	?*,*vgpu_mig*) mode=mig ;;
	?*,*vgpu_mps*) mode=mps ;;
	?*,*) mode=share ;;
	*) mode=none; [ -z "$SLURM_JOB_GPUS" ] || mode=gpu ;;
	esac
	echo "{stage} $mode $SLURM_JOB_ID $begin $end $present $status" >>'{log}'
	[ $status = 137 ] || exit $status
	[ {stage} = prolog ] || exit 1
	exec "$0" genuine
fi
{driver}exec '{checkout}/prolog/{stage}' --config '{settings}'
"""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a stage, as the script noted it."""

    stage: str
    mode: str
    job: int
    begin_us: int
    end_us: int
    present: int  # directories of jobs on the node when it began
    status: int

    @property
    def was_killed(self) -> bool:
        return self.status == 137


@dataclass
class Findings:
    """What the looks from outside found."""

    looks: int = 0
    most_processes: int = 0
    resumed: int = 0
    problems: list[str] = field(default_factory=list)


def log_path(layout: Layout) -> Path:
    return layout.root / "stages.log"


def install_stages(layout: Layout, kill_percent: float) -> None:
    """Replaces the cluster's Prolog and Epilog by scripts that note times, and kill."""
    driver = "".join(f"export {name}='{value}'\n" for name, value in config.driver_environment(layout).items())
    for stage in ("prolog", "epilog"):
        text = STAGE.format(
            stage=stage,
            run_dir=layout.run_dir,
            permille=round(10 * kill_percent),
            log=log_path(layout),
            driver=driver,
            checkout=CHECKOUT,
            settings=layout.site_config,
        )
        config.write(layout.etc / stage, text, 0o755)


def requests(
    seed: int, count: int, modes: tuple[str, ...], holds_s: tuple[int, ...] = HOLDS_S
) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Yields user, options of sbatch, and script of each job."""
    chance = random.Random(seed)
    for _ in range(count):
        user, mode = chance.choice(USERS), chance.choice(modes)
        hold = f" --hold {chance.choice(holds_s)}"
        memory, cores = chance.choice(MEMORY), chance.choice(CORES)
        if mode == "gpu":
            yield user, ("--gres=gpu:1",), f"slice --use 100000{hold}"
        elif mode == "mig":
            size = chance.choice(("16G,cores=14", "16G,cores=14", "65G,cores=40"))
            yield user, (f"--gres=vgpu:mem={size}",), f"slice --use 8000{hold}"
        elif mode == "mps":
            yield user, (f"--gres=vgpu:mem={memory},cores={cores},mode=mps",), f"slice --use 500{hold}"
        elif mode == "shard":  # bare shards, which the site has translated
            yield user, (f"--gres=shard:{chance.choice((8, 32, 100))}",), f"slice{hold}"
        else:
            more = chance.choice(((), (), ("--qos=be",), ("--qos=lc",)))
            policy = chance.choice(("", ",policy=cap", ",policy=burst")) if more == ("--qos=be",) else ""
            yield user, (f"--gres=vgpu:mem={memory},cores={cores}{policy}", *more), f"slice{hold}"


def submit_all(layout: Layout, wanted: list[tuple[str, tuple[str, ...], str]]) -> list[int]:
    def submit(request: tuple[str, tuple[str, ...], str]) -> int:
        user, options, script = request
        return jobs.submit(layout, user, "--output=/dev/null", "--requeue", *options, script=script)

    with ThreadPoolExecutor(SUBMITTERS) as pool:
        return list(pool.map(submit, wanted))


@contextmanager
def watched(layout: Layout) -> Iterator[Findings]:
    """Looks at driver and ledger all the time, and does what an administrator does every few seconds."""
    findings, is_over = Findings(), threading.Event()

    def look() -> None:
        while not is_over.wait(LOOK_S):
            look_once(layout, findings)

    def reconcile() -> None:
        while not is_over.wait(RECONCILE_S):
            try:
                findings.resumed += administer(layout)
            except ClusterError as error:
                findings.problems.append(str(error))

    threads = [threading.Thread(target=target) for target in (look, reconcile)]
    for thread in threads:
        thread.start()
    try:
        yield findings
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def administer(layout: Layout) -> bool:
    """Runs reconcile; then resumes the node if it was drained before, and releases jobs that Slurm holds since their
    prolog failed. Returns whether the node was drained."""
    is_drained = bool(node.drain_reason(layout))
    jobs.admin(layout, "hami-hpc", "reconcile", "--node", config.NODE, timeout_s=120, allowed=(0, 1, 3))
    if is_drained:
        jobs.admin(layout, "scontrol", "update", f"nodename={config.NODE}", "state=resume", allowed=(0, 1))
    queue = jobs.admin(layout, "squeue", "-h", "-t", "PD", "-o", "%A %r").splitlines()
    for job in (line.split()[0] for line in queue if "held" in line):
        jobs.admin(layout, "scontrol", "release", job, allowed=(0, 1))
    return is_drained


def look_once(layout: Layout, findings: Findings) -> None:
    """Compares what the driver's processes hold with its own memory, and a ledger snapshot with the GPUs."""
    gpus = node.gpus(layout)
    held: dict[str, list[node.Granted]] = defaultdict(list)
    for grant in node.grants(layout):
        held[grant.gpu_uuid].append(grant)
    findings.looks += 1
    findings.most_processes = max(findings.most_processes, sum(len(gpu.processes) for gpu in gpus))
    for gpu in gpus:
        grants = held.get(gpu.uuid, [])
        if sum(process.used_bytes for process in gpu.processes) > gpu.total_bytes:
            findings.problems.append(f"GPU {gpu.index}: its processes hold more than it has")
        if sum(grant.mem_mib for grant in grants) * node.MIB > gpu.total_bytes:
            findings.problems.append(f"GPU {gpu.index}: granted more memory than it has: {grants}")
        if sum(grant.cores_percent for grant in grants) > 100:
            findings.problems.append(f"GPU {gpu.index}: granted more time than it has: {grants}")


@contextmanager
def recorded(layout: Layout) -> Iterator[Path]:
    """Triggers in the ledger itself write down each grant made and returned, so that none is missed."""
    path = layout.run_dir / "ledger.db"
    with closing(sqlite3.connect(path, timeout=30)) as ledger, ledger:
        ledger.execute("CREATE TABLE test_churn (sign, job_id, gpu_uuid, mem_mib, cores_percent)")
        for event, sign, row in (("INSERT", 1, "NEW"), ("DELETE", -1, "OLD")):
            values = ", ".join(f"{row}.{column}" for column in ("job_id", "gpu_uuid", "mem_mib", "cores_percent"))
            ledger.execute(
                f"CREATE TRIGGER test_churn_{event} AFTER {event} ON grants "
                f"BEGIN INSERT INTO test_churn VALUES ({sign}, {values}); END"
            )
    try:
        yield path
    finally:
        with closing(sqlite3.connect(path, timeout=30)) as ledger, ledger:
            for event in ("INSERT", "DELETE"):
                ledger.execute(f"DROP TRIGGER test_churn_{event}")
            ledger.execute("DROP TABLE test_churn")


def over_grants(layout: Layout, path: Path) -> list[str]:
    """Replays all that the triggers wrote, and returns each moment at which a GPU was granted more than it has."""
    totals = {gpu.uuid: gpu.total_bytes // node.MIB for gpu in node.gpus(layout)}
    held: dict[tuple[int, str], tuple[str, int, int]] = {}  # a job may have slices on several GPUs
    problems = []
    with closing(sqlite3.connect(path, timeout=30)) as ledger:
        rows = ledger.execute("SELECT * FROM test_churn ORDER BY rowid").fetchall()
    for sign, job, uuid, mem_mib, cores in rows:
        if sign < 0:
            held.pop((job, uuid), None)
            continue
        held[job, uuid] = (uuid, mem_mib, cores)
        beside = [grant for grant in held.values() if grant[0] == uuid]
        if sum(grant[1] for grant in beside) > totals[uuid] or sum(grant[2] for grant in beside) > 100:
            problems.append(f"job {job}: GPU {uuid} has {beside}")
    return problems + [f"job {job} was never taken back" for job, _ in held]


def left_over(layout: Layout) -> list[str]:
    """Returns what is left on the node once no job runs: files, mounts, grants, processes, daemons, instances."""
    remains = node.leftovers(layout)
    for kind in ("mps", "mig"):
        folder = layout.run_dir / kind
        kept = [p for p in folder.rglob("*") if p.is_file() and p.suffix != ".lock"] if folder.exists() else []
        remains += [f"{path}" for path in kept]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    below = [line.split()[4] for line in mounts if line.split()[4].startswith(f"{layout.run_dir}/jobs/")]
    remains += [f"mount {path}" for path in below]
    listed = json.loads(jobs.admin(layout, "hami-hpc", "mig", "list", "--format", "json"))
    remains += [f"MIG instance of job {row['job_id']}" for gpu in listed for row in gpu["instances"]]
    return remains


def runs(layout: Layout) -> list[Run]:
    """Returns all runs of stages so far."""
    rows = (line.split() for line in log_path(layout).read_text().splitlines())
    return [Run(row[0], row[1], *map(int, row[2:])) for row in rows if len(row) == 7]


def most_at_once(found: list[Run]) -> int:
    """Returns how many of these ran at the same time at most."""
    events = sorted([(run.begin_us, 1) for run in found] + [(run.end_us, -1) for run in found])
    count = most = 0
    for _time, sign in events:
        count += sign
        most = max(most, count)
    return most


def quantiles_ms(found: list[Run]) -> tuple[float, float]:
    """Returns the median and the 99th percentile of how long these took, in ms."""
    times = sorted((run.end_us - run.begin_us) / 1000 for run in found)
    return statistics.median(times), times[min(len(times) - 1, int(0.99 * len(times)))]
