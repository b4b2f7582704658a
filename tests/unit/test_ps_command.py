# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc ps`: everything that the agent sees for root and its group, and for others their own jobs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import node_testbed
import pytest
from agent_states import GIB, make_job, make_state
from click.testing import CliRunner, Result

from hami_hpc.cli import gpu_view, main
from hami_hpc.core import gpu_rows
from hami_hpc.node import agent_file
from hami_hpc.stages import common


@pytest.fixture
def node(tmp_path: Path) -> node_testbed.Node:
    return node_testbed.Node.make(tmp_path / "node")


def write_state(node: node_testbed.Node, **more: object) -> None:
    run_dir = node.settings.run_dir
    Path(agent_file.folder(run_dir)).mkdir(parents=True, exist_ok=True)
    agent_file.write(run_dir, make_state(**more))  # type: ignore[arg-type]


def ps(node: node_testbed.Node, *words: str) -> Result:
    return CliRunner().invoke(main, ["ps", *words], env={"HAMI_HPC_CONFIG": str(node.config)})


def test_jobs_and_processes_are_shown_by_gpu(node: node_testbed.Node) -> None:
    slow = make_job(102, 0, findings=("memory_above_grant", "no_interposer"))
    write_state(node, jobs=2)
    run_dir = node.settings.run_dir
    agent_file.write(run_dir, make_state(jobs=2)._replace(jobs=(*make_state(jobs=2).jobs, slow)))
    result = ps(node)
    assert (result.exit_code, result.stderr) == (0, "")
    assert [line.split() for line in result.stdout.splitlines()[1:]] == [
        ["0", "100", "2", "games", "lc", "10", "7.5", "8192", "3072", "4096"],
        ["0", "102", "2", "games", "std", "10", "7.5", "8192", "3072", "4096", "memory_above_grant,", "no_interposer"],
        ["0", "-", "pid", "811", "root", "-", "0", "3.0", "0", "1024", "1024"],
        ["1", "101", "2", "news", "be", "10", "7.5", "8192", "3072", "4096"],
        ["1", "4711", "pid", "912", "games", "-", "0", "88.0", "0", "1024", "1024"],
    ]


def test_a_latency_critical_job_that_wants_more_than_its_cores_is_named(node: node_testbed.Node) -> None:
    node.prolog(7, HAMI_HPC_CLASS="lc")
    node.prolog(8, HAMI_HPC_CLASS="lc", HAMI_HPC_CORES="20")
    assert "wants more" not in ps(node).stdout
    ledger = common.open_ledger(node.settings)
    assert common.update_neighbours(node.settings, ledger, {(8, node_testbed.UUIDS[0]): True}) == ()
    ledger.close()
    without_agent = ps(node).stdout.splitlines()
    write_state(node, jobs=2)
    jobs = tuple(job._replace(beyond_cores=job.job_id % 2) for job in make_state(jobs=2).jobs)
    agent_file.write(node.settings.run_dir, make_state(jobs=2)._replace(jobs=jobs))
    lines = ps(node).stdout.splitlines()
    for shown, job in ((without_agent, "8"), (lines, "101")):
        (named,) = [line for line in shown if line.endswith("wants more than its cores")]
        assert named.split()[1] == job


def test_json_has_bytes_and_the_gpus(node: node_testbed.Node) -> None:
    write_state(node)
    told = json.loads(ps(node, "--format", "json").stdout)
    assert (told["source"], told["note"], len(told["gpus"])) == ("agent", "", 2)
    assert told["rows"][0]["granted_bytes"] == 8 * GIB


def test_an_agent_that_has_stopped_is_said_to_have(node: node_testbed.Node) -> None:
    write_state(node, boot_time_ns=agent_file.now_boot_ns() - 12_000_000_000)
    result = ps(node)
    assert result.exit_code == 0
    assert result.stderr.startswith("the agent last looked 12 s ago")
    assert not gpu_rows.is_stale(make_state(), 2.9)
    assert not gpu_rows.is_stale(make_state(period_ns=10_000_000_000), 49)


def test_without_an_agent_root_gets_the_grants(node: node_testbed.Node) -> None:
    node.prolog(7, mem_mib=4096)
    node.prolog(12, gpu="1")
    node.write_usage(7, used_bytes=1000 << 20, peak_bytes=2000 << 20)
    result = ps(node)
    assert "the agent (hami-hpc agent) does not run on this node" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    rows = [line.split() for line in result.stdout.splitlines()[1:]]
    assert [row[:3] + row[4:] for row in rows] == [
        ["0", "7", "-", "std", "50", "0.0", "4096", "1000", "2000"],
        ["1", "12", "-", "std", "50", "0.0", "8192", "0", "0"],
    ]


@pytest.mark.parametrize("agent_runs", [True, False])
def test_a_user_who_may_not_read_the_state_sees_only_their_own_jobs(
    node: node_testbed.Node, monkeypatch: pytest.MonkeyPatch, agent_runs: bool
) -> None:
    node.prolog(7)
    node.prolog(12, SLURM_JOB_UID="1001")
    monkeypatch.setattr(os, "geteuid", lambda: 1001)
    if agent_runs:
        write_state(node)
        state = Path(agent_file.folder(node.settings.run_dir)) / agent_file.NAME

        def refuse(path: str, *arguments: int, **named: int) -> int:
            if path == str(state):
                raise PermissionError(13, "Permission denied", path)
            return open_file(path, *arguments, **named)

        open_file = os.open
        monkeypatch.setattr(os, "open", refuse)
    result = ps(node)
    monkeypatch.undo()
    assert result.exit_code == 0
    assert [line.split()[1] for line in result.stdout.splitlines()[1:]] == ["12"]
    assert ("for root and the group of [agent]" in result.stderr) == agent_runs
    assert "your own vGPU jobs" in result.stderr


def test_a_node_where_nothing_ran_has_only_a_heading(node: node_testbed.Node) -> None:
    assert len(ps(node).stdout.splitlines()) == 1


def test_names_of_users_are_theirs_or_their_numbers() -> None:
    assert gpu_view.user_name(0) == "root"
    assert gpu_view.user_name(3_999_999_999) == "3999999999"


def test_a_process_on_a_gpu_that_is_not_in_the_list_is_shown() -> None:
    state = make_state(jobs=0)
    lost = state.others[0]._replace(gpu_uuid="GPU-gone")
    rows = gpu_rows.of_state(state._replace(others=(lost,)), str)
    assert [(row.gpu, row.process_text) for row in rows] == [(-1, "pid 811")]


def test_ps_runs_where_rich_is_missing(node: node_testbed.Node, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("rich", "rich.console", "rich.text", "rich.live"):
        monkeypatch.setitem(sys.modules, name, None)
    write_state(node)
    assert ps(node).exit_code == 0
    top = CliRunner().invoke(main, ["top", "--once"], env={"HAMI_HPC_CONFIG": str(node.config)})
    assert top.exit_code == 2
    assert "top needs rich" in top.stderr
    assert "pip install rich" in top.stderr


def test_a_gpus_error_of_the_last_day_is_below_the_jobs(node: node_testbed.Node) -> None:
    write_state(node)
    state = make_state(jobs=0)._replace(others=())
    title, now_ns = "Xid 79: GPU has fallen off the bus", state.time_unix_ns
    gpus = (
        state.gpus[0]._replace(last_fault="old", last_fault_unix_ns=now_ns - 90_000 * 10**9),
        state.gpus[1]._replace(last_fault=title, last_fault_unix_ns=now_ns - 60 * 10**9),
    )
    agent_file.write(node.settings.run_dir, state._replace(gpus=gpus))
    lines = ps(node).stdout.splitlines()
    assert len(lines) == 2
    assert lines[1].startswith("GPU 1 reported at ")
    assert lines[1].endswith(f": {title}")
    assert json.loads(ps(node, "--format", "json").stdout)["gpus"][1]["last_fault"] == title
