# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc pool`: what the cluster's nodes have for vGPU jobs, what of it is allocated, and the largest free slice."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import click

from hami_hpc.cli import colours, turn_view
from hami_hpc.cli.exit_codes import ExitCode
from hami_hpc.cli.options import Failure, command, config_option, config_path, format_option
from hami_hpc.core import pool as core
from hami_hpc.core.gpu_choice import preset_text
from hami_hpc.core.hostlist import HostlistError, expand, fold
from hami_hpc.core.pool import Group, Node, Room, Size, Slice
from hami_hpc.core.tables import table
from hami_hpc.node.config import Settings, load_settings
from hami_hpc.node.preset_settings import read_presets
from hami_hpc.slurm import cluster_view, commands

NO_SLICE = "none"
_OF_THE_CLOUD = "nodes of the cloud are shown while they are up, or with PrivateData=cloud"
BOUND = "at most "  # before the slice of a node whose GPUs Slurm does not show one by one


def settings_here(config: Path | None) -> Settings | None:
    """Returns the settings; None where this machine has none. Raises HamiError for a file that was named, or is wrong.

    Login nodes may lack the file, and Slurm shows what these commands need.
    """
    path = config_path(config)
    if config is None and not os.environ.get("HAMI_HPC_CONFIG") and not os.access(path, os.R_OK):
        return None
    return load_settings(path)


def read_rooms(settings: Settings | None) -> list[tuple[Node, Size, Room]]:
    """Returns the nodes with vGPUs that Slurm shows to this user. Raises NodeError when slurmctld does not answer."""
    text = commands.show_nodes()
    nodes = cluster_view.parse_nodes(text, [])
    if any(node.used is None for node in nodes):  # Slurm before 23.11, with jobs that hold shards
        nodes = cluster_view.parse_nodes(text, cluster_view.job_shards(commands.show_jobs()))
    found = []
    for node in nodes:
        known = settings.gpu_size(node.model) if settings and node.model in settings.gpu_models else None
        size = core.size_of(node, settings.shard_mib if settings else 0, known)
        found.append((node, size, core.room_of(node, size)))
    return found


def _largest_text(found: Group | core.Total) -> str:
    return ("" if found.is_exact else BOUND) + found.largest.text if found.largest else NO_SLICE


def _row(group: Group) -> tuple[object, ...]:
    total, allocated = group.total, group.allocated
    return (
        group.state_text,
        group.model,
        group.gpus,
        group.whole,
        total["vgpu_mem"],
        allocated.get("vgpu_mem", 0),
        group.mem_mib,
        total["vgpu_cores"],
        allocated.get("vgpu_cores", 0),
        group.cores,
        _largest_text(group),
    )


HEAD_TEXT = "STATE|MODEL|GPUS|WHOLE|MEM MIB|ALLOCATED|FREE|CORES %|ALLOCATED|FREE|LARGEST FREE SLICE"
HEAD = tuple(HEAD_TEXT.split("|"))
RIGHT = tuple(range(3, 11))


def _show(rooms: list[tuple[Node, Size, Room]], with_gpus: bool, each: bool) -> None:
    nodes = [(node, room) for node, _, room in rooms]
    groups = [group for one in nodes for group in core.groups([one])] if each else core.groups(nodes)
    if any(len(group.nodes) > 1 for group in groups):
        cells = [(len(group.nodes), *_row(group), fold(group.nodes)) for group in groups]
        click.echo(colours.table_head(table(("NODES", *HEAD, "NODELIST"), cells, right=(0, *RIGHT))))
    else:
        cells = [(group.nodes[0], *_row(group)) for group in groups]
        click.echo(colours.table_head(table(("NODE", *HEAD), cells, right=RIGHT)))
    if with_gpus:
        _show_gpus(rooms)
    if len(rooms) > 1:
        _show_totals(rooms)
    reasons: dict[str, list[str]] = {}
    for node, _, _room in rooms:
        if node.reason and not node.is_usable:
            reasons.setdefault(f"{node.state_text}: {node.reason}", []).append(node.name)
    for reason, names in reasons.items():
        click.echo(f"\n{fold(names)} {'is' if len(names) == 1 else 'are'} {reason}")
    unclear = [node.name for node, _, _ in rooms if node.used is None]
    if unclear:
        click.echo(f"\nSlurm does not show how full each GPU of {fold(unclear)} is: the slices are bounds, not offers")


def _show_gpus(rooms: list[tuple[Node, Size, Room]]) -> None:
    """Prints a line for each GPU; of oversold ones also how much of them is allocated."""
    sold = {node.name: core.sold_percents(node, size) for node, size, _ in rooms}
    head, right = ("NODE", "GPU", "FREE SHARDS", "LARGEST FREE SLICE"), (1, 2)
    cells: list[tuple[object, ...]] = [
        (node.name, gpu.index, "held whole" if gpu.index in node.whole else gpu.free_shards, _gpu_text(gpu.largest))
        for node, _, room in rooms
        for gpu in room.gpus
    ]
    if any(sold.values()):
        head, right = (*head[:3], "SOLD %", *head[3:]), (1, 2, 3)  # type: ignore[assignment]
        cells = [(*cell[:3], sold[str(cell[0])].get(int(str(cell[1])), "-"), *cell[3:]) for cell in cells]
    click.echo("\n" + colours.table_head(table(head, cells, right)))


def _show_turns(rooms: list[tuple[Node, Size, Room]], settings: Settings | None) -> None:
    """Prints on which GPUs jobs take turns; of this node also who is on them, where the agent's state is readable."""
    lines = turn_view.sold_lines((node, size) for node, size, _ in rooms)
    for node, _, _ in rooms:
        here, _table = turn_view.of_node(settings, node.name)
        lines += [f"on {node.name}, by its agent:", *here] if here else []
    if lines:
        click.echo("\n" + "\n".join(lines))


def _show_presets(settings: Settings | None) -> None:
    """Prints what users can ask for by name, where this machine has the site's settings."""
    presets = read_presets(settings) if settings else {}
    if presets:
        rows = [(f"vgpu:preset={name}", preset_text(each).replace(";", ",")) for name, each in sorted(presets.items())]
        click.echo("\n" + colours.table_head(table(("PRESET", "STANDS FOR"), rows)))


def _show_totals(rooms: list[tuple[Node, Size, Room]]) -> None:
    sums = core.totals([(node, room) for node, _, room in rooms])
    rows = [(s.model, s.nodes, s.gpus, s.mem_mib, s.allocated_mib, s.free_mib, _largest_text(s)) for s in sums]
    head = ("MODEL", "NODES", "GPUS", "MEM MIB", "ALLOCATED", "FREE", "LARGEST FREE SLICE")
    click.echo("\n" + colours.table_head(table(head, rows, right=(1, 2, 3, 4, 5))))


def _gpu_text(found: Slice | None) -> str:
    return found.text if found else NO_SLICE


def node_json(node: Node, size: Size, room: Room) -> dict[str, object]:
    """Returns what both pool and explain print of a node for machines."""
    return {
        "node": node.name,
        "state": node.state,
        "reason": node.reason,
        "usable": node.is_usable,
        "model": node.model,
        "partitions": list(node.partitions),
        "gpus": node.gpus,
        "gpus_held_whole": sorted(node.whole),
        "shards_per_gpu": size.sold_shards,
        "shards_of_largest_slice": size.shards,
        "mem_mib": node.total["vgpu_mem"],
        "allocated_mem_mib": node.allocated.get("vgpu_mem", 0),
        "free_mem_mib": room.mem_mib,
        "cores": node.total["vgpu_cores"],
        "allocated_cores": node.allocated.get("vgpu_cores", 0),
        "free_cores": room.cores,
        "largest_slice": asdict(room.largest) if room.largest else None,
        "largest_slice_is_exact": room.is_exact,
        "sold_percent_by_gpu": {str(index): sold for index, sold in core.sold_percents(node, size).items()},
        "free_by_gpu": [asdict(gpu) for gpu in room.gpus],
    }


@command("pool")
@click.argument("nodes", metavar="[NODES]", nargs=-1)
@click.option("--each-node", is_flag=True, help="A line for each node, also where nodes are alike.")
@format_option("table", "json")
@config_option
def pool(nodes: tuple[str, ...], each_node: bool, form: str, config: Path | None) -> None:
    """What the cluster has for vGPU jobs, what of it is allocated, and the largest free slice of each node.

    Nodes of the same state, GPUs and size share a line, as in sinfo: it has their sums, and the largest slice that one
    of them has free. --each-node and JSON have each node.

    Names of nodes, or host lists such as 'gpu[01-16]', show each of their GPUs. A slice takes the larger of its memory
    and its share of the time, so that less can be free than the difference of total and allocated.
    """
    settings = settings_here(config)
    rooms = read_rooms(settings)
    try:
        named = {name for hosts in nodes for name in expand(hosts)}
    except HostlistError as error:
        raise Failure(f"{error}: give names, or host lists such as gpu[01-16]", ExitCode.USAGE) from error
    unknown = fold(named - {node.name for node, _, _ in rooms})
    if unknown:
        raise Failure(f"Slurm shows no node with vGPUs of the name {unknown} (sinfo -N); {_OF_THE_CLOUD}")
    shown = [row for row in rooms if not nodes or row[0].name in named]
    if form == "json":
        tables = [node_json(*row) | {"turns": turn_view.of_node(settings, row[0].name)[1]} for row in shown]
        click.echo(json.dumps(tables, indent=2))
    elif not shown:
        click.echo(
            f"Slurm shows no node with vGPUs (gres shard, vgpu_mem and vgpu_cores) to this user; {_OF_THE_CLOUD}"
        )
    else:
        _show(shown, with_gpus=bool(nodes), each=each_node or bool(nodes))
        _show_turns(shown, settings)
        _show_presets(settings)
