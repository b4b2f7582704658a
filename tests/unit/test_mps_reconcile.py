# SPDX-License-Identifier: Apache-2.0
"""reconcile and the MPS daemons of jobs: what it stops, what it replaces, what it leaves alone."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest
from mps_testbed import PROGRAM, MpsNode
from node_testbed import UUIDS

from hami_hpc.errors import NodeError
from hami_hpc.node import mps, mps_daemon
from hami_hpc.stages import common
from hami_hpc.stages.reconcile import reconcile


@pytest.fixture
def node(mps_node: MpsNode) -> MpsNode:
    return mps_node


def done(node: MpsNode, *running: int) -> list[str]:
    results = reconcile(node.settings, lambda: frozenset(running), dry_run=False)
    assert [result.error for result in results if result.error] == []
    return [result.action.text for result in results if result.action.kind.value == "daemon"]


def test_reconcile_does_nothing_when_all_agree(node: MpsNode) -> None:
    assert node.mps_prolog(7) == 0
    assert done(node, 7) == []
    node.assert_one_daemon(7)
    assert node.mps_epilog(7) == 0


def test_reconcile_ends_a_daemon_whose_jobs_are_gone(node: MpsNode) -> None:
    assert node.mps_prolog(7) == 0
    done(node)
    node.assert_no_mps()
    node.assert_nothing_is_held()


def test_reconcile_stops_what_a_lost_ledger_row_left(node: MpsNode) -> None:
    mps.hold(str(PROGRAM), _ready(node), UUIDS[0], mps_daemon.Member(7, 1, 50, 64))
    results = reconcile(node.settings, frozenset, dry_run=True)
    assert "no job needs it" in json.dumps([result.action.text for result in results])
    assert len(node.daemons()) == 1, "a dry run changes nothing"
    assert len(done(node)) == 1
    node.assert_no_mps()


@pytest.mark.parametrize("dry_run", [True, False])
def test_reconcile_stops_no_daemon_of_a_job_whose_row_is_lost(node: MpsNode, dry_run: bool) -> None:
    assert node.mps_prolog(7) == 0
    ledger = common.open_ledger(node.settings)
    ledger.remove(node.grants()[7])
    ledger.close()

    def silent() -> frozenset[int]:
        raise NodeError("slurmctld does not answer")

    texts = [result.action.text for result in reconcile(node.settings, silent, dry_run=dry_run)]
    assert not [text for text in texts if "MPS" in text]
    node.assert_one_daemon(7)
    assert node.mps_epilog(7) == 0
    node.assert_no_mps()


def test_reconcile_goes_on_where_the_daemons_cannot_be_listed(node: MpsNode) -> None:
    common.open_ledger(node.settings).close()
    folder = node.root / "run" / "mps"
    folder.write_text("no directory")
    half_written = node.root / "state" / "usage" / ".7-1"
    half_written.parent.mkdir(parents=True)
    half_written.write_text("{")
    os.utime(half_written, (1, 1))
    texts = [result.action.text for result in reconcile(node.settings, frozenset, dry_run=False)]
    assert any(f"MPS daemons: {folder} cannot be listed (Not a directory)" in text for text in texts)
    assert not half_written.exists(), "what follows is done"
    folder.unlink()


def _ready(node: MpsNode) -> mps_daemon.Place:
    common.open_ledger(node.settings).close()
    return node.place()


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_reconcile_replaces_a_daemon_that_does_not_answer(node: MpsNode, sent: signal.Signals) -> None:
    assert node.mps_prolog(7) == 0
    os.kill(node.pid(), sent)
    time.sleep(0.1)
    assert [text for text in done(node, 7) if "does not answer and is replaced" in text]
    node.assert_one_daemon(7)
    assert node.mps_epilog(7) == 0


def test_reconcile_starts_a_daemon_whose_files_were_lost(node: MpsNode) -> None:
    assert node.mps_prolog(7) == 0
    mps.leave(str(PROGRAM), node.place(), mps.members(node.place())[0])
    assert [text for text in done(node, 7) if "was lost and is started" in text]
    node.assert_one_daemon(7)
    assert node.mps_epilog(7) == 0
    node.assert_no_mps()
