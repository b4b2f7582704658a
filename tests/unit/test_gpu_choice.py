# SPDX-License-Identifier: Apache-2.0
"""Slices where several GPU models are possible: on each GPU they fit, and never pass what their units hold."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from site_vectors import python_site, tables

from hami_hpc.core.gpu_choice import Where, capacity, preset_text, size_of
from hami_hpc.core.request import Request, parse
from hami_hpc.core.request_keys import MemMib, MemPercent
from hami_hpc.core.site import Site
from hami_hpc.core.units import least_shards, of_shards, resolve
from hami_hpc.errors import RequestError

HERE = Where(("gpu",))
MODELS = ("a", "b", "c")
SITES = st.builds(
    lambda totals, shard, scaling, tenants, cores: Site(
        shard_mib=shard,
        memory_scaling=scaling,
        default_mem="25%",
        default_cores=cores,
        bare_shard="allow",
        modes=("share",),
        classes={"std": ()},
        gpu_models=totals,
        partitions={"gpu": tuple(totals)},
        max_tenants=tenants,
    ),
    totals=st.dictionaries(st.sampled_from(MODELS), st.integers(300, 6000), min_size=1),
    shard=st.integers(1, 300),
    scaling=st.floats(0.5, 1.0) | st.floats(1.0, 3.0),
    tenants=st.sampled_from([0, 0, 1, 3, 7]),
    cores=st.integers(1, 100) | st.just("proportional"),
)
MEMORY = st.none() | st.builds(MemPercent, st.integers(1, 100)) | st.builds(MemMib, st.integers(1, 7000))
TYPES = st.sampled_from([None, None, "a|b", "!c"])
REQUESTS = st.builds(Request, mem=MEMORY, cores=st.none() | st.integers(1, 100), type=TYPES)


def models_of(site: Site, features: tuple[str, ...]) -> list[str]:
    """The models that Slurm may give a job with these features."""
    named = [word.removeprefix("vgpu_type_") for term in features for word in term.strip("()").split("|")]
    return [model for model in site.gpu_models if not named or model in named]


@given(site=SITES, request=REQUESTS)
def test_a_slice_fits_each_gpu_with_as_many_shards_and_has_its_part_of_the_time(site: Site, request: Request) -> None:
    try:
        units = resolve(request, site, HERE)
    except RequestError:
        assume(False)
    sizes = [size_of(site, model) for model in models_of(site, units.features)]
    can_land = [size for size in sizes if size.sold_shards >= units.shards]
    assert can_land, "Slurm would never start it"
    for mib, shards, _, sold_shards, _ in can_land:
        assert units.mem_mib <= mib
        assert units.shards >= shards * units.cores // 100
        assert not site.max_tenants or units.shards * (site.max_tenants + 1) > sold_shards
        if isinstance(request.mem, MemPercent):
            assert units.mem_mib >= min(mib, max(1, shards * request.mem.percent // 100) * site.shard_mib)


@given(site=SITES, wanted=st.lists(REQUESTS, min_size=1, max_size=12))
def test_jobs_that_slurm_puts_on_one_gpu_never_pass_its_memory_or_its_tenants(
    site: Site, wanted: list[Request]
) -> None:
    for model in site.gpu_models:
        _, _, mib, free, _ = size_of(site, model)
        tenants = mem_mib = 0
        for request in wanted:
            try:
                units = resolve(request, site, HERE)
            except RequestError:
                continue
            if model in models_of(site, units.features) and units.shards <= free:
                free, tenants, mem_mib = free - units.shards, tenants + 1, mem_mib + units.mem_mib
        assert mem_mib <= mib
        assert not site.max_tenants or tenants <= site.max_tenants


@given(shards=st.integers(1, 10**6), most=st.integers(1, 1024))
def test_as_many_small_slices_fit_a_gpu_as_max_tenants_says_wherever_its_shards_allow_that(
    shards: int, most: int
) -> None:
    least = least_shards(shards, most)
    assert 1 <= least <= shards
    assert shards // least <= most
    if any(shards // size == most for size in range(max(1, shards // most - 1), shards // most + 2)):
        assert shards // least == most
    assert least_shards(shards, 0) == 0
    assert least <= least_shards(shards + 1, most), "on a smaller GPU no more fit"


def test_two_tenants_of_an_odd_number_of_shards_are_two() -> None:
    assert [least_shards(559, most) for most in (1, 2, 8, 48)] == [559, 279, 69, 12]


@given(site=SITES, mib=st.integers(1, 300))
def test_mib_alone_are_the_same_shards_on_all_models_and_cores_follow(site: Site, mib: int) -> None:
    site = replace(site, default_cores="proportional", max_tenants=0, memory_scaling=1.0)
    most = max(capacity(site, model)[1] for model in site.gpu_models)
    units = resolve(Request(mem=MemMib(mib)), site, HERE)
    assert units.mem_mib == mib
    assert units.shards == min(most, max(-(-mib // site.shard_mib), most // 100, 1))
    assert units.cores == max(1, min(100, 100 * min(most, -(-mib // site.shard_mib)) // most))


def test_the_longest_request_of_percentages_runs_on_the_largest_model_alone() -> None:
    site = python_site(tables()["several"])
    units = resolve(Request(mem=MemPercent(100), cores=100), site, Where(("mixed",)))
    assert (units.shards, units.mem_mib) == (559, 143156)


def test_types_left_by_bare_shards_are_those_with_as_many() -> None:
    site = python_site(tables()["several"])
    assert of_shards(400, None, site, Where(("mixed",))).cores == 71


@pytest.mark.parametrize("text", ["h200;mem=8G;cores=2", "type=!a|b;policy=cap", "h200", "mem=50%;slo=10ms"])
def test_the_text_of_a_preset_is_read_back_as_the_same(text: str) -> None:
    parsed = parse(f"vgpu:{text}")
    assert parsed is not None
    assert preset_text(parsed.request) == text
