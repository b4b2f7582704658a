# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc doctor`: slurmdbd that does not answer, and records of jobs that do not reach it."""

from __future__ import annotations

import pytest
from doctor_testbed import Healthy
from test_doctor import healthy

from hami_hpc.core.finding import Level
from hami_hpc.errors import NodeError
from hami_hpc.slurm import commands

__all__ = ["healthy"]


@pytest.mark.parametrize(
    ("waiting", "named"), [((7, 7, 7), 7), ((1, 2, 9), 9), ((9, 7, 8), 0), ((7, 7, 6), 0), ((7, 0), 0), ((0, 7, 7), 0)]
)
def test_records_that_slurmctld_keeps_from_slurmdbd_are_named(
    healthy: Healthy, waiting: tuple[int, ...], named: int
) -> None:
    """One by one, or many at a time, they are sent at once: those that become fewer are on their way."""
    healthy.waiting = iter(waiting)
    found = healthy.findings().get("slurmdbd")
    assert (found is not None) == bool(named)
    if found:
        assert (found.level, found.detail.split()[-1]) == (Level.WARN, str(named))


def test_nobody_is_asked_for_records_where_there_is_no_slurmdbd(
    healthy: Healthy, monkeypatch: pytest.MonkeyPatch
) -> None:
    healthy.slurm["AccountingStorageType"] = "accounting_storage/none"
    monkeypatch.setattr(commands, "records_for_slurmdbd", lambda: pytest.fail("there is none"))
    assert "slurmdbd" not in healthy.findings()


def test_slurmdbd_that_does_not_answer_is_a_finding_of_its_own(
    healthy: Healthy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down() -> frozenset[str]:
        raise NodeError("sacctmgr failed: slurmdbd is down")

    monkeypatch.setattr(commands, "qos_names", down)
    findings = healthy.findings()
    assert findings["AccountingStorageEnforce"].is_ok
    assert (findings["QoS"].level, findings["QoS"].detail) == (Level.FAIL, "sacctmgr failed: slurmdbd is down")
