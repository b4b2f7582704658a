# SPDX-License-Identifier: Apache-2.0
"""Units: the vectors, and the proofs that slices of one GPU fit and never pass its memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from lua_process import read_vectors
from site_vectors import python_site, tables

from hami_hpc.core.gpu_choice import Where, capacity, size_of
from hami_hpc.core.request import Request, parse
from hami_hpc.core.request_keys import MemMib, MemPercent
from hami_hpc.core.site import Site
from hami_hpc.core.sizes import gpu_size
from hami_hpc.core.units import check_policy, check_slo, class_of, resolve
from hami_hpc.errors import RequestError

SITES = {name: python_site(table) for name, table in tables().items()}
HERE = Where(("gpu",))

ONE_MODEL_SITES = st.builds(
    lambda total, scaling, shard: Site(
        shard_mib=shard,
        memory_scaling=scaling,
        default_mem="25%",
        default_cores=25,
        bare_shard="allow",
        modes=("share",),
        classes={"std": ()},
        gpu_models={"gpu": total},
        partitions={"gpu": ("gpu",)},
    ),
    total=st.integers(256, 4_000_000),
    scaling=st.floats(0.1, 8.0, allow_nan=False),
    shard=st.integers(1, 4096),
)


def request_for(mem: MemMib | MemPercent | None, cores: int | None) -> Request:
    return Request(mem=mem, cores=cores)


@pytest.mark.parametrize(("text", "site", "partitions", "qos", "expected"), read_vectors("units.tsv", 5))
def test_counts_each_vector_as_written(text: str, site: str, partitions: str, qos: str, expected: str) -> None:
    parsed = parse(text)
    assert parsed is not None
    where = Where(tuple(partitions.split(",")), None if qos == "-" else qos)
    if expected.startswith("E_"):
        with pytest.raises(RequestError) as caught:
            resolve(parsed.request, SITES[site], where)
        assert caught.value.code == expected
        return
    units = resolve(parsed.request, SITES[site], where)
    features = ",".join(units.features) or "-"
    slo = f" {units.slo_us}" if units.slo_us else ""
    places = f" {units.count}x{''.join(units.places)}" if units.count > 1 else ""
    assert f"{units.shards} {units.service_class} {units.mem_mib} {units.cores} {features}{slo}{places}" == expected


@given(ONE_MODEL_SITES, st.data())
def test_slices_whose_shards_fit_one_gpu_never_pass_its_memory(site: Site, data: st.DataObject) -> None:
    mib, shards, sold_mib, sold_shards, sold_cores = size_of(site, "gpu")
    assume(shards >= 1)
    mems = st.none() | st.builds(MemMib, st.integers(1, mib)) | st.builds(MemPercent, st.integers(1, 100))
    requests = data.draw(st.lists(st.builds(request_for, mems, st.none() | st.integers(1, 100)), max_size=40))
    taken = granted = whole_slices = 0
    for request in requests:
        units = resolve(request, site, HERE)
        assert 1 <= units.shards <= shards
        assert units.mem_mib <= mib
        if taken + units.shards <= sold_shards:
            taken += units.shards
            granted += units.mem_mib
            whole_slices += units.shards == shards
    assert granted <= sold_mib
    assert 100 * whole_slices <= sold_cores, "cores keep no job out whose shards fit"


def test_an_oversold_gpu_has_so_many_shards_and_cores_and_a_slice_the_rest_of_what_stays() -> None:
    """By hand: 90 % of 143156 MiB are 128840, 503 shards of 256 MiB; three times 143156 MiB are 1677 shards, and 100
    of the time for each 503 of them are 333.4."""
    assert size_of(SITES["oversold"], "h200") == (128768, 503, 429468, 1677, 334)
    assert size_of(SITES["one"], "h200") == (143156, 559, 143156, 559, 100)
    assert size_of(SITES["scaled"], "a40") == (36864, 36, 36864, 36, 100)
    barely = python_site({**tables()["one"], "memory_scaling": 1.0001})
    assert size_of(barely, "h200") == (128768, 503, 143170, 559, 112)


@pytest.mark.parametrize("scaling", [1.5, 2.5, 3.0])
@pytest.mark.parametrize("shard_mib", [256, 512, 3001])
def test_slices_of_all_shards_never_pass_what_is_sold(scaling: float, shard_mib: int) -> None:
    """What the largest slice had beyond its whole shards would be sold once more with each of them."""
    size = gpu_size(9999, scaling, shard_mib)
    assert size.slice_mib == size.slice_shards * shard_mib <= 9999 * 0.9
    assert size.sold_shards // size.slice_shards * size.slice_mib <= size.sold_mib


@pytest.mark.parametrize(("percent", "count"), [(50, 2), (25, 4), (20, 5), (10, 10), (33, 3), (1, 100), (100, 1)])
@given(site=ONE_MODEL_SITES, what=st.sampled_from(["mem", "cores", "both"]))
def test_equal_percentages_that_make_a_whole_fit_one_gpu(percent: int, count: int, site: Site, what: str) -> None:
    mib, shards = capacity(site, "gpu")
    assume(shards >= count)  # a slice is at least one shard
    mem = MemPercent(percent) if what in ("mem", "both") else MemPercent(1)
    units = resolve(request_for(mem, percent if what in ("cores", "both") else 1), site, HERE)
    assert units.shards * count <= shards
    assert units.mem_mib * count <= mib


@given(ONE_MODEL_SITES)
def test_all_of_a_gpu_is_all_its_shards_and_all_its_memory(site: Site) -> None:
    mib, shards = capacity(site, "gpu")
    assume(shards >= 1)
    for mem in (MemPercent(100), MemMib(mib)):
        units = resolve(request_for(mem, 100), site, HERE)
        assert (units.shards, units.mem_mib, units.cores) == (shards, mib, 100)


@given(ONE_MODEL_SITES, st.integers(1, 100), st.integers(1, 100))
def test_what_a_percentage_grants_counts_the_same_when_asked_for_in_mib(site: Site, percent: int, cores: int) -> None:
    _, shards = capacity(site, "gpu")
    assume(shards >= 1)
    first = resolve(request_for(MemPercent(percent), cores), site, HERE)
    again = resolve(request_for(MemMib(first.mem_mib), cores), site, HERE)
    assert again == first


@given(ONE_MODEL_SITES)
@example(SITES["one"])
def test_shards_never_stand_for_more_memory_than_the_gpu_has(site: Site) -> None:
    mib, shards = capacity(site, next(iter(site.gpu_models)))
    assert shards * site.shard_mib <= mib < (shards + 1) * site.shard_mib


def test_a_gpu_smaller_than_one_shard_is_the_sites_fault() -> None:
    site = python_site({**tables()["one"], "shard_mib": 200_000})
    with pytest.raises(RequestError, match="shard_mib is more than a GPU has") as caught:
        resolve(Request(), site, HERE)
    assert caught.value.code == "E_SITE"


def test_a_default_that_is_no_memory_size_is_the_sites_fault() -> None:
    site = python_site({**tables()["one"], "default_mem": "lots"})
    with pytest.raises(RequestError, match="default_mem=lots") as caught:
        resolve(Request(), site, HERE)
    assert caught.value.code == "E_SITE"


def test_too_much_memory_names_the_largest_gpu_of_the_partition() -> None:
    with pytest.raises(RequestError) as caught:
        resolve(Request(mem=MemMib(200 * 1024)), SITES["several"], Where(("mixed",)))
    assert caught.value.message == (
        "hami_hpc: mem=200G is more than a GPU of partition mixed has; the largest, h200, has 143156M. "
        "Example: --gres=vgpu:mem=143156M"
    )


def test_the_largest_gpu_is_the_one_of_the_most_memory_also_among_those_of_as_many_shards() -> None:
    models = {"small": 1024, "large": 1100}
    site = python_site({**tables()["one"], "gpu_models": models, "partitions": {"gpu": tuple(models)}})
    assert {capacity(site, model)[1] for model in models} == {4}
    with pytest.raises(RequestError) as caught:
        resolve(Request(mem=MemMib(1050)), site, HERE)
    assert caught.value.code == "E_TYPE_NEEDED"


def test_a_policy_that_a_class_does_not_allow_names_the_classes_that_do_and_their_qos() -> None:
    site = replace(
        SITES[next(iter(SITES))],
        classes={"lc": ("fast", "faster")},
        policies={"std": ("burst",), "lc": ("cap",), "be": ("cap",)},
    )
    check_policy(site, "std", None)
    check_policy(site, "lc", "cap")
    with pytest.raises(RequestError) as caught:
        check_policy(site, "std", "cap")
    assert "be (QoS none); lc (QoS fast, faster)" in str(caught.value)
    with pytest.raises(RequestError, match="policies of class none are missing"):
        check_policy(site, "none", "cap")


def test_an_slo_that_a_class_may_not_have_names_the_latency_critical_classes_and_their_qos() -> None:
    site = replace(SITES["one"], classes={"std": (), "lc": ("lc", "fast")}, latency=("lc", "rt"))
    with pytest.raises(RequestError) as caught:
        check_slo(site, "std", 10_000)
    assert "Latency-critical classes: lc (QoS lc, fast); rt (QoS none)." in str(caught.value)
    assert "--qos=lc --gres=vgpu:mem=8G,cores=50,slo=10ms" in str(caught.value)


def test_a_qos_of_no_class_is_std_and_case_does_not_matter() -> None:
    site = SITES["one"]
    assert [class_of(site, qos) for qos in (None, "", "lc", "LC", "sCaVeNgEr", "other")] == [
        "std",
        "std",
        "lc",
        "lc",
        "be",
        "std",
    ]
