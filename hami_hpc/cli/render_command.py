# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc render`: writes Slurm's configuration from the site's settings and a node's GPUs.

It writes only hami_hpc's own files, and prints the lines to merge into the site's files.
"""

from __future__ import annotations

import difflib
import re
import shlex
import stat
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import click

from hami_hpc.cli import colours
from hami_hpc.cli.exit_codes import ExitCode
from hami_hpc.cli.inventory_command import read_inventories
from hami_hpc.cli.options import Failure, command, config_option, node_option, output_option, settings_of
from hami_hpc.core.cpu_cores import shape_of
from hami_hpc.core.hostlist import fold, named
from hami_hpc.core.inventory import Gpu, make_inventory
from hami_hpc.core.node_inventory import near_of
from hami_hpc.errors import NodeError
from hami_hpc.node import cpus, mig_static, nvml, nvml_places
from hami_hpc.node.config import Settings, settings_path
from hami_hpc.node.placement_settings import read_placement
from hami_hpc.render import forgetting, near, on_disk, placement_lines
from hami_hpc.render.files import check_nodes, render_nodes
from hami_hpc.render.inputs import FRAGMENT, GRES
from hami_hpc.render.marks import blocks, has_mark, without_mark
from hami_hpc.render.merging import Merge
from hami_hpc.render.offer import shards_may_have_types
from hami_hpc.render.on_disk import State
from hami_hpc.render.rendered import Rendered, Target
from hami_hpc.render.tenants import FILE as TENANTS
from hami_hpc.slurm import commands

DEVICE = "/dev/nvidia"
READ_AT_START = (FRAGMENT, GRES, "gres.conf", "hami_hpc_site.lua", "cgroup.conf")
RESTART = (
    "next: restart slurmd on the nodes, then slurmctld; where a count of Gres= became smaller, slurmctld first. "
    "scontrol reconfigure is not enough: slurmctld of 22.05 ends at it where nodes were added"
)
SLURM_DIR = Path(settings_path({})).parents[1] / "slurm"  # /etc/slurm, unless hami_hpc has another SYSCONFDIR


def gpus_by_hand(text: str, settings: Settings) -> tuple[Gpu, ...]:
    """Returns the GPUs of `h200:2`, numbered from 0. Exits with ExitCode.USAGE for an unknown model or a bad count."""
    gpus: list[Gpu] = []
    for part in text.split(","):
        match = re.fullmatch(r"([^:]*)(?::([0-9]{1,3}))?", part)
        model, count = (match[1], int(match[2] or 1)) if match else ("", 0)
        if model not in settings.gpu_models or not 1 <= count <= 256:
            known = ", ".join(settings.gpu_models) or "none"
            message = f"--gpus {part} is not understood; allowed is MODEL:COUNT with a model of: {known}"
            raise Failure(message, ExitCode.USAGE)
        for _ in range(count):
            minor = len(gpus)
            gpus.append(Gpu(minor, minor, "", model, model, settings.gpu_models[model]))
    return tuple(gpus)


def check_static(static: tuple[tuple[str, str], ...], device: str) -> None:
    """Exits with ExitCode.USAGE where the devices of a static MIG layout would not come after the GPUs' devices,
    `device` with a number, by name: Slurm numbers them so."""
    if static and static[0][1] <= f"{device}9":
        message = (
            f"the devices of the static MIG layout ({static[0][1]}) have to come after {device}0 and so on by name"
        )
        raise Failure(f"{message}, because Slurm numbers them so: see --device, and driver_root", ExitCode.USAGE)


def gpus_here(settings: Settings) -> tuple[Gpu, ...]:
    """Returns this machine's GPUs. Raises NodeError where NVML shows none, with how to render elsewhere."""
    try:
        return make_inventory(nvml.read_devices(), settings.gpu_models)
    except NodeError as error:
        raise NodeError(
            f"{error}. On a machine without GPUs name those of the nodes: --inventory DIRECTORY, or --node gpu01 "
            "--gpus h200:8"
        ) from error


def targets_here(settings: Settings, gpus: str | None, common: Target) -> list[tuple[tuple[Gpu, ...], Target]]:
    """Returns this node, or the one that --node and --gpus describe."""
    found = gpus_by_hand(gpus, settings) if gpus else gpus_here(settings)
    slots = () if gpus else mig_static.read(settings.state_dir)
    if not gpus:
        here = cpus.read_cpus()
        around = nvml_places.read_surroundings()
        common = replace(common, near=near_of(found, around, here), shape=shape_of(here))
    found = tuple(gpu for gpu in found if gpu.uuid not in {slot.gpu_uuid for slot in slots})
    return [(found, replace(common, static=mig_static.devices(settings, slots)))]


def targets_of(settings: Settings, inventories: Iterable[Path], common: Target) -> list[tuple[tuple[Gpu, ...], Target]]:
    """Returns the nodes of the inventories, without those that have no GPU for slices."""
    targets, without = [], []
    for each in read_inventories(inventories):
        found = make_inventory(each.devices, settings.gpu_models)
        found = tuple(gpu for gpu in found if gpu.uuid not in each.static_uuids)
        if found:
            target = replace(common, node=each.node, static=each.static, near=each.near, shape=each.shape)
            targets.append((found, target))
        else:
            without.append(each.node)
    if len(without) == 1:
        click.echo(f"note: node {without[0]} has no GPU for slices, and nothing is written for it")
    elif without:
        nodes = named(without)
        click.echo(f"note: {len(without)} nodes have no GPU for slices, and nothing is written for them: {nodes}")
    earlier = blocks(on_disk.read(Path(common.directory) / GRES) or "") if without else {}
    if stay := [node for node in without if node in earlier]:
        click.echo(
            f"note: {GRES} has lines of before for {named(stay)}, which stay. If the GPUs are gone: hami-hpc "
            f"forget-node {shlex.quote(fold(stay))}"
        )
    if not targets:
        raise NodeError("no node of the inventories has a GPU for slices; is the NVIDIA driver loaded there?")
    return targets


def is_terminal() -> bool:
    """Returns whether standard input is a terminal, so that a question can be asked."""
    return sys.stdin is not None and sys.stdin.isatty()


def may_replace(folder: Path, foreign: Iterable[str], force: bool) -> None:
    """Asks at a terminal whether edited files may be replaced. Raises NodeError on no, and without a terminal."""
    for name in foreign:
        path = folder / name
        there = on_disk.read(path) if path.is_file() else None
        why = "was edited since render wrote it" if there and has_mark(there) else "was not written by this render"
        if force:
            continue
        if is_terminal() and click.confirm(f"{path} {why}. Replace it (a copy is kept beside it)?"):
            continue
        raise NodeError(
            f"{path} {why}. Nothing was written. See hami-hpc render --diff; move it away, or give --force, which "
            f"keeps a copy as {path.name}.bak-TIME"
        )


def show_diff(folder: Path, files: Mapping[str, str]) -> bool:
    """Prints what would change, also of a file's rights or kind alone, and returns whether anything would."""
    differs = False
    for name, content in files.items():
        path = folder / name
        there = (on_disk.read(path) if path.is_file() else None) or ""
        lines = difflib.unified_diff(
            there.splitlines(True), content.splitlines(True), str(path) if there else "/dev/null", str(path)
        )
        text = "\n".join(colours.diff_line(line.removesuffix("\n")) for line in lines)
        is_same = on_disk.state(path, content) is State.SAME
        if text:
            click.echo(text)
        elif not is_same:
            status, mode = path.lstat(), on_disk.mode_of(content)
            is_file = stat.S_ISREG(status.st_mode)
            what = f"its mode {stat.S_IMODE(status.st_mode):04o} would be {mode:04o}" if is_file else "no link any more"
            click.echo(f"{path}: the same content, {what}")
        differs |= bool(text) or not is_same
    return differs


def show_merges(merges: list[Merge], remarks: list[str]) -> None:
    """Prints the steps that are left to do by hand, numbered, with the lines to write indented."""
    for remark in remarks:
        click.echo(f"note: {remark}")
    if not merges:
        return
    click.echo("\nLeft to merge by hand, since render changes no file of the site's own:")
    for number, merge in enumerate(merges, 1):
        click.echo(f"{number:3}. {merge.what}")
        for line in merge.lines:
            click.echo(f"         {line}")
    click.echo("Then run this command again, which shows what is still left; restart slurmd on the nodes, and then")
    click.echo("slurmctld (where a count of Gres= became smaller, slurmctld first); run hami-hpc doctor on the node.")


def write(output: Path, rendered: Rendered, force: bool) -> bool:
    """Writes the files that differ and lists all. Returns whether one was written that Slurm's daemons read at their
    start. Raises NodeError as may_replace does, and for a failed write."""
    states = {name: on_disk.state(output / name, content) for name, content in rendered.files.items()}
    may_replace(output, [name for name, state in states.items() if state is State.FOREIGN], force)
    changed = {name: content for name, content in rendered.files.items() if states[name] is not State.SAME}
    kept = on_disk.write(output, changed)
    for name in rendered.files:
        click.echo(f"{'wrote' if name in changed else 'unchanged'}  {output / name}")
    for path in kept:
        click.echo(f"kept  {path}")
    return any(name in changed for name in READ_AT_START)


@command(
    "render",
    done="nothing is left to merge (--dry-run: shown; --diff: no file would change)",
    found="written, and lines are left to merge by hand (--diff: a file would change)",
)
@output_option("The directory of slurm.conf.", file_okay=False, default=SLURM_DIR, show_default=True)
@click.option("--dry-run", is_flag=True, help="Print the files and what is left to merge; write nothing.")
@click.option("--diff", is_flag=True, help="Show what would change; write nothing.")
@click.option("--tenants", is_flag=True, help="Print who may land on which GPUs; write nothing.")
@click.option("--force", is_flag=True, help="Replace files of hami_hpc's that were edited; a copy is kept.")
@config_option
@click.option(
    "--gpus", metavar="MODEL:COUNT", help="The node's GPUs, such as h200:2.  [default: those that NVML shows here]"
)
@node_option("The node's name in Slurm.  [default: asked of slurm.conf, else this host's]")
@click.option(
    "--inventory",
    metavar="FILE",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Nodes, each as hami-hpc inventory --format json printed it there; a file, or a directory of *.json.",
)
@click.option(
    "--node-parameters",
    metavar="TEXT",
    default="",
    help="More of the NodeName line, such as 'CPUs=64 RealMemory=512000'.",
)
@click.option(
    "--device", metavar="PATH", default=DEVICE, show_default=True, help="Device files, without their numbers."
)
@click.option(
    "--plugin-dir",
    metavar="DIRECTORY",
    default="",
    help="PluginDir, when the plugins lie outside of Slurm's own directory.",
)
@click.option(
    "--spank",
    metavar="FILE",
    default="spank_hami_hpc.so",
    show_default=True,
    help="The SPANK plugin, in PluginDir or absolute.",
)
@click.option("--prolog", metavar="FILE", help="Prolog=, instead of a wrapper written beside the other files.")
@click.option("--epilog", metavar="FILE", help="Epilog=, instead of a wrapper written beside the other files.")
@click.option("--cgroup", is_flag=True, help="Write cgroup.conf as well, where there is none.")
def render(
    output: Path,
    dry_run: bool,
    diff: bool,
    tenants: bool,
    force: bool,
    config: Path | None,
    gpus: str | None,
    node: str | None,
    inventory: tuple[Path, ...],
    **named: str,
) -> None:
    """Write hami_hpc's parts of slurm.conf, gres.conf and plugstack.conf for this node, and the filters' site table.

    Only files of hami_hpc's own are written; what has to go into the site's own files is printed. Each further node's
    run adds its lines; with --inventory one run has the lines of all nodes.
    """
    output = output.absolute()
    settings = settings_of(config)
    if inventory and (gpus or node is not None):
        raise click.UsageError("--inventory says which nodes there are and their GPUs; leave --gpus and --node out")
    version = commands.known_version()
    placement_lines.check_release(read_placement(settings), version, settings.path)
    node = commands.node_name_or_host() if node is None else node
    common = Target(directory=str(output), node=node, **named)  # type: ignore[arg-type]  # click fills the others
    targets = targets_of(settings, inventory, common) if inventory else targets_here(settings, gpus, common)
    if not near.are_links_used(version):
        targets = [(found, replace(target, near=near.without_links(target.near))) for found, target in targets]
    targets = [
        (found, replace(target, has_typed_shards=shards_may_have_types(version, bool(target.static))))
        for found, target in targets
    ]
    for found, target in targets:
        check_static(target.static, target.device)
        if target.static and not found:
            raise Failure(
                "every GPU of this node has a static MIG layout, so it has no slices and hami_hpc has nothing to "
                "write: Slurm's own gres.conf has AutoDetect=nvml, or MultipleFiles= for each instance"
            )
    check_nodes(settings, targets)  # before a directory is made
    if tenants:
        click.echo(without_mark(render_nodes(settings, targets).files[TENANTS]), nl=False)
        return
    _run(output, lambda: render_nodes(settings, targets), dry_run, diff, force)


@command(
    "forget-node",
    done="nothing names the nodes any more (--dry-run: shown; --diff: no file would change)",
    found="written, and lines of the site's still name one (--diff: a file would change)",
)
@click.argument("nodes")
@output_option("The directory of slurm.conf.", file_okay=False, default=SLURM_DIR, show_default=True)
@click.option("--dry-run", is_flag=True, help="Print the files and what still names the nodes; write nothing.")
@click.option("--diff", is_flag=True, help="Show what would change; write nothing.")
@click.option("--force", is_flag=True, help="Replace files of hami_hpc's that were edited; a copy is kept.")
def forget_node(nodes: str, output: Path, dry_run: bool, diff: bool, force: bool) -> None:
    """Delete the lines that render wrote for nodes that are gone, and show the site's lines that still name them.

    NODES is a node or a host list, such as 'gpu[01-16,20]'.
    """
    output = output.absolute()
    forgetting.forget(output, nodes)  # raises errors before a directory is made
    _run(output, lambda: forgetting.forget(output, nodes), dry_run, diff, force)


def _run(output: Path, make: Callable[[], Rendered], dry_run: bool, diff: bool, force: bool) -> None:
    """Shows or writes what `make` returns, and exits with the status that the help of the command describes."""
    if dry_run or diff:
        rendered = make()
        differs = False
        if diff:
            differs = show_diff(output, rendered.files)
        else:
            for name, content in rendered.files.items():
                click.echo(f"==> {output / name} <==\n{content}")
        show_merges(rendered.merges, rendered.remarks)
        raise click.exceptions.Exit(ExitCode.FOUND if differs else ExitCode.DONE)
    with on_disk.locked(output):
        rendered = make()
        is_read_at_start = write(output, rendered, force)
    show_merges(rendered.merges, rendered.remarks)
    if rendered.merges:
        raise click.exceptions.Exit(ExitCode.FOUND)
    if is_read_at_start:
        click.echo(RESTART)
