# SPDX-License-Identifier: Apache-2.0
"""Deletes what render wrote for nodes that are gone, and finds the site's own lines that still name them."""

from __future__ import annotations

from pathlib import Path

from hami_hpc.core.hostlist import HostlistError, expand, fold
from hami_hpc.errors import NodeError
from hami_hpc.render import names, on_disk, tenants
from hami_hpc.render.files import Rendered
from hami_hpc.render.inputs import FRAGMENT, GRES
from hami_hpc.render.marks import without_blocks
from hami_hpc.render.merging import Merge
from hami_hpc.slurm.files import ConfFile
from hami_hpc.slurm.lines import ConfLine, names_node

# Kind of record -> the key that names nodes; the record of a node itself has it first.
NODES_KEYS = {"nodename": "NodeName", "partitionname": "Nodes", "nodeset": "Nodes", "downnodes": "DownNodes"}


def forget(directory: Path, hosts: str) -> Rendered:
    """The files without the nodes' blocks, those alone that have one, and the site's lines that name a node of them.

    Reads files, writes none. `hosts`: a node or a host list. NodeError for what is neither, and when a file cannot be
    read.
    """
    try:
        nodes = expand(hosts)
    except HostlistError:
        nodes = [hosts]
    for node in nodes:
        names.check_node("NODES", node)
    if not directory.is_dir():
        raise NodeError(f"{directory} is not there. Give the directory of slurm.conf with --output")
    out = Rendered()
    for name in (FRAGMENT, GRES, tenants.FILE):
        shorter = without_blocks(on_disk.read(directory / name) or "", nodes)
        if shorter is not None:
            out.add(name, shorter)
    slurm_conf = ConfFile(str(directory / "slurm.conf"), (str(directory / FRAGMENT),))
    gres_conf = ConfFile(str(directory / "gres.conf"), (str(directory / GRES),))
    for line in (*slurm_conf.lines, *gres_conf.lines):
        if still := [node for node in nodes if _names(line, node)]:
            out.merges.append(Merge(f"{line.where} still names {fold(still)}. Take it out of:", (line.text,)))
    if not out.files and not out.merges:
        out.remarks.append(f"nothing in {directory} names {hosts}")
    return out


def _names(line: ConfLine, node: str) -> bool:
    key = NODES_KEYS.get(line.kind, "NodeName" if line.kind == "name" else "")
    return bool(key) and names_node(line.get(key), node)
