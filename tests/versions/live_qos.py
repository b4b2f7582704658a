# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc qos` and preemption on the Slurm at hand: what sacctmgr takes and prints, and whom slurmctld preempts.

Its shards are Slurm's own, on two device files; none of hami_hpc's plugins is there. How it is run: live_week.py.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import bare_slurm
import pytest
from harness import cluster as private_cluster
from harness import config, jobs
from harness.layout import CHECKOUT, Layout
from harness.merging import merge
from test_qos import CLEARED, PIECES, SETTINGS, listed, write_settings

ROOT = CHECKOUT / "build" / "versions-qos"
ALL_FIELDS = """\
preempt_mode = "requeue"
preempt_exempt_time_s = 5
usage_factor = 2.5
flags = ["DenyOnLimit", "NoDecay"]
max_wall = "1-00:00:00"
max_jobs_per_user = 5
max_jobs_per_account = 6
max_submit_jobs_per_user = 7
max_submit_jobs_per_account = 8
grp_jobs = 9
[qos.lc.max_tres_per_job]
shard = 90
[qos.lc.max_tres_per_user]
shard = 100
cpu = 64
[qos.lc.max_tres_per_account]
shard = 150
[qos.lc.grp_tres]
shard = 200
node = 4
"""
NO_FIELDS = """\
preempt_mode = "cluster"
preempt_exempt_time_s = "none"
usage_factor = 1
flags = []
max_wall = "none"
max_jobs_per_user = "none"
max_jobs_per_account = "none"
max_submit_jobs_per_user = "none"
max_submit_jobs_per_account = "none"
grp_jobs = "none"
[qos.lc.max_tres_per_job]
shard = "none"
[qos.lc.max_tres_per_user]
shard = "none"
cpu = "none"
[qos.lc.max_tres_per_account]
shard = "none"
[qos.lc.grp_tres]
shard = "none"
node = "none"
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Layout]:
    """All of Slurm's daemons, with two GPUs of 100 shards."""
    with bare_slurm.running(ROOT, ("", "")) as layout:
        yield layout


def qos(layout: Layout, *words: str) -> jobs.Done:
    command = (str(config.PYTHON), "-m", "hami_hpc.cli", "qos", *words)
    environment = {"HAMI_HPC_CONFIG": str(layout.site_config), "PYTHONPATH": str(CHECKOUT)}
    return jobs.run_as(layout, "root", command, environment, timeout_s=120)


def test_every_field_is_written_read_back_and_taken_away(cluster: Layout) -> None:
    write_settings(cluster, SETTINGS + ALL_FIELDS)
    done = qos(cluster, "apply")  # fails where slurmdbd has something else than was written
    assert done.status == 0, done.text
    assert qos(cluster, "apply").out == "nothing to do: slurmdbd has the QoS of the settings\n"
    shown = json.loads(qos(cluster, "show", "--format", "json").out)["values"]
    assert len([row for row in shown if row["qos"] == "lc"]) == 18
    assert not [row for row in shown if row["differs"]]
    assert listed(cluster, "lc", "Preempt", "MaxTRESPU", "GraceTime") == ["be", "cpu=64,gres/shard=100", "00:00:00"]
    write_settings(cluster, SETTINGS + NO_FIELDS)
    assert qos(cluster, "apply").status == 0
    write_settings(cluster, CLEARED)
    assert qos(cluster, "apply").status == 0
    assert json.loads(qos(cluster, "show", "--format", "json").out)["values"][0]["slurmdbd"] == "0"
    assert listed(cluster, "lc", "Priority", "Preempt", "PreemptMode", "MaxTRESPU") == ["0", "", "cluster", ""]


def submit(layout: Layout, name: str, shards: int) -> int:
    script = '[ -n "$SLURM_RESTART_COUNT" ] || sleep 300'
    return jobs.submit(layout, "games", f"--gres=shard:{shards}", f"--qos={name}", "--time=30", script=script)


def test_the_youngest_jobs_that_suffice_are_preempted_and_no_others(cluster: Layout) -> None:
    write_settings(cluster, SETTINGS.replace("grace_time_s = 3", "grace_time_s = 0"))
    assert qos(cluster, "apply").status == 0
    rendered = qos(cluster, "render")
    assert rendered.status == 3, rendered.text
    merge(cluster, rendered.out)
    again = qos(cluster, "render")
    assert again.status == 0, again.text
    private_cluster.restart(cluster, "slurmctld")
    numbers = {}
    for name, service_class, shards in PIECES:
        numbers[name] = submit(cluster, service_class, shards)
        jobs.wait_for_state(cluster, numbers[name], "RUNNING")
        time.sleep(1.1)  # Slurm knows start times in seconds
    lc = submit(cluster, "lc", 60)
    jobs.wait_for_state(cluster, lc, "RUNNING")
    restarts = {name: int(jobs.job_facts(cluster, number)["Restarts"]) for name, number in numbers.items()}
    assert restarts == {name: int(name in ("j1", "j2", "j3")) for name in numbers}
    jobs.admin(cluster, "scancel", "--user=games")
