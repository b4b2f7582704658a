# SPDX-License-Identifier: Apache-2.0
"""Checks that steps on this node will be limited: without the SPANK plugin nothing limits or refuses a step."""

from __future__ import annotations

from hami_hpc.errors import NodeError
from hami_hpc.slurm import plugstack
from hami_hpc.stages import common

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def check_spank(environment: Mapping[str, str]) -> None:
    """Raises NodeError when plugstack.conf of this node does not load the SPANK plugin as required.

    slurmd passes the path of its slurm.conf to the prolog in SLURM_CONF, on configless nodes too; a run by hand without
    it checks nothing. When the files cannot be read, the job runs and a message goes to the administrator.
    """
    slurm_conf = environment.get("SLURM_CONF")
    if not slurm_conf:
        return
    try:
        path = plugstack.plugstack_path(slurm_conf)
        line = plugstack.our_line(path)
    except NodeError as error:
        common.report("prolog", f"{error}; whether {plugstack.SPANK_PLUGIN} is in plugstack.conf was not checked")
        return
    if line is None:
        raise NodeError(
            f"{path} has no line for {plugstack.SPANK_PLUGIN}: the steps of a vgpu job would get the whole GPU. Add "
            "the line that hami-hpc render prints, then resume the node"
        )
    if line.kind != plugstack.REQUIRED:
        raise NodeError(
            f"{line.where} has '{line.kind}' for {plugstack.SPANK_PLUGIN}: where it cannot be loaded, the steps of a "
            f"vgpu job would get the whole GPU. Write '{plugstack.REQUIRED}' there, then resume the node"
        )
