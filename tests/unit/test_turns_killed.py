# SPDX-License-Identifier: Apache-2.0
"""An agent that is killed at each line of a change of turns on an oversold GPU."""

from __future__ import annotations

import pytest
import test_crash
from turns_testbed import FIRST, SECOND_JOB, TURN_S, Site, agent_of, assert_fits, both, site

from hami_hpc.contract import constants as c
from hami_hpc.node import swapped

__all__ = ["site"]  # the fixture


@pytest.mark.own_process
def test_an_agent_killed_at_each_line_of_a_change_is_made_good(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each line of deciding, writing and telling, at each of the two steps: the next agent goes on."""
    files = ("agent/turns_taken", "stages/turns", "node/neighbours", "node/turn_notes", "node/ledger")
    monkeypatch.setattr(test_crash, "TRACED", tuple(f"hami_hpc/{name}.py" for name in files))

    def to_leave() -> None:
        site.node.clear()
        site.node.enter_gpus()
        site.used_mib.clear()
        site.says.clear()
        site.turns = agent_of(site)
        both(site)
        site.look()
        assert site.order(FIRST) == c.SWAP_IN

    def to_come() -> None:
        to_leave()
        site.look(TURN_S)
        assert site.order(FIRST) == c.SWAP_TURN
        site.leaves(FIRST)

    for before, after_s in ((to_leave, TURN_S), (to_come, 1.0)):
        for _line in test_crash.all_lines(lambda after_s=after_s: site.look(after_s), before, turns=1):  # type: ignore[misc]
            site.turns = agent_of(site)
            assert_fits(site)
            site.look()
            assert_fits(site)
            if before is to_leave:
                if site.order(FIRST) == c.SWAP_IN:
                    site.look(TURN_S)
                assert site.order(FIRST) == c.SWAP_TURN
                site.leaves(FIRST)
                site.look()
            site.look()
            assert site.order(SECOND_JOB) == c.SWAP_IN
            assert_fits(site)
            site.comes(SECOND_JOB)
            site.look()
            assert {one.job_id: one.state for one in site.turns.standings} == {FIRST: "away", SECOND_JOB: "on"}
            assert swapped.order_of(site.node.settings.run_dir, FIRST) == c.SWAP_TURN
