# SPDX-License-Identifier: Apache-2.0
"""The steps of a job's start and end, with the difference of each to the one before (`hami-hpc trace`). Pure.

Three clocks tell them: slurmctld's host in whole seconds, cut off; the kernel of the job's node to 10 ms for the
processes that it starts; and CLOCK_REALTIME of that node in nanoseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

NS_PER_MS, NS_PER_S = 1_000_000, 1_000_000_000
TICK_NS = 10 * NS_PER_MS
SLURM, PROLOG, SPANK, JOB, EPILOG = "Slurm", "prolog", "SPANK", "the job's processes", "epilog"


@dataclass(frozen=True, slots=True)
class Kind:
    """One step: its name for people, where its time is from, and how exact that is."""

    key: str
    title: str
    source: str
    precision_ns: int
    missing: str  # why it is not known, where the record of its source is there without it


KINDS = (
    Kind("submitted", "submitted", SLURM, NS_PER_S, "Slurm shows none"),
    Kind("eligible", "eligible", SLURM, NS_PER_S, "Slurm shows none (yet)"),
    Kind("allocated", "allocated", SLURM, NS_PER_S, "the job has not been started"),
    Kind("prolog_began", "prolog began", PROLOG, TICK_NS, "an older hami_hpc ran the prolog, or could not note it"),
    Kind("prolog_done", "prolog done", PROLOG, 1, "an older hami_hpc ran the prolog, or could not note it"),
    Kind("first_step", "first step", SPANK, 1, "no step of the job was attached to its slice here"),
    Kind("first_context", "first context", JOB, 1, "no process of the job has noted that it made a CUDA context"),
    Kind("first_launch", "first kernel", JOB, 1, "no process of the job has noted that it launched a kernel"),
    Kind("last_use", "last use seen", JOB, 1, "no process of the job has noted work on the GPU"),
    Kind(
        "epilog_began",
        "epilog began",
        EPILOG,
        TICK_NS,
        "no epilog noted it: hami-hpc reconcile or an older hami_hpc wrote the record",
    ),
    Kind("epilog_done", "epilog done", EPILOG, 1, "no epilog noted it, or the record was copied or changed since"),
)
OF_SLURM = tuple(kind.key for kind in KINDS if kind.source == SLURM)
OF_NODE = tuple(kind.key for kind in KINDS if kind.source != SLURM)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a job. `unix_ns` is None where it is not known, and then `reason` says why.

    `after_ns` is the time since the last known step before it, None for the first one; exact to `after_precision_ns`.
    """

    kind: Kind
    unix_ns: int | None
    reason: str
    after_ns: int | None
    after_precision_ns: int
    note: str


def make_steps(unix_ns: Mapping[str, int], reasons: Mapping[str, str]) -> list[Step]:
    """Returns all steps in order. `unix_ns`: the known times by key; `reasons`: why others are not known, by key."""
    steps: list[Step] = []
    before: Step | None = None
    for kind in KINDS:
        at = unix_ns.get(kind.key)
        if at is None:
            steps.append(Step(kind, None, reasons.get(kind.key, kind.missing), None, 0, ""))
            continue
        if before is None or before.unix_ns is None:
            step = Step(kind, at, "", None, 0, "")
        else:
            after = at - before.unix_ns
            precision = max(kind.precision_ns, before.kind.precision_ns)
            step = Step(kind, at, "", after, precision, _note(after, precision, before.kind, kind))
        steps.append(step)
        before = step
    return steps


def _note(after_ns: int, precision_ns: int, before: Kind, kind: Kind) -> str:
    """Returns a remark on a step that comes before the one that it should follow; "" for any other."""
    if after_ns >= 0:
        return ""
    if -after_ns <= precision_ns and precision_ns > 1:
        return "at the same time, as far as these clocks tell"
    if JOB in (kind.source, before.source):
        return "before the step above: the job's own processes say one of the two, or a clock was set"
    if SLURM in (kind.source, before.source):
        return "before the step above: the clocks of slurmctld's host and of the node differ"
    return "before the step above: the node's clock was set, or the stage ran again"


def difference_text(step: Step) -> str:
    """Returns the difference in ms, with no more digits than the clocks give."""
    if step.after_ns is None:
        return ""
    if step.after_precision_ns >= NS_PER_S:
        return f"~{step.after_ns / NS_PER_MS:,.0f}"
    if step.after_precision_ns >= TICK_NS:
        return f"{step.after_ns / NS_PER_MS:,.0f}"
    return f"{step.after_ns / NS_PER_MS:,.2f}"
