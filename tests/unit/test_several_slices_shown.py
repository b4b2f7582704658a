# SPDX-License-Identifier: Apache-2.0
"""What reads Slurm's text of jobs with several slices, and of nodes whose GPUs have types that are places.

The texts are those that 22.05.8 and 24.11.5 printed (docs/adr/055).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from test_cluster_view import JOBS, NODES
from test_explain_command import lines, slurm  # noqa: F401  a fixture
from test_pool import node_of

from hami_hpc.agent.slurm_port import parse_held
from hami_hpc.core import pool
from hami_hpc.core.asked import decode
from hami_hpc.core.out_of_service import Holding, holdings
from hami_hpc.core.pool import Need, Node
from hami_hpc.slurm import cluster_view, commands

PAIRS = [
    "shard:a:60(IDX:0),shard:b:60(IDX:2)",
    "shard:a:60(60/100,0/100,0/100,0/100),shard:b:60(0/100,0/100,60/100,0/100)",
]
ONE_WITHOUT_TYPE = "shard:a:447(IDX:1),shard:b:0(IDX:),vgpu:std(CNT:1)"
TYPED_NODES = (
    NODES.replace("Gres=gpu:h200:2", "Gres=gpu:a:1,gpu:b:1")
    .replace("shard:h200:1118", "shard:a:559,shard:b:559")
    .replace("shard:1118", "shard:a:559,shard:b:559")
)
UNITS = {"vgpu": 2, "vgpu:std": 2, "vgpu_mem": 16384, "vgpu_cores": 100, "shard": 558}
PER_NODE = "gres:shard:a:279,gres:shard:b:279,gres:vgpu:std:2,gres:vgpu_mem:16384,gres:vgpu_cores:100"


@pytest.mark.parametrize("gres", PAIRS)
def test_the_gpus_and_shards_of_a_job_with_two_slices_are_read(gres: str) -> None:
    text = f"JobId=7 JobName=x\n     Nodes=node1 CPU_IDs=0 Mem=0 GRES={gres}\n   TimeLimit=1\n"
    assert parse_held(text) == parse_held(text.replace("\n", " ")) == frozenset({0, 2})
    assert cluster_view.placement(text) == [("node1", (0, 2))]
    assert cluster_view.job_shards(text) == [("node1", 0, 60), ("node1", 2, 60)]
    held = holdings(7, "RUNNING", False, text.replace("\n", " "), {"node1": True})
    assert held == (Holding(7, 0, 60, False, False), Holding(7, 2, 60, False, False))


def test_one_slice_on_typed_gpus_lies_on_the_gpu_that_it_has_shards_of() -> None:
    text = f"JobId=7 JobName=x\n     Nodes=node1 CPU_IDs=0 Mem=0 GRES={ONE_WITHOUT_TYPE}\n"
    assert parse_held(text) == frozenset({1})
    assert cluster_view.placement(text) == [("node1", (1,))]
    assert cluster_view.job_shards(text) == [("node1", 1, 447)]
    held = holdings(7, "RUNNING", False, text.replace("\n", " "), {"node1": True})
    assert held == (Holding(7, 1, 447, False, False),)


def typed_node(jobs: str = JOBS) -> Node:
    (node,) = cluster_view.parse_nodes(TYPED_NODES, cluster_view.job_shards(jobs))
    return node


def test_the_model_of_a_node_is_its_feature_where_types_are_places() -> None:
    node = typed_node()
    assert (node.model, node.gpus, node.places) == ("h200", 2, ("a", "b"))
    assert node.total["shard"] == 1118
    assert node.used == (446, 400)


def test_later_releases_show_the_gpus_of_each_type_after_one_another() -> None:
    used = "GresUsed=gpu:a:0(IDX:N/A),gpu:b:0(IDX:N/A),shard:a:60(60/559),shard:b:40(40/559)"
    assert "GresUsed=" in TYPED_NODES
    line = " ".join(used if word.startswith("GresUsed=") else word for word in TYPED_NODES.split(" "))
    (node,) = cluster_view.parse_nodes(line, [])
    assert node.used == (60, 40)


def test_what_a_job_with_two_slices_asked_for_is_read_back() -> None:
    asked = decode(UNITS, "vgpu_share", 1, PER_NODE)
    assert asked is not None
    assert (asked.count, asked.places, asked.mem_mib, asked.cores, asked.shards) == (2, ("a", "b"), 8192, 50, 279)
    assert asked.request == "vgpu:2:mem=8G,cores=50,mode=share"
    of_two = decode({name: 2 * count for name, count in UNITS.items()}, "vgpu_type_h200", 2, PER_NODE)
    assert of_two is not None
    assert (of_two.count, of_two.mem_mib, of_two.request) == (2, 8192, "vgpu:h200:2:mem=8G,cores=50")


@pytest.mark.parametrize(
    ("units", "nodes"),
    [
        ({"vgpu": 3}, 2),  # not as many on each node
        ({"vgpu": 34}, 2),  # more than any site allows
        ({"vgpu:lc": 2}, 1),  # several classes, as a job with whole nodes has them
        ({"vgpu": 0}, 1),
    ],
)
def test_units_that_no_slices_make_are_not_read_as_slices(units: dict[str, int], nodes: int) -> None:
    assert decode(UNITS | units, "", nodes) is None


def test_a_node_is_judged_by_the_gpus_of_each_type() -> None:
    need = Need(100, 1, 1, 1, 1, places=("a", "b"))
    four = node_of(143156, 256, (0, 500, 500, 500), places=("a", "a", "b", "b"))
    size = pool.size_of(four, 256)
    assert pool.shortages(four, size, pool.room_of(four, size), need) == [
        "a slice takes 18 % of a GPU of type b, and the emptiest has 10 % free"
    ]
    free = replace(four, used=(0, 500, 0, 500))
    assert pool.shortages(free, size, pool.room_of(free, size), need) == []
    two = replace(free, places=("a",) * 4)
    assert pool.shortages(two, size, pool.room_of(two, size), need) == [
        "it has no GPU of type b, and the job's slices are on types a, b"
    ]


def test_explain_says_how_many_slices_and_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = JOBS.replace("gres/shard=279", "gres/shard=558").replace("gres/vgpu=1", "gres/vgpu=2")
    record = record.replace("gres/vgpu:std=1", "gres/vgpu:std=2").replace("gres/vgpu_mem=8192", "gres/vgpu_mem=16384")
    record = record.replace("gres/vgpu_cores=50", "gres/vgpu_cores=100").replace(
        "GRES=shard:h200:279(IDX:0)", "GRES=shard:a:279(IDX:0),shard:b:279(IDX:1)"
    )
    assert record != JOBS
    monkeypatch.setattr(commands, "show_jobs", lambda *_job: record)
    said = lines(tmp_path, 14)
    assert said["asked"].startswith("2 slices on as many GPUs, each with 8,192 MiB of GPU memory and 50 % of a GPU's")
    assert said["memory"] == "requests beyond 8,192 MiB on a GPU fail with CUDA's out of memory"
    assert said["time"].endswith(", on each of its GPUs")
