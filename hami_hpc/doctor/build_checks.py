# SPDX-License-Identifier: Apache-2.0
"""Checks of the installed libraries: the plugins match the running Slurm, and all are of one build of hami_hpc."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hami_hpc import builds, installed
from hami_hpc.core.finding import Finding, Level, finding
from hami_hpc.doctor import elf
from hami_hpc.doctor.facts import Facts
from hami_hpc.errors import NodeError
from hami_hpc.render.filters import FOR_OURS, client_plugins
from hami_hpc.render.spank_paths import pam_module
from hami_hpc.slurm import commands, plugstack
from hami_hpc.slurm.plugstack import SPANK_PLUGIN

TASK_PLUGIN = "task_hami_hpc.so"
FILTER_PLUGIN = "cli_filter_hami_hpc.so"
SLURMS_FILTER = "cli_filter_lua.so"
GRES_PLUGINS = ("gres_vgpu.so", "gres_vgpu_mem.so", "gres_vgpu_cores.so", "gres_vgpu_slo.so")


def moves_suspended(facts: Facts) -> bool:
    """Returns whether TaskPlugin of slurm.conf names task/hami_hpc."""
    named = facts.slurm.get("TaskPlugin", "").split(",")
    return "hami_hpc" in (name.strip().removeprefix("task/") for name in named)


def plugins_of(facts: Facts) -> tuple[str, ...]:
    """Returns the plugins that this cluster's Slurm loads."""
    filtering = FOR_OURS in client_plugins(facts.slurm.get("CliFilterPlugins", ""))
    some = ((FILTER_PLUGIN, filtering), (TASK_PLUGIN, moves_suspended(facts)))
    return (*GRES_PLUGINS, SPANK_PLUGIN, *(name for name, is_loaded in some if is_loaded))


def find_plugin(facts: Facts, name: str) -> Path | None:
    """Returns the path where Slurm finds a plugin: in PluginDir, or the absolute path in plugstack.conf for SPANK's."""
    if name == SPANK_PLUGIN:
        line = plugstack.our_line(plugstack.plugstack_path(facts.slurm_conf))
        if line is not None and line.plugin.startswith("/"):
            return Path(line.plugin) if Path(line.plugin).exists() else None
    folders = [Path(folder) for folder in facts.slurm.get("PluginDir", "").split(":") if folder]
    return next((folder / name for folder in folders if (folder / name).exists()), None)


BUILD = (
    "build hami_hpc for the Slurm of this machine and install it here: make build and make install, or packages of "
    "make deb, make rpm, make dist (docs/upgrade.md, A new Slurm)"
)


def check_plugins(facts: Facts) -> Iterator[Finding]:
    """Checks that Slurm finds the plugins, and that their version is exactly the running Slurm's."""
    wanted = commands.version_of(facts.slurm.get("SLURM_VERSION", ""))
    for name in plugins_of(facts):
        path = find_plugin(facts, name)
        if path is None:
            where = ", ".join(facts.slurm.get("PluginDir", "").split(":"))
            advice = f"{BUILD}; the plugin must be in a directory of PluginDir"
            yield Finding(name, Level.FAIL, f"not found in {where}", advice)
            continue
        version = plugin_version(path)
        advice = f"{BUILD}, then restart slurmctld or slurmd: where one of these does not fit, no slice starts"
        yield finding(name, version == wanted, f"{path}, for Slurm {commands.version_text(version)}", advice)
    if find_plugin(facts, SLURMS_FILTER) is None:
        advice = "install its Lua plugins (Debian: slurm-wlm-basic-plugins): srun, salloc and some sbatch refuse vgpu"
        yield Finding(SLURMS_FILTER, Level.FAIL, "Slurm's cli_filter/lua is not in PluginDir", advice)


def plugin_version(path: Path) -> int:
    """Returns the version that Slurm compares with its own: the symbol `plugin_version`, read without loading the file.

    Raises NodeError when the file has no such symbol.
    """
    return elf.number_of(path, ("plugin_version", "spank_plugin_version"))


def check_builds(facts: Facts) -> Iterator[Finding]:
    """Checks that this command, the interposer and the plugins were built from the same source."""
    own = builds.build_text()
    yield Finding("build", Level.OK, own)
    interposer = facts.settings.interposer
    paths = [Path(interposer), Path(pam_module(interposer))]
    paths += [path for name in plugins_of(facts) if (path := find_plugin(facts, name)) is not None]
    stamps: dict[str, list[str]] = {}
    for path in paths:
        if not path.exists():
            continue  # another check reports this
        try:
            stamps.setdefault(builds.stamp_of(path), []).append(path.name)
        except NodeError as error:
            yield Finding("builds", Level.FAIL, str(error), "make install again, then restart slurmd")
    detail = "; ".join(f"{', '.join(names)}: {stamp}" for stamp, names in stamps.items())
    advice = "make install again from one source, on the controller too; then restart slurmd"
    yield finding("builds", len(stamps) <= 1, detail, advice)
    if len(stamps) == 1 and own not in stamps:
        # In a checkout the source can be newer than its last build, so this is only a warning there.
        level = Level.FAIL if installed.BUILD else Level.WARN
        yield Finding("builds", level, f"this command is build {own}, the libraries {next(iter(stamps))}", advice)


CHECKS = (("plugins", check_plugins), ("builds", check_builds))
