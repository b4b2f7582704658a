# SPDX-License-Identifier: Apache-2.0
"""The cluster with GPUs on its second node too, for tests of what slurmctld places. Nothing runs on them: prolog and
epilog are the test's own, and there is no SPANK plugin."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from . import cluster, config, daemons, jobs, node, services
from .config import write
from .layout import CHECKOUT, CPU_NODE, FIRST_NODE, ClusterError, Layout

DAEMONS = ("slurmctld", "slurmd", "slurmd-cpu")


@contextmanager
def two_gpu_nodes(
    layout: Layout,
    settings: str,
    second: str,
    stages: Mapping[str, str],
    users: Sequence[str],
    first: Sequence[str] = (),
) -> Iterator[Layout]:
    """Runs the cluster with other settings, and afterwards as it was, without jobs of `users`.

    settings: hami-hpc.toml. second: the second node's GPUs, as --gpus of render has them. stages: the scripts prolog
    and epilog. first: the models of the first node's GPUs; none for those that it has.
    """
    saved = layout.root / "etc-saved"
    shutil.copytree(layout.etc, saved, symlinks=True)
    for name in reversed(DAEMONS):
        daemons.stop(layout, name)
    if first:
        _make_machine(layout, first)
    write(layout.site_config, settings)
    try:
        config.render(layout)
        _render_second(layout, second)
        for stage, script in stages.items():
            write(layout.etc / stage, script, 0o755)
        write(layout.etc / "plugstack.conf.d/hami-hpc.conf", "# no SPANK plugin here\n")
        for name in DAEMONS:
            daemons.start(layout, services.describe(layout, name))
        jobs.wait(layout, lambda: services.nodes_answer(layout, FIRST_NODE, CPU_NODE), "the nodes", 60)
        yield layout
    finally:
        cancel_all(layout, users)
        for name in reversed(DAEMONS):
            daemons.stop(layout, name)
        shutil.rmtree(layout.etc)
        shutil.copytree(saved, layout.etc, symlinks=True)
        shutil.rmtree(saved)
        if first:
            _make_machine(layout, ())
        cluster.up(layout.root)
        node.wait_until_clean(layout)


def cancel_all(layout: Layout, users: Sequence[str]) -> None:
    """Ends the jobs of these users, and waits until there is none."""
    for user in users:
        jobs.admin(layout, "scancel", f"--user={user}")
    jobs.wait(layout, lambda: not jobs.admin(layout, "squeue", "-h"), "all jobs to be gone", 60)


def _make_machine(layout: Layout, models: Sequence[str]) -> None:
    """Replaces the simulated GPUs of the first node; without models the cluster's own are made when it starts."""
    shutil.rmtree(layout.machine)
    for stale in layout.run_dir.glob("ledger.db*"):
        stale.unlink()
    if models:
        command = (str(CHECKOUT / "build/native/sim/sim-machine"), str(layout.machine), *models)
        subprocess.run(command, check=True, capture_output=True)
        for index in range(len(models)):
            config.device_file(layout, index).symlink_to(("/dev/null", "/dev/zero")[index % 2])


def _render_second(layout: Layout, gpus: str) -> None:
    """Writes the second node's lines, and puts it into the first one's partition."""
    path = layout.etc / "slurm.conf"
    (line,) = re.findall(rf"NodeName={CPU_NODE} (.*)\n", path.read_text())
    text = path.read_text().replace(f"NodeName={CPU_NODE} {line}\n", "")
    write(path, text.replace(f"Nodes={FIRST_NODE} ", f"Nodes={FIRST_NODE},{CPU_NODE} "))
    command = (
        *(str(config.PYTHON.with_name("hami-hpc")), "render", "--output", str(layout.etc), "--node", CPU_NODE),
        *("--gpus", gpus, "--node-parameters", line.replace("CPUs=16", "CPUs=256")),
        *("--device", str(config.device_file(layout, 0)).removesuffix("0"), "--force"),
        *("--plugin-dir", f"{config._slurm_plugin_dir()}:{layout.plugins}"),
        *("--spank", str(layout.plugins / "spank_hami_hpc.so")),
        *("--prolog", str(layout.etc / "prolog"), "--epilog", str(layout.etc / "epilog")),
    )
    done = jobs.run_as(layout, "root", command, {"HAMI_HPC_CONFIG": str(layout.site_config)})
    if done.status != 0:
        raise ClusterError(done.text)
