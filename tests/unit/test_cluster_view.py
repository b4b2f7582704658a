# SPDX-License-Identifier: Apache-2.0
"""What Slurm prints of nodes and jobs, read back.

recorded/*-22.05.8.txt are what the private cluster's scontrol printed. The lines of later releases are those of 22.05.8
with GresUsed in the form in which src/interfaces/gres.c of 24.11.5 and 26.05.3 writes it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hami_hpc.core.pool import Node
from hami_hpc.errors import NodeError
from hami_hpc.slurm import cluster_view, commands
from hami_hpc.slurm.cluster_view import JobRow

RECORDED = Path(__file__).parent / "recorded"
NODES = (RECORDED / "nodes-22.05.8.txt").read_text()
JOBS = (RECORDED / "jobs-22.05.8.txt").read_text()
SHARDS_22_05 = "shard:h200:2(IDX:0-1)"


def node1(text: str = NODES, jobs: str = JOBS) -> Node:
    (node,) = cluster_view.parse_nodes(text, cluster_view.job_shards(jobs))
    return node


def test_a_recorded_node_is_read_with_the_shards_of_each_gpu_from_the_jobs() -> None:
    node = node1()
    assert (node.name, node.state, node.model, node.gpus, node.reason) == ("node1", "MIXED", "h200", 2, "")
    assert node.total == {"shard": 1118, "vgpu_mem": 286312, "vgpu_cores": 200}
    assert (node.allocated["shard"], node.allocated["vgpu_mem"], node.allocated["vgpu_cores"]) == (846, 146176, 130)
    assert node.used == (446, 400)
    assert (node.partitions, node.features) == (("gpu", "whole"), ("vgpu_share", "vgpu_type_h200"))
    assert (node.cpus, node.cpus_allocated, node.memory_mib, node.memory_allocated_mib) == (256, 3, 1024, 0)


@pytest.mark.parametrize(
    ("gres_used", "used"),
    [
        ("shard:h200:846(446/559,400/559)", (446, 400)),  # 24.11, 26.05
        ("shard:(null):846(446/559,400/559)", (446, 400)),  # 24.11 without a type
        ("shard:846(446/559,400/559)", (446, 400)),  # 26.05 without a type
        ("shard:h200:0(0/559,-/559)", (0, 559)),  # 26.05: the second GPU is held whole
        ("shard:h200:846(446/559)", None),  # another number of GPUs
    ],
)
def test_later_releases_show_each_gpu_and_no_job_has_to_be_asked(gres_used: str, used: tuple[int, ...] | None) -> None:
    assert SHARDS_22_05 in NODES
    assert node1(NODES.replace(SHARDS_22_05, gres_used), "").used == used


def without_slurmdbd(gres_used: str) -> str:
    """The recorded nodes as scontrol shows them without slurmdbd: no TRES for gres."""
    text = re.sub(r"(,gres/[a-z_:0-9]+=\d+)+", "", NODES)
    assert "gres/" not in text
    return re.sub(r"GresUsed=\S+", f"GresUsed={gres_used}", text)


def test_without_slurmdbd_gres_used_and_the_jobs_say_what_is_held() -> None:
    used = "gpu:h200:0(IDX:N/A),shard:h200:2(IDX:0-1),vgpu:std:{slices},vgpu:lc:1,vgpu_mem:146176,vgpu_cores:130"
    node = node1(without_slurmdbd(used.format(slices=2)))
    assert (node.allocated["shard"], node.allocated["vgpu_mem"], node.allocated["vgpu_cores"]) == (846, 146176, 130)
    assert node.used == (446, 400)
    assert node1(without_slurmdbd(used.format(slices=3))).used is None  # a job that this user may not see
    later = node1(without_slurmdbd(used.format(slices=2).replace(SHARDS_22_05, "shard:h200:846(446/559,400/559)")), "")
    assert (later.allocated["shard"], later.used) == (846, (446, 400))
    free = node1(without_slurmdbd("gpu:h200:0(IDX:N/A),shard:h200:0,vgpu:std:0,vgpu_mem:0,vgpu_cores:0"), "")
    assert (free.allocated["shard"], free.used) == (0, (0, 0))


@pytest.mark.parametrize(
    "per_node",
    [
        "gres:shard:111,gres:vgpu:std:1,gres:vgpu_mem:8192,gres:vgpu_cores:20",  # 22.05
        "gres/shard:111,gres/vgpu:std:1,gres/vgpu_mem:8192,gres/vgpu_cores:20",
    ],
)
def test_without_slurmdbd_a_job_asked_for_what_its_tres_per_node_says(per_node: str) -> None:
    units = {"vgpu": 2, "vgpu:std": 2, "shard": 222, "vgpu_mem": 16384, "vgpu_cores": 40}
    assert (
        cluster_view.units_asked("cpu=2,node=2,billing=2", per_node, 2) == {"cpu": 2, "node": 2, "billing": 2} | units
    )
    stored = "cpu=2,gres/shard=222,gres/vgpu=2,gres/vgpu:std=2,gres/vgpu_mem=16384,gres/vgpu_cores=40"
    assert cluster_view.units_asked(stored, per_node, 2) == {"cpu": 2} | units
    assert cluster_view.units_asked("cpu=1", "(null)", 1) == {"cpu": 1}


def test_jobs_that_this_user_may_not_see_make_the_gpus_unknown_and_not_free() -> None:
    """PrivateData=jobs: the node's sum has them, the jobs that scontrol shows do not."""
    of_one = "\n\n".join(part for part in JOBS.split("\n\n") if part.startswith("JobId=14 "))
    assert node1(jobs=of_one).used is None
    assert node1(jobs="").used is None


def test_gpus_that_are_held_whole_are_found() -> None:
    assert node1(NODES.replace("gpu:h200:0(IDX:N/A)", "gpu:h200:1(IDX:1)")).whole == {1}
    assert node1(NODES.replace("gpu:h200:0(IDX:N/A)", "gpu:h200:4(IDX:0-2,5)")).whole == {0, 1, 2, 5}


def test_the_reason_of_a_node_is_its_text_and_changes_no_other_fact() -> None:
    line = NODES.rstrip() + " Reason=bad fan State=IDLE Gres=gpu:9 \x1b[2J [root@2026-11-21T21:20:25]\n"
    node = node1(line.replace("State=MIXED", "State=MIXED+DRAIN"))
    assert (node.state, node.gpus, node.is_usable) == ("MIXED+DRAIN", 2, False)
    assert node.reason == "bad fan State=IDLE Gres=gpu:9 ?[2J [root@2026-11-21T21:20:25]"


def test_a_job_name_with_line_ends_adds_no_shards_that_count() -> None:
    forged = "JobId=99 JobName=a\n     Nodes=node1 CPU_IDs=0 Mem=0 GRES=shard:99(IDX:0)\n   UserId=x(1)\n"
    assert node1(jobs=JOBS + forged).used is None


def test_a_line_that_is_no_node_of_ours_is_left_out() -> None:
    assert cluster_view.parse_nodes("\nNodeName=x Gres=(null)\nNodeName=y Gres=gpu:2,shard:0\nno node\n", []) == []
    fewer = NODES.replace("shard:h200:1118", "shard:h200:1")  # than GPUs: by a slip of the pen in slurm.conf
    assert fewer != NODES
    assert cluster_view.parse_nodes(fewer, []) == []


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("cpu=3,mem=1G,gres/shard=846", {"cpu": 3, "mem": 1024, "shard": 846}),
        ("mem=1536M,gres/vgpu:std=1", {"mem": 1536, "vgpu:std": 1}),
        ("mem=1.50T", {"mem": 1536 * 1024}),
        ("", {}),
        ("cpu=,x", {}),
    ],
)
def test_tres_are_counted(text: str, counts: dict[str, int]) -> None:
    assert cluster_view.tres(text) == counts


def test_a_jobs_record_is_read_without_its_name() -> None:
    record = cluster_view.record_of(JOBS, 15)
    assert cluster_view.value(record, "Features") == "vgpu_type_h200"
    assert cluster_view.value(record, "NumNodes") == "1"
    assert cluster_view.value(record, "ReqNodeList") == ""
    assert cluster_view.placement(record) == [("node1", (0,))]
    named = record.replace("JobName=wrap", "JobName=my NumNodes=9 run")
    assert cluster_view.value(named, "NumNodes") == "1"
    assert cluster_view.record_of(JOBS, 1) == ""


@pytest.mark.parametrize(
    ("gres", "placed", "shards"),
    [
        ("shard:279(IDX:1)", (1,), [(1, 279)]),  # 22.05
        ("shard:279(0/559,279/559)", (1,), [(1, 279)]),  # 24.11, 26.05
        ("shard:h200:279(-/559,279/559)", (1,), [(1, 279)]),
        ("shard:a:60(60/100,0/100),shard:b:60(0/100,60/100)", (0, 1), [(0, 60), (1, 60)]),
        ("gpu:h200:1(IDX:2),vgpu:std(CNT:1)", (2,), []),
        ("shard:1()", (), []),
        ("shard:1(1/,/1)", (), []),
        ("shard:1(1/2,--/1)", (), []),
    ],
)
def test_where_a_job_lies_is_read_in_the_forms_of_all_releases(
    gres: str, placed: tuple[int, ...], shards: list[tuple[int, int]]
) -> None:
    record = f"JobId=7 JobName=x\n     Nodes=node1 CPU_IDs=0 Mem=0 GRES={gres}\n"
    assert cluster_view.placement(record) == [("node1", placed)]
    assert cluster_view.job_shards(record) == [("node1", *pair) for pair in shards]


def test_squeues_lines_are_read_and_others_left_out() -> None:
    line = "17|10_3|10|3|5|games|PENDING|gpu,whole|std|0:00|1:00:00|N/A|2026-11-21T21:18:48||ReqNodeNotAvail, a|b"
    (row,) = cluster_view.parse_squeue(f"{line}\nslurm_load_jobs error\n")
    assert isinstance(row, JobRow)
    assert (row.job_id, row.shown, row.array_id, row.uid) == (17, "10_3", 10, 5)
    assert (row.partitions, row.nodes, row.reason) == (("gpu", "whole"), "", "ReqNodeNotAvail, a|b")


def test_an_unknown_job_is_no_line_and_another_error_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(message: str) -> None:
        def output(*_command: str) -> str:
            raise NodeError(message)

        monkeypatch.setattr(commands, "_output", output)

    fails("squeue failed: slurm_load_jobs error: Invalid job id specified")
    assert commands.queue_rows("9", "%A") == ""
    fails("squeue failed: Unable to contact slurm controller")
    with pytest.raises(NodeError, match="controller"):
        commands.queue_rows("9", "%A")
