# SPDX-License-Identifier: Apache-2.0
"""Slurm's reasons for a pending job, in words for the job's user: what it means, and what to do. Pure.

The reasons are those of Slurm 22.05 to 26.05 (src/common/job_state_reason.c and the texts that slurmctld writes in
place of a reason). Names of limits are built from parts (QOSMaxGRESPerUser), so they are decoded by their parts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

WAIT = "Nothing: it starts by itself."
ADMIN = "Tell the administrator."


@dataclass(frozen=True, slots=True)
class Explained:
    """A reason in words. `asks_what_fits`: what is free now helps to decide what to do."""

    why: str
    advice: str
    asks_what_fits: bool = False


_EXCLUSIVE = Explained(
    "It was submitted with --exclusive and would hold all GPUs of its nodes, so its vGPU never starts.",
    "Cancel it, and submit it again without --exclusive. An administrator can keep it: "
    "scontrol update jobid={job} oversubscribe=yes",
)
_EXACT = {
    "None": Explained("Slurm has not looked at the job yet.", WAIT, True),
    "Priority": Explained(
        "Jobs with a higher priority wait for the same partition, and are placed first.",
        "Wait. A shorter --time or a smaller vgpu lets Slurm fit the job in before them.",
        True,
    ),
    "Resources": Explained(
        "It is the next to start, and no node that it may use has enough free now.",
        "Wait for running jobs to end, or ask for less.",
        True,
    ),
    "Dependency": Explained("It waits for other jobs, as it was submitted with --dependency.", WAIT),
    "DependencyNeverSatisfied": Explained(
        "A job that it depends on ended in a way that the dependency does not allow (afterok: it failed).",
        "Cancel it with scancel, repair the other job, and submit both again.",
    ),
    "BeginTime": Explained(
        "Its earliest start has not come: it was submitted with --begin, or it was requeued, which delays it by about "
        "two minutes.",
        WAIT,
    ),
    "JobHeldUser": Explained("It is held, by its user (--hold, scontrol hold).", "Run: scontrol release {job}"),
    "JobHeldAdmin": Explained(
        "An administrator holds it, or its priority is 0.", "Ask the administrator why; only they can release it."
    ),
    "JobHoldMaxRequeue": Explained(
        "It was requeued too often, and is held.",
        "Look at what ended its runs (sacct --duplicates), then ask for help.",
    ),
    "JobArrayTaskLimit": Explained(
        "As many tasks of its array run as --array=...%N allows.",
        "Wait, or run: scontrol update jobid={job} arraytaskthrottle=N",
    ),
    "BadConstraints": Explained(
        "No node that it may use has what it asks for: GPU type, --constraint, --nodelist, the size of the vgpu, or a "
        "mode of isolation, which can be out of service for a while.",
        "Change the request (scontrol update, or scancel and a new sbatch). hami-hpc pool shows what nodes have. If a "
        "mode is out of service, it starts by itself when the mode is back.",
        True,
    ),
    "PartitionConfig": Explained(
        "The job breaks a rule of its partition, such as its number of nodes, its accounts or its QoS.",
        "Compare with scontrol show partition, and choose another partition or ask for less.",
    ),
    "PartitionNodeLimit": Explained(
        "It asks for more nodes than its partition gives to one job.", "Ask for fewer nodes, or use another partition."
    ),
    "PartitionTimeLimit": Explained(
        "Its time limit is longer than its partition allows.",
        "Run: scontrol update jobid={job} timelimit=... with a time that scontrol show partition allows.",
    ),
    "PartitionDown": Explained("Its partition starts no jobs now.", "Wait, or use another partition."),
    "PartitionInactive": Explained("Its partition is switched off.", "Use another partition."),
    "Licenses": Explained("The licences that it asks for are in use.", WAIT),
    "Reservation": Explained("Its reservation has not begun, or is full.", "Look at scontrol show reservation."),
    "ReservationDeleted": Explained("Its reservation was deleted.", "Cancel it, and submit it without --reservation."),
    "ReservationInvalid": Explained("Its reservation is not valid.", "Cancel it, and submit it without --reservation."),
    "Prolog": Explained("Its node prepares the slice (prolog).", WAIT),
    "Cleaning": Explained("Its previous run is still being cleaned up.", WAIT),
    "NodeDown": Explained("A node that it needs is down.", "Wait, or choose another node.", True),
    "SystemFailure": Explained("Slurm or a node failed.", ADMIN),
    "JobLaunchFailure": Explained(
        "It could not be started on its node: program, prolog or node failed.",
        "Look at the job's output; " + ADMIN[0].lower() + ADMIN[1:],
    ),
    "NonZeroExitCode": Explained("Its program ended with an error.", "Look at the job's output."),
    "TimeLimit": Explained("It reached its time limit.", "Submit it with a longer --time."),
    "OutOfMemory": Explained(
        "It used more main memory than it had (not GPU memory).", "Submit it with a larger --mem."
    ),
    "InvalidAccount": Explained("Its account does not exist any more.", "Submit it with another --account."),
    "InvalidQOS": Explained("Its QoS does not exist any more, or is not for its account.", "Use another --qos."),
    "QOSNotAllowed": Explained("Its QoS is not allowed in this partition or for this account.", "Use another --qos."),
    "AccountNotAllowed": Explained("Its account may not use this partition.", "Use another --account or partition."),
    "AccountingPolicy": Explained("A limit of its account or QoS holds it back.", "Ask the administrator which."),
    "QOSUsageThreshold": Explained("Its account used too much lately for its QoS.", "Wait, or use another --qos."),
    "MaxMemPerLimit": Explained("It asks for more main memory than it may have.", "Submit it with a smaller --mem."),
    "DeadLine": Explained("It cannot end before its --deadline any more.", "Submit it with a later --deadline."),
    "Constraints": Explained(
        "No node with the features that it asks for is free.", "Wait, or drop --constraint.", True
    ),
    "SchedDefer": Explained("Slurm places jobs in batches, and has not come to this one.", WAIT, True),
    "NvidiaImexChannels": Explained("All NVIDIA IMEX channels are in use.", WAIT),
    "MaxPoweredUpNodes": Explained("As many nodes are powered up as the site allows.", WAIT),
}
# Texts that slurmctld writes instead of a reason -> what they mean; the first whose words occur.
_TEXTS = (
    (
        "launch failed requeued held",
        Explained(
            "Its start failed on the node, most often in the prolog; Slurm put it back and holds it.",
            "The fault is most often the node's: tell the administrator (the reason is in sinfo -R and the node's "
            "syslog). Then run: scontrol release {job}",
        ),
    ),
    (
        "requeued in held",
        Explained("It was requeued, and is held (scontrol requeuehold).", "Run: scontrol release {job}"),
    ),
    ("special exit", Explained("It was requeued in the state SPECIAL_EXIT.", "Run: scontrol release {job}")),
    (
        "maintenance",
        Explained(
            "The nodes that it may use are reserved for maintenance, before its time limit would end.",
            "Wait, or give it a --time that ends before: scontrol show reservation.",
        ),
    ),
    (
        "may be reserved for other job",
        Explained(
            "The nodes that it may use are reserved for others (scontrol show reservation), or not there yet "
            "(State=FUTURE).",
            "Wait, or use other nodes. A user of the reservation submits with --reservation=NAME.",
            True,
        ),
    ),
    (
        "nodes required for job are down",
        Explained(
            "All nodes that it may use are down, drained, or reserved for jobs of partitions with a higher priority.",
            "Wait until they are back (sinfo -R says why they are away), or use another partition.",
            True,
        ),
    ),
    (
        "reqnodenotavail",
        Explained(
            "A node that it needs is not available: down, drained or reserved.",
            "Wait until it is back (sinfo -R says why it is away), or do not ask for that node.",
            True,
        ),
    ),
)
_LIMIT = re.compile(
    r"(?P<owner>QOS|Assoc)?(?P<kind>Grp|Max|Min)(?P<thing>[A-Z][a-z]+|CPU|GRES|BB)(?P<run>Run)?"
    r"(?P<minutes>Min(?:ute)?s)?(?:Per(?P<per>Job|Node|User|Account))?(?:Limit|NotSatisfied)?"
)
_THINGS = {
    "cpu": "CPUs",
    "gres": "GPU units (GPUs, shards, vGPU memory or cores)",
    "mem": "main memory",
    "memory": "main memory",
    "node": "nodes",
    "jobs": "running jobs",
    "submit": "submitted jobs",
    "wall": "run time",
    "energy": "energy",
    "license": "licences",
    "bb": "burst buffer",
    "billing": "billing units (1000 are a GPU where the administrator uses hami-hpc quota)",
}


def explain(reason: str, job: str, *, is_exclusive: bool = False) -> Explained:
    """Returns a reason, as squeue or scontrol writes it, in words. `job` is the id for the commands in the advice.

    `is_exclusive`: a vGPU is to be in whole nodes, which Slurm does not name as the reason.
    """
    text = reason.replace("_", " ").strip().strip("()")
    found: Explained | None = _EXCLUSIVE
    if not is_exclusive:
        found = _EXACT.get(text) or next((words for mark, words in _TEXTS if mark in text.lower()), None)
        found = found or _limit(text)
    if found is None:
        return Explained(f"Slurm gives this reason: {text}.", "man squeue lists reasons; else ask the administrator.")
    return Explained(found.why, found.advice.replace("{job}", job), found.asks_what_fits)


def _limit(text: str) -> Explained | None:
    """Returns a limit's name in words: QOSMaxGRESPerUser, AssocGrpGRESMinutes, MaxJobsPerAccount."""
    compact = text.replace("JobLimit", "JobsLimit") if text.endswith("GrpJobLimit") else text
    match = _LIMIT.fullmatch(re.sub(r"(Wall)Duration|(Submit)Jobs?(?=Per|Limit)", r"\1\2", compact))
    if match is None or not (match["owner"] or match["per"] == "Account" or match["per"] == "User"):
        return None
    owner = {"QOS": "Its QoS", "Assoc": "Its account or user", None: "Its QoS"}[match["owner"]]
    thing = _THINGS.get(match["thing"].lower(), "one resource")
    if match["minutes"]:
        thing = f"minutes of {thing}" + (" that running jobs may still use" if match["run"] else "")
    if match["kind"] == "Min":
        return Explained(
            f"{owner} asks for at least some {thing}, and the job has less.", "Ask for more, or another --qos."
        )
    if match["kind"] == "Grp":
        why = f"{owner} has a limit of {thing} for all of its jobs together, and this job would exceed it."
        spent = "The limit counts what was used; it falls with time, or the administrator raises it."
        return Explained(why, spent if match["minutes"] and not match["run"] else "Wait until its other jobs end.")
    of_one = {"Job": "one job", "Node": "one job on one node", "User": "one user", "Account": "one account"}
    why = f"{owner} limits the {thing} of {of_one.get(match['per'] or '', 'one user')}, and this job would exceed it."
    if match["per"] in ("Job", "Node"):
        return Explained(why, "It will not start as it is: ask for less, or use another --qos.")
    return Explained(why, "Wait until other jobs of the same user or account end, or ask for less.")
