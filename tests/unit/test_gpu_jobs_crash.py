# SPDX-License-Identifier: Apache-2.0
"""Prolog and epilog of jobs with whole GPUs killed at every line: each run has exactly one usage record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.mounting import unmount_below
from node_testbed import Node
from test_crash import all_lines
from test_gpu_jobs import JOB, noted, prolog, seen, squared, watch

from hami_hpc.node import gpu_jobs, job_dirs, usage_spool
from hami_hpc.stages.epilog import end_gpu_job, epilog


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node.make(tmp_path / "node")
    node.config.write_text(node.config.read_text() + "[agent]\n")
    yield node
    unmount_below(tmp_path)


@pytest.mark.own_process
def test_an_epilog_killed_at_any_line_leaves_exactly_one_record(node: Node) -> None:
    def before() -> None:
        node.clear()
        node.enter_gpus()
        prolog(node)
        watch(node, seen(noted(node)))

    def finish(number: int) -> None:
        if number % 2:
            assert [one.error for one in squared(node) if one.error] == []
        else:
            epilog(node.settings, 7, had_vgpu=False)

    for kill, line in enumerate(all_lines(lambda: epilog(node.settings, 7, had_vgpu=False), before)):
        finish(kill)
        assert [name for name in node.spooled() if not name.startswith(".")] == ["7.json"], f"killed at line {line}"
        assert node.record()["observed_busy_ns"] == 1800 * 10**9
        squared(node)
        assert node.names() == [], f"killed at line {line}"


@pytest.mark.own_process
def test_an_epilog_killed_at_any_line_before_the_next_run_leaves_each_run_one_record(node: Node) -> None:
    starts: list[int] = []

    def before() -> None:
        node.clear()
        node.enter_gpus()
        prolog(node)
        starts[:] = [noted(node).created_unix_ns]
        watch(node, seen(noted(node)))

    for line in all_lines(lambda: epilog(node.settings, 7, had_vgpu=False), before):
        assert prolog(node) == 0
        second = noted(node)
        watch(node, seen(second))
        assert node.epilog(7) == 0
        names = [name for name in node.spooled() if not name.startswith(".")]
        assert sorted(names) == [f"7-{second.created_unix_ns}.json", "7.json"], f"killed at line {line}"
        assert node.record()["start_unix_ns"] == starts[0]


@pytest.mark.own_process
def test_a_prolog_killed_at_any_line_is_made_good(node: Node) -> None:
    def before() -> None:
        node.clear()
        node.enter_gpus()

    for line in all_lines(lambda: prolog_to_the_end(node), before):
        assert prolog(node) == 0
        watch(node, seen(noted(node)))
        assert node.run("epilog", JOB) == (0, ""), line
        assert node.spooled() == ["7.json"]
        squared(node)
        assert node.names() == []


def prolog_to_the_end(node: Node) -> None:
    assert prolog(node) == 0


def test_a_next_run_that_begins_while_the_record_is_written_keeps_its_directory(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two processes that end a run one is slow, and the job's next run begins meanwhile."""
    prolog(node)
    first = noted(node)
    watch(node, seen(first))
    write = usage_spool.write

    def slow(*arguments: Any) -> str:
        path = write(*arguments)
        job_dirs.remove(node.settings.run_dir, str(node.jobs / "7"))
        gpu_jobs.place(node.settings.run_dir, first._replace(created_unix_ns=first.created_unix_ns + 1))
        return path

    monkeypatch.setattr(usage_spool, "write", slow)
    end_gpu_job(node.settings, 7, str(node.jobs / "7"))
    assert noted(node).created_unix_ns == first.created_unix_ns + 1
    assert node.spooled() == ["7.json"]
