# SPDX-License-Identifier: Apache-2.0
"""Checks that slurmctld's records of jobs reach slurmdbd, from where sacct and bills have them."""

from __future__ import annotations

import time
from collections.abc import Iterator

from hami_hpc.core.finding import Finding, Level
from hami_hpc.doctor.facts import Check, Facts
from hami_hpc.slurm import commands

LOOKS, APART_S = 3, 1.0  # slurmctld sends what it has at once, up to 1000 records at a time


def check_backlog(facts: Facts) -> Iterator[Finding]:
    """Warns where records wait in slurmctld and become no fewer: slurmdbd does not answer, or is not asked. A second
    slurmctld of 26.05 that took over never sends any (clusteracct_storage_g_ctld_recovered() is not called there)."""
    if not facts.has_slurmdbd:
        return
    waiting = commands.records_for_slurmdbd()
    for _ in range(LOOKS - 1):
        if not waiting:
            return
        time.sleep(APART_S)
        before, waiting = waiting, commands.records_for_slurmdbd()
        if waiting < before:
            return
    detail = f"records of jobs that wait in slurmctld, so that sacct and bills do not have them: {waiting}"
    advice = "is slurmdbd up (sacctmgr show cluster)? On 26.05, after another slurmctld took over: scontrol reconfigure"
    yield Finding("slurmdbd", Level.WARN, detail, advice)


CHECKS: tuple[tuple[str, Check], ...] = (("slurmdbd", check_backlog),)
