# SPDX-License-Identifier: Apache-2.0
"""What AllocTRES says was held."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_hpc.accounting.documents.sreport_check import devices
from hami_hpc.accounting.sources.tres import AllocatedGpus, MigProfile, TresError, parse_alloc_tres, parse_mig

VGPU = "billing=1,cpu=1,gres/shard=280,gres/vgpu:std=1,gres/vgpu=1,gres/vgpu_cores=50,gres/vgpu_mem=8192,mem=1G,node=1"
# As sacct of 22.05.8 printed them for jobs on a node of two H200s, with every TRES that `hami-hpc render` tracks.
WHOLE = (
    "billing=256,cpu=256,gres/gpu:h200=2,gres/gpu=2,gres/vgpu:be=1118,gres/vgpu:lc=1118,gres/vgpu:std=1118,gres/vgpu=3354,"
    "gres/vgpu_cores=200,gres/vgpu_mem=286312,node=1"
)
WHOLE_HELD = AllocatedGpus((("h200", 2),), whole_units=3354)
RECORDED = {
    "--exclusive": (WHOLE, WHOLE_HELD),
    "--exclusive --gres=gpu:1": (WHOLE, WHOLE_HELD),
    "--exclusive --gres=none": (WHOLE, WHOLE_HELD),
    "--partition of OverSubscribe=EXCLUSIVE": (WHOLE, WHOLE_HELD),
    "--exclusive=user": ("billing=1,cpu=1,node=1", AllocatedGpus()),
    "--gpus=2": ("billing=1,cpu=1,gres/gpu:h200=2,gres/gpu=2,node=1", AllocatedGpus((("h200", 2),))),
    "--gres=shard:1": ("billing=1,cpu=1,gres/shard=1,node=1", AllocatedGpus(shards=1)),
}


@pytest.mark.parametrize("options", RECORDED)
def test_a_job_with_whole_nodes_holds_their_gpus_and_nothing_else(options: str) -> None:
    text, held = RECORDED[options]
    assert parse_alloc_tres(text) == held


def test_whole_nodes_are_counted_by_cores_where_gpus_are_not_tracked() -> None:
    text = ",".join(part for part in WHOLE.split(",") if "gres/gpu" not in part)
    assert parse_alloc_tres(text) == AllocatedGpus((("", 2),), whole_units=3354)
    # From 24.11 on, --exclusive --gres=shard:1 holds the node's GPUs as all their shards.
    assert parse_alloc_tres(text + ",gres/shard=1118") == AllocatedGpus((("", 2),), whole_units=3354)


def test_sreport_counts_the_units_of_whole_nodes_and_the_comparison_does_too() -> None:
    assert devices(AllocatedGpus.from_key(parse_alloc_tres(WHOLE).key())) == {"gres/gpu": 2, "gres/vgpu": 3354}


def test_a_vgpu_on_each_of_several_nodes_is_no_whole_node() -> None:
    text = "cpu=2,gres/shard=560,gres/vgpu:be=2,gres/vgpu=2,gres/vgpu_cores=100,gres/vgpu_mem=16384,node=2"
    assert parse_alloc_tres(text) == AllocatedGpus((), "be", 2, 16384, 100, 560)


def test_a_vgpu_job_is_read_once_although_slurm_prints_it_typed_and_untyped() -> None:
    assert parse_alloc_tres(VGPU) == AllocatedGpus((), "std", 1, 8192, 50, 280)


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("gres/gpu=2", (("", 2),)),
        ("gres/gpu=2,gres/gpu:h200=2", (("h200", 2),)),
        ("gres/gpu:h200=2,gres/gpu=3", (("", 1), ("h200", 2))),
        ("gres/gpu:a100=1,gres/gpu:h200=2", (("a100", 1), ("h200", 2))),
        ("cpu=4,mem=512M,node=1,energy=18446744073709551614,license/matlab=1,fs/disk=1.5K", ()),
        ("", ()),
    ],
)
def test_typed_devices_are_part_of_the_untyped_count(text: str, gpus: tuple[tuple[str, int], ...]) -> None:
    assert parse_alloc_tres(text).gpus == gpus


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("cpu=1,gres/gpu", "is not NAME=NUMBER"),
        ("cpu=1,,gres/gpu=1", "is not NAME=NUMBER"),
        ("gres/gpu=1,gres/gpu=1", "given twice"),
        ("gres/gpu=-1", "is not NAME=NUMBER"),
        ("gres/gpu=1,gres/gpu:h200=2", "add up to 2"),
        ("gres/vgpu_mem=8K,gres/vgpu=1,gres/vgpu_cores=5", "--noconvert"),
        ("gres/vgpu=1,gres/vgpu_mem=8192", "without gres/vgpu_cores"),
        ("gres/vgpu_mem=8192", "without gres/vgpu;"),
        ("gres/vgpu:lc=1,gres/vgpu:be=1,gres/vgpu=2,gres/vgpu_mem=1,gres/vgpu_cores=1", "of several classes"),
        ("gres/vgpu:lc=1,gres/vgpu:be=1,gres/vgpu=2", "of several classes"),
        ("gres/gpu=99999999999", "more than any cluster"),
    ],
)
def test_what_slurm_would_not_write_is_refused_by_name(text: str, says: str) -> None:
    with pytest.raises(TresError, match=says):
        parse_alloc_tres(text)


@given(st.text(max_size=60))
def test_noise_is_refused_or_read_but_never_crashes(text: str) -> None:
    try:
        held = parse_alloc_tres(text)
    except TresError:
        return
    assert AllocatedGpus.from_key(held.key()) == held


def test_the_canonical_key_reads_back_as_the_same_value() -> None:
    for text in (VGPU, WHOLE, "gres/gpu:h200_1g.18gb=2,gres/gpu=3", "gres/shard=7", ""):
        held = parse_alloc_tres(text)
        assert AllocatedGpus.from_key(held.key()) == held


@pytest.mark.parametrize(
    ("gres_type", "profile"),
    [
        ("h200_1g.18gb", MigProfile("h200", 1, 18)),
        ("nvidia_a100-sxm4-40gb_3g.20gb", MigProfile("nvidia_a100-sxm4-40gb", 3, 20)),
        ("1g.10gb+me", MigProfile("", 1, 10)),
        ("h200", None),
        ("a100_40gb", None),
    ],
)
def test_mig_types_are_told_from_whole_gpus(gres_type: str, profile: MigProfile | None) -> None:
    assert parse_mig(gres_type) == profile
