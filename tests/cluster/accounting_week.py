# SPDX-License-Identifier: Apache-2.0
"""A week of a cluster's activity, as slurmctld's records of it stand in slurmdbd's database.

slurmdbd writes a job's row when slurmctld tells it of the job, with slurmctld's clock; a week cannot be lived
through in a test, so the rows are written as it writes them, into a cluster of their own that no slurmctld serves.
All reading goes through the real slurmdbd: sacct, sreport, and the hourly sums that it rolls up.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from harness.layout import Layout
from harness.services import clean_environment

CLUSTER = "week"
DATABASE = "slurm_acct"
STATES = {"RUNNING": 1, "COMPLETED": 3, "CANCELLED": 4, "FAILED": 5, "TIMEOUT": 6, "NODE_FAIL": 7, "PREEMPTED": 8}
_NO_VAL = 4294967294


@dataclass(frozen=True, slots=True)
class Run:
    """One row of the job table. Times are ISO with their offset; end None while it runs. tres: name to count."""

    job: int
    user: str
    account: str
    state: str
    start: str
    end: str | None
    tres: Mapping[str, int]
    partition: str = "gpu"
    submit: str = ""
    suspended: Sequence[tuple[str, str]] = field(default=())
    array: tuple[int, int] | None = None
    het: tuple[int, int] | None = None
    uid: int = 2000


def seconds(text: str) -> int:
    """An ISO time with offset as seconds since 1970."""
    return int(datetime.fromisoformat(text).timestamp())


def sql(layout: Layout, script: str) -> list[list[str]]:
    """Statements to the private cluster's database; the rows that they answer."""
    done = subprocess.run(
        ("mariadb", "-N", "-S", str(layout.database_socket), DATABASE),
        input=script,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [line.split("\t") for line in done.stdout.splitlines()]


def slurm(layout: Layout, *command: str) -> str:
    """A Slurm command as the administrator; what it printed."""
    environment = {**clean_environment(layout), "TZ": "UTC"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def make_cluster(layout: Layout, users: Sequence[tuple[str, str]]) -> None:
    """The cluster ``week`` with these (account, user) associations, anew."""
    slurm(layout, "sacctmgr", "-i", "-Q", "add", "cluster", CLUSTER)
    for account in sorted({account for account, _ in users}):
        slurm(layout, "sacctmgr", "-i", "-Q", "add", "account", account, f"cluster={CLUSTER}")
    for account, user in users:
        slurm(layout, "sacctmgr", "-i", "-Q", "add", "user", user, f"account={account}", f"cluster={CLUSTER}")


def remove_cluster(layout: Layout, users: Sequence[tuple[str, str]]) -> None:
    """All trace of it. Rows go first: sacctmgr refuses to remove who has jobs that run."""
    sql(layout, f"DELETE FROM {CLUSTER}_job_table; DELETE FROM {CLUSTER}_suspend_table;")
    for user in sorted({user for _, user in users}):
        slurm(layout, "sacctmgr", "-i", "-Q", "delete", "user", user, f"cluster={CLUSTER}")
    slurm(layout, "sacctmgr", "-i", "-Q", "delete", "cluster", CLUSTER)


def write_runs(layout: Layout, runs: Sequence[Run]) -> None:
    """The runs' rows, and those of their suspensions. TRES that slurmdbd has no number for yet get one."""
    numbers = _tres_numbers(layout, {name for run in runs for name in run.tres})
    associations = {
        (account, user): int(number)
        for number, account, user in sql(
            layout, f"SELECT id_assoc, acct, user FROM {CLUSTER}_assoc_table WHERE deleted = 0;"
        )
    }
    script = []
    for run in runs:
        association = associations.get((run.account, run.user), 0)
        row = _row(run, association, numbers)
        names, values = ", ".join(f"`{name}`" for name in row), ", ".join(f"'{value}'" for value in row.values())
        script.append(f"INSERT INTO {CLUSTER}_job_table ({names}) VALUES ({values}); SET @row = LAST_INSERT_ID();")
        script += [
            f"INSERT INTO {CLUSTER}_suspend_table (job_db_inx, id_assoc, time_start, time_end) "
            f"VALUES (@row, {association}, {seconds(since)}, {seconds(until)});"
            for since, until in run.suspended
        ]
    sql(layout, "\n".join(script))


def _row(run: Run, association: int, numbers: Mapping[str, int]) -> dict[str, str | int]:
    """The run as slurmdbd's job table has it; what the table wants and nobody reads is 0 or empty."""
    start = seconds(run.start)
    submit = seconds(run.submit) if run.submit else start - 60
    array_job, array_task = run.array or (0, _NO_VAL)
    het_job, het_offset = run.het or (0, _NO_VAL)
    unread = ("cpus_req", "id_resv", "id_wckey", "state_reason_prev", "nodes_alloc", "priority")
    return {
        **dict.fromkeys(unread, 0),
        "account": run.account,
        "job_name": "week",
        "id_assoc": association,
        "id_array_job": array_job,
        "id_array_task": array_task,
        "id_job": run.job,
        "id_qos": 1,  # normal, which slurmdbd makes itself
        "id_user": run.uid,
        "id_group": run.uid,
        "het_job_id": het_job,
        "het_job_offset": het_offset,
        "nodelist": "n1",
        "partition": run.partition,
        "state": STATES[run.state],
        "time_submit": submit,
        "time_eligible": submit,
        "time_start": start,
        "time_end": seconds(run.end) if run.end else 0,
        "time_suspended": sum(seconds(until) - seconds(since) for since, until in run.suspended),
        "tres_alloc": ",".join(f"{numbers[name]}={count}" for name, count in run.tres.items()),
    }


def roll_up(layout: Layout, start: str, end: str) -> None:
    """What slurmdbd does at every hour, for the past; it does nothing for a cluster that never registered its size."""
    size = f"1=256,{_tres_numbers(layout, {'gres/gpu'})['gres/gpu']}=16"
    registered = seconds(start + "+00:00") - 86400
    sql(
        layout,
        f"INSERT IGNORE INTO {CLUSTER}_event_table (time_start, cluster_nodes, node_name, reason, reason_uid, tres) "
        f"VALUES ({registered}, 'n1', '', 'Cluster Registered TRES', 0, '{size}');",
    )
    slurm(layout, "sacctmgr", "-i", "rollup", start, end)


def _tres_numbers(layout: Layout, names: set[str]) -> dict[str, int]:
    """slurmdbd's numbers for TRES; a new one is what a changed AccountingStorageTRES would make."""

    def known() -> dict[str, int]:
        rows = sql(layout, "SELECT id, type, name FROM tres_table WHERE deleted = 0;")
        return {f"{kind}/{name}" if name else kind: int(number) for number, kind, name in rows}

    missing = sorted(names - known().keys())
    for name in missing:
        kind, _, rest = name.partition("/")
        sql(layout, f"INSERT INTO tres_table (creation_time, type, name) VALUES (1, '{kind}', '{rest}');")
    return known()
