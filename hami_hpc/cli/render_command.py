# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc render`: what Slurm reads, from the site's settings and a node's GPUs."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

import click
import jinja2

from hami_hpc.contract import constants as c
from hami_hpc.core.inventory import Gpu, make_inventory
from hami_hpc.core.request import Request
from hami_hpc.core.site_files import lua_text, make_offer, site_table, tracked_tres
from hami_hpc.core.units import Site, Where, resolve
from hami_hpc.errors import NodeError
from hami_hpc.shell import nvml
from hami_hpc.shell.config import Settings, load_settings, settings_path

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = (ROOT / "gres-conf", Path("/usr/share/hami-hpc/gres-conf"))
STAGES = (ROOT / "prolog", Path("/usr/libexec/hami-hpc"))
DEVICE = "/dev/nvidia"


@dataclass(frozen=True, slots=True)
class Target:
    """Where the files will lie and what they name. `prolog` and `epilog`: None for wrappers of our own."""

    directory: str
    node: str
    node_parameters: str
    device: str
    plugin_dir: str
    spank: str
    prolog: str | None
    epilog: str | None
    cgroup: bool


def gpus_by_hand(text: str, settings: Settings) -> tuple[Gpu, ...]:
    """GPUs of `h200:2,a100:4`, numbered from 0. NodeError for an unknown model or a count that is none."""
    gpus: list[Gpu] = []
    for part in text.split(","):
        model, _, count = part.partition(":")
        if model not in settings.gpu_models or not (count or "1").isdigit() or not 1 <= int(count or "1") <= 256:
            known = ", ".join(settings.gpu_models) or "none"
            raise NodeError(f"--gpus {part} is not understood; allowed is MODEL:COUNT with a model of: {known}")
        for _ in range(int(count or "1")):
            minor = len(gpus)
            gpus.append(Gpu(minor, minor, "", model, model, settings.gpu_models[model]))
    return tuple(gpus)


def render_files(settings: Settings, gpus: tuple[Gpu, ...], target: Target) -> dict[str, str]:
    """File name -> content. NodeError when GPUs and settings do not fit, or the templates are not there."""
    site = settings.site()
    check_defaults(site)
    folder = _first(TEMPLATES, "gres.conf.j2", "the templates")
    loader = jinja2.FileSystemLoader(folder)
    # Not HTML: nothing is to be escaped. A name that no value fills is an error, not an empty string.
    environment = jinja2.Environment(
        loader=loader, undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True, autoescape=False
    )
    values: dict[str, object] = {
        "settings": settings,
        "offer": make_offer(site, gpus),
        "classes": list(c.CLASSES),
        "tracked_tres": tracked_tres(settings.gpu_models),
        "site_table": lua_text(site_table(site)),
        "command": f"{sys.executable} -m hami_hpc.cli",
        "directory": target.directory,
        "node": target.node,
        "node_parameters": target.node_parameters,
        "device": target.device,
        "plugin_dir": target.plugin_dir,
        "spank": target.spank,
        "prolog": target.prolog or f"{target.directory}/prolog",
        "epilog": target.epilog or f"{target.directory}/epilog",
    }
    names = ["hami_hpc_site.lua", "gres.conf", "slurm-hami-hpc.conf", "plugstack.conf", "hami-hpc-reconcile.service"]
    if target.cgroup:
        names.append("cgroup.conf")
    files = {name: environment.get_template(f"{name}.j2").render(values) for name in names}
    for stage, given in (("prolog", target.prolog), ("epilog", target.epilog)):
        if given is None:
            script = _first(STAGES, stage, f"the {stage} script") / stage
            files[stage] = environment.get_template("stage.sh.j2").render(values, stage=stage, script=script)
    return files


def check_defaults(site: Site) -> None:
    """Resolves a bare `vgpu` for each partition and model, so that a wrong default shows here and not at a submit."""
    for partition, models in site.partitions.items():
        for model in models:
            resolve(Request(gpu_type=model), site, Where((partition,)))


def _first(folders: tuple[Path, ...], name: str, what: str) -> Path:
    for folder in folders:
        if (folder / name).exists():
            return folder
    raise NodeError(
        f"{what} ({name}) are in none of {', '.join(map(str, folders))}. Install hami_hpc again (make install)"
    )


def write_files(files: dict[str, str], folder: Path) -> list[str]:
    """Writes what differs, each file whole by a rename; returns the names of those that changed."""
    changed = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            path = folder / name
            mode = 0o755 if content.startswith("#!") else 0o644
            if path.is_file() and path.read_bytes() == content.encode() and path.stat().st_mode & 0o777 == mode:
                continue
            temporary = folder / f".{name}.{os.getpid()}"
            temporary.write_text(content, encoding="utf-8")
            temporary.chmod(mode)
            temporary.replace(path)
            changed.append(name)
    except OSError as error:
        raise NodeError(f"{error.filename} cannot be written ({error.strerror})") from error
    return changed


@click.command()
@click.option(
    "--output", "-o", type=click.Path(file_okay=False, path_type=Path), default=Path("/etc/slurm"), show_default=True
)
@click.option("--dry-run", is_flag=True, help="Print the files; write nothing.")
@click.option(
    "--config", type=click.Path(dir_okay=False), help="The settings, instead of $HAMI_HPC_CONFIG or the default."
)
@click.option("--gpus", help="The node's GPUs, such as h200:2, instead of asking NVML here.")
@click.option("--node", default=lambda: socket.gethostname().partition(".")[0], help="NodeName.  [default: this host]")
@click.option("--node-parameters", default="", help="More of the NodeName line, such as 'CPUs=64 RealMemory=512000'.")
@click.option("--device", default=DEVICE, show_default=True, help="Device files, without their numbers.")
@click.option("--plugin-dir", default="", help="PluginDir, when the plugins lie outside of Slurm's own directory.")
@click.option(
    "--spank", default="spank_hami_hpc.so", show_default=True, help="The SPANK plugin, in PluginDir or absolute."
)
@click.option("--prolog", help="Prolog=, instead of a wrapper written beside the other files.")
@click.option("--epilog", help="Epilog=, likewise.")
@click.option("--cgroup", is_flag=True, help="Write cgroup.conf as well.")
def render(output: Path, dry_run: bool, config: str | None, gpus: str | None, **named: str) -> None:
    """Write gres.conf, hami_hpc's part of slurm.conf, plugstack.conf and the filters' site table."""
    settings = load_settings(str(Path(config).absolute()) if config else settings_path(os.environ))
    found = gpus_by_hand(gpus, settings) if gpus else make_inventory(nvml.read_devices(), settings.gpu_models)
    target = Target(directory=str(output.absolute()), **named)  # type: ignore[arg-type]  # click fills it from the options
    files = render_files(settings, found, target)
    if dry_run:
        for name, content in files.items():
            click.echo(f"==> {output / name} <==\n{content}")
        return
    changed = write_files(files, output)
    for name in files:
        click.echo(f"{'wrote' if name in changed else 'unchanged'}  {output / name}")
