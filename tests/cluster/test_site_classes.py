# SPDX-License-Identifier: Apache-2.0
"""A class of service of the site's own, from [classes.NAME] and a QoS to the job's records and the bill."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from harness import cluster as private_cluster
from harness import config, jobs
from harness.layout import Layout
from test_doctor_live import findings
from test_requests import units

from hami_hpc.contract import constants as c

USER = "games"
REQUEST = "--gres=vgpu:mem=1G,cores=5"
# The second one begins as the first one: a type of gres is the whole name.
CLASSES = """\
[classes.interactive]
qos = ["desk"]
latency = true
floor = 7
priority = 70
slice_us = 900
[classes.interactive_2]
qos = []
"""


@pytest.fixture
def own_class(restored: Layout) -> Iterator[Layout]:
    """A cluster whose administrator has added the classes, as docs/qos.md says."""
    sacctmgr = ("sacctmgr", "-i", "--quiet")
    jobs.admin(restored, *sacctmgr, "add", "qos", "desk")
    jobs.admin(restored, *sacctmgr, "modify", "user", USER, "set", "qos+=desk")
    config.write(restored.site_config, config.site_toml(restored) + CLASSES)
    assert findings(restored)["classes"]["level"] == "FAIL", "before render"
    config.render(restored)
    # In this order: slurmctld drains a node whose slurmd has fewer gres than slurm.conf says.
    for name in ("slurmd", "slurmd-cpu", "slurmctld"):
        private_cluster.restart(restored, name)
    yield restored
    jobs.admin(restored, "scancel", f"--user={USER}")
    jobs.wait(restored, lambda: not jobs.admin(restored, "squeue", "-h"), "the jobs to end", 60)
    jobs.admin(restored, *sacctmgr, "modify", "user", USER, "set", "qos-=desk")
    jobs.admin(restored, *sacctmgr, "delete", "qos", "desk")


def record(layout: Layout, job: int, name: str) -> dict[str, Any]:
    """The fields of one of the job's limits records."""
    data = (layout.run_dir / "jobs" / str(job) / name).read_bytes()
    values: dict[str, Any] = {}
    for field, (offset, width, kind) in c.LIMITS_FIELDS.items():
        raw = data[offset : offset + width]
        values[field] = raw.split(b"\0")[0].decode() if kind == "s" else int.from_bytes(raw, "little")
    return values


def submit(layout: Layout) -> int:
    """Submits a job of the class; slurmctld learns of the new QoS a moment after sacctmgr has made it."""
    answers: list[jobs.Done] = []

    def accepted() -> bool:
        script = "#!/bin/sh\nsrun --overlap env\nsrun sleep 120\n"
        answers.append(jobs.run_as(layout, USER, ("sbatch", "--parsable", "--qos=desk", REQUEST), stdin=script))
        return answers[-1].status == 0

    jobs.wait(layout, accepted, "the QoS to be known", 20, detail=lambda: answers[-1].err)
    return int(answers[-1].out)


def in_sacct(layout: Layout, job: int, columns: str) -> str:
    return jobs.admin(layout, "sacct", "-n", "-P", "-X", "-j", str(job), "-o", columns).strip()


def bill_of_classes(layout: Layout) -> dict[str, int]:
    words = ("bill", "--start", "2026-01-01", "--live", "--by", "class", "--format", "json")
    return {
        line["class"]: int(line["gpu_microseconds_held"])
        for line in json.loads(jobs.admin(layout, "hami-hpc", *words))["lines"]
    }


def test_a_class_of_the_sites_own_is_in_records_environment_sacct_and_bill(own_class: Layout) -> None:
    assert findings(own_class)["classes"]["detail"] == "std, lc, be, interactive, interactive_2"
    refused = jobs.run_as(own_class, USER, ("sbatch", "--gres=vgpu:interactive:1"), stdin="#!/bin/sh\ntrue\n")
    assert refused.status != 0
    assert "'vgpu:interactive:1' is set by hami_hpc itself and cannot be asked for" in refused.err

    job = submit(own_class)
    second_step = own_class.run_dir / "jobs" / str(job) / c.FILE_STEP_LIMITS.format(step_id=1)
    jobs.wait(own_class, second_step.exists, "the second step", 60, job)
    taken = units(own_class, job)
    assert {name: count for name, count in taken.items() if name.startswith("vgpu:")} == {"vgpu:interactive": 1}
    assert "HAMI_HPC_CLASS=interactive" in jobs.output(own_class, USER, job).splitlines()
    for name in (c.FILE_JOB_LIMITS, c.FILE_STEP_LIMITS.format(step_id=1)):
        fields = record(own_class, job, name)
        assert (fields["class_name"], fields["class_priority"], fields["slice_us"]) == ("interactive", 70, 900)
        assert (fields["latency"], fields["floor_percent"], fields["policy"]) == (1, 7, c.POLICIES["burst"])

    jobs.wait(own_class, lambda: int(in_sacct(own_class, job, "ElapsedRaw") or 0) > 1, "seconds to bill", 30, job)
    jobs.admin(own_class, "scancel", str(job))
    jobs.wait_for_state(own_class, job, "CANCELLED")
    spooled = own_class.state_dir / "usage" / f"{job}.json"
    jobs.wait(own_class, spooled.exists, "the epilog", 60, job)
    assert json.loads(spooled.read_text())["class"] == "interactive"
    jobs.wait_until_recorded(own_class, job)
    assert "gres/vgpu:interactive=1" in in_sacct(own_class, job, "AllocTRES")
    assert bill_of_classes(own_class)["interactive"] > 0
