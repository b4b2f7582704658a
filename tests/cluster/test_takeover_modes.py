# SPDX-License-Identifier: Apache-2.0
"""A slurmctld dies while jobs of several kinds run and start: each has what it asked for under the second one."""

from __future__ import annotations

import json
import re
import signal
import time

import pytest
from harness import config, controllers, daemons, jobs, mounting, node
from harness.layout import Layout
from test_mps_live import PROGRAM
from test_mps_live import daemons as mps_daemons
from test_requests import total_mib
from test_views import hami

USER, OTHER = "games", "news"
SHOW = "slice --use 16"
SAVE_S = 6  # slurmctld saves its state each 5 s
SILENT_S = 24  # SlurmctldTimeout. The first controller last answered up to a third of it before
pytestmark = pytest.mark.skipif(not mounting.can_mount(), reason="nothing can be mounted here")


@pytest.fixture
def mixed(restored: Layout) -> Layout:
    """The cluster with mode=mps beside mode=share and up to two slices of a job, once its daemons are restarted."""
    for user in (USER, OTHER):
        (restored.home / user / "go").unlink(missing_ok=True)
    text = config.site_toml(restored).replace("[vgpu]\n", '[vgpu]\nmodes = ["share", "mps"]\nslices_max = 2\n')
    config.write(restored.site_config, f'{text}[mps]\ncontrol = "{PROGRAM}"\n')
    config.render(restored)
    return restored


def started(layout: Layout, user: str, request: str) -> int:
    """Starts a job that shows its slice, and again in a step once its user has a file `go`. Waits for the first."""
    script = f"{SHOW}; until [ -e go ]; do sleep 0.2; done; srun -n1 --overlap {SHOW}"
    job = jobs.submit(layout, user, "--ntasks=2", f"--gres=vgpu:{request}", script=script)
    jobs.wait(layout, lambda: bool(total_mib(jobs.output(layout, user, job))), "the job's program", 60, job)
    return job


def check_ended(layout: Layout, user: str, job: int, mib: int, slices: int = 1) -> None:
    """Waits for the job's end. It has had slices of `mib` to the end, and has run and is recorded once."""
    jobs.wait_for_state(layout, job, "COMPLETED")
    assert total_mib(jobs.output(layout, user, job))[-1] == mib
    jobs.wait_until_recorded(layout, job)
    runs = jobs.admin(layout, "sacct", "-n", "-P", "-X", "-D", "-j", str(job), "-o", "State").split()
    assert [run for run in runs if run != "REQUEUED"] == ["COMPLETED"]
    record = layout.state_dir / "usage" / f"{job}.json"
    jobs.wait(layout, record.exists, "the usage record", 30, job)
    assert json.loads(record.read_text())["mem_mib"] == slices * mib


def send_records(layout: Layout) -> None:
    """A second slurmctld of 26.05 that took over sends nothing to slurmdbd until it reads its configuration anew."""
    found = jobs.admin(layout, "hami-hpc", "doctor", "--node", config.NODE, allowed=(0, 3))
    assert "wait in slurmctld" in found, found
    jobs.admin(layout, "scontrol", "reconfigure")


def is_sent_back(layout: Layout, job: int) -> bool:
    facts = jobs.job_facts(layout, job)
    return (facts["JobState"], facts["Restarts"]) == ("PENDING", "1")


def test_a_killed_controllers_jobs_keep_their_slices_and_one_in_its_prolog_starts(mixed: Layout) -> None:
    """With several slices, of mode=mps, resized and suspended. The prolog of a job with two slices asks a slurmctld on
    which GPUs they are, and none answers for longer than one needs that does."""
    closed, prolog = mixed.public / "closed", mixed.etc / "prolog"
    held = f"while [ -e {closed} ]; do sleep 0.1; done\nexec "
    config.write(prolog, prolog.read_text().replace("exec ", held), 0o755)
    with controllers.two_controllers(mixed, SILENT_S) as layout:
        pair = started(layout, USER, "2:mem=8G,cores=20")
        client = started(layout, USER, "mem=4G,cores=10,mode=mps")
        resized = started(layout, USER, "mem=8G,cores=20")
        stopped = started(layout, OTHER, "mem=2G,cores=5")
        done = hami(layout, USER, "resize", str(resized), "mem=10G")
        assert done.status == 0, done.text
        jobs.admin(layout, "scontrol", "suspend", str(stopped))
        closed.touch()
        late = jobs.submit(layout, OTHER, "--gres=vgpu:2:mem=16G,cores=20", script=SHOW)
        jobs.wait(layout, lambda: jobs.job_facts(layout, late)["Reason"] == "Prolog", "the prolog", 30, late)
        time.sleep(SAVE_S)
        granted = sorted(node.grants(layout), key=repr)
        daemons.stop(layout, controllers.FIRST, signal.SIGKILL)
        closed.unlink()
        controllers.wait_for_takeover(layout)
        assert sorted((grant for grant in node.grants(layout) if grant.job_id != late), key=repr) == granted
        assert jobs.job_facts(layout, stopped)["JobState"] == "SUSPENDED"

        jobs.admin(layout, "scontrol", "resume", str(stopped))
        for user in (USER, OTHER):
            (layout.home / user / "go").touch()
        if config.slurm_release() >= (26, 5):
            send_records(layout)
        check_ended(layout, USER, pair, 8192, slices=2)
        check_ended(layout, USER, client, 4096)
        check_ended(layout, USER, resized, 10240)
        check_ended(layout, OTHER, stopped, 2048)
        check_ended(layout, OTHER, late, 16384, slices=2)
        node.wait_until_clean(layout)
        jobs.wait(layout, lambda: not mps_daemons(layout), "the MPS daemons to end", 30)


@pytest.mark.slurm_before("23.02")  # not tried on later ones
def test_a_job_that_slurm_starts_without_its_gpu_goes_back_to_the_queue_and_runs(mixed: Layout) -> None:
    """A controller that takes over starts jobs on nodes that have not registered yet, whose GPUs it does not know."""
    with controllers.two_controllers(mixed) as layout:
        waiting = jobs.submit(layout, USER, "--gres=vgpu:2:mem=8G,cores=10", "--begin=now+2", script=SHOW)
        jobs.admin(layout, "scontrol", "takeover")
        jobs.wait(layout, lambda: is_sent_back(layout, waiting), "the job to be sent back", 60, waiting)
        text = jobs.output(layout, USER, waiting)
        assert re.search(r"slurmctld gave it \d+ of the 110 shards .* It is requeued", text), text
        assert not node.drain_reason(layout)
        jobs.admin(layout, "scontrol", "update", f"jobid={waiting}", "starttime=now")
        check_ended(layout, USER, waiting, 8192, slices=2)
