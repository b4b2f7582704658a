# SPDX-License-Identifier: Apache-2.0
"""What root does when slurmd took Slurm's suspensions and resumes in another sequence: slurmctld has the last word."""

from __future__ import annotations

import pytest
from node_testbed import Node
from test_suspend import JOB, OTHER, STAYS, Told, events, node, order, suspends

from hami_hpc.agent import resumed_jobs
from hami_hpc.contract import constants as c
from hami_hpc.core.reconcile_plan import Kind
from hami_hpc.errors import NodeError
from hami_hpc.slurm import commands
from hami_hpc.stages import suspend
from hami_hpc.stages.reconcile import reconcile

__all__ = ["node"]


def ask(node: Node, word: str, monkeypatch: pytest.MonkeyPatch, *, suspended: bool) -> int:
    """Runs what hami-hpc-watch runs some seconds after the last signal. Returns the exit status."""
    Told(monkeypatch, *[suspended] * 2)
    return suspend.main((word, "--job", str(JOB), "--config", str(node.config)))


def test_a_step_that_goes_on_while_slurm_suspends_the_job_is_away(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """slurmd resumed it last. The next resume sends no signal, so slurmctld is asked until it says that."""
    for _ in range(2):
        assert ask(node, "after-in", monkeypatch, suspended=True) == suspend.ASK_AGAIN
        assert order(node) == c.SWAP_SUSPENDED
    assert events(node).count(f"job {JOB} has no process") == 1
    assert ask(node, "after-in", monkeypatch, suspended=False) == 0
    assert order(node) == c.SWAP_IN


def test_a_stopped_step_of_which_slurm_suspends_the_job_later_has_the_order(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """slurmd stopped it last, when slurmctld had it running; the suspension after that sent no signal."""
    told = Told(monkeypatch, False, False)
    suspend.suspend_soon(node.settings, JOB)
    assert (order(node), told.asked) == (c.SWAP_IN, 2)
    assert ask(node, "after-out", monkeypatch, suspended=True) == 0
    assert order(node) == c.SWAP_SUSPENDED


def test_where_slurmctld_says_the_same_nothing_is_changed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    suspend.suspend(node.settings, JOB)
    before = events(node)
    assert ask(node, "after-out", monkeypatch, suspended=True) == 0
    assert (order(node), events(node)) == (c.SWAP_SUSPENDED, before)
    suspend.resume(node.settings, JOB)
    before = events(node)
    assert ask(node, "after-in", monkeypatch, suspended=False) == 0
    assert (order(node), events(node)) == (c.SWAP_IN, before)
    assert suspend.main(("after-in", "--job", str(STAYS), "--config", str(node.config))) == 0


def test_a_slurmctld_that_does_not_answer_is_asked_again(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(_job: int) -> bool:
        raise NodeError("slurmctld does not answer")

    monkeypatch.setattr(commands, "is_suspended", silent)
    for before in (c.SWAP_IN, c.SWAP_SUSPENDED):
        for word in ("after-out", "after-in"):
            assert suspend.main((word, "--job", str(JOB), "--config", str(node.config))) == suspend.ASK_AGAIN
            assert order(node) == before
        suspend.suspend(node.settings, JOB)


def test_the_agent_orders_what_no_signal_told_of(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that slurmd stopped in the wrong sequence, long before Slurm suspends its job."""
    lines: list[str] = []
    agent = resumed_jobs.make(node.settings, "n1", lines.append)
    suspends(monkeypatch, JOB, OTHER, STAYS)
    agent.once()
    assert (order(node), lines) == (c.SWAP_IN, []), "of jobs without such a signal it asks nothing"
    ask(node, "after-out", monkeypatch, suspended=False)
    for _ in range(2):
        agent.once()
        assert lines == [
            f"job {JOB} is suspended, and its programs got no signal of it: memory that is on the GPU may stay there"
        ]
    assert order(node) == c.SWAP_SUSPENDED
    suspends(monkeypatch, OTHER)
    agent.once()
    assert order(node) == c.SWAP_IN
    agent.once()
    assert order(node) == c.SWAP_IN


def test_reconcile_orders_it_too(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(node, "after-out", monkeypatch, suspended=False)
    suspends(monkeypatch, JOB)
    jobs = lambda: frozenset({JOB, OTHER, STAYS})  # noqa: E731
    for dry_run, after in ((True, c.SWAP_IN), (False, c.SWAP_SUSPENDED)):
        (done,) = reconcile(node.settings, jobs, dry_run=dry_run, node=lambda: "n1")
        assert (done.action.kind, done.action.job_id) == (Kind.SUSPEND, JOB)
        assert order(node) == after
    assert reconcile(node.settings, jobs, dry_run=False, node=lambda: "n1") == ()
