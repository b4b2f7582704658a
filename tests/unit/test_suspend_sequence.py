# SPDX-License-Identifier: Apache-2.0
"""What root does when slurmd took Slurm's suspensions and resumes in another sequence: slurmctld has the last word."""

from __future__ import annotations

import os
import resource
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from node_testbed import Node
from test_suspend import JOB, OTHER, STAYS, Told, events, node, order, suspends

from hami_hpc.agent import resumed_jobs
from hami_hpc.contract import constants as c
from hami_hpc.core.reconcile_plan import Kind
from hami_hpc.errors import NodeError
from hami_hpc.node import locks
from hami_hpc.slurm import commands
from hami_hpc.stages import suspend
from hami_hpc.stages.reconcile import reconcile

__all__ = ["node"]


def ask(node: Node, word: str, monkeypatch: pytest.MonkeyPatch, *, suspended: bool) -> int:
    """Runs what hami-hpc-watch runs some seconds after the last signal, none of it known from before. Returns the exit
    status."""
    Told(monkeypatch, *[suspended] * 2)
    (node.jobs / str(JOB) / "asked").unlink(missing_ok=True)
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


def after(node: Node, word: str) -> int:
    return suspend.main((word, "--job", str(JOB), "--config", str(node.config)))


def test_the_steps_of_a_job_ask_slurmctld_once(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its own watch. What was asked before a step's last signal does not count: 5 s lie between them."""
    now = [10**12]
    monkeypatch.setattr(suspend, "now_boot_ns", lambda: now[0])
    told = Told(monkeypatch, True, True, False)
    monkeypatch.setattr(suspend, "_see_to", lambda *_arguments: os._exit(1))
    suspend.suspend(node.settings, JOB)
    for _ in range(20):
        assert after(node, "after-out") == 0
        now[0] += 249_000_000
    assert (order(node), told.asked) == (c.SWAP_SUSPENDED, 1)
    now[0] += 20_000_000
    assert (after(node, "after-in"), told.asked) == (suspend.ASK_AGAIN, 2)
    now[0] += suspend.QUIET_NS
    assert [after(node, "after-in") for _ in range(20)] == [0] * 20
    assert (order(node), told.asked) == (c.SWAP_IN, 3)


def test_steps_that_ask_at_the_same_time_wait_for_one_answer(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def slow(job: int) -> bool:
        asked.append(job)
        time.sleep(0.2)
        return False

    monkeypatch.setattr(commands, "is_suspended", slow)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _n: after(node, "after-in"), range(8))) == [0] * 8
    assert asked == [JOB]


@pytest.mark.parametrize("text", ["", "7", "x y", "99999999999999999999 1", "-5 1"])
def test_a_note_of_an_answer_that_is_none_is_not_believed(
    text: str, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut off by a full disk or a kill, or of another boot."""
    (node.jobs / str(JOB) / "asked").write_text(text)
    told = Told(monkeypatch, False)
    assert (after(node, "after-in"), told.asked) == (0, 1)
    assert (after(node, "after-in"), told.asked) == (0, 1)


def test_an_answer_for_which_the_disk_has_no_room_counts_for_its_own_step(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file can be made, and takes no byte (here by a limit of file sizes)."""
    suspend.suspend(node.settings, JOB)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    path = str(node.jobs / str(JOB) / "asked")

    def without_room(job: int) -> bool:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
        return job == JOB

    monkeypatch.setattr(commands, "is_suspended", without_room)
    try:
        assert suspend._asked_for_all_steps(node.settings, JOB)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (node.jobs / str(JOB) / "asked").stat().st_size == 0
    os.close(locks.acquire(path, exclusive=True, timeout_s=1))


def test_a_question_of_another_step_that_hangs_is_waited_for_and_no_more(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspend, "ASKED_WAIT_S", 0.05)
    Told(monkeypatch)
    held = locks.acquire(str(node.jobs / str(JOB) / "asked"), exclusive=True, timeout_s=1)
    assert after(node, "after-in") == suspend.ASK_AGAIN
    os.close(held)


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
