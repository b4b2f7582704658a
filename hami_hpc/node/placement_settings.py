# SPDX-License-Identifier: Apache-2.0
"""[placement] of the settings: where Slurm is to put jobs, by the names that HAMi has (docs/adr/073). Only render reads
it: Slurm places jobs, and no prolog does."""

from __future__ import annotations

from typing import NamedTuple

from hami_hpc.errors import NodeError
from hami_hpc.node.config import Settings, _Table
from hami_hpc.node.settings_lines import where

TABLE = "placement"
SITE, BINPACK, SPREAD = "site", "binpack", "spread"
OFF, PREFER = "off", "prefer"


class Placement(NamedTuple):
    """What the site wants of Slurm. SITE: what its slurm.conf says."""

    nodes: str = SITE
    gpus: str = SITE
    numa: str = OFF

    @property
    def has_cores(self) -> bool:
        """Whether gres.conf is to say which cores are near a GPU."""
        return self.numa != OFF


def read_placement(settings: Settings) -> Placement:
    """Returns the placement of the settings. Raises NodeError, with line, table and key, for what is wrong there."""
    table = _Table(settings.path, TABLE, dict(settings.placement))
    nodes = table.text("nodes", SITE, (SITE, BINPACK, SPREAD))
    gpus = table.text("gpus", SITE, (SITE, BINPACK, SPREAD))
    numa = table.text("numa", OFF, (OFF, PREFER))
    table.close()
    if gpus == BINPACK and numa != OFF:
        place = where(settings.path, TABLE, "gpus")
        raise NodeError(
            f'{place}: gpus = "binpack" and numa = "{numa}" do not go together: where Slurm knows which cores are '
            "near a GPU it takes cores of the sockets in turn, and the GPU near them. Leave one out"
        )
    return Placement(nodes, gpus, numa)
