# SPDX-License-Identifier: Apache-2.0
"""Many jobs at once: no GPU is ever granted or used beyond what it has, and nothing is left at the end."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass

import pytest
from harness import jobs, node
from harness.accounts import USERS
from harness.layout import Layout

JOBS = 200
CORES = (5, 10, 20, 25, 40, 50, 100)
MEMORY = ("1G", "4G", "10%", "16G", "25%", "48G", "50%", "100%")


@dataclass(frozen=True, slots=True)
class Change:
    """One grant made (+1) or returned (-1), in the order in which the ledger saw them."""

    sign: int
    job_id: int
    gpu_uuid: str
    mem_mib: int
    cores_percent: int


@pytest.fixture
def history(cluster: Layout) -> Iterator[Callable[[], list[Change]]]:
    """Reads every change to the ledger's grants, none missed: triggers in the ledger itself write them down."""
    jobs.submit(cluster, "games", "--wait", "--gres=vgpu:mem=1G,cores=1", script="true")  # so that there is a ledger
    node.wait_until_clean(cluster)
    with ledger(cluster) as database:
        database.execute("CREATE TABLE test_history (sign, job_id, gpu_uuid, mem_mib, cores_percent)")
        for event, sign, row in (("INSERT", 1, "NEW"), ("DELETE", -1, "OLD")):
            values = ", ".join(f"{row}.{column}" for column in ("job_id", "gpu_uuid", "mem_mib", "cores_percent"))
            database.execute(
                f"CREATE TRIGGER test_{event} AFTER {event} ON grants "
                f"BEGIN INSERT INTO test_history VALUES ({sign}, {values}); END"
            )
    yield lambda: read_history(cluster)
    with ledger(cluster) as database:
        for event in ("INSERT", "DELETE"):
            database.execute(f"DROP TRIGGER test_{event}")
        database.execute("DROP TABLE test_history")


def read_history(layout: Layout) -> list[Change]:
    with ledger(layout) as database:
        return [Change(*row) for row in database.execute("SELECT * FROM test_history ORDER BY rowid")]


@contextmanager
def ledger(layout: Layout) -> Iterator[sqlite3.Connection]:
    """A connection whose changes are committed, and which is closed: sqlite3's own `with` leaves it open."""
    with closing(sqlite3.connect(layout.run_dir / "ledger.db", timeout=30)) as database, database:
        yield database


def check(layout: Layout, history: list[Change]) -> None:
    """Replays all grants: at no point may those on one GPU pass its memory or its time."""
    gpus = {gpu.uuid: gpu for gpu in node.gpus(layout)}
    held: dict[int, Change] = {}
    most_at_once = 0
    for change in history:
        if change.sign < 0:
            del held[change.job_id]
            continue
        assert change.job_id not in held, f"job {change.job_id} was granted twice"
        held[change.job_id] = change
        most_at_once = max(most_at_once, len(held))
        beside = [other for other in held.values() if other.gpu_uuid == change.gpu_uuid]
        assert sum(other.mem_mib for other in beside) * node.MIB <= gpus[change.gpu_uuid].total_bytes, beside
        assert sum(other.cores_percent for other in beside) <= 100, beside
    assert not held, f"grants were never returned: {held}"
    assert sum(change.sign > 0 for change in history) == JOBS
    assert {change.gpu_uuid for change in history} == set(gpus), "one GPU was never used"
    assert most_at_once > 2, "no two jobs ever shared a GPU, so this has shown nothing"


def submit(layout: Layout, number: int) -> int:
    """One job of random size that fills its slice to the limit, so that an over-grant would meet the GPU's own."""
    chance = random.Random(number)
    request = f"vgpu:mem={chance.choice(MEMORY)},cores={chance.choice(CORES)}"
    return jobs.submit(
        layout, chance.choice(USERS), f"--gres={request}", "--output=/dev/null", script=f"slice --hold {number % 2}"
    )


def test_two_hundred_jobs_at_once_never_get_more_than_the_gpus_have(
    cluster: Layout, history: Callable[[], list[Change]]
) -> None:
    refusals = [gpu.refusals for gpu in node.gpus(cluster)]
    with ThreadPoolExecutor(4) as pool:
        submitted = list(pool.map(lambda number: submit(cluster, number), range(JOBS)))
    jobs.wait(cluster, lambda: not jobs.admin(cluster, "squeue", "-h"), "all jobs to end", 360)
    node.wait_until_clean(cluster)
    wanted = ",".join(map(str, submitted))

    def states() -> list[str]:
        return jobs.admin(cluster, "sacct", "-n", "-X", "-P", "-o", "State", "-j", wanted).split()

    jobs.wait(cluster, lambda: len(states()) == JOBS and "RUNNING" not in states(), "sacct to know all ends", 30)
    assert set(states()) == {"COMPLETED"}
    for gpu, before in zip(node.gpus(cluster), refusals, strict=True):
        assert gpu.peak_bytes <= gpu.total_bytes
        assert gpu.refusals == before, "the driver itself had to refuse memory that hami_hpc had granted"
    check(cluster, history())
