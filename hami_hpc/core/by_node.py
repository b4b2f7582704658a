# SPDX-License-Identifier: Apache-2.0
"""Values for nodes, such as the lines of a configuration file or jobs, found by node without looking at all. Pure."""

from __future__ import annotations

from typing import Generic, TypeVar

from hami_hpc.core.hostlist import HostlistError, expand
from hami_hpc.core.node_names import names_node, split_list

T = TypeVar("T")


class ByNode(Generic[T]):
    """Values by the nodes that a host list names; one look finds those of a node, however many there are."""

    def __init__(self) -> None:
        self._count = 0
        self.by_name: dict[str, list[tuple[int, T]]] = {}
        self.ranges: list[tuple[int, str, T]] = []  # with the part of a host list that is not expanded
        self._of_all: list[tuple[int, T]] = []

    def add(self, names: str, value: T) -> None:
        """Adds a value for these nodes, a host list; "" is every node."""
        for part in split_list(names):
            try:
                for name in expand(part):
                    self.by_name.setdefault(name, []).append((self._count, value))
            except HostlistError:  # several brackets in a name, or more names than a cluster has
                self.ranges.append((self._count, part, value))
        if not names:
            self._of_all.append((self._count, value))
        self._count += 1

    def of(self, node: str) -> list[T]:
        """Returns the values for `node`, in the order in which they were added."""
        found = dict([*self._of_all, *self.by_name.get(node, ())])
        found |= {number: value for number, part, value in self.ranges if names_node(part, node)}
        return [found[number] for number in sorted(found)]
