# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc doctor`: the gres that Slurm has for a node."""

from __future__ import annotations

import pytest
from doctor_testbed import Healthy
from test_doctor import healthy

from hami_hpc.core.finding import Level
from hami_hpc.core.mig_static import Slot
from hami_hpc.doctor import slurm_checks
from hami_hpc.doctor.facts import Facts
from hami_hpc.node import mig_static

__all__ = ["healthy"]


def test_a_node_that_has_gres_mps_as_well_is_told(healthy: Healthy) -> None:
    healthy.mps = {"": 200}
    found = healthy.findings()["gres/mps"]
    assert found.level is Level.FAIL
    assert "mps:200" in found.detail
    assert "take mps out of gres.conf, GresTypes, Gres=" in found.advice


def test_a_node_whose_shards_slurm_has_lost_is_told(healthy: Healthy) -> None:
    healthy.classes = {"std": 0}  # of every gres but mps
    assert "gives shards in Gres= of slurm.conf a type" in healthy.findings()["gres/shard"].advice


@pytest.mark.parametrize(
    ("release", "advice"),
    [
        ("22.05.8", "gives shards in Gres= of slurm.conf a type"),
        ("24.11.5", "then scontrol update nodename=node1 state=resume"),
    ],
)
def test_where_shards_can_have_no_type_a_restart_gives_them_back(
    healthy: Healthy, monkeypatch: pytest.MonkeyPatch, release: str, advice: str
) -> None:
    healthy.classes = {"std": 0}
    healthy.slurm["SLURM_VERSION"] = release
    layout = (Slot("GPU-1", 1, 9, 0, 4, "3g.71gb"),)
    monkeypatch.setattr(mig_static, "read", lambda _state_dir: layout)
    found = {finding.what: finding for finding in slurm_checks.check_gres(Facts(healthy.node.settings))}
    assert advice in found["gres/shard"].advice
