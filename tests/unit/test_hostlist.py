# SPDX-License-Identifier: Apache-2.0
"""Host lists: names become one and come back, whatever names a site has; how Slurm reads them is a cluster test."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_hpc.core.hostlist import LONGEST, HostlistError, expand, fold, in_order, named
from hami_hpc.core.node_names import items_of, names_node, split_list

NAMES = st.one_of(
    st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,12}", fullmatch=True),
    st.builds(
        lambda prefix, number, width: prefix + str(number).zfill(width),
        st.sampled_from(["n", "gpu", "rack1-gpu", "a.b", "x_"]),
        st.integers(0, 120),
        st.integers(1, 4),
    ),
)


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        (["gpu1"], "gpu1"),
        ([f"gpu{number:03}" for number in range(1, 251)], "gpu[001-250]"),
        (["n8", "n9", "n10", "n11"], "n[8-11]"),
        (["n08", "n09", "n10", "n100"], "n[08-10,100]"),
        (["n9", "n09", "n10", "n1", "n01"], "n[1,9,01,09-10]"),
        (["n099", "n100", "n9", "n10"], "n[9-10,099-100]"),
        (["n0", "n00", "n1"], "n[0-1,00]"),
        (["rack1-gpu02", "rack2-gpu01", "rack1-gpu01"], "rack1-gpu[01-02],rack2-gpu01"),
        (["login", "gpu", "gpu1", "gpu2"], "gpu,gpu[1-2],login"),
        (["gpu2.example.org", "gpu1.example.org"], "gpu1.example.org,gpu2.example.org"),
        (["2", "1"], "1,2"),
        (["n1234567890", "n1234567891"], "n1234567890,n1234567891"),
    ],
)
def test_names_become_a_host_list_and_those_that_slurm_has_no_range_for_stay_whole(
    names: list[str], folded: str
) -> None:
    assert fold(names) == folded
    assert fold(reversed(names)) == folded
    assert expand(folded) == in_order(names)
    assert sorted(expand(folded)) == sorted(names)


def test_a_sentence_names_all_nodes_or_the_first_of_many_that_have_no_range() -> None:
    assert named(["n2", "n1"]) == "n[1-2]"
    names = [f"a{'x' * 9}{letter}" for letter in "abcdefghijk"]
    assert len(named(names[:10])) == LONGEST - 1
    assert named(names) == "axxxxxxxxxa and 10 other nodes"


@given(st.sets(NAMES, min_size=1, max_size=60), NAMES)
def test_a_host_list_names_exactly_the_nodes_that_it_was_made_of(names: set[str], other: str) -> None:
    folded = fold(names)
    assert sorted(expand(folded)) == sorted(names)
    assert folded == fold(in_order(names))
    assert all(names_node(folded, name) for name in names)
    assert names_node(folded, other) == (other in names)


@pytest.mark.parametrize(
    "text", ["", "a,,b", "a[1-", "a[2-1]", "a[1-99999999]", "a[x]", "a b", "n[1-9]\\x", f"n[1-{'9' * 5000}]"]
)
def test_what_is_no_host_list_is_refused(text: str) -> None:
    with pytest.raises(HostlistError):
        expand(text)


@given(st.text(alphabet="a1,-()[]", max_size=30))
def test_a_list_is_split_at_the_commas_that_no_closing_bracket_follows_before_an_opening_one(text: str) -> None:
    items = re.split(r",(?![^(\[]*[)\]])", text)
    assert items_of(text) == items
    assert split_list(text) == [item for item in items if item]


def test_a_line_of_many_unlike_names_is_split_in_time_that_grows_with_its_length_alone() -> None:
    """One look at the rest of the line for each of the commas would take an hour."""
    names = [f"n{number}.example.org" for number in range(200_000)]
    assert split_list(",".join(names)) == names
    assert len(expand(",".join(names[:65_536]))) == 65_536
    assert names_node(",".join(names), "n199999.example.org")
