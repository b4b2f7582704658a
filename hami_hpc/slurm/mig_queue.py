# SPDX-License-Identifier: Apache-2.0
"""Parses what squeue and scontrol show of the MIG requests that wait for one node, and of its jobs' ends. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hami_hpc.contract import constants as c
from hami_hpc.core.asked import has_features
from hami_hpc.slurm.cluster_view import NO_VALUES, parse_nodes

ROWS_MAX = 1000
# Job, reason, partitions, gres, features. These are their user's text and may hold a bar, so they are last.
WAITING_FORMAT = "%A|%r|%P|%b|%f"
END_FORMAT = "%A|%e"
# Requests that a free place would not start. What a prolog sent back waits with the reason BeginTime.
HELD_BACK = ("Dependency", "DependencyNeverSatisfied", "JobHeldUser", "JobHeldAdmin")
_MEM, _CORES = (re.compile(rf"\b{name}[:=](\d{{1,12}})\b") for name in (c.GRES_MEM, c.GRES_CORES))


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job that waits for a slice: its units on each node, and its features."""

    job_id: int
    mem_mib: int
    cores: int
    features: str


def parse_waiting(text: str, node_text: str) -> tuple[Waiting, ...]:
    """Returns the jobs with slices that may run on the node, in the order of the text, which is in WAITING_FORMAT.

    `node_text` is what scontrol shows of the node. Lines of another form are left out, and all after ROWS_MAX.
    """
    nodes = parse_nodes(node_text, [])
    partitions = {name for node in nodes for name in node.partitions}
    available = [name for node in nodes for name in node.features]
    found = []
    for line in text.splitlines():
        words = line.split("|", 4)
        if len(words) != 5 or not words[0].isdigit() or words[1] in HELD_BACK:
            continue
        mem, cores = _MEM.search(words[3]), _CORES.search(words[3])
        features = "" if words[4] in NO_VALUES else words[4]
        if mem and cores and partitions.intersection(words[2].split(",")) and has_features(available, features):
            found.append(Waiting(int(words[0]), int(mem[1]), int(cores[1]), features))
    return tuple(found[:ROWS_MAX])


def parse_ends(text: str) -> dict[int, float]:
    """Returns when each job ends at the latest, in s since 1970, infinity without a limit, from END_FORMAT's lines."""
    rows = [line.partition("|") for line in text.splitlines()]
    return {int(job): float(end) if end.isdigit() else float("inf") for job, _, end in rows if job.isdigit()}
