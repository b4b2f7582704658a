# SPDX-License-Identifier: Apache-2.0
"""Deletes what render wrote for nodes that are gone, and finds the site's own lines that still name them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hami_hpc.core.by_node import ByNode
from hami_hpc.core.hostlist import HostlistError, expand, fold
from hami_hpc.errors import NodeError
from hami_hpc.render import gathering, names, on_disk, tenants
from hami_hpc.render.inputs import FRAGMENT, GRES
from hami_hpc.render.marks import without_blocks
from hami_hpc.render.merging import Merge
from hami_hpc.render.rendered import Rendered
from hami_hpc.slurm.files import ConfFile
from hami_hpc.slurm.lines import ConfLine

# Kind of record -> the key that names nodes; the record of a node itself has it first.
NODES_KEYS = {"nodename": "NodeName", "partitionname": "Nodes", "nodeset": "Nodes", "downnodes": "DownNodes"}


def forget(directory: Path, hosts: str) -> Rendered:
    """The files without the nodes' blocks, those alone that have one, and the site's lines that name a node of them.

    Reads files, writes none. `hosts`: a node or a host list. NodeError for what is neither, and when a file cannot be
    read.
    """
    try:
        nodes = expand(hosts)
    except HostlistError as error:
        raise NodeError(f"NODES: {error}. Give a node, or a host list such as 'gpu[01-16,20]'") from error
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
    out.merges += gathering.merges(_still_named((*slurm_conf.lines, *gres_conf.lines), nodes))
    if not out.files and not out.merges:
        out.remarks.append(f"nothing in {directory} names {hosts}")
    return out


def _still_named(lines: Iterable[ConfLine], nodes: Iterable[str]) -> list[tuple[str, Merge]]:
    """Returns (nodes of `nodes` that a line names, what to do with it) for each line that names one."""
    by_node, numbered = ByNode[int](), list(lines)
    for number, line in enumerate(numbered):
        key = NODES_KEYS.get(line.kind, "NodeName" if line.kind == "name" else "")
        if hosts := line.get(key) if key else "":
            by_node.add(hosts, number)
    named: dict[int, list[str]] = {}
    for node in nodes:
        for number in by_node.of(node):
            named.setdefault(number, []).append(node)
    found = []
    for number in sorted(named):
        line, still = numbered[number], fold(named[number])
        what = f"{line.where} still names {still}. Take it out of:"
        lists = f" in {NODES_KEYS[line.kind]}=" if line.kind in NODES_KEYS and line.kind != "nodename" else ""
        of_many = f"still name nodes that are gone{lists}. Take these out of the lines:"
        found.append((still, Merge(what, (line.text,), line, of_many=of_many)))
    return found
