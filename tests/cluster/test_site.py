# SPDX-License-Identifier: Apache-2.0
"""README's step 4, taken literally, on a site with filters, Prolog, Epilog, TaskProlog, SPANK plugin and gres.conf of
its own: all of them keep working, and once the printed lines are merged both nodes run vgpu jobs beside them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import cluster as private_cluster
from harness import config, daemons, jobs, merging, services
from harness.jobs import Done
from harness.layout import CHECKOUT, Layout

USER = "games"
NODES = ("node1", "cpu1")
DAEMONS = ("slurmctld", "slurmd", "slurmd-cpu")
VGPU = "--gres=vgpu:mem=8G,cores=50"

JOB_SUBMIT = """\
-- top
function slurm_job_submit(job_desc, part_list, submit_uid)
	job_desc.admin_comment = "site-submit"
	-- here: job_submit
	return slurm.SUCCESS
end
function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
	-- here: job_modify
	return slurm.SUCCESS
end
return slurm.SUCCESS
"""
CLI_FILTER = """\
-- top
function slurm_cli_setup_defaults(options, early) return slurm.SUCCESS end
function slurm_cli_pre_submit(options, offset)
	options["comment"] = "site-client"
	-- here: cli_pre_submit
	return slurm.SUCCESS
end
function slurm_cli_post_submit(offset, job_id, step_id) return slurm.SUCCESS end
return slurm.SUCCESS
"""
SPANK = """\
#include <slurm/spank.h>
SPANK_PLUGIN(site, 1)
int slurm_spank_task_init(spank_t spank, int ac, char **av)
{
	return spank_setenv(spank, "SITE_SPANK", ac == 1 ? av[0] : "none", 1);
}
"""


def site_conf(layout: Layout) -> str:
    """The private cluster's slurm.conf as a site would have it that has never heard of hami_hpc."""
    etc = layout.etc
    text = config.slurm_conf(layout).replace(f"include {etc}/slurm-hami-hpc.conf\n", "")
    text = text.replace("TaskPlugin=task/hami_hpc\n", "TaskPlugin=task/none\n")
    text = re.sub(r"NodeName=.*\n|PartitionName=cpu.*\n", "", text)
    text = text.replace("Nodes=node1 ", "Nodes=node1,cpu1 ")
    text = text.replace(f"{layout.root}/slurmctld\n", f"{layout.root}/slurmctld-site\n")
    first = config.node_parameters(layout)
    second = first.replace(f"Port={layout.ports['slurmd']} ", f"Port={layout.ports['slurmd-cpu']} ")
    return (
        text.replace("PartitionName=gpu", "NodeName=X\nPartitionName=gpu").replace(
            "NodeName=X\n",
            f"NodeName=node1 {first} Gres=gpu:2,bandwidth:4G Feature=rack1\n"
            f"NodeName=cpu1 {second} Gres=gpu:2,bandwidth:4G Feature=rack1\n",
        )
        + f"""\
FirstJobId=50000
GresTypes=gpu,bandwidth
SelectType=select/cons_tres
JobSubmitPlugins=lua
CliFilterPlugins=lua
PrologFlags=Contain
Prolog={etc}/prolog-site
Epilog={etc}/epilog-site
AccountingStorageTRES=gres/gpu
"""
    )


def become_the_site(layout: Layout) -> None:
    """Everything in etc is the site's own from here on; the daemons are stopped."""
    for name in reversed(DAEMONS):
        daemons.stop(layout, name)
    etc, log = layout.etc, layout.public / "site-log"
    task_prolog = (etc / "task_prolog").read_text() + 'echo "export SITE_TASK=yes"\n'
    shutil.rmtree(etc)
    etc.mkdir(mode=0o755)
    (layout.root / "slurmctld-site").mkdir()
    log.write_text("")
    write = config.write
    write(layout.site_config, config.site_toml(layout))  # step 3
    write(etc / "slurm.conf", site_conf(layout))
    write(etc / "cgroup.conf", config.cgroup_conf())
    write(etc / "task_prolog", task_prolog, 0o755)
    for stage in ("prolog", "epilog"):
        script = f'#!/bin/sh\necho "{stage} $SLURM_JOB_ID ${{0##*/}}" >>{log}\n'
        write(etc / f"{stage}-site", script, 0o755)
    write(
        etc / "gres.conf",
        f"Name=gpu File={config.device_file(layout, 0)}\nName=gpu File={config.device_file(layout, 1)}"
        "\nName=bandwidth Count=4G Flags=CountOnly\n",
    )
    write(etc / "job_submit.lua", JOB_SUBMIT)
    write(etc / "cli_filter.lua", CLI_FILTER)
    write(etc / "plugstack.conf", f"required {etc}/site.so here\n")
    tree = subprocess.run(
        [CHECKOUT / "scripts/slurm-source"], capture_output=True, text=True, check=True
    ).stdout.strip()
    compiler = ["gcc", "-shared", "-fPIC", "-I", tree, "-x", "c", "-", "-o", str(etc / "site.so")]
    subprocess.run(compiler, input=SPANK, text=True, check=True)


def start(layout: Layout) -> None:
    for name in DAEMONS:
        daemons.stop(layout, name)
    for name in DAEMONS:
        daemons.start(layout, services.describe(layout, name))
    jobs.wait(layout, lambda: services.nodes_answer(layout), "both nodes", 60)


@pytest.fixture
def site(restored: Layout) -> Iterator[Layout]:
    """The private cluster turned into a site with everything of its own; put back afterwards."""
    job = jobs.submit(restored, USER, VGPU, script="true")  # enters the GPUs into the ledger, with the driver at hand
    jobs.wait_for_state(restored, job, "COMPLETED")
    saved = restored.root / "etc-saved"
    shutil.copytree(restored.etc, saved, symlinks=True)
    try:
        become_the_site(restored)
        start(restored)
        yield restored
    finally:
        jobs.run_as(restored, "root", ("scancel", f"--user={USER}"))
        for name in reversed(DAEMONS):
            daemons.stop(restored, name)
        shutil.rmtree(restored.etc)
        shutil.copytree(saved, restored.etc, symlinks=True)
        shutil.rmtree(saved)
        shutil.rmtree(restored.root / "slurmctld-site")
        private_cluster.up(restored.root)


def assert_the_sites_own_things_work(layout: Layout, node: str, *options: str) -> str:
    """A job on `node`: the site's filters, stages, TaskProlog and SPANK plugin all saw it. Returns what it printed."""
    script = "srun -n1 sh -c 'echo \"task [$SITE_TASK] spank [$SITE_SPANK]\"; slice --use 16 || true'"
    job = jobs.submit(layout, USER, f"--nodelist={node}", *options, script=script)
    jobs.wait_for_state(layout, job, "COMPLETED")
    facts = jobs.job_facts(layout, job)
    assert (facts["AdminComment"], facts["Comment"]) == ("site-submit", "site-client")
    text = jobs.output(layout, USER, job)
    assert "task [yes] spank [here]" in text
    log = layout.public / "site-log"
    jobs.wait(layout, lambda: f"epilog {job} epilog-site" in log.read_text(), "the site's epilog", 30, job)
    assert log.read_text().count(f"prolog {job} prolog-site") == 1
    return text


def readable_copy(layout: Layout) -> Path:
    """hami_hpc where users can read it, as after make install: a checkout may be its owner's alone."""
    copy = layout.public / "hami_hpc-installed"
    if not copy.exists():
        for folder in ("hami_hpc", "gres-conf", "prolog", "slurm-plugins/lua"):
            shutil.copytree(CHECKOUT / folder, copy / folder)
        (copy / ".venv").symlink_to(CHECKOUT / ".venv")
    return copy


def render(layout: Layout, node: str) -> Done:
    """What README says, and what a private cluster needs beside: where plugins and devices lie."""
    program = readable_copy(layout)
    command = (
        *(str(CHECKOUT / ".venv/bin/python"), "-m", "hami_hpc.cli", "render"),
        *("--output", str(layout.etc), "--node", node),
        *("--device", str(config.device_file(layout, 0)).removesuffix("0")),
        *("--plugin-dir", f"{config._slurm_plugin_dir()}:{layout.plugins}"),
        *("--spank", str(layout.plugins / "spank_hami_hpc.so")),
    )
    environment = {"HAMI_HPC_CONFIG": str(layout.site_config), "PYTHONPATH": str(program)}
    return jobs.run_as(layout, "root", command, environment)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_step_4_leaves_a_site_as_it_was_and_the_printed_lines_bring_vgpu_beside_it(site: Layout) -> None:
    for node in NODES:
        assert_the_sites_own_things_work(site, node)
    before = contents(site.etc)

    printed = {node: render(site, node) for node in NODES}
    assert [done.status for done in printed.values()] == [3, 3], printed
    after = contents(site.etc)
    assert {path: after[path] for path in before} == before
    assert all("hami" in Path(path).name for path in after.keys() - before.keys())

    start(site)  # nothing merged yet
    for node in NODES:
        assert_the_sites_own_things_work(site, node, "--gres=gpu:1")

    for node in NODES:
        merging.follow(render(site, node).out)
    for node in NODES:
        done = render(site, node)
        assert done.status == 0, done.text
    start(site)
    for node in NODES:
        assert "8192 MiB in total" in assert_the_sites_own_things_work(site, node, VGPU)
        assert_the_sites_own_things_work(site, node, "--gres=gpu:1,bandwidth:1G")
    unchanged = ("prolog-site", "epilog-site", "task_prolog", "site.so", "cgroup.conf")
    assert all((site.etc / name).read_bytes() == before[str(site.etc / name)] for name in unchanged)


def test_the_prolog_wants_the_spank_line_and_takes_jobs_when_it_is_back(restored: Layout) -> None:
    path = restored.etc / "plugstack.conf.d" / "hami-hpc.conf"
    text = path.read_text()
    path.write_text(text.replace("required", "# required"))
    job = jobs.submit(restored, USER, VGPU, script="echo it ran")
    jobs.wait(restored, lambda: "drain" in node_state(restored), "the node to drain", 60, job)
    assert "it ran" not in jobs.output(restored, USER, job)
    told = f"{restored.etc}/plugstack.conf has no line for spank_hami_hpc.so"
    log = restored.log / "slurmd.log"  # slurmd writes what a prolog said once it has ended
    jobs.wait(restored, lambda: told in log.read_text(), "slurmd to log the prolog's line", 30, job)
    path.write_text(text)
    jobs.admin(restored, "scontrol", "update", "nodename=node1", "state=resume")
    jobs.admin(restored, "scancel", str(job))
    again = jobs.submit(restored, USER, VGPU, script="echo it ran")
    jobs.wait_for_state(restored, again, "COMPLETED")
    assert "it ran" in jobs.output(restored, USER, again)


def node_state(layout: Layout) -> str:
    return jobs.admin(layout, "sinfo", "-h", "-N", "-n", "node1", "-o", "%T")
