# SPDX-License-Identifier: Apache-2.0
"""Plugins that were built for another release of Slurm, as after an upgrade of Slurm without a new build."""

from __future__ import annotations

import re
import subprocess

from harness import config, daemons, jobs, node, services
from harness.layout import Layout

from hami_hpc.slurm.commands import version_of

USER = "games"
GRES = ("gres_vgpu", "gres_vgpu_mem", "gres_vgpu_cores", "gres_vgpu_slo")


def make_of_next_year(layout: Layout, name: str) -> None:
    """Replaces a plugin by one whose version, as Slurm reads it, is that of a release a year later."""
    path = layout.plugins / f"{name}.so"
    said = subprocess.run(("/usr/sbin/slurmd", "-V"), capture_output=True, text=True, check=True).stdout
    version = version_of(said.split()[-1])
    own, other = (number.to_bytes(4, "little") for number in (version, version + (1 << 16)))
    data = path.read_bytes()
    assert data.count(own) == 1, f"plugin_version of {name}"
    config.write(path, data.replace(own, other))


def has_registered(layout: Layout) -> bool:
    """Returns whether slurmctld has heard of the node's slurmd since it started; before, it gives jobs no shards."""
    return "SlurmdStartTime=None" not in jobs.admin(layout, "scontrol", "show", "node", config.NODE)


def doctors_word(layout: Layout, plugin: str) -> str:
    text = jobs.admin(layout, "hami-hpc", "doctor", "--node", config.NODE, allowed=(0, 1, 3))
    found = re.search(rf"^(\w+ +{plugin}.so: .*\n(?: +-> .*\n)?)", text, re.M)
    assert found, text
    return found[1]


def test_no_slice_starts_by_gres_plugins_of_another_release_and_other_jobs_run(restored: Layout) -> None:
    for name in GRES:
        make_of_next_year(restored, name)
    for restarted in ("nothing", "slurmd", "slurmctld"):  # slurmstepd loads them anew for each step
        if restarted != "nothing":
            daemons.stop(restored, restarted)
            daemons.start(restored, services.describe(restored, restarted))
            jobs.wait(restored, lambda: has_registered(restored), "the node to register", 60)
        job = jobs.submit(restored, USER, "--gres=vgpu:mem=8G,cores=20", script="echo it ran")
        plain = jobs.submit(restored, USER, script="srun echo plain")
        jobs.wait_for_state(restored, job, "FAILED")
        jobs.wait_for_state(restored, plain, "COMPLETED")
        text = jobs.output(restored, USER, job)
        assert "slurmd on this node has not loaded hami_hpc's gres plugins" in text, restarted
        assert "install hami_hpc built for exactly this Slurm" in text
        assert "it ran" not in text
    word = doctors_word(restored, "gres_vgpu_mem")
    assert word.startswith("FAIL")
    assert "build hami_hpc for the Slurm of this machine and install it here" in word


def test_a_spank_plugin_of_another_release_starts_nothing_on_its_machine(restored: Layout) -> None:
    make_of_next_year(restored, "spank_hami_hpc")
    slurms = "Incompatible Slurm plugin"
    for options in ((), ("--gres=vgpu:mem=8G,cores=20",)):
        done = jobs.run_as(restored, USER, ("sbatch", *options), stdin="#!/bin/sh\n")
        assert done.status != 0
        assert slurms in done.err
    daemons.stop(restored, "slurmd")
    usual = services.describe(restored, "slurmd")
    ended = subprocess.run(
        usual.command, env=dict(usual.environment), capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode != 0
    assert slurms in ended.stdout + ended.stderr
    assert doctors_word(restored, "spank_hami_hpc").startswith("FAIL")

    line = restored.etc / "plugstack.conf.d/hami-hpc.conf"  # docs/troubleshooting.md
    config.write(line, "# until hami_hpc is built for this Slurm\n")
    daemons.start(restored, usual)
    plain = jobs.submit(restored, USER, script="srun echo plain")
    jobs.wait_for_state(restored, plain, "COMPLETED")
    job = jobs.submit(restored, USER, "--gres=vgpu:mem=8G,cores=20", script="echo it ran")
    jobs.wait(
        restored, lambda: "has no line for spank_hami_hpc.so" in node.drain_reason(restored), "the node's drain", 30
    )
    jobs.wait_for_state(restored, job, "PENDING")
    jobs.admin(restored, "scancel", str(job))
    jobs.admin(restored, "scontrol", "update", f"nodename={config.NODE}", "state=resume")
