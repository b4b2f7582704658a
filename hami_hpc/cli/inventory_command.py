# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc inventory`: a node's GPUs; as JSON, what `hami-hpc render --inventory` reads on another machine."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

import click

from hami_hpc.cli import colours
from hami_hpc.cli.options import command, config_option, format_option, node_option, settings_of
from hami_hpc.core import node_inventory as core
from hami_hpc.core.inventory import Gpu, make_inventory
from hami_hpc.core.node_inventory import NodeInventory
from hami_hpc.core.tables import table
from hami_hpc.errors import NodeError
from hami_hpc.node import cpus, mig_static, nvml, nvml_places
from hami_hpc.node.config import Settings
from hami_hpc.render.names import check_node
from hami_hpc.slurm import commands

WRONG_SHOWN = 5
HEAD = ("INDEX", "MINOR", "MODEL", "MIB", "SHARDS", "UUID")


def _shards(settings: Settings, gpu: Gpu, static: frozenset[str]) -> int:
    if gpu.uuid in static or gpu.model not in settings.gpu_models:
        return 0
    return settings.gpu_size(gpu.model).sold_shards


@command("inventory")
@format_option("table", "json")
@node_option(
    "The node's name in Slurm, for JSON.  [default: $HAMI_HPC_NODE, else asked of slurm.conf, else this host's]",
    envvar="HAMI_HPC_NODE",
    default=commands.node_name_or_host,
)
@config_option
def inventory(form: str, node: str, config: Path | None) -> None:
    """This node's GPUs, as the driver shows them and as the settings count them.

    With --format json, what hami-hpc render --inventory reads on another machine: keep it as NODE.json.
    """
    settings = settings_of(config)
    gpus = make_inventory(nvml.read_devices(), settings.gpu_models)
    slots = mig_static.read(settings.state_dir)
    static = frozenset(slot.gpu_uuid for slot in slots)
    shards = {gpu.uuid: _shards(settings, gpu, static) for gpu in gpus}
    if form == "json":
        check_node("--node", node)
        instances = mig_static.devices(settings, slots)
        around = nvml_places.read_surroundings()
        click.echo(json.dumps(core.document(node, gpus, shards, around, instances, static, cpus.read_cpus()), indent=2))
        return
    cells = [
        (
            gpu.slurm_index,
            gpu.minor,
            gpu.model,
            gpu.total_mib,
            "static MIG layout" if gpu.uuid in static else shards[gpu.uuid] or "not in the settings",
            gpu.uuid,
        )
        for gpu in gpus
    ]
    click.echo(colours.table_head(table(HEAD, cells, right=(0, 1, 3, 4))))


def read_inventories(paths: Iterable[Path]) -> list[NodeInventory]:
    """Reads files, and the *.json of directories, by node's name. Raises NodeError for what is none, or read twice,
    with the first of the files that are wrong."""
    files: list[Path] = []
    for path in paths:
        found = sorted(path.glob("*.json")) if path.is_dir() else [path]
        if not found:
            others = sorted(each.name for each in path.iterdir() if each.is_file())
            there = f", but {len(others)} file(s) with other names ({others[0]}): rename them, or" if others else ":"
            how = "gather what hami-hpc inventory --format json prints on each node"
            raise NodeError(f"{path} has no *.json{there} {how}")
        files += found
    read, wrong = [], []
    for file in {os.path.realpath(file): file for file in files}.values():  # one that is named twice is read once
        try:
            each = core.parse(_text(file), str(file))
            check_node(f"{file}: node", each.node)
            read.append((str(file), each))
        except NodeError as error:
            wrong.append(str(error))
    if wrong:
        more = f"; and {len(wrong) - WRONG_SHOWN} more files" if len(wrong) > WRONG_SHOWN else ""
        raise NodeError("; ".join(wrong[:WRONG_SHOWN]) + more)
    core.check_distinct(read)
    return sorted((each for _, each in read), key=lambda each: each.node)


def _text(path: Path) -> str:
    if path.exists() and not path.is_file():  # a pipe would never end
        raise NodeError(f"{path} is no regular file")
    try:
        with path.open("rb") as file:
            content = file.read(core.MAX_BYTES + 1)
    except OSError as error:
        raise NodeError(f"{path} cannot be read ({error.strerror})") from error
    if len(content) > core.MAX_BYTES:
        raise NodeError(f"{path} is longer than {core.MAX_BYTES >> 20} MiB, so it is no inventory")
    return content.decode("utf-8", "replace")
