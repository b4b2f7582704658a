# SPDX-License-Identifier: Apache-2.0
"""Every kind of event: who writes it, its fields and its meaning. docs/events.md has the same tables, and a test
compares them; `hami-hpc events --help` is made of this one. Pure.

A field that has nothing to say (0, or an empty text) may be left out of a line, except those that all events have.
"""

from __future__ import annotations

from typing import NamedTuple

# What each line of events.jsonl begins with.
COMMON = {
    "time_unix_ns": "when, ns since 1970 by this node's clock",
    "kind": "one of the kinds below",
    "source": "who wrote it: prolog, epilog, reconcile, agent, resize, swap, or a command: gpu, mig, mode",
}
FIELDS = {
    "text": "one line for people",
    "job_id": "Slurm's job id",
    "uid": "the job's user",
    "gpu_uuid": "the GPU, as NVML names it",
    "start_unix_ns": "start of the grant; with job_id it names one run of a job",
    "class": "class of service",
    "mem_mib": "memory granted, MiB",
    "cores": "share of the GPU's time granted, percent",
    "policy": "how the share of time is kept",
    "end_unix_ns": "end of the grant",
    "usage": "as in the usage record: ok, damaged or missing",
    "peak_bytes": "maximum device memory held at once",
    "gpu_busy_ns": "the GPU's time that the job used, ns",
    "oom_count": "requests refused because of a limit",
    "gpu_fault": "Xid code of a fault of the GPU that the job met; 0: none",
    "action": "what was done about it",
    "xid": "code of the GPU's error; of conditions that NVML shows gpu_lost has 79, ecc_double 48, others 0",
    "fault": "whose fault such an error is: application, hardware, driver or unknown",
    "mode": "the mode of isolation: share, mps or mig",
    "times": "how many there were since the last event of this kind, GPU and code",
}


class EventKind(NamedTuple):
    """One kind. `sources` are those that write it."""

    sources: tuple[str, ...]
    fields: tuple[str, ...]
    doc: str


_GRANT = ("text", "job_id", "uid", "gpu_uuid", "start_unix_ns")
_FINDING = ("text", "job_id", "gpu_uuid", "action")
_GPU = ("text", "gpu_uuid")
_ALL = ("prolog", "epilog", "reconcile", "agent", "gpu")

KINDS = {
    "grant": EventKind(
        ("prolog",),
        (*_GRANT, "class", "mem_mib", "cores", "policy"),
        "A job was granted a slice of a GPU; of several slices each has an event.",
    ),
    "resize": EventKind(
        ("resize",),
        (*_GRANT, "mem_mib", "cores"),
        "A running job's slice has another size from now on; of several slices each has an event.",
    ),
    "swap": EventKind(
        ("swap",),
        _GRANT,
        "The device memory of a running job's programs was moved to the host, or back to the GPU; or stays, and why.",
    ),
    "refused": EventKind(("prolog",), ("text", "job_id", "action"), "A job was refused: no step of it may start."),
    "grant_end": EventKind(
        ("epilog", "reconcile"),
        (*_GRANT, "end_unix_ns", "usage", "peak_bytes", "gpu_busy_ns", "oom_count", "gpu_fault"),
        "A job's grant ended, with its use in short; gpu_uuid has the GPUs of all its slices, separated by commas.",
    ),
    "node_drain": EventKind(
        ("prolog", "epilog", "agent"), ("text", "job_id"), "hami_hpc drained this node, for this reason."
    ),
    "node_resume": EventKind(
        ("reconcile", "agent"),
        ("text",),
        "hami_hpc returned this node to service, which it had drained while the run directory was full.",
    ),
    "reconciled": EventKind(("reconcile",), ("text", "action"), "hami-hpc reconcile did this, or says what it cannot."),
    "gpu_drain": EventKind(("gpu", "agent"), (*_GPU, "xid"), "A GPU was taken out of service, for this reason."),
    "gpu_resume": EventKind(("gpu",), _GPU, "A GPU was returned to service."),
    "mode_failed": EventKind(
        ("prolog",), ("text", "job_id", "mode"), "The backend of a mode failed for a job, which went back to the queue."
    ),
    "mode_out": EventKind(
        ("prolog",), ("text", "mode"), "A mode failed repeatedly and was taken out of this node's features for a while."
    ),
    "mode_back": EventKind(
        ("prolog", "reconcile", "agent", "mode"), ("text", "mode"), "A mode is in this node's features again."
    ),
    "mig_mode": EventKind(("mig",), _GPU, "hami-hpc mig switched MIG of a GPU on or off."),
    "mig_hold": EventKind(("mig",), _GPU, "hami-hpc mig defragment keeps a place of a GPU for instances of a profile."),
    "mig_layout": EventKind(("mig",), _GPU, "hami-hpc mig apply changed the static layout of a GPU."),
    "started": EventKind(("agent",), ("text",), "The agent started."),
    "ended": EventKind(("agent",), ("text",), "The agent was told to end. One that is killed writes nothing."),
    "settings_changed": EventKind(
        ("agent",), ("text",), "The settings that the agent read differ from those that it read before."
    ),
    "memory_over": EventKind(("agent",), _FINDING, "A job's processes hold more memory than it was granted."),
    "uncounted": EventKind(("agent",), _FINDING, "A job's processes hold more memory than its interposer counted."),
    "no_interposer": EventKind(("agent",), _FINDING, "A process of a vgpu job runs without the interposer."),
    "time_over": EventKind(("agent",), _FINDING, "A job of policy cap has more of the GPU's time than its share."),
    "processes_over": EventKind(("agent",), _FINDING, "More processes use a job's slice than its class allows."),
    "wrong_gpu": EventKind(("agent",), _FINDING, "A process of a vgpu job uses another GPU than the job's."),
    "no_grant": EventKind(("agent",), _FINDING, "A process uses a GPU that its job does not hold."),
    "no_job": EventKind(("agent",), _FINDING, "A process of no job uses a GPU."),
    "disturbed": EventKind(
        ("agent",), _FINDING, "A job found no memory within its grant, because another held more than its own."
    ),
    "memory_unseen": EventKind(("agent",), _GPU, "Memory of a GPU is in use that NVML shows of no process."),
    "gpu_lost": EventKind(("agent",), _GPU, "NVML does not reach a GPU, or fails on it."),
    "gpu_back": EventKind(("agent",), _GPU, "It answers again."),
    "blind": EventKind(("agent",), ("text",), "The agent cannot see the GPUs or the slices."),
    "sees_again": EventKind(("agent",), ("text",), "It can again."),
    "gpu_fault": EventKind(
        ("agent",), (*_GPU, "xid", "fault", "times", "action"), "A GPU reported an error, or NVML shows one."
    ),
    "faults_unwatched": EventKind(
        ("agent",), ("text",), "The driver lacks what the agent needs to be told of errors; it goes on without."
    ),
    "hook_failed": EventKind(("agent",), ("text", "times"), "A hook of the site failed or took too long."),
    "hook_refused": EventKind(
        ("agent",), ("text",), "A hook is not run: somebody other than root could write it, or it cannot be run."
    ),
    "hook_dropped": EventKind(("agent",), ("text", "times"), "Events that a hook was not given: it was too slow."),
}
# Not given to hooks: an event about a hook would start it again.
ABOUT_HOOKS = frozenset(kind for kind in KINDS if kind.startswith("hook_"))
