# SPDX-License-Identifier: Apache-2.0
"""Prolog and epilog of mode=mps killed at every line while another job has the same daemon: it goes on.

test_fault_points.py has a daemon that is started and ended for one job."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import test_crash
from forked import fork
from mps_testbed import PROGRAM, MpsNode

from hami_hpc.node import mps, mps_partitions
from hami_hpc.stages.epilog import epilog
from hami_hpc.stages.prolog import prolog
from hami_hpc.stages.reconcile import reconcile

JOB, OTHER = 7, 8
TRACED = tuple(
    f"hami_hpc/{name}.py"
    for name in (
        *("isolation/mps", "node/mps", "node/mps_daemon", "node/mps_directories", "node/mps_partitions"),
        "stages/mps_daemons",
    )
)


@pytest.fixture
def node(mps_node: MpsNode, monkeypatch: pytest.MonkeyPatch) -> MpsNode:
    monkeypatch.setattr(test_crash, "TRACED", TRACED)
    return mps_node


@pytest.fixture
def static(node: MpsNode) -> MpsNode:
    """The node with a driver that has static SM partitions."""
    node.set_driver()
    return node


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
    for kill, _line in enumerate(test_crash.all_lines(body, before, turns=1)):
        after[kill % len(after)](node)
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


def assert_partitions(node: MpsNode) -> None:
    """Each job that needs the daemon has a partition there, and there is no other."""
    seen = mps_partitions.listing(str(PROGRAM), node.place())
    assert seen is not None
    jobs = mps.members(node.place())
    assert seen.partitions == {mps_partitions.id_of(job): job.chunks for job in jobs}


@pytest.mark.own_process
@pytest.mark.parametrize("killed", ["first", "second"])
def test_a_prolog_with_partitions_killed_at_any_line(static: MpsNode, killed: str) -> None:
    """Beside another job, or the first of its daemon. The retry has one partition; reconcile and epilog leave none."""

    def retried(node: MpsNode) -> None:
        by_the_prolog(node)
        assert_partitions(node)

    def reconciled(node: MpsNode) -> None:
        by_reconcile(node)
        if killed == "second":
            assert_partitions(node)

    def ended(node: MpsNode) -> None:
        by_the_epilog(node)
        if killed == "second":
            assert_partitions(node)

    settings, environment = static.settings, static.environment(JOB)
    before = start_over(static, *([OTHER] if killed == "second" else []))
    exhaust(static, lambda: prolog(settings, environment), before, retried, reconciled, ended)


@pytest.mark.own_process
def test_an_epilog_with_partitions_killed_at_any_line(static: MpsNode) -> None:
    settings = static.settings

    def recover(node: MpsNode) -> None:
        by_the_epilog(node)
        reconcile(settings, lambda: frozenset({OTHER}), dry_run=False)
        node.assert_one_daemon(OTHER)
        assert_partitions(node)

    exhaust(static, lambda: epilog(settings, JOB, had_vgpu=True), start_over(static, JOB, OTHER), recover)


@pytest.mark.own_process
def test_a_reconcile_that_makes_partitions_again_killed_at_any_line(static: MpsNode) -> None:
    begin = start_over(static, JOB, OTHER)

    def lose() -> None:
        begin()
        os.kill(static.pid(), signal.SIGKILL)

    def recover(node: MpsNode) -> None:
        both = frozenset({JOB, OTHER})
        assert [done.error for done in reconcile(node.settings, lambda: both, dry_run=False) if done.error] == []
        node.assert_one_daemon(JOB, OTHER)
        assert_partitions(node)

    def repair() -> None:
        reconcile(static.settings, lambda: frozenset({JOB, OTHER}), dry_run=False)

    exhaust(static, repair, lose, recover)


def together(*calls: Callable[[], int]) -> Iterator[int]:
    """Yields what the calls return, each in a process of its own."""
    children = []
    for call in calls:
        child = fork()
        if child == 0:
            os._exit(call())
        children.append(child)
    yield from (os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


def test_prologs_at_once_have_partitions_of_their_own(static: MpsNode) -> None:
    jobs = range(1, 7)
    for status in together(*(partial(static.mps_prolog, job, mem_mib=512, HAMI_HPC_CORES="16") for job in jobs)):
        assert status == 0
    static.assert_one_daemon(*jobs)
    assert_partitions(static)
    assert {job.chunks for job in mps.members(static.place())} == {2, 3}
    for status in together(*(partial(static.mps_epilog, job) for job in jobs)):
        assert status == 0
    static.assert_no_mps()
