# SPDX-License-Identifier: Apache-2.0
"""What explain and pool say of jobs that take turns on an oversold GPU, on the job's node and elsewhere."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from test_cluster_view import JOBS, NODES
from test_turns_seen import THIRD, USER, as_user, row, run, site, write_state
from turns_testbed import FIRST, SECOND_JOB, Site

from hami_hpc.cli import turn_view
from hami_hpc.core.pool import Size
from hami_hpc.slurm import cluster_view, commands

__all__ = ["row", "site"]  # the fixtures
QUEUE = "{0}|{0}|{0}|N/A|65534|nobody|RUNNING|gpu|std|0:11|1:00:00|2026-11-21T21:28:24|2026-11-21T21:28:23|node1|None"


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "show_nodes", lambda: NODES)
    monkeypatch.setattr(
        commands, "show_jobs", lambda job="", *_more: JOBS.replace("JobId=14 ", f"JobId={job or 14} ", 1)
    )
    monkeypatch.setattr(commands, "queue_rows", lambda job, _form: QUEUE.format(job))


@pytest.mark.usefixtures("slurm")
def test_explain_on_the_jobs_node_says_where_it_stands(row: Site) -> None:
    shown = run(row, "explain", str(SECOND_JOB)).stdout
    assert re.search(r"^  turn       waits for the GPU for \w+ now: next of 2 in the row", shown, re.MULTILINE)
    assert re.search(r"^  turn       on the GPU$", run(row, "explain", str(FIRST)).stdout, re.MULTILINE)
    (told,) = json.loads(run(row, "explain", str(THIRD), "--format", "json").stdout)
    assert told["turns"][0].startswith("waits for the GPU")


@pytest.mark.usefixtures("slurm")
def test_explain_elsewhere_asks_the_node_as_the_jobs_user(
    row: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = run(row, "usage", str(SECOND_JOB), "--format", "json").stdout
    (tmp_path / "answer").write_text(f"a line of the site's\n{answer}")
    srun = tmp_path / "bin/srun"
    srun.parent.mkdir()
    srun.write_text(f'#!/bin/sh\necho "$@" "${{SLURM_JOB_ID:-none}}" > {tmp_path}/words\ncat {tmp_path}/answer\n')
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{srun.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    monkeypatch.setattr(turn_view, "here", lambda *_words: None)
    by_root = run(row, "explain", str(SECOND_JOB)).stdout
    assert f"it may wait for its turn: hami-hpc usage {SECOND_JOB} on its node" in by_root
    assert not (tmp_path / "words").exists(), "root starts no step in a user's job"
    monkeypatch.setattr(os, "geteuid", lambda: USER)
    assert "  turn       waits for the GPU for " in run(row, "explain", str(SECOND_JOB)).stdout
    assert (tmp_path / "words").read_text().split() == [
        *("--jobid=8", "--overlap", "--gres=none", "--quiet", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1"),
        *("hami-hpc", "usage", "8", "--format", "json", "none"),
    ]
    for wrong in ("", "{}", '{"moved": 1}', '{"moved": {"standing": null}, "host": "x"}'):
        (tmp_path / "answer").write_text(wrong)
        assert "it may wait for its turn" in run(row, "explain", str(SECOND_JOB)).stdout
    (tmp_path / "answer").write_text('{"host": "n", "moved": {"standing": {"text": "a\\u001b[2Jb"}}}')
    assert "  turn       a?[2Jb\n" in run(row, "explain", str(SECOND_JOB)).stdout


@pytest.mark.usefixtures("slurm")
def test_of_an_array_the_nodes_of_a_few_tasks_are_asked(row: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    ids: list[int] = []

    def asked(job_id: int, _shown: str, _nodes: int) -> list[str]:
        ids.append(job_id)
        return ["node1: waits"]

    lines = "\n".join(QUEUE.format(number) for number in range(120, 140))
    monkeypatch.setattr(commands, "queue_rows", lambda _job, _form: lines)
    monkeypatch.setattr(turn_view, "here", lambda *_words: None)
    monkeypatch.setattr(turn_view, "asked", asked)
    monkeypatch.setattr(os, "geteuid", lambda: USER)
    shown = run(row, "explain", "120").stdout
    assert ids == [120, 121, 122, 123]
    assert shown.count("  turn       waits\n") == 4
    assert shown.count("it may wait for its turn: hami-hpc usage ") == 16


@pytest.mark.usefixtures("slurm")
def test_pool_says_where_jobs_take_turns_and_on_its_own_node_who(row: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    oversold = NODES.replace("shard:h200:1118", "shard:h200:3354").replace("vgpu_mem:286312", "vgpu_mem:858936")
    oversold = oversold.replace("vgpu_cores:200", "vgpu_cores:668")
    assert oversold != NODES
    monkeypatch.setattr(commands, "show_nodes", lambda: oversold)
    write_state(row)
    monkeypatch.setenv("HAMI_HPC_NODE", "node1")
    shown = run(row, "pool", "node1").stdout
    assert "SOLD %" in shown
    assert "on node1, by its agent:\nGPU 0: 1 on it, 2 wait; " in shown
    assert f"  job {SECOND_JOB} waits for the GPU for " in shown
    (told,) = json.loads(run(row, "pool", "--format", "json").stdout)
    assert {one["job_id"]: one["state"] for one in told["turns"]}[FIRST] == "on"
    assert told["sold_percent_by_gpu"].keys() == {"0", "1"}
    monkeypatch.setenv("HAMI_HPC_NODE", "node2")
    assert "by its agent" not in run(row, "pool", "node1").stdout
    monkeypatch.setenv("HAMI_HPC_NODE", "node1")
    as_user(monkeypatch, USER)
    assert "by its agent" not in run(row, "pool", "node1").stdout
    (node,) = cluster_view.parse_nodes(oversold, [])
    size = Size(128_768, 503, 256, 1677)
    lines = turn_view.sold_lines([(replace(node, used=used), size) for used in ((1006, 503), (0, 1677), (10, 20))])
    assert lines == [
        "node1: jobs may wait for their turn on GPU 0 (200 %)",
        "node1: jobs may wait for their turn on GPU 1 (333 %, full or out of service)",
    ]
