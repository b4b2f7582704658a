# SPDX-License-Identifier: Apache-2.0
"""What render has once for all nodes of a run: settings, templates, the site's files, and why it sets each key."""

from __future__ import annotations

from pathlib import Path

from hami_hpc.isolation.table import check_modes
from hami_hpc.node.config import Settings
from hami_hpc.node.placement_settings import read_placement
from hami_hpc.node.qos_settings import read_qos
from hami_hpc.render import merging, on_disk
from hami_hpc.render.defaults import check_defaults
from hami_hpc.render.marks import is_ours
from hami_hpc.render.node_lines import NodeLines
from hami_hpc.render.offer import lua_text, site_table
from hami_hpc.render.templates import Templates
from hami_hpc.slurm.files import ConfFile
from hami_hpc.slurm.lines import settings_of

GRES = "hami-hpc-gres.conf"
FRAGMENT = "slurm-hami-hpc.conf"
REASONS = {
    "GresTypes": "Slurm packs gres/shard onto one GPU; the vgpu gres carry a slice's class, MiB and percent.",
    "SelectType": "Only cons_tres schedules gpu and shard.",
    "JobSubmitPlugins": "Translates --gres=vgpu:mem=8G,cores=50 to those gres, in slurmctld.",
    "CliFilterPlugins": "Checks requests and rewrites them for Slurm's parsers, in users' commands: on every host.",
    "PrologFlags": "Alloc: the prolog runs on every node when the job starts, not when its first step starts.",
    "AccountingStorageTRES": "What slurmdbd stores for the bill.",
    "PluginDir": "The directories of the plugins.",
    "PlugStackConfig": "slurm.conf is not beside this file, so plugstack.conf may not be beside slurm.conf.",
    "Prolog": "Grants a vgpu job its slice.",
    "Epilog": "Takes the slice back.",
}


class Inputs:
    """The settings, and the site's files in `directory`. Raises NodeError for settings that cannot be, and for a file
    that cannot be read or that others may not write.

    `gres_conf` is None where there is no gres.conf, or the one that render wrote.
    """

    def __init__(self, settings: Settings, directory: str) -> None:
        self.settings = settings
        self.templates = Templates(settings.path)
        self.site = settings.site()
        check_modes(settings.modes, settings.path)
        self.qos = read_qos(settings)
        self.placement = read_placement(settings)
        check_defaults(self.site)
        self.site_table = lua_text(site_table(self.site))
        self.slurm_conf = ConfFile(f"{directory}/slurm.conf", (f"{directory}/{FRAGMENT}",))
        self.nodes = NodeLines(self.slurm_conf.lines)
        self.site_settings = settings_of(self.slurm_conf.lines)
        path = f"{directory}/gres.conf"
        text = on_disk.read(Path(path))
        is_sites = text is not None and not is_ours(text)
        self.gres_conf = ConfFile(path, (f"{directory}/{GRES}",)) if is_sites else None
        self.gres_lines = merging.site_gres(self.gres_conf.lines if self.gres_conf else ())
