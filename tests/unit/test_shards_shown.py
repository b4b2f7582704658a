# SPDX-License-Identifier: Apache-2.0
"""The shards of a job on each GPU of a node, from what Slurm 22.05, 24.11 and 26.05 printed (docs/adr/055)."""

from __future__ import annotations

import pytest

from hami_hpc.core.shards_shown import any_whole_gpus_of_node, name_of_job, shards_of_node, whole_gpus_of_node

JOB = """JobId=7 JobName=wrap
   UserId=ada(1001) GroupId=ada(1001) MCS_label=N/A
   NodeList={nodes}
   TRES=cpu=1,node=1,billing=1,gres/shard=120
   JOB_GRES=shard:a:60,shard:b:60
     Nodes={nodes} CPU_IDs=0-1 Mem=0 GRES={gres}
   MinCPUsNode=1 MinMemoryNode=0 MinTmpDiskNode=0
   Comment={comment}
   TresPerNode=gres:shard:a:60,shard:b:60
"""
PAIR_22_05 = "shard:a:60(IDX:0),shard:b:60(IDX:2)"
PAIR_24_11 = "shard:a:60(60/100,0/100,0/100,0/100),shard:b:60(0/100,0/100,60/100,0/100)"


def job(gres: str, nodes: str = "node1", comment: str = "") -> str:
    return JOB.format(gres=gres, nodes=nodes, comment=comment)


@pytest.mark.parametrize(
    ("gres", "held"),
    [
        (PAIR_22_05, {0: 60, 2: 60}),
        (PAIR_24_11, {0: 60, 2: 60}),
        ("shard:80(50/100,30/100)", {0: 50, 1: 30}),  # MULTIPLE_SHARING_GRES_PJ
        ("shard:60(30/100,30/100)", {0: 30, 1: 30}),  # one-task-per-sharing
        ("shard:279(IDX:1),vgpu:std(CNT:1),vgpu_mem(CNT:8192),vgpu_cores(CNT:50)", {1: 279}),
        ("shard:b:60(IDX:11),shard:a:60(IDX:2)", {2: 60, 11: 60}),
        ("shard:a:60(60/100,-/100)", {0: 60}),
        ("gpu:a:1(IDX:0)", {}),
        ("shard:a:447(IDX:1),shard:b:0(IDX:),vgpu:std(CNT:1)", {1: 447}),  # without a type, on GPUs of types
        ("shard:a:0(0/100,0/100),shard:b:60(0/100,60/100)", {1: 60}),
        ("", {}),
    ],
)
def test_both_forms_of_slurm_are_read(gres: str, held: dict[int, int]) -> None:
    assert shards_of_node(job(gres), "node1", 7) == held
    assert list(shards_of_node(job(gres), "node1")) == sorted(held)
    assert shards_of_node(" ".join(job(gres).split("\n")), "node1") == held  # --oneliner


@pytest.mark.parametrize(
    ("gres", "message"),
    [
        ("shard:a:60(IDX:0-1)", "'shard:a:60\\(IDX:0-1\\)' does not say how many"),
        ("shard:a:60(IDX:N/A)", "does not say"),
        ("shard(CNT:60)", "does not say"),
        ("shard:60", "does not say"),
        ("shard:a:60()", "does not say"),
        ("shard:a:60(60/100,x)", "does not say"),
        ("shard:a:60(60/100,/100)", "does not say"),
        ("shard:a:60(50/100,0/100)", "says 60 shards, and 50 by GPU"),
        ("shard:a:0(IDX:0)", "says 0 shards"),
        ("shard:a:5(IDX:)", "says 5 shards, and 0 by GPU"),
        ("shard:a:60(IDX:0),shard:b:60(IDX:0)", "has GPU 0 twice"),
        ("shard:a:60(IDX:1024)", "no node has that many"),
        (f"shard:a:{'9' * 300}(IDX:0)", "does not say"),
        ("shard:a:٦٠(IDX:0)", "does not say"),
    ],
)
def test_what_is_not_understood_is_said(gres: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shards_of_node(job(gres), "node1")


def test_each_node_has_its_own_line() -> None:
    text = job(PAIR_22_05, "gpu[01-03,07]").replace(
        "   MinCPUs", "     Nodes=gpu[04-06] CPU_IDs=0 Mem=0 GRES=shard:a:9(IDX:1)\n   MinCPUs"
    )
    assert shards_of_node(text, "gpu07") == {0: 60, 2: 60}
    assert shards_of_node(text, "gpu05") == {1: 9}
    for other in ("gpu08", "gpu7", "node1"):
        with pytest.raises(ValueError, match=f"names no GPUs of node {other}"):
            shards_of_node(text, other)


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gpu:a:1(IDX:1),gpu:b:1(IDX:3)", {1, 3}),
        ("gpu:a:1(IDX:1),gpu:b:0(IDX:)", {1}),
        ("gpu:4(IDX:0-2,5),vgpu:std(CNT:1)", {0, 1, 2, 5}),
        ("shard:a:60(IDX:0)", set()),
        ("", set()),
    ],
)
def test_whole_gpus_of_all_types_are_read(gres: str, gpus: set[int]) -> None:
    assert whole_gpus_of_node(job(gres), "node1") == gpus
    with pytest.raises(ValueError, match="different lines"):
        whole_gpus_of_node(job(gres, comment=FORGED), "node1")


@pytest.mark.parametrize("gres", ["", "shard:a:1(IDX:1)", "gpu:1(IDX:-)", "gpu:1(IDX:3)", "x(", "gpu:1(IDX:0", "["])
def test_nothing_that_a_user_writes_hides_a_whole_gpu(gres: str) -> None:
    forged = f"x\n     Nodes=node1 CPU_IDs=0 Mem=0 GRES={gres}"
    shown = job("gpu:a:1(IDX:1)")
    for text in (job("gpu:a:1(IDX:1)", comment=forged), shown.replace("JobName=wrap", f"JobName={forged}")):
        assert 1 in any_whole_gpus_of_node(text, "node1", 7)
    with pytest.raises(ValueError, match="not job 8"):
        any_whole_gpus_of_node(shown, "node1", 8)
    with pytest.raises(ValueError, match="names no GPUs of node node2"):
        any_whole_gpus_of_node(shown, "node2", 7)


FORGED = "x\n     Nodes=node1 CPU_IDs=0 Mem=0 GRES=shard:a:1(IDX:3)"


@pytest.mark.parametrize(
    "forged", [FORGED, FORGED + "\nJobId=7 JobName=y", FORGED.replace("\n", " "), "\nJobId=9 " + FORGED]
)
def test_a_name_or_comment_that_looks_like_an_answer_is_refused(forged: str) -> None:
    for text in (job(PAIR_22_05, comment=forged), job(PAIR_22_05).replace("JobName=wrap", f"JobName={forged}")):
        for shown in (text, " ".join(text.split("\n"))):
            with pytest.raises(ValueError, match="different lines about node node1"):
                shards_of_node(shown, "node1", 7)


def test_forging_what_is_true_changes_nothing() -> None:
    assert shards_of_node(job("shard:a:1(IDX:3)", comment=FORGED), "node1") == {3: 1}


def test_an_array_s_id_shows_all_tasks_and_each_has_a_name() -> None:
    text = job(PAIR_22_05) + "\n" + job("shard:a:60(IDX:1),shard:b:60(IDX:3)").replace("JobId=7", "JobId=8")
    with pytest.raises(ValueError, match="tasks of an array"):
        shards_of_node(text, "node1", 7)
    with pytest.raises(ValueError, match="printed 'JobId=7 JobName=wrap"):
        shards_of_node(text, "node1", 8)
    rows = " 7 7 4\n8 7 3\n9 7 5-9%2\n"
    assert [name_of_job(rows, job_id) for job_id in (7, 8)] == ["7_4", "7_3"]
    for job_id in (9, 10):  # one of which tasks wait, and one that is not there
        with pytest.raises(ValueError, match=f"whether job {job_id} is a task of an array"):
            name_of_job(rows, job_id)
    assert name_of_job("10 10 N/A\n", 10) == "10"


@pytest.mark.parametrize(
    "text", ["", "\0", "slurm_load_jobs error: Invalid job id specified", "JobId=7\n", "{}" * 50000]
)
def test_no_other_text_is_an_answer(text: str) -> None:
    with pytest.raises(ValueError, match="scontrol show job -d"):
        shards_of_node(text, "node1", 7)
    with pytest.raises(ValueError, match="names no GPUs"):
        shards_of_node(text, "node1")
