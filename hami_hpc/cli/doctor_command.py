# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc doctor`: is this node fit to run vgpu jobs, and if not, what to do."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import click

from hami_hpc.core.inventory import make_inventory
from hami_hpc.errors import HamiError, NodeError
from hami_hpc.shell import nvml, slurm
from hami_hpc.shell.config import Settings, load_settings, settings_path
from hami_hpc.stages import common

GRES_PLUGINS = ("gres_vgpu.so", "gres_vgpu_mem.so", "gres_vgpu_cores.so")
SPANK_PLUGIN = "spank_hami_hpc.so"
LD_SO_PRELOAD = Path("/etc/ld.so.preload")


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's report. `advice` is what to do, empty when all is well."""

    what: str
    is_ok: bool
    detail: str
    advice: str = ""


Check = Callable[[Settings], Iterator[Finding]]


def check_driver(settings: Settings) -> Iterator[Finding]:
    """NVML answers, and each GPU is one that the settings name, with no more memory promised than it has."""
    gpus = make_inventory(nvml.read_devices(), settings.gpu_models)
    yield Finding("driver", True, f"NVML shows {len(gpus)} GPU(s)")
    for gpu in gpus:
        promised = settings.gpu_models.get(gpu.model)
        what = f"GPU {gpu.minor}"
        if promised is None:
            advice = f"add [gpu_models.NAME] with total_mib = {gpu.total_mib} to {settings.path}"
            yield Finding(what, False, f"{gpu.name} with {gpu.total_mib} MiB is no model of the settings", advice)
        elif promised > gpu.total_mib:
            advice = f"set total_mib = {gpu.total_mib} in [gpu_models.{gpu.model}] of {settings.path}, then render"
            yield Finding(what, False, f"has {gpu.total_mib} MiB, {gpu.model} promises {promised}", advice)
        else:
            yield Finding(what, True, f"{gpu.model}, {gpu.total_mib} MiB, {settings.shards_per_gpu(gpu.model)} shards")


def check_ledger(settings: Settings) -> Iterator[Finding]:
    """The ledger opens and its pages agree with each other."""
    ledger = common.open_ledger(settings)
    try:
        damage = ledger.damage()
        yield Finding(
            "ledger",
            damage is None,
            damage or f"{ledger.path}, {len(ledger.grants())} grant(s)",
            (damage and "hami-hpc reconcile") or "",
        )
    finally:
        ledger.close()


def check_interposer(settings: Settings) -> Iterator[Finding]:
    """The library that every step preloads: there, root's, and for everybody to read."""
    path = Path(settings.interposer)
    try:
        status = path.stat()
    except OSError as error:
        yield Finding(
            "interposer", False, f"{path}: {error.strerror}", "install hami_hpc here (make install), or correct [paths]"
        )
        return
    good = status.st_uid == 0 and not status.st_mode & 0o022 and bool(status.st_mode & 0o004)
    yield Finding("interposer", good, str(path), "" if good else f"chown root {path}; chmod 0644 {path}")
    if settings.preload == "ldso":
        there = LD_SO_PRELOAD.exists()
        yield Finding("preload", there, f"ldso: {LD_SO_PRELOAD}", "" if there else f"touch {LD_SO_PRELOAD}")


def check_plugins(settings: Settings) -> Iterator[Finding]:
    """gres and SPANK plugins lie in PluginDir and are of the running Slurm's version, to the micro release."""
    config = slurm.configuration()
    folders = [Path(folder) for folder in config.get("PluginDir", "").split(":") if folder]
    wanted = slurm.version_of(config.get("SLURM_VERSION", ""))
    for name in (*GRES_PLUGINS, SPANK_PLUGIN):
        found = next((folder / name for folder in folders if (folder / name).exists()), None)
        if found is None:
            advice = "make -C slurm-plugins, then make install; it belongs into a directory of PluginDir"
            yield Finding(name, False, f"in none of {', '.join(map(str, folders))}", advice)
            continue
        version = plugin_version(found)
        good = version == wanted
        advice = "" if good else "rebuild it against the installed Slurm (make -C slurm-plugins) and restart slurmd"
        yield Finding(name, good, f"{found}, for Slurm {slurm.version_text(version)}", advice)


def plugin_version(path: Path) -> int:
    """The number that Slurm compares with its own: the plugin's `plugin_version` symbol, read without loading it.

    NodeError when there is no such symbol.
    """
    done = subprocess.run(
        ["readelf", "--wide", "--dyn-syms", "--section-headers", str(path)], capture_output=True, text=True, check=False
    )
    symbol = re.search(
        r"([0-9a-f]{16})\s+4\s+OBJECT\s+GLOBAL\s+\S+\s+(\d+)\s+(?:plugin|spank_plugin)_version\b", done.stdout
    )
    if done.returncode != 0 or symbol is None:
        raise NodeError(f"{path} has no plugin_version; it is no Slurm plugin, or readelf (binutils) is missing")
    section = re.search(rf"\[\s*{symbol[2]}\]\s+\S+\s+\S+\s+([0-9a-f]+)\s+([0-9a-f]+)\s", done.stdout)
    if section is None:
        raise NodeError(f"{path} cannot be read as an ELF file")
    offset = int(symbol[1], 16) - int(section[1], 16) + int(section[2], 16)
    return int.from_bytes(path.read_bytes()[offset : offset + 4], "little")


def check_slurm(settings: Settings) -> Iterator[Finding]:
    """The settings of Slurm that vgpu jobs depend on."""
    config = slurm.configuration()
    for key, word, why in (
        ("GresTypes", "vgpu_cores", "include slurm-hami-hpc.conf, which hami-hpc render writes"),
        ("SelectType", "cons_tres", "SelectType=select/cons_tres"),
        ("PrologFlags", "Alloc", "PrologFlags=Alloc"),
        ("JobSubmitPlugins", "lua", "JobSubmitPlugins=lua"),
        ("CliFilterPlugins", "lua", "CliFilterPlugins=lua"),
    ):
        value = config.get(key, "")
        good = word in value.replace("/", ",").split(",") or word in value
        yield Finding(key, good, value or "not set", "" if good else f"slurm.conf: {why}, then restart Slurm's daemons")


def check_gres(settings: Settings, node: str | None) -> Iterator[Finding]:
    """Slurm counts as many GPUs here as the driver shows: hami_hpc takes Slurm's device numbers as ranks among all.

    `node` is this node's name in Slurm; None asks slurm.conf.
    """
    name = node or slurm.node_name()
    counted = slurm.gpu_count(name)
    shown = len(nvml.read_devices())
    advice = (
        ""
        if counted == shown
        else "render gres.conf again (hami-hpc render) and restart slurmd: every GPU must be in it"
    )
    yield Finding("gres.conf", counted == shown, f"{name} has {counted} gpu in Slurm, {shown} in the driver", advice)


CHECKS: tuple[tuple[str, Check], ...] = (
    ("driver", check_driver),
    ("ledger", check_ledger),
    ("interposer", check_interposer),
    ("plugins", check_plugins),
    ("slurm.conf", check_slurm),
)


def examine(path: str, node: str | None = None) -> list[Finding]:
    """Runs all checks; one that cannot be made is a finding too."""
    try:
        settings = load_settings(path)
    except HamiError as error:
        return [Finding("settings", False, str(error), "hami-hpc needs them before anything else can be checked")]
    findings = [Finding("settings", True, path)]
    checks: tuple[tuple[str, Check], ...] = (*CHECKS, ("gres.conf", partial(check_gres, node=node)))
    for name, check in checks:
        try:
            findings.extend(check(settings))
        except HamiError as error:
            findings.append(Finding(name, False, str(error)))
    return findings


@click.command()
@click.option("--node", envvar="HAMI_HPC_NODE", help="This node's name in Slurm.  [default: asked of slurm.conf]")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def doctor(node: str | None, as_json: bool) -> None:
    """Check what vgpu jobs need on this node; says what to do. Exit status 1 when something is wrong."""
    findings = examine(settings_path(os.environ), node)
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            click.echo(f"{'OK  ' if finding.is_ok else 'FAIL'}  {finding.what}: {finding.detail}")
            if finding.advice:
                click.echo(f"      -> {finding.advice}")
    if not all(finding.is_ok for finding in findings):
        raise click.exceptions.Exit(1)
