# SPDX-License-Identifier: Apache-2.0
"""Slurm's reasons in words: every one that can hold a vGPU job back says what it means and what to do."""

from __future__ import annotations

import pytest

from hami_hpc.core.reasons import explain


@pytest.mark.parametrize(
    ("reason", "why", "advice"),
    [
        ("Resources", "no node that it may use has enough free", "ask for less"),
        ("Priority", "higher priority", "smaller vgpu"),
        ("ReqNodeNotAvail, UnavailableNodes:node1", "not available", "sinfo -R"),
        ("ReqNodeNotAvail,_UnavailableNodes:node1", "not available", "sinfo -R"),
        ("ReqNodeNotAvail, May be reserved for other job", "reserved for others", "Wait"),
        ("ReqNodeNotAvail, Reserved for maintenance", "maintenance", "--time"),
        (
            "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
            "down, drained",
            "sinfo -R",
        ),
        ("BadConstraints", "out of service for a while", "hami-hpc pool"),
        ("PartitionConfig", "rule of its partition", "scontrol show partition"),
        ("PartitionTimeLimit", "longer than its partition", "scontrol update jobid=7 timelimit="),
        ("JobHeldUser", "by its user", "scontrol release 7"),
        ("JobHeldAdmin", "administrator", "Ask the administrator"),
        ("launch failed requeued held", "Its start failed", "scontrol release 7"),
        ("launch_failed_requeued_held", "Its start failed", "scontrol release 7"),
        ("job requeued in held state", "requeued", "scontrol release 7"),
        ("Dependency", "other jobs", "Nothing"),
        ("DependencyNeverSatisfied", "does not allow", "scancel"),
        ("BeginTime", "--begin", "Nothing"),
        ("JobArrayTaskLimit", "tasks of its array", "jobid=7 arraytaskthrottle"),
        ("QOSMaxGRESPerUser", "Its QoS limits the GPU units (GPUs, shards, vGPU memory or cores) of one user", "Wait"),
        ("QOSMaxGRESPerJob", "of one job", "will not start as it is"),
        ("QOSMaxJobsPerUserLimit", "Its QoS limits the running jobs of one user", "Wait"),
        ("QOSMaxCpuPerUserLimit", "Its QoS limits the CPUs of one user", "Wait"),
        ("QOSMaxWallDurationPerJobLimit", "limits the run time of one job", "will not start"),
        ("QOSMaxSubmitJobPerUserLimit", "limits the submitted jobs of one user", "Wait"),
        ("QOSMinGRES", "asks for at least some GPU units", "Ask for more"),
        ("QOSGrpGRES", "GPU units (GPUs, shards, vGPU memory or cores) for all of its jobs together", "other jobs end"),
        ("QOSGrpGRESMinutes", "minutes of GPU units", "administrator raises it"),
        ("QOSGrpGRESRunMinutes", "that running jobs may still use", "other jobs end"),
        ("AssocGrpGRES", "Its account or user has a limit of GPU units", "other jobs end"),
        ("AssocGrpCPUMinutesLimit", "Its account or user has a limit of minutes of CPUs", "administrator"),
        ("AssocMaxJobsLimit", "Its account or user limits the running jobs", "Wait"),
        (
            "MaxGRESPerAccount",
            "Its QoS limits the GPU units (GPUs, shards, vGPU memory or cores) of one account",
            "Wait",
        ),
        ("AssocGrpJobLimit", "Its account or user has a limit of running jobs for", "other jobs end"),
        ("MaxGRESRunMinsPerUser", "minutes of GPU units", "Wait"),
        ("SomethingNew", "Slurm gives this reason: SomethingNew", "man squeue"),
    ],
)
def test_a_reason_says_what_it_means_and_what_to_do(reason: str, why: str, advice: str) -> None:
    words = explain(reason, "7")
    assert why in words.why
    assert advice in words.advice
    assert "{" not in words.why + words.advice


def test_what_fits_now_is_asked_where_it_helps_to_decide() -> None:
    assert explain("Resources", "7").asks_what_fits
    assert explain("Priority", "7").asks_what_fits
    assert not explain("JobHeldUser", "7").asks_what_fits
    assert not explain("QOSGrpGRES", "7").asks_what_fits
