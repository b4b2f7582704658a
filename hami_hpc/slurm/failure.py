# SPDX-License-Identifier: Apache-2.0
"""The error of a command of Slurm's that failed: what it said, and what to do. Pure."""

from __future__ import annotations

from hami_hpc.errors import NodeError

TYPE_CHECKING = False  # a failed prolog imports this, and not typing: docs/adr/021
if TYPE_CHECKING:
    from collections.abc import Sequence

LINES_MAX = 4
NO_NODE = ("Node ", " not found"), ("Invalid node name",)  # scontrol's words
NO_CONF = "Could not establish a configuration source"  # of any command of Slurm's
NO_SLURMDBD = "not running a supported accounting_storage plugin"  # sacctmgr's words


def failed(command: Sequence[str], printed: str) -> NodeError:
    """Returns the error. A command that cannot reach slurmctld prints a line for each try: of many different lines the
    first and the last are kept."""
    lines = list(dict.fromkeys(line.strip().removesuffix(".") for line in printed.splitlines() if line.strip()))
    said = "; ".join(lines if len(lines) <= LINES_MAX else [lines[0], "...", lines[-1]]) or "it said nothing"
    what = f"{' '.join(command)} failed"
    if NO_SLURMDBD in said:
        return NodeError(f"{what}: this cluster has no slurmdbd (AccountingStorageType of slurm.conf)")
    if NO_CONF in said:
        return NodeError(f"{what}: there is no slurm.conf here, nor does a name server know one. Set SLURM_CONF")
    if any(all(word in said for word in words) for words in NO_NODE):
        return NodeError(f"{what}: {said}. sinfo -N lists the nodes by their names in slurm.conf")
    return NodeError(f"{what}: {said}. Is slurmctld up (scontrol ping)?")
