# SPDX-License-Identifier: Apache-2.0
"""Where the files of one node go and what they are called, and what came of rendering them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hami_hpc.core.cpu_cores import CpuShape
from hami_hpc.core.node_inventory import Near
from hami_hpc.render.marks import marked
from hami_hpc.render.merging import Merge

WRAPPERS = {"Prolog": "hami-hpc-prolog", "Epilog": "hami-hpc-epilog"}


@dataclass(frozen=True, slots=True)
class Target:
    """The files' directory and the names in them. `prolog` and `epilog` are None where render writes a wrapper."""

    directory: str
    node: str
    node_parameters: str
    device: str
    plugin_dir: str
    spank: str
    prolog: str | None
    epilog: str | None
    cgroup: bool
    static: tuple[tuple[str, str], ...] = ()  # (type, device) of the instances of a static MIG layout
    has_typed_shards: bool = True
    near: Mapping[int, Near] = field(default_factory=dict)  # by minor number; empty where nobody asked the driver
    shape: CpuShape | None = None

    def path(self, name: str) -> str:
        return f"{self.directory}/{name}"

    def stage(self, key: str) -> str:
        """Returns the program for Prolog= or Epilog=."""
        program = self.prolog if key == "Prolog" else self.epilog
        return program or self.path(WRAPPERS[key])


@dataclass(slots=True)
class Rendered:
    """The files to write by name, the merges left to the administrator, and remarks."""

    files: dict[str, str] = field(default_factory=dict)
    merges: list[Merge] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    own_remarks: list[str] = field(default_factory=list)  # of the node, which they call NODES
    heads: dict[str, str] = field(default_factory=dict)  # by file: what comes before the blocks of nodes
    blocks: dict[str, str] = field(default_factory=dict)  # by file: the node's block, "" where it shall have none

    def add(self, name: str, content: str) -> None:
        self.files[name] = marked(content, "--" if name.endswith(".lua") else "#")
