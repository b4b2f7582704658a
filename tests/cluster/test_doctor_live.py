# SPDX-License-Identifier: Apache-2.0
"""doctor on a real Slurm: what the private cluster truly lacks, and each thing that is taken away, by name.

The private cluster has no cgroups (it runs in containers), so that a job there can open every simulated GPU: doctor
says so, and these two findings are the cluster's own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness import cluster as private_cluster
from harness import daemons, jobs
from harness.config import slurm_release, write
from harness.layout import CHECKOUT, Layout

from hami_hpc.doctor import lost_jobs
from hami_hpc.node import agent_file

WITHOUT_CGROUPS = {"TaskPlugin", "ConstrainDevices"}


def findings(layout: Layout, *options: str) -> dict[str, dict[str, str]]:
    """Name -> finding, the worst of one name; doctor's exit status fits them."""
    command = (str(CHECKOUT / ".venv/bin/hami-hpc"), "doctor", "--node", "node1", "--format", "json", *options)
    done = jobs.run_as(layout, "root", command, {"HAMI_HPC_CONFIG": str(layout.site_config)})
    found: dict[str, dict[str, str]] = {}
    for row in json.loads(done.out):
        if row["what"] not in found or row["level"] == "FAIL":
            found[row["what"]] = row
    assert done.status == (3 if failing(found) else 0)
    return found


def failing(found: dict[str, dict[str, str]]) -> set[str]:
    return {what for what, row in found.items() if row["level"] == "FAIL"}


def blamed(layout: Layout) -> set[str]:
    """What fails beside the lack of cgroups."""
    return failing(findings(layout)) - WITHOUT_CGROUPS


@contextmanager
def changed(path: Path, text: str | None) -> Iterator[None]:
    """A file with other content, or away (None), and then as it was."""
    before, mode = path.read_bytes(), path.stat().st_mode & 0o777
    path.unlink()
    if text is not None:
        write(path, text, mode)
    try:
        yield
    finally:
        write(path, before, mode)


def state(folder: Path) -> dict[str, tuple[int, str]]:
    """Every file below, with its time and digest, except the agent's, which changes each second."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.parent.name != agent_file.FOLDER]
    return {str(path): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest()) for path in paths}


def test_all_is_well_but_for_the_cgroups_that_the_cluster_does_without(cluster: Layout) -> None:
    found = findings(cluster)
    assert failing(found) == WITHOUT_CGROUPS, found
    assert "task/cgroup" in found["TaskPlugin"]["advice"]
    for what in ("driver", "ledger", "interposer", "spank_hami_hpc.so", "builds", "plugstack.conf", "Prolog", "Epilog"):
        assert found[what]["level"] in ("OK", "WARN"), found[what]
    assert found["QoS"]["detail"] == "lc, be"


def test_doctor_changes_nothing_on_the_node(cluster: Layout) -> None:
    folders = (cluster.etc, cluster.state_dir, cluster.run_dir, cluster.plugins)
    before = [state(folder) for folder in folders]
    findings(cluster)
    assert [state(folder) for folder in folders] == before


def test_what_is_taken_out_of_the_files_is_named(restored: Layout) -> None:
    etc = restored.etc
    with changed(etc / "plugstack.conf", "# nothing\n"):
        assert blamed(restored) == {"plugstack.conf"}
    with changed(etc / "plugstack.conf.d" / "hami-hpc.conf", "optional spank_hami_hpc.so\n"):
        assert "plugstack.conf" in blamed(restored)
    with changed(etc / "prolog", "#!/bin/sh\nexit 0\n"):
        assert blamed(restored) == {"Prolog"}
    with changed(etc / "job_submit.lua", "return 0\n"), changed(etc / "cli_filter.lua", None):
        assert blamed(restored) == {"job_submit.lua", "cli_filter.lua"}
    with changed(restored.interposer, "\n"):
        assert blamed(restored) == {"builds"}
    assert blamed(restored) == set()


def test_what_is_taken_out_of_slurm_is_named(restored: Layout) -> None:
    text = restored.slurm_conf.read_text().replace("Enforce=associations,qos", "Enforce=associations")
    text += "JobSubmitPlugins=all_partitions\nEpilog=/bin/true\nPrologFlags=Serial\n"  # the latest counts
    write(restored.slurm_conf, text)
    private_cluster.restart(restored, "slurmctld")
    taken = {"AccountingStorageEnforce", "JobSubmitPlugins"}
    if slurm_release() < (24, 5):
        taken.add("Epilog")  # a later Slurm runs every Epilog of slurm.conf, ours too
    assert taken <= blamed(restored)
    jobs.admin(restored, "sacctmgr", "-i", "delete", "qos", "be")
    try:
        found = findings(restored)
        assert found["QoS"]["detail"] == "slurmdbd does not know be (class be)"
        daemons.stop(restored, "slurmdbd")
        assert "sacctmgr" in findings(restored)["QoS"]["detail"]
    finally:
        private_cluster.up(restored.root)  # the QoS again, everybody's

    def is_known() -> bool:
        return jobs.run_as(restored, "games", ("srun", "--qos=be", "--test-only", "true")).status == 0

    jobs.wait(restored, is_known, "slurmctld to know the QoS again", 20)


def test_records_of_jobs_that_slurmdbd_does_not_have_are_named(restored: Layout) -> None:
    jobs.wait(restored, lambda: "slurmdbd" not in findings(restored), "slurmdbd to have all records", 30)
    daemons.stop(restored, "slurmdbd")
    try:
        job = jobs.submit(restored, "games", script="true")
        jobs.wait_for_state(restored, job, "COMPLETED")
        found = findings(restored)["slurmdbd"]
        assert (found["level"], "wait in slurmctld" in found["detail"]) == ("WARN", True), found
    finally:
        private_cluster.up(restored.root)
    jobs.wait(restored, lambda: "slurmdbd" not in findings(restored), "slurmdbd to have all records", 60)


def test_a_node_without_gpus_is_told_apart(cluster: Layout) -> None:
    command = (str(CHECKOUT / ".venv/bin/hami-hpc"), "doctor", "--node", "cpu1")
    nothing = {"HAMI_HPC_CONFIG": str(cluster.site_config), "LD_LIBRARY_PATH": "", "HAMI_SIM": ""}
    done = jobs.run_as(cluster, "root", command, nothing)
    assert "cpu1 has no GPUs in Slurm and none here" in done.out
    assert "driver:" not in done.out


def test_the_request_for_a_slice_is_known_by_what_squeue_shows_of_it(cluster: Layout) -> None:
    """For the jobs that run for Slurm and have no slice."""
    job = jobs.submit(cluster, "games", "--gres=vgpu:mem=1G,cores=5", script="sleep 60")
    whole = jobs.submit(cluster, "games", "--gres=gpu:1", script="sleep 60")
    shown = [
        jobs.admin(cluster, "squeue", "--noheader", f"--jobs={one}", "--format=%b").strip() for one in (job, whole)
    ]
    jobs.admin(cluster, "scancel", str(job), str(whole))
    assert [lost_jobs.asks_for_a_slice(text) for text in shown] == [True, False], shown
