# SPDX-License-Identifier: Apache-2.0
"""inventory and jobs: what they show. doctor is in test_doctor.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from node_testbed import GPU_MIB, ROOT, UUIDS, Node

from hami_hpc.cli import main
from hami_hpc.core.inventory import Device
from hami_hpc.node import nvml, nvml_places
from hami_hpc.slurm import commands


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    devices = tuple(Device(minor, uuid, "NVIDIA H200", GPU_MIB) for minor, uuid in enumerate(UUIDS))
    monkeypatch.setattr(nvml, "read_devices", lambda: devices)
    return Node.make(tmp_path / "node")


def run(node: Node, *arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), env={"HAMI_HPC_CONFIG": str(node.config)})


def test_jobs_shows_limit_and_use_of_each_grant(node: Node) -> None:
    node.prolog(7, mem_mib=4096)
    node.prolog(12, gpu="1")
    node.write_usage(7, used_bytes=1000 << 20, peak_bytes=2000 << 20, oom_count=3, device_oom_count=4)
    assert [line.split() for line in run(node, "jobs").output.splitlines()[1:]] == [
        ["7", "65534", "0", "std", "4096", "1000", "2000", "3", "4", "50"],
        ["12", "65534", "1", "std", "8192", "0", "0", "0", "0", "50"],
    ]
    rows = json.loads(run(node, "jobs", "--format", "json").output)
    assert [(row["job_id"], row["used_bytes"], row["usage"]) for row in rows] == [(7, 1000 << 20, "ok"), (12, 0, "ok")]
    assert [(row["oom_count"], row["device_oom_count"]) for row in rows] == [(3, 4), (0, 0)]


def test_inventory_shows_slurms_index_model_and_shards(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml_places, "read_surroundings", dict)
    printed = json.loads(run(node, "inventory", "--format", "json", "--node", "n1").output)
    rows = printed["gpus"]
    assert printed["node"] == "n1"
    assert [(row["slurm_index"], row["model"], row["total_mib"], row["shards"]) for row in rows] == [
        (0, "h200", GPU_MIB, 559),
        (1, "h200", GPU_MIB, 559),
    ]
    assert UUIDS[1] in run(node, "inventory").output


@pytest.mark.parametrize(
    ("gres", "count"),
    [
        ("gpu:h200:2(S:0,1),shard:1118", {"h200": 2}),
        ("shard:8,gpu:1", {"": 1}),
        ("gpu:a100:4(S:0),gpu:h200:4(S:1),vgpu:std:9", {"a100": 4, "h200": 4}),
        ("vgpu:std:9", {}),
    ],
)
def test_gpus_of_all_types_are_counted_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, gres: str, count: dict[str, int]
) -> None:
    monkeypatch.setattr(commands, "_output", lambda *_command: f"NodeName=n CfgTRES=gres/gpu=99 Gres={gres} NodeAddr=n")
    assert commands.gpus_by_type("n") == count


def test_an_unknown_command_and_a_broken_file_end_in_one_line(node: Node) -> None:
    unknown = run(node, "nosuch")
    assert unknown.exit_code == 2
    assert "No such command 'nosuch'" in unknown.output
    assert run(node, "reconsile").output.endswith("Did you mean reconcile?\n")
    node.config.write_text("version = 2\n")
    broken = run(node, "jobs")
    assert broken.exit_code == 1
    assert broken.output.count("\n") == 1


def test_the_node_commands_load_without_accountings_libraries() -> None:
    code = (
        "import sys; sys.modules['pandas'] = sys.modules['duckdb'] = sys.modules['pyarrow'] = None\n"
        "from click.testing import CliRunner; from hami_hpc.cli import main\n"
        "print(CliRunner().invoke(main, ['jobs', '--help']).exit_code, CliRunner().invoke(main, ['--help']).exit_code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.split() == ["0", "0"]


def test_commands_that_act_on_jobs_ask_this_cluster_whatever_slurm_clusters_says(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another cluster's jobs of this node's name are not these: reconcile would remove the grants of all jobs here."""
    asked: list[str | None] = []

    def ask(*_words: str) -> frozenset[int]:
        asked.append(os.environ.get("SLURM_CLUSTERS"))
        return frozenset()

    monkeypatch.setattr(commands, "running_jobs", ask)
    monkeypatch.setattr(commands, "show_nodes", lambda: str(ask() or ""))
    for words in (("reconcile", "--node", "n1"), ("pool",)):
        monkeypatch.setenv("SLURM_CLUSTERS", "two")
        run(node, *words)
    assert asked == [None, "two"]
