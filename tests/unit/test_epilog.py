# SPDX-License-Identifier: Apache-2.0
"""Epilog: usage to the spool, then the run directory and the ledger row go."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from node_testbed import UID, UUIDS, Node, job_environment

from hami_hpc.contract import constants as c
from hami_hpc.node import usage_spool
from hami_hpc.stages import common, epilog

PLAIN = st.characters(exclude_categories=["Cs"], exclude_characters="\0")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node.make(tmp_path / "node")


def test_the_spool_gets_what_the_job_used_and_nothing_is_left_behind(node: Node) -> None:
    before = time.time_ns()
    node.prolog(7, mem_mib=4096)
    node.write_usage(7, peak_bytes=3 << 30, oom_count=2, device_oom_count=3, gpu_busy_ns=1000, throttled_ns=500)
    assert node.run("epilog", job_environment(7, mem_mib=4096)) == (0, "")
    found = node.record()
    start, end = found.pop("start_unix_ns"), found.pop("end_unix_ns")
    assert isinstance(start, int)
    assert isinstance(end, int)
    assert before <= start < end <= time.time_ns()
    for name in ("prolog_began_unix_ns", "prolog_done_unix_ns", "epilog_began_unix_ns"):
        found[name] = int(found[name] == 0)  # they are in tests/unit/test_stage_times.py
    assert found == c.SPOOL_DEFAULTS | {
        "version": 1,
        "job_id": 7,
        "uid": UID,
        "class": "std",
        "mode": "share",
        "gpu_uuid": UUIDS[0],
        "model": "h200",
        "mem_mib": 4096,
        "cores": 50,
        "start": start // 10**9,
        "end": end // 10**9,
        "usage": "ok",
        "peak_bytes": 3 << 30,
        "oom_count": 2,
        "device_oom_count": 3,
        "gpu_busy_ns": 1000,
        "throttled_ns": 500,
    }
    node.assert_nothing_is_held()


@pytest.mark.parametrize(
    ("given", "recorded"),
    [
        ("demo", "demo"),
        ("Demo-2.x_y", "demo-2.x_y"),  # slurmdbd has names of clusters in lower case
        ("", ""),
        ("a|b", ""),
        ("a\nb", ""),
        ("caf\u00e9", ""),
        ("x" * 65, ""),
    ],
)
def test_the_record_says_which_cluster_it_is_of(node: Node, given: str, recorded: str) -> None:
    node.prolog(7)
    assert node.run("epilog", job_environment(7, SLURM_CLUSTER_NAME=given)) == (0, "")
    assert node.record()["cluster"] == recorded


def test_a_record_that_reconcile_writes_has_the_cluster_of_slurm_conf(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text("include more.conf\n", encoding="utf-8")
    (tmp_path / "more.conf").write_text("ClusterName=Demo\n", encoding="utf-8")
    assert common.cluster_name({"SLURM_CONF": str(tmp_path / "slurm.conf")}) == "demo"
    (tmp_path / "more.conf").write_bytes(b"ClusterName=\xff\n")
    assert common.cluster_name({"SLURM_CONF": str(tmp_path / "slurm.conf")}) == ""
    (tmp_path / "more.conf").unlink()
    assert common.cluster_name({"SLURM_CONF": str(tmp_path / "slurm.conf")}) == ""
    assert common.cluster_name({"SLURM_CONF": str(tmp_path / "none"), "SLURM_CLUSTER_NAME": "other"}) == ""
    # In a stage slurmd has said it, and no file is read.
    inside = {"SLURM_CONF": str(tmp_path / "slurm.conf"), "SLURM_JOB_ID": "7", "SLURM_CLUSTER_NAME": "demo"}
    assert common.cluster_name(inside) == "demo"


def test_processes_that_died_without_cleaning_up_count(node: Node) -> None:
    node.prolog(7)
    with (node.jobs / "7" / c.FILE_USAGE).open("r+b") as file:
        base = c.USAGE_SIZE + c.USAGE_STEP_SIZE * c.USAGE_STEP_COUNT + 5 * c.USAGE_SLOT_SIZE
        for name, value in (("state", 1), ("gpu_busy_ns", 70), ("throttled_ns", 30)):
            offset, width, _ = c.USAGE_SLOT_FIELDS[name]
            file.seek(base + offset)
            file.write(value.to_bytes(width, "little"))
    node.write_usage(7, gpu_busy_ns=1000)
    node.epilog(7)
    assert (node.record()["gpu_busy_ns"], node.record()["throttled_ns"]) == (1070, 30)


@given(st.dictionaries(st.text(PLAIN, max_size=8), st.integers(-(2**63), 2**63 - 1) | st.text(PLAIN), max_size=25))
def test_any_record_is_written_as_json_that_reads_back(values: dict[str, int | str]) -> None:
    assert json.loads(usage_spool.to_json(values)) == values


UNREADABLE = [
    '{"half',
    "",
    "null",
    "7",
    "[]",
    "{}",
    '{"start_unix_ns": null}',
    '{"start_unix_ns": {}}',
    "\x00",
    "\udcff",
]


@pytest.mark.parametrize("text", UNREADABLE)
def test_a_record_that_cannot_be_read_gives_way(node: Node, text: str) -> None:
    node.prolog(7)
    (node.root / "state" / "usage").mkdir(parents=True)
    (node.root / "state" / "usage" / "7.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert node.epilog(7) == 0
    assert node.record()["job_id"] == 7


def test_running_twice_is_harmless_and_keeps_the_record(node: Node) -> None:
    node.prolog(7)
    node.write_usage(7, peak_bytes=99)
    assert node.epilog(7) == 0
    first = node.record()
    assert node.epilog(7) == 0
    assert node.record() == first
    assert node.spooled() == ["7.json"]


def test_the_end_of_a_run_is_a_new_record_once(node: Node) -> None:
    node.prolog(7)
    ledger = common.open_ledger(node.settings)
    grant = node.grants()[7]
    path = str(node.root / "state" / "usage" / "7.json")
    assert [epilog.end_grants(node.settings, ledger, (grant,), time.time_ns()) for _ in range(2)] == [path, ""]
    ledger.close()


def test_an_epilog_without_a_prolog_is_fine(node: Node) -> None:
    assert node.run("epilog", job_environment(7)) == (0, "")
    assert node.run("epilog", {"SLURM_JOB_ID": "7"}) == (0, "")
    assert node.spooled() == []


def test_an_epilog_whose_vgpu_variables_are_gone_still_cleans_up(node: Node) -> None:
    node.prolog(7)
    assert node.run("epilog", {"SLURM_JOB_ID": "7"}) == (0, "")
    node.assert_nothing_is_held()
    assert node.spooled() == ["7.json"]


def test_a_requeued_job_has_a_record_for_each_of_its_runs(node: Node) -> None:
    for peak in (11, 22):
        node.prolog(7)
        node.write_usage(7, peak_bytes=peak)
        assert node.epilog(7) == 0
    names = node.spooled()
    assert len(names) == 2
    assert {node.record(name)["peak_bytes"] for name in names} == {11, 22}
    starts = {node.record(name)["start_unix_ns"] for name in names}
    assert len(starts) == 2


def test_the_epilog_kills_no_process(node: Node) -> None:
    node.prolog(7)
    bystander = subprocess.Popen(["sleep", "60"], cwd=node.jobs / "7")
    try:
        assert node.epilog(7) == 0
        assert bystander.poll() is None
    finally:
        bystander.send_signal(signal.SIGKILL)
        bystander.wait()
