# SPDX-License-Identifier: Apache-2.0
"""The files that a node of several has of its own: on one machine each must find its own GPUs and directories.

slurmctld, users and the first node read the cluster's etc. Each further node has an etc with links to that, and:
* slurm.conf, which includes the cluster's and names the node's plugstack.conf: slurmd hands the path to its steps and
  stages (SLURM_CONF), so that SPANK and prolog read that one;
* hami-hpc.toml, and prolog, epilog and task_prolog with its path. slurmd runs those of the cluster's etc, which go on
  with the node's own by SLURMD_NODENAME.
"""

from __future__ import annotations

from pathlib import Path

from .files import write
from .layout import CPU_NODE, FIRST_NODE, Layout

# slurmctld compares its slurm.conf with each slurmd's, which differ here.
SLURM_CONF_LINE = "DebugFlags=NO_CONF_HASH\n"
_OWN = ("slurm.conf", "plugstack.conf", "slurmdbd.conf")


def dispatch(layout: Layout, name: str) -> str:
    """Returns the lines of the cluster's prolog, epilog or task_prolog that go on with the node's; "" for one node."""
    if not layout.machines or layout.node != FIRST_NODE:
        return ""
    return (
        f'case "$SLURMD_NODENAME" in\n{FIRST_NODE} | {CPU_NODE}) ;;\n'
        f"*) exec '{layout.public}'/\"$SLURMD_NODENAME\"/etc/{name} ;;\nesac\n"
    )


def write_own(layout: Layout) -> bool:
    """Writes the etc of one of the further nodes; prolog, epilog, task_prolog and settings are there. Returns whether a
    file changed that slurmd reads only when it starts."""
    shared = layout.at(FIRST_NODE)
    for path in [*shared.etc.glob("*.lua"), *shared.etc.glob("*.conf")]:
        if path.name not in _OWN:
            _link(layout.etc / path.name, path)
    plugstack = layout.etc / "plugstack.conf"
    changed = write(layout.slurm_conf, f"include {shared.slurm_conf}\nPlugStackConfig={plugstack}\n")
    text = (shared.etc / "plugstack.conf.d" / "hami-hpc.conf").read_text()
    text = text.replace(f"config={shared.site_config}", f"config={layout.site_config}")
    changed |= write(plugstack, text.replace(f"run_dir={shared.run_dir} ", f"run_dir={layout.run_dir} "))
    return changed


def _link(link: Path, target: Path) -> None:
    if not link.is_symlink() or link.readlink() != target:
        link.unlink(missing_ok=True)
        link.symlink_to(target)
