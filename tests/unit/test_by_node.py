# SPDX-License-Identifier: Apache-2.0
"""Values by node: the same as asking each host list whether it names the node, whatever is written in it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hami_hpc.core.by_node import ByNode
from hami_hpc.core.node_names import names_node

HOSTS = st.sampled_from(
    ["n1", "n[1-3]", "n[01-03,7]", "n[1-2],x", "rack[1-2]n[1-2]", "n[2-1]", "n[1-99999999]", "n[", "x,n3,x", "N1", ","]
)
NODES = ("n1", "n01", "n3", "n7", "n50000", "x", "rack1n2", "n[", "N1", "")


@given(st.lists(HOSTS, max_size=12))
def test_a_look_by_node_finds_what_all_host_lists_say(hosts: list[str]) -> None:
    by_node = ByNode[int]()
    for number, each in enumerate(hosts):
        by_node.add(each, number)
    for node in NODES:
        assert by_node.of(node) == [number for number, each in enumerate(hosts) if names_node(each, node)]


def test_what_is_for_every_node_keeps_its_place() -> None:
    by_node = ByNode[str]()
    for hosts, value in (("a", "first"), ("", "of all"), ("[", "odd"), ("a,b", "last")):
        by_node.add(hosts, value)
    assert by_node.of("a") == ["first", "of all", "last"]
    assert by_node.of("c") == ["of all"]
