# SPDX-License-Identifier: Apache-2.0
"""A node whose hami_hpc was upgraded while jobs ran whose records are of the abi version before (docs/upgrade.md)."""

from __future__ import annotations

import json
from pathlib import Path

from harness import config, jobs, node
from harness.layout import Layout
from test_plugins import paused_job, resume
from test_requests import total_mib

from hami_hpc.contract import constants as c
from hami_hpc.core.reconcile_plan import OF_ANOTHER_VERSION


def make_older(folder: Path) -> list[str]:
    """Gives a job's records the version before; returns their names. Those that processes map stay the same files."""
    found = [(path, c.LIMITS_FIELDS) for path in folder.glob("*.limits")] + [(folder / c.FILE_USAGE, c.USAGE_FIELDS)]
    for path, fields in found:
        with path.open("r+b") as file:
            file.seek(fields["abi_version"][0])
            file.write((c.ABI_VERSION - 1).to_bytes(4, "little"))
    return sorted(path.name for path, _ in found)


def test_a_job_of_the_version_before_runs_to_its_end_and_opens_no_gpu_again(cluster: Layout) -> None:
    job, folder = paused_job(cluster, "srun -n1 echo it ran; echo status $?; slice --use 16; echo used $?")
    assert make_older(folder) == ["job.limits", "step-4294967291.limits", "step.limits", "usage"]
    for options in (("--dry-run",), ()):
        said = jobs.admin(cluster, "hami-hpc", "reconcile", "--node", config.NODE, *options, allowed=(3,))
        assert said == f"PROBLEM: job {job}: {OF_ANOTHER_VERSION}\n"
    other = jobs.submit(cluster, "news", "--gres=vgpu:mem=4G,cores=50", script="slice")
    jobs.wait_for_state(cluster, other, "COMPLETED")
    assert total_mib(jobs.output(cluster, "news", other)) == [4096]

    text = resume(cluster, job)
    assert f"job {job} step 0 is not started: its job's limits record {folder}/job.limits is of another version" in text
    assert "then cancel the job and submit it again" in text
    assert "it ran" not in text
    assert "cannot be read (the record is damaged or of another version of hami_hpc), so the GPU stays closed" in text
    assert "used 0" not in text
    node.wait_until_clean(cluster)
    assert node.drain_reason(cluster) == ""
    record = json.loads((cluster.state_dir / "usage" / f"{job}.json").read_text())
    assert (record["job_id"], record["mem_mib"], record["usage"]) == (job, 8192, "damaged")
