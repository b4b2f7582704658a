# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc doctor`: what a job without --mem gets of a node's memory."""

from __future__ import annotations

import pytest
from doctor_testbed import Healthy
from test_doctor import healthy

from hami_hpc.core.finding import Level
from hami_hpc.doctor.memory_checks import WHAT

__all__ = ["healthy"]


def test_where_slurm_hands_out_no_memory_nothing_is_said(healthy: Healthy) -> None:
    healthy.slurm["SelectTypeParameters"] = "CR_CORE"
    assert WHAT not in healthy.findings()


@pytest.mark.parametrize("given", [{}, {"DefMemPerNode": "UNLIMITED"}, {"DefMemPerCPU": "0"}])
def test_without_a_default_it_is_a_warning(given: dict[str, str], healthy: Healthy) -> None:
    healthy.slurm |= {"SelectTypeParameters": "CR_CORE_MEMORY"} | given
    healthy.write("etc/slurm.conf", "PartitionName=gpu Nodes=node1\nPartitionName=cpu DefMemPerCPU=1\n")
    found = healthy.findings()[WHAT]
    assert found.level is Level.WARN
    assert "gets all memory of a node in gpu: no other job starts beside its slice" in found.detail
    assert "DefMemPerCPU" in found.advice


@pytest.mark.parametrize("key", ["DefMemPerCPU", "DefMemPerNode"])
@pytest.mark.parametrize("where", ["cluster", "gpu", "GPU", "DEFAULT"])
def test_a_default_of_the_cluster_or_the_partition_will_do(where: str, key: str, healthy: Healthy) -> None:
    healthy.slurm["SelectTypeParameters"] = "CR_CPU_MEMORY"
    if where == "cluster":
        healthy.slurm[key] = "2048"
    else:
        healthy.write("etc/slurm.conf", f"PartitionName={where} {key}=2048\nPartitionName=gpu Nodes=node1\n")
    assert healthy.findings()[WHAT].level is Level.OK
