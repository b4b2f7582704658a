# SPDX-License-Identifier: Apache-2.0
"""Deletes what render wrote for a node that is gone, and finds the site's own lines that still name it."""

from __future__ import annotations

from pathlib import Path

from hami_hpc.errors import NodeError
from hami_hpc.render import names, on_disk, tenants
from hami_hpc.render.files import FRAGMENT, GRES, Rendered
from hami_hpc.render.marks import without_block
from hami_hpc.render.merging import Merge
from hami_hpc.slurm.files import ConfFile
from hami_hpc.slurm.lines import ConfLine, names_node

# Kind of record -> the key that names nodes; the record of a node itself has it first.
NODES_KEYS = {"nodename": "NodeName", "partitionname": "Nodes", "nodeset": "Nodes", "downnodes": "DownNodes"}


def forget(directory: Path, node: str) -> Rendered:
    """The files without the node's blocks, those alone that have one, and the site's lines that name the node.

    Reads files, writes none. NodeError for what is not the name of one node, and when a file cannot be read.
    """
    names.check_node("NODE", node)
    if not directory.is_dir():
        raise NodeError(f"{directory} is not there. Give the directory of slurm.conf with --output")
    out = Rendered()
    for name in (FRAGMENT, GRES, tenants.FILE):
        shorter = without_block(on_disk.read(directory / name) or "", node)
        if shorter is not None:
            out.add(name, shorter)
    slurm_conf = ConfFile(str(directory / "slurm.conf"), (str(directory / FRAGMENT),))
    gres_conf = ConfFile(str(directory / "gres.conf"), (str(directory / GRES),))
    for line in (*slurm_conf.lines, *gres_conf.lines):
        if _names(line, node):
            out.merges.append(Merge(f"{line.where} still names {node}. Take it out of:", (line.text,)))
    if not out.files and not out.merges:
        out.remarks.append(f"nothing in {directory} names {node}")
    return out


def _names(line: ConfLine, node: str) -> bool:
    key = NODES_KEYS.get(line.kind, "NodeName" if line.kind == "name" else "")
    return bool(key) and names_node(line.get(key), node)
