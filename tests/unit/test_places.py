# SPDX-License-Identifier: Apache-2.0
"""Places: the types of a node's GPUs, and which of them a job with several slices has."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from site_vectors import python_site, tables

from hami_hpc.contract import constants as c
from hami_hpc.core import places
from hami_hpc.core.gpu_choice import Where
from hami_hpc.core.request import Request, parse
from hami_hpc.core.site import Site
from hami_hpc.core.units import Units, resolve
from hami_hpc.errors import RequestError

SITE = python_site(tables()["places"])  # four places; partition pairs has nodes of two GPUs


@pytest.mark.parametrize(
    ("gpus", "slices_max", "types"),
    [
        (8, 2, "aaaabbbb"),
        (8, 4, "aabbccdd"),
        (4, 16, "abcd"),
        (1, 2, "a"),
        (3, 2, "aab"),
        (7, 3, "aaabbcc"),
        (16, 16, "abcdefghijklmnop"),
    ],
)
def test_types_are_runs_of_neighbours(gpus: int, slices_max: int, types: str) -> None:
    assert "".join(places.of_gpus(gpus, slices_max)) == types


def test_a_site_with_one_slice_a_job_has_no_types() -> None:
    assert places.of_gpus(3, 1) == ("", "", "")


@given(gpus=st.integers(1, 64), slices_max=st.integers(2, c.SLICES_MAX))
def test_every_gpu_has_a_type_and_all_types_have_as_many_gpus_or_one_less(gpus: int, slices_max: int) -> None:
    types = places.of_gpus(gpus, slices_max)
    assert len(types) == gpus
    assert list(types) == sorted(types)
    counts = Counter(types)
    assert len(counts) == min(gpus, slices_max)
    assert max(counts.values()) - min(counts.values()) <= 1


@given(count=st.integers(2, 4), turn=st.integers(0, 10**6))
def test_a_job_has_as_many_different_places_as_slices(count: int, turn: int) -> None:
    units = resolve(Request(count=count), SITE, Where(("gpu",)), turn)
    assert len(set(units.places)) == count
    assert set(units.places) <= set("abcd")


def test_jobs_take_the_places_in_rotation() -> None:
    turns = ["".join(resolve(Request(count=2), SITE, Where(("gpu",)), turn).places) for turn in (0, 2, 4, 1, 3)]
    assert turns == ["ab", "cd", "ab", "bc", "ad"]


def test_no_job_gets_a_place_that_the_nodes_of_its_partition_do_not_have() -> None:
    for turn in range(8):
        assert resolve(Request(count=2), SITE, Where(("pairs",)), turn).places == ("a", "b")
        assert resolve(Request(count=2), SITE, Where(("gpu", "pairs")), turn).places == ("a", "b")


def ask(text: str, site: Site, partition: str) -> Units:
    parsed = parse(text)
    assert parsed is not None
    return resolve(parsed.request, site, Where((partition,)))


@pytest.mark.parametrize(
    ("text", "site", "partition", "message"),
    [
        ("vgpu:2", "one", "gpu", "a count of 2 is too high: slices_max is 1 here, so a job has one vgpu per node. Ask"),
        ("vgpu:5", "places", "gpu", "slices_max is 4 here, so a job has at most 4 vgpus per node. Ask for fewer"),
        ("vgpu:3", "places", "pairs", "a count of 3 is too high: no node of partition pairs has more than 2 GPUs. Ask"),
        ("vgpu:2", "places", "single", "no node of partition single has more than 1 GPU. Ask"),
        ("vgpu:17", "places", "gpu", "a count of 17 is too high: slices_max can be 16 at most. Ask for fewer"),
        (
            "vgpu:2:mode=mps",
            "places_of_modes",
            "gpu",
            "a count of 2 and mode=mps cannot be combined, because only mode=share gives a job several vgpus per node; "
            "leave mode=mps out. Example: --gres=vgpu:2:mem=8G,cores=50",
        ),
        ("vgpu:2:mig=1g.18gb", "places_of_modes", "gpu", "leave mig=1g.18gb out"),
        ("vgpu:0", "places", "gpu", "'0' is not a count of vgpus; a count is a whole number of at least 1"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(text: str, site: str, partition: str, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        ask(text, python_site(tables()[site]), partition)
    assert message in caught.value.message
    assert "\n" not in caught.value.message


def test_a_count_on_a_site_without_mode_share_is_refused() -> None:
    with pytest.raises(RequestError, match=r"the modes of this cluster \(mps\) cannot be combined.*ask for one vgpu"):
        places.check_mode(Request(count=2), ("mps",))
