# SPDX-License-Identifier: Apache-2.0
"""The NodeName lines of a site's slurm.conf, found by node in one look, however many there are. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hami_hpc.core.by_node import ByNode
from hami_hpc.slurm.lines import ConfLine, names_node

CPU_KEYS = ("cpus", "boards", "socketsperboard", "sockets", "corespersocket", "threadspercore")


@dataclass(frozen=True, slots=True)
class NodeLine:
    """The site's own NodeName line for a node, and its effective Gres, features and CPUs (its own, or DEFAULT's)."""

    line: ConfLine
    gres: str
    features: str
    feature_key: str
    cpus: Mapping[str, int]


class NodeLines:
    """The NodeName lines among `lines`, in Slurm's order. `default_cpus`: what DEFAULT says of CPUs at the end."""

    def __init__(self, lines: Iterable[ConfLine]) -> None:
        self.first: ConfLine | None = None
        self.default_cpus: dict[str, int] = {}
        self._lines = ByNode[NodeLine]()
        gres = features = ""
        for line in lines:
            if line.kind != "nodename":
                continue
            name, own_gres, own_features = line.get("NodeName"), line.get("Gres"), features_of(line)
            if name.upper() == "DEFAULT":
                gres, features = own_gres or gres, own_features or features
                self.default_cpus = self.default_cpus | cpus_of(line)
                continue
            self.first = self.first or line
            key = "Features" if line.get("Features") else "Feature"
            cpus = self.default_cpus | cpus_of(line)
            if name:
                self._lines.add(name, NodeLine(line, own_gres or gres, own_features or features, key, cpus))
        self._by_short = {_short(name): name for name in self._lines.by_name}

    def of(self, node: str) -> NodeLine | None:
        """Returns the first line that names `node`, or None."""
        return next(iter(self._lines.of(node)), None)

    def other_spelling(self, node: str) -> str:
        """Returns how a name that slurm.conf has differs from `node`, if by its domain or by letters' case alone; else
        "". The text is the same for nodes that differ alike."""
        short = _short(node)
        name = self._by_short.get(short, "")
        if name and name.startswith(node):
            return f"with {name.removeprefix(node)} at its end"
        host, dot, domain = node.partition(".")
        if dot and (name == host or any(names_node(part, host) for _, part, _ in self._lines.ranges)):
            return f"without .{domain}"
        if name or any(names_node(part.lower(), short) for _, part, _ in self._lines.ranges):
            return "with other capital letters or another domain"
        return ""


def _short(name: str) -> str:
    return name.lower().partition(".")[0]


def features_of(line: ConfLine) -> str:
    return line.get("Feature") or line.get("Features")


def cpus_of(line: ConfLine) -> dict[str, int]:
    """Returns what a NodeName line says of CPUs: key -> number."""
    return {key.lower(): int(value) for key, value in line.pairs if key.lower() in CPU_KEYS and _is_count(value)}


def _is_count(value: str) -> bool:
    return value.isascii() and value.isdigit() and len(value) < 7
