# SPDX-License-Identifier: Apache-2.0
"""Shares of a GPU, and rounding that closes."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_hpc.accounting.pricing.apportion import apportion
from hami_hpc.accounting.pricing.cluster_gpus import ClusterGpus, GpuModel
from hami_hpc.accounting.pricing.gpu_share import Mode, Part, ShareError, mig_share, shares_held, vgpu_share
from hami_hpc.accounting.sources.tres import AllocatedGpus, parse_alloc_tres

H200 = GpuModel("h200", 143156)
A100 = GpuModel("a100", 40337)
GPUS = ClusterGpus(
    {"h200": H200, "a100": A100},
    {"gpu": ("h200",), "mixed": ("a100", "h200")},
    nodes={"n7": "a100"},
    aliases={"nvidia_h200": "h200"},
)


def _measured(text: str, partition: str = "gpu", host: str = "", features: str = "") -> tuple[Part, ...]:
    return shares_held(parse_alloc_tres(text), partition, host, features, GPUS)


def test_a_vgpu_job_holds_the_larger_of_its_memory_and_time_shares() -> None:
    by_cores = "gres/vgpu:std=1,gres/vgpu=1,gres/vgpu_cores=50,gres/vgpu_mem=8192"
    by_memory = "gres/vgpu:be=1,gres/vgpu=1,gres/vgpu_cores=10,gres/vgpu_mem=71578"
    assert _measured(by_cores) == (Part("h200", Mode.VGPU, "std", 500_000),)
    assert _measured(by_memory) == (Part("h200", Mode.VGPU, "be", 500_000),)


def test_slices_on_several_nodes_add_up() -> None:
    assert _measured("gres/vgpu:lc=3,gres/vgpu=3,gres/vgpu_cores=75,gres/vgpu_mem=3000")[0].share_ppm == 750_000


# As sacct 22.05.8 prints it of vgpu:2:mem=8G,cores=50 on one node, and where the site tracks the types as well.
TWO = "gres/shard=558,gres/vgpu:std=2,gres/vgpu=2,gres/vgpu_cores=100,gres/vgpu_mem=16384,node=1"
TWO_TYPED = f"gres/shard:a=279,gres/shard:b=279,{TWO}"


@pytest.mark.parametrize("text", [TWO, TWO_TYPED])
def test_two_slices_on_a_node_are_twice_the_share_of_one(text: str) -> None:
    """By hand: 2 x 50 % of the time are a GPU, and 2 x 8192 of 143156 MiB are 11 %; the larger is held."""
    assert _measured(text) == (Part("h200", Mode.VGPU, "std", 1_000_000),)
    of_two_nodes = "gres/shard=1116,gres/vgpu:std=4,gres/vgpu=4,gres/vgpu_cores=200,gres/vgpu_mem=32768,node=2"
    assert _measured(of_two_nodes) == (Part("h200", Mode.VGPU, "std", 2_000_000),)


def test_two_slices_that_are_large_in_memory_are_twice_that_share() -> None:
    """By hand: 2 x 71578 of 143156 MiB are a GPU, and 2 x 10 % of the time are a fifth of one."""
    text = "gres/shard=560,gres/vgpu:std=2,gres/vgpu=2,gres/vgpu_cores=20,gres/vgpu_mem=143156,node=1"
    assert _measured(text) == (Part("h200", Mode.VGPU, "std", 1_000_000),)


# Three times the memory of an H200 is sold: 1677 shards, of which the largest slice has 503, and 334 of the time.
OVERSOLD = replace(GPUS, memory_scaling=3.0)


@pytest.mark.parametrize(
    ("mem_mib", "cores", "share"),
    [
        (128768, 1, Fraction(128768, 429468)),
        (128768, 100, Fraction(128768, 429468)),
        (8192, 100, Fraction(100, 334)),
        (64384, 25, Fraction(64384, 429468)),
    ],
)
def test_a_slice_of_an_oversold_gpu_holds_its_part_of_what_is_sold(mem_mib: int, cores: int, share: Fraction) -> None:
    held = parse_alloc_tres(f"gres/vgpu:std=1,gres/vgpu=1,gres/vgpu_cores={cores},gres/vgpu_mem={mem_mib}")
    part = Part("h200", Mode.VGPU, "std", round(share * 10**6))
    assert shares_held(held, "gpu", "", "", OVERSOLD) == (part,)
    granted = max(Fraction(mem_mib, 128768), Fraction(cores, 100))
    assert shares_held(held, "gpu", "", "", OVERSOLD, of_slice=True)[0].share_ppm == round(granted * 10**6)
    shards = shares_held(AllocatedGpus(shards=503), "gpu", "", "", OVERSOLD)
    assert shards == (Part("h200", Mode.SHARD, "", round(Fraction(503 * 10**6, 1677))),)
    whole = shares_held(parse_alloc_tres("gres/gpu=2"), "gpu", "", "", OVERSOLD)
    assert whole == (Part("h200", Mode.WHOLE, "", 2_000_000),)


def test_a_slice_larger_than_any_of_an_oversold_gpu_is_named() -> None:
    for mem_mib, cores in ((128769, 1), (8192, 101)):
        held = AllocatedGpus(vgpu_class="std", vgpu=1, vgpu_mem_mib=mem_mib, vgpu_cores_percent=cores)
        with pytest.raises(ShareError, match="check total_mib"):
            shares_held(held, "gpu", "", "", OVERSOLD)


@given(st.floats(1.01, 3.0), st.lists(st.tuples(st.integers(1, 128768), st.integers(1, 100)), max_size=60))
def test_all_slices_that_slurm_places_on_an_oversold_gpu_hold_no_more_than_the_gpu(
    scaling: float, wanted: list[tuple[int, int]]
) -> None:
    """But for less than a shard of each, as cores are rounded down to shards."""
    size = replace(GPUS, memory_scaling=scaling).size(H200)
    taken, held = 0, []
    for mem_mib, cores in wanted:
        shards = max(-(-mem_mib // 256), size.slice_shards * cores // 100)
        if taken + shards <= size.sold_shards:
            taken += shards
            held.append(AllocatedGpus(vgpu_class="std", vgpu=1, vgpu_mem_mib=mem_mib, vgpu_cores_percent=cores))
    shares = [vgpu_share(one, size) for one in held]
    assert sum(shares) <= Fraction(size.sold_shards + len(held), size.sold_shards)


def test_a_type_that_is_a_place_names_no_model() -> None:
    typed = "gres/gpu:a=1,gres/gpu:b=1,gres/gpu=2"
    assert _measured(typed, "mixed", features="vgpu_type_a100") == (Part("a100", Mode.WHOLE, "", 2_000_000),)
    assert _measured("gres/gpu=2", "mixed", features="vgpu_type_h200") == (Part("h200", Mode.WHOLE, "", 2_000_000),)


def test_whole_gpus_and_mig_instances_of_one_job_are_separate_parts() -> None:
    parts = _measured("gres/gpu:h200=1,gres/gpu:h200_3g.71gb=2,gres/gpu=3")
    assert parts == (Part("h200", Mode.WHOLE, "", 1_000_000), Part("h200", Mode.MIG, "", 1_000_000))


def test_shards_of_gpus_that_are_not_managed_have_their_own_size_or_are_named() -> None:
    foreign = replace(GPUS, partitions={"old": ("a100",), "gpu": ("h200",)}, foreign={"old": 8})
    held = parse_alloc_tres("gres/shard=2")
    assert shares_held(held, "old", "", "", foreign) == (Part("a100", Mode.SHARD, "", 250_000),)
    assert shares_held(held, "gpu", "", "", foreign) == (Part("h200", Mode.SHARD, "", round(2_000_000 / 559)),)
    with pytest.raises(ShareError, match=r"does not manage: \[partitions.old\] of rates.toml has no shards_per_gpu"):
        shares_held(held, "old", "", "", replace(foreign, foreign={"old": 0}))


@pytest.mark.parametrize(
    ("model", "slices", "memory_gb", "share"),
    [
        (H200, 1, 18, Fraction(1, 7)),
        (H200, 1, 35, Fraction(1, 4)),
        (H200, 3, 71, Fraction(1, 2)),
        (H200, 4, 71, Fraction(4, 7)),
        (H200, 7, 141, Fraction(1)),
        (A100, 1, 5, Fraction(1, 7)),
        (A100, 3, 20, Fraction(1, 2)),
        (GpuModel("a30", 24062, 4, 4), 1, 6, Fraction(1, 4)),
    ],
)
def test_a_mig_instance_holds_the_larger_of_its_compute_and_memory_slices(
    model: GpuModel, slices: int, memory_gb: int, share: Fraction
) -> None:
    assert mig_share(model, slices, memory_gb) == share


def test_the_model_is_the_one_recorded_then_the_nodes_then_the_constraint_then_the_only_one() -> None:
    vgpu = "gres/vgpu:std=1,gres/vgpu=1,gres/vgpu_cores=50,gres/vgpu_mem=8192"
    assert _measured("gres/gpu:nvidia_h200=1", "nowhere", "n7")[0].model == "h200"
    assert _measured(vgpu, "mixed", "n7")[0].model == "a100"
    assert _measured(vgpu, "mixed", "n1", "(fast)&vgpu_type_h200")[0].model == "h200"
    assert _measured(vgpu, "gpu")[0].model == "h200"


@pytest.mark.parametrize(
    ("text", "partition", "says"),
    [
        ("gres/gpu=1", "mixed", "which one the job held is not recorded"),
        ("gres/gpu=1", "cpu", "partition cpu is not in"),
        ("gres/gpu:b200=1", "gpu", "GPU model b200 is not in"),
        ("gres/vgpu:std=1,gres/vgpu=1,gres/vgpu_cores=50,gres/vgpu_mem=200000", "gpu", "check total_mib"),
        ("gres/gpu:a100_3g.80gb=1", "gpu", "is larger than a a100"),
    ],
)
def test_what_cannot_be_known_is_named_and_not_guessed(text: str, partition: str, says: str) -> None:
    with pytest.raises(ShareError, match=says):
        _measured(text, partition)


def test_alternatives_in_a_constraint_pin_no_model() -> None:
    with pytest.raises(ShareError, match="not recorded"):
        _measured("gres/gpu=1", "mixed", "", "vgpu_type_h200|vgpu_type_a100")


def test_a_bare_shard_job_holds_its_part_of_the_shards() -> None:
    assert shares_held(AllocatedGpus(shards=280), "gpu", "", "", GPUS)[0] == Part(
        "h200", Mode.SHARD, "", round(280 * 10**6 / 559)
    )


@given(st.lists(st.integers(0, 10**15), max_size=30), st.integers(1, 10**10))
def test_rounded_lines_add_up_to_the_rounded_total_and_stay_within_one_unit(exact: list[int], unit: int) -> None:
    lines = apportion(exact, unit)
    assert sum(lines) == round(Fraction(sum(exact), unit))
    assert all(abs(line * unit - value) < unit for line, value in zip(lines, exact, strict=True))
