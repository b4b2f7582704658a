# SPDX-License-Identifier: Apache-2.0
"""Prolog and epilog of mode=mps killed at every line while another job has the same daemon: it goes on.

test_fault_points.py has a daemon that is started and ended for one job."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import test_crash
from mps_testbed import MpsNode

from hami_hpc.stages.epilog import epilog
from hami_hpc.stages.prolog import prolog
from hami_hpc.stages.reconcile import reconcile

JOB, OTHER = 7, 8
TRACED = tuple(f"hami_hpc/{name}.py" for name in ("isolation/mps", "node/mps", "node/mps_daemon", "stages/mps_daemons"))


@pytest.fixture
def node(mps_node: MpsNode, monkeypatch: pytest.MonkeyPatch) -> MpsNode:
    monkeypatch.setattr(test_crash, "TRACED", TRACED)
    return mps_node


def start_over(node: MpsNode, *jobs: int) -> Callable[[], None]:
    """The node with these jobs, before what is killed."""

    def before() -> None:
        for job in (JOB, OTHER):
            assert node.mps_epilog(job) == 0
        reconcile(node.settings, frozenset, dry_run=False)
        node.assert_no_mps()
        for job in jobs:
            assert node.mps_prolog(job) == 0

    return before


def by_the_prolog(node: MpsNode) -> None:
    assert node.mps_prolog(JOB) == 0
    node.assert_one_daemon(JOB, *({OTHER} & node.grants().keys()))


def by_the_epilog(node: MpsNode) -> None:
    assert node.mps_epilog(JOB) == 0
    assert JOB not in node.grants()


def by_reconcile(node: MpsNode) -> None:
    kept = {OTHER} & node.grants().keys()
    results = reconcile(node.settings, lambda: frozenset(kept), dry_run=False)
    assert [result.error for result in results if result.error] == []
    assert JOB not in node.grants()


def end_both(node: MpsNode) -> None:
    """Whatever came before: with the jobs' ends nothing is left."""
    for job in (JOB, OTHER):
        assert node.mps_epilog(job) == 0
    node.assert_no_mps()
    node.assert_nothing_is_held()


def exhaust(
    node: MpsNode, body: Callable[[], None], before: Callable[[], None], *after: Callable[[MpsNode], None]
) -> None:
    """Kills `body` at each line, and lets each of `after` in turn find its way."""
    for line in test_crash.all_lines(body, before, distinct=True):
        after[line % len(after)](node)
        end_both(node)


@pytest.mark.own_process
def test_a_second_prolog_killed_at_any_line(node: MpsNode) -> None:
    settings, environment = node.settings, node.environment(JOB)
    exhaust(node, lambda: prolog(settings, environment), start_over(node, OTHER), by_the_prolog, by_the_epilog)


@pytest.mark.own_process
def test_an_epilog_beside_another_job_killed_at_any_line(node: MpsNode) -> None:
    """The other job's daemon goes on, whatever happens to this one's epilog."""
    settings = node.settings

    def recover(node: MpsNode) -> None:
        by_the_epilog(node)
        node.assert_one_daemon(OTHER)

    exhaust(node, lambda: epilog(settings, JOB, had_vgpu=True), start_over(node, JOB, OTHER), recover)
