# SPDX-License-Identifier: Apache-2.0
"""A static MIG layout in a live Slurm: its instances are gpus of types, and the node's other GPU has slices."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from harness import cluster as private_cluster
from harness import config, jobs
from harness.layout import Layout

USER, OTHER = "games", "news"
HALF, SMALL = "--gres=gpu:3g.71gb:1", "--gres=gpu:1g.18gb:1"
SHOW = (
    'echo "gpus=$SLURM_JOB_GPUS $CUDA_VISIBLE_DEVICES" $(srun printenv CUDA_VISIBLE_DEVICES); '
    "until [ -e static-end ]; do sleep 0.2; done"
)


def render(layout: Layout) -> None:
    """Renders with the GPUs' devices where a driver has them, so that the instances' come after them by name."""
    jobs.admin(
        layout,
        *("hami-hpc", "render", "--output", str(layout.etc), "--node", config.NODE, "--force"),
        *("--node-parameters", config.node_parameters(layout), "--device", str(layout.machine / "dev/nvidia")),
        *("--plugin-dir", f"{config._slurm_plugin_dir()}:{layout.plugins}"),
        *("--spank", str(layout.plugins / "spank_hami_hpc.so")),
        *("--prolog", str(layout.etc / "prolog"), "--epilog", str(layout.etc / "epilog")),
    )
    # As Slurm asks for where a node gets fewer gres: it is drained before, and resumed when both daemons know.
    jobs.admin(layout, "scontrol", "update", f"NodeName={config.NODE}", "State=DRAIN", "Reason=gres")
    for name in ("slurmctld", "slurmd", "slurmd-cpu"):
        private_cluster.restart(layout, name)
    jobs.wait(layout, lambda: resumed(layout), "the node to be in service", 30)


def resumed(layout: Layout) -> bool:
    shown = jobs.admin(layout, "sinfo", "-h", "-n", config.NODE, "-o", "%T %E")
    if "idle" not in shown or "drain" in shown:
        jobs.admin(layout, "scontrol", "update", f"NodeName={config.NODE}", "State=RESUME", allowed=(0, 1))
    return shown.startswith("idle ")


@pytest.fixture
def divided(restored: Layout) -> Iterator[Layout]:
    """The cluster with a static layout on the second GPU."""
    (restored.machine / "proc").mkdir(exist_ok=True)
    (restored.machine / "proc/devices").write_text("Character devices:\n238 nvidia-caps\n")
    (restored.machine / "dev").mkdir(exist_ok=True)
    for index, device in enumerate(("/dev/null", "/dev/zero")):
        path = restored.machine / f"dev/nvidia{index}"
        path.unlink(missing_ok=True)
        path.symlink_to(device)
    settings = config.site_toml(restored).replace("[paths]", f'[paths]\ndriver_root = "{restored.machine}"')
    config.write(restored.site_config, settings)
    path = restored.etc / "mig-layout.toml"
    path.write_text(f'version = 1\n[nodes.{config.NODE}]\n1 = ["3g.71gb", "1g.18gb", "1g.18gb"]\n')
    path.chmod(0o644)
    said = jobs.admin(restored, "hami-hpc", "mig", "apply", str(path), "--node", config.NODE)
    assert said.count(" is made") == 3, said
    render(restored)
    yield restored
    for user in (USER, OTHER):
        (restored.home / user / "static-end").touch()
        jobs.admin(restored, "scancel", f"--user={user}")
    jobs.wait(restored, lambda: not jobs.admin(restored, "squeue", "-h"), "the jobs to end", 60)
    path.write_text("version = 1\n")
    jobs.admin(restored, "hami-hpc", "mig", "apply", str(path), "--node", config.NODE)
    jobs.admin(restored, "hami-hpc", "mig", "disable", "1", "--node", config.NODE)
    render(restored)


def test_instances_and_slices_of_one_node_go_to_different_jobs(divided: Layout) -> None:
    half = jobs.submit(divided, USER, HALF, script=SHOW)
    small = [jobs.submit(divided, USER, SMALL, script=SHOW) for _ in range(2)]
    slices = [jobs.submit(divided, OTHER, "--gres=vgpu:mem=50%", script=SHOW) for _ in range(2)]
    for job in (half, *small, *slices):
        jobs.wait_for_state(divided, job, "RUNNING")
    late = [jobs.submit(divided, OTHER, request, script="true") for request in (HALF, SMALL, "--gres=vgpu:mem=8G")]
    for user, job in ((USER, half), *((USER, job) for job in small), *((OTHER, job) for job in slices)):
        jobs.wait(divided, lambda user=user, job=job: "gpus=" in jobs.output(divided, user, job), "the output", job=job)  # type: ignore[misc]
    words = {job: jobs.output(divided, USER, job).split() for job in (half, *small)}
    seen = {job: line[0] for job, line in words.items()}
    listed = json.loads(jobs.admin(divided, "hami-hpc", "mig", "list", "--format", "json"))[1]["instances"]
    uuids = {row["uuid"]: row["profile"] for row in listed}
    for job, line in words.items():
        assert line[1] == line[2], "batch script and srun"
        assert uuids.pop(line[1]) == ("3g.71gb" if job == half else "1g.18gb"), "each job has another one"
    assert seen[half] == "gpus=1", "instances have the numbers after the GPU's"
    assert {seen[job] for job in small} == {"gpus=2", "gpus=3"}
    listed = json.loads(jobs.admin(divided, "hami-hpc", "jobs", "--format", "json"))
    assert {(row["job_id"], row["gpu_minor"]) for row in listed} == {(job, 0) for job in slices}
    for job in late:
        assert jobs.job_facts(divided, job)["JobState"] == "PENDING", "no slice is on the static GPU"
    found = json.loads(jobs.admin(divided, "hami-hpc", "doctor", "--format", "json", allowed=(0, 3)))
    rows = [row for row in found if "static" in str(row) or row.get("what") == "gres.conf"]
    assert rows, found
    assert {row["level"] for row in rows} == {"OK"}, rows
    assert "DRAIN" not in jobs.admin(divided, "sinfo", "-h", "-o", "%T").upper()
